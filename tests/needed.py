"""Programs that not every machine has: a test without them is skipped, and says so."""

import shutil

import pytest


def needs(*programs: str) -> None:
    if missing := [name for name in programs if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
