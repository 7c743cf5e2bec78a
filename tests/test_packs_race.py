"""Two writers that begin at the same moment never write into one pack."""

import fcntl
import os
from pathlib import Path

import pytest

from cleveragents.content import packs
from cleveragents.content.keys import (
    BLOB,
    key_of,
)
from cleveragents.content.packs import (
    Packs,
)
from cleveragents.errors import DiskFull
from tests.test_engine import Index


def store(folder: Path, index: Index, content: bytes) -> None:
    one = Packs(os.fspath(folder), index)
    with one.batch() as batch:
        batch.put(BLOB, content)
        batch.seal()
        index.update(batch.located)
    one.close()


def test_a_pack_that_is_being_made_is_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one comes between the making of the file and its lock."""
    index, real, came = Index(), fcntl.flock, list[int]()

    def late(fd: int, how: int) -> None:
        if how == fcntl.LOCK_EX and not came:
            came.append(fd)
            store(tmp_path, index, b"the other")
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    store(tmp_path, index, b"the one")
    assert came
    reader = Packs(os.fspath(tmp_path), index)
    for content in (b"the other", b"the one"):
        assert reader.get(key_of(BLOB, content)) == content
    reader.close()
    assert all(name.endswith(".pack") for name in os.listdir(tmp_path))


def test_what_a_dead_writer_left_is_taken_away_and_a_living_one_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, real, came = Index(), fcntl.flock, list[int]()
    (tmp_path / "01.pack.new").write_bytes(b"")

    def late(fd: int, how: int) -> None:
        if how == fcntl.LOCK_EX and not came:
            came.append(fd)
            Packs(os.fspath(tmp_path), index).remove_unnamed()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    store(tmp_path, index, b"the one")
    assert came
    (left,) = os.listdir(tmp_path)
    assert left.endswith(".pack")
    assert Packs(os.fspath(tmp_path), index).get(key_of(BLOB, b"the one")) == b"the one"


def test_a_pack_that_could_not_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packs.fsio, "sync", full)
    with pytest.raises(DiskFull, match="No space"):
        store(tmp_path, Index(), b"content")
    assert os.listdir(tmp_path) == []
