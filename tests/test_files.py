"""One file read or written: in pieces, in place of a link, compiled and in Python alike."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleveragents.content import files, fsio
from cleveragents.content.files import blocks, capture_file, write_content
from cleveragents.content.keys import (
    BLOB,
    key_of,
)
from cleveragents.errors import (
    CheckpointFailed,
    ContentDamaged,
)
from tests.in_process import ordinary_user
from tests.test_content_properties import opened_packs

LOOKS = (files.look, files.python_look)


PUTS = (fsio.put, fsio.python_put)


def both_look(folder: Path, name: bytes, limit: int) -> files.Seen | None:
    with fsio.directory(os.fspath(folder)) as fd:
        one, other = (look(fd, name, limit) for look in LOOKS)
    assert one == other
    return one


def test_looking_at_names_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "empty").touch()
    (tmp_path / "closed").write_bytes(b"x")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    os.link(tmp_path / "file", os.fsencode(tmp_path) + b"/\xff\n")
    seen = both_look(tmp_path, b"file", 7)
    assert seen is not None
    assert seen[:5] == files.stamp((tmp_path / "file").lstat())
    assert (seen[5], seen[7]) == (2, b"content")
    for name, limit, data in (
        (b"file", 6, None),
        (b"\xff\n", 100, b"content"),
        (b"empty", 0, b""),
        (b"empty", -1, None),
        (b"dir", 10**9, None),
        (b"link", 100, None),
        (b"fifo", 100, None),
    ):
        found = both_look(tmp_path, name, limit)
        assert found is not None
        assert found[7] == data
    assert both_look(tmp_path, b"nothing", 100) is None


def test_a_name_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for look in LOOKS:
        with fsio.directory(os.fspath(tmp_path)) as fd, pytest.raises(NotADirectoryError):
            look(fd, b"file/below", 10)


def test_a_file_that_grows_while_it_is_read_is_not_taken_for_one_version() -> None:
    """Files of /proc have no size: the content is not what stat promised."""
    with fsio.directory(f"/proc/{os.getpid()}") as fd:
        for look in LOOKS:
            found = look(fd, b"status", 1000)
            assert found is not None
            assert found[7] is None


@settings(max_examples=50, deadline=None)
@given(
    data=st.binary(max_size=3000),
    mode=st.sampled_from([0o600, 0o644, 0o755, 0o400]),
    mtime=st.one_of(st.just(fsio.NO_TIME), st.integers(-(10**15), 2 * 10**18)),
)
def test_a_new_file_is_the_same_either_way(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, mode: int, mtime: int
) -> None:
    folder = tmp_path_factory.mktemp("put")
    with fsio.directory(os.fspath(folder)) as fd:
        for number, put in enumerate(PUTS):
            name = b"n%d" % number
            made = put(fd, name, data, mode, mtime)
            found = os.stat(name, dir_fd=fd)
            assert made == fsio.inode_of(found)
            assert found.st_mode & 0o7777 == mode
            assert (folder / name.decode()).read_bytes() == data
            if mtime != fsio.NO_TIME:
                assert found.st_mtime_ns == mtime


@pytest.mark.parametrize("put", PUTS)
def test_an_existing_name_is_never_written_to(put: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to("elsewhere")
    with fsio.directory(os.fspath(tmp_path)) as fd:
        for name in (b"there", b"link"):
            with pytest.raises(FileExistsError):
                put(fd, name, b"theirs", 0o600, 0)
    assert (tmp_path / "there").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_comes_in_small_pieces_is_cut_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(files.CHUNK + 500)
    (tmp_path / "file").write_bytes(data)
    read = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: read(fd, min(size, 50_000)))
    with open(tmp_path / "file", "rb") as file:
        assert list(blocks(file.fileno())) == [data[: files.CHUNK], data[files.CHUNK :]]


def test_a_link_in_place_of_a_file_is_not_read_and_a_closed_file_is_named(
    tmp_path: Path,
) -> None:
    with opened_packs() as store, store.batch() as batch, ordinary_user() as folder:
        (folder / "link").symlink_to("/etc/passwd")
        (folder / "closed").write_text("x")
        (folder / "closed").chmod(0)
        with fsio.directory(str(folder)) as fd:
            assert capture_file(fd, b"link", b"link", batch) is None
            with pytest.raises(CheckpointFailed, match=r"sub/closed cannot be read") as caught:
                capture_file(fd, b"closed", b"sub/closed", batch)
    assert "chmod u+r" in caught.value.hint


def test_content_that_is_not_what_its_key_says_is_never_left_unnoticed(tmp_path: Path) -> None:
    with fsio.directory(str(tmp_path)) as fd, pytest.raises(ContentDamaged, match="file"):
        write_content(lambda _key: b"wrong", key_of(BLOB, b"right"), fd, b"file", 0o644)
