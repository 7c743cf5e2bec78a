"""Packs: a full disk, locks, and two writers that begin at the same moment."""

import errno
import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cleveragents.content import reserve
from cleveragents.content.keys import (
    BLOB,
    key_of,
)
from cleveragents.content.packs import (
    Packs,
)
from cleveragents.errors import (
    DiskFull,
    StoreError,
)
from tests.in_process import fail_with
from tests.test_capture import Index
from tests.test_content_properties import opened_packs, put


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
    monkeypatch.setattr(os, "fsync", fail_with(errno.ENOSPC))
    with pytest.raises(DiskFull, match="No space"):
        store(tmp_path, Index(), b"content")
    assert os.listdir(tmp_path) == []


def test_nothing_is_stored_when_the_disk_is_as_good_as_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened_packs() as store:
        room = reserve.SIZE + reserve.MARGIN + 70
        full = SimpleNamespace(f_bavail=room, f_blocks=2 * room, f_frsize=1)
        monkeypatch.setattr(os, "statvfs", lambda _path: full)
        with pytest.raises(StoreError, match="the disk is full"):
            put(store, b"x" * 71)
        (key,) = put(store, b"3")
        assert store.get(key) == b"3"


def test_what_was_only_looked_at_cannot_be_sealed() -> None:
    with opened_packs() as store, store.preview() as batch:
        batch.put(BLOB, b"x")
        with pytest.raises(AssertionError, match="only looked at"):
            batch.seal()


def test_a_pack_that_is_gone_or_in_use_cannot_be_locked() -> None:
    with opened_packs() as store:
        assert store.try_lock("gone.pack") is None
        put(store, b"x")
        store.release_pack()
        (name,) = store.names()
        with open(f"{store.directory}/{name}", "rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            assert store.try_lock(name) is None
        fd = store.try_lock(name)
        assert fd is not None
        os.close(fd)
