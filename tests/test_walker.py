"""Both walkers, compiled and in Python, tell the same of a tree."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cleveragents.content import fsio
from cleveragents.content.native import walker
from tests.in_process import ordinary_user


def test_both_walkers_tell_of_mount_points_and_pruned_names_alike(tmp_path: Path) -> None:
    for name in ("a/b", "skip/x", "c/path/y", "c/z"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/file").write_text("x")
    with fsio.directory(str(tmp_path)) as fd:
        slow = walker.python_walk(fd, (b"skip",), (b"c/path",))
        assert dict(walker.walk(fd, (b"skip",), (b"c/path",))) == dict(slow)
    assert dict(slow).keys() == {b"", b"a", b"a/b", b"c", b"c/z"}


def test_the_slow_walker_tells_what_it_cannot_read_and_what_is_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ordinary_user() as folder:
        (folder / "closed").mkdir(mode=0)
        (folder / "mounted").mkdir()
        real = os.stat

        def foreign(name: Any, **options: Any) -> Any:
            found = real(name, **options)
            if name != b"mounted":
                return found
            names = [n for n in dir(found) if n.startswith("st_")]
            return SimpleNamespace(**{n: getattr(found, n) for n in names} | {"st_dev": -1})

        with fsio.directory(str(folder)) as fd, monkeypatch.context() as patch:
            patch.setattr(os, "stat", foreign)
            found = dict(walker.python_walk(fd, (), ()))
    assert found.pop(b"mounted") == errno.EXDEV
    assert found.pop(b"closed") == errno.EACCES
    assert found.keys() == {b""}
