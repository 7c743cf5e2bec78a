import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import pgserver
from tests.harness import Agents, private_environment

pytest.register_assert_rewrite("cleveragents.testing")
# A shell that starts us in the background has it ignored, and so would what we start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("dev", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, print_blob=True, max_examples=100
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(autouse=True)
def private_process(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """No test sees the developer's home, settings or git identity; the folder used instead."""
    root = tmp_path_factory.mktemp("private")
    for name in tuple(os.environ):
        if name.startswith(("CLEVERAGENTS_", "GIT_", "XDG_", "PG")):
            monkeypatch.delenv(name)
    for name, value in private_environment(root).items():
        monkeypatch.setenv(name, value)
    return root


@pytest.fixture
def agents(private_process: Path) -> Agents:
    return Agents(private_process)


@pytest.fixture(scope="session")
def pg() -> Generator[pgserver.PgServer]:
    """A PostgreSQL server, started when the first test wants one."""
    with pgserver.running() as server:
        yield server


@pytest.fixture
def shop(pg: pgserver.PgServer) -> Generator[pgserver.Shop]:
    with pgserver.shop_on(pg) as made:
        yield made
