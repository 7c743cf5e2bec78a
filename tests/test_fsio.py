"""The file layer: what it does when a disk, a kernel or a file system refuses."""

import ctypes
import errno
import os
import stat
from pathlib import Path

import pytest

from cleveragents.content import fsio, removal
from cleveragents.errors import (
    StoreError,
)
from tests.in_process import fail_with, ordinary_user


@pytest.mark.parametrize("call", ["fsync", "fdatasync"])
def test_a_disk_that_does_not_take_the_data_is_an_error_of_the_store(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, call, fail_with(errno.EIO))
    sync = fsio.sync if call == "fsync" else fsio.sync_data
    with (
        fsio.directory(str(tmp_path)) as fd,
        pytest.raises(StoreError, match="could not flush data"),
    ):
        sync(fd)


def test_a_file_system_that_cannot_be_synced_is_an_error_of_the_store() -> None:
    with pytest.raises(StoreError, match=os.strerror(errno.EBADF)):
        fsio.sync_all(-1)


@pytest.fixture(params=["no such function", errno.ENOSYS, errno.EINVAL])
def old_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A libc without renameat2, a kernel without it, and a file system without it."""

    def refuse(*_args: object) -> int:
        ctypes.set_errno(request.param)
        return -1

    refused = None if isinstance(request.param, str) else refuse
    monkeypatch.setattr(fsio.libc(), "renameat2", refused, raising=False)


@pytest.mark.usefixtures("old_kernel")
def test_without_the_kernels_help_a_rename_still_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("new")
    (tmp_path / "there").write_text("there")
    with fsio.directory(str(tmp_path)) as fd:
        with pytest.raises(FileExistsError):
            fsio.rename(b"new", fd, b"there", fd)
        fsio.rename(b"new", fd, b"free", fd)
    assert (tmp_path / "there").read_text() == "there"
    assert (tmp_path / "free").read_text() == "new"
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("old_kernel")
def test_without_the_kernels_help_two_names_are_still_swapped(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    with fsio.directory(str(tmp_path)) as fd:
        fsio.exchange(b"a", fd, b"b", fd)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "2", "b": "1"}


def test_what_a_tool_closed_is_opened_up_for_an_ordinary_user() -> None:
    with ordinary_user() as folder:
        deep = folder / "a/b"
        deep.mkdir(parents=True)
        (deep / "file").write_text("x")
        (deep / "link").symlink_to("/nowhere")
        (deep / "file").chmod(0o010)
        deep.chmod(0)
        (folder / "a").chmod(0)
        with pytest.raises(PermissionError):
            os.listdir(folder / "a")
        removal.open_up(str(folder))
        assert (deep / "file").read_text() == "x"
        assert stat.S_IMODE((deep / "file").stat().st_mode) == 0o410
        assert os.readlink(deep / "link") == "/nowhere"


def test_read_only_directories_are_removed_and_what_is_not_there_is_fine() -> None:
    with ordinary_user() as folder:
        deep = folder / "top/a/b"
        deep.mkdir(parents=True)
        (deep / "file").write_text("x")
        (folder / "kept").write_text("kept")
        (deep / "link").symlink_to(folder)
        for path in (deep, deep.parent, folder / "top"):
            path.chmod(0o500)
        removal.remove_tree(str(folder / "top"))
        assert os.listdir(folder) == ["kept"]
        removal.remove_tree(str(folder / "top"))
