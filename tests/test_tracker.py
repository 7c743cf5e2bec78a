"""The tracker of changes by inotify: what it reports, and when it is no longer trusted."""

import contextlib
import ctypes
import errno
import os
import struct
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from cleveragents.content import fsio
from cleveragents.content.capture.tracker import Tracker


@pytest.fixture
def tracker(tmp_path: Path) -> Generator[Tracker]:
    (tmp_path / "tree/sub").mkdir(parents=True)
    one = Tracker(str(tmp_path / "tree"))
    one.watch((b"", b"sub"))
    yield one
    one.close()


def test_a_tracker_whose_root_was_moved_trusts_nothing_any_more(
    tracker: Tracker, tmp_path: Path
) -> None:
    assert tracker.take() == {}
    (tmp_path / "tree").rename(tmp_path / "other")
    assert tracker.take() is None
    assert not tracker.sure


@pytest.mark.parametrize("mask", [0x2000, 0x4000])
def test_after_an_unmount_or_an_overflow_only_a_walk_can_tell(tracker: Tracker, mask: int) -> None:
    tracker.read_events(struct.pack("iIII", -1, mask, 0, 0))
    assert tracker.take() is None


def test_no_more_watches_means_doubt_but_a_directory_that_is_gone_does_not(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker.watch((b"never/there",))
    assert tracker.sure

    def no_more(*_args: Any) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(fsio.libc(), "inotify_add_watch", no_more)
    tracker.watch((b"sub",))
    assert not tracker.sure
    tracker.watch((b"",))
    assert tracker.take() is None


def inotify_descriptors() -> list[int]:
    """Those of this process."""
    found: list[int] = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:inotify":
                found.append(int(name))
    return found


def test_a_tracker_that_cannot_read_or_was_closed_is_not_trusted(tracker: Tracker) -> None:
    (events,) = inotify_descriptors()
    folder = os.open("/", os.O_RDONLY)
    os.dup2(folder, events)
    os.close(folder)
    tracker.drain()
    assert not tracker.sure
    tracker.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(events)


def test_a_moved_directory_is_known_by_its_new_name_only(tracker: Tracker, tmp_path: Path) -> None:
    (tmp_path / "tree/sub").rename(tmp_path / "tree/new")
    tracker.watch((b"new",))
    tracker.forget(b"sub")
    tracker.take()
    (tmp_path / "tree/new/file").write_text("x")
    assert tracker.take() == {b"new": {b"file"}}
    tracker.forget(b"new")
    tracker.take()
    (tmp_path / "tree/new/other").write_text("x")
    assert tracker.take() == {}


def test_a_file_held_open_since_before_counts_as_touched_until_it_is_closed(
    tracker: Tracker, tmp_path: Path
) -> None:
    path = tmp_path / "tree/sub/file"
    path.write_text("x")
    tracker.take()
    with open(path, "r+b") as holder:
        tracker.look_for_holders()
        assert tracker.take() == {b"sub": {b"file"}}
        assert tracker.held_inodes == {os.fstat(holder.fileno()).st_ino}
        path.rename(tmp_path / "tree/moved")
        tracker.take()
        assert tracker.take() == {b"": {b"moved"}}
    tracker.take()
    assert tracker.take() == {}


LEASED = """\
import fcntl, subprocess, sys
from cleveragents.content.capture.tracker import Tracker

call, root = fcntl.fcntl, sys.argv[1]

def opened_meanwhile(fd, command, *more):
    found = call(fd, command, *more)
    if command == fcntl.F_SETLEASE and more == (fcntl.F_RDLCK,):
        open_it = "import os, sys; os.open(sys.argv[1], os.O_WRONLY | os.O_NONBLOCK)"
        subprocess.run([sys.executable, "-c", open_it, root + "/file"], stderr=subprocess.DEVNULL)
    return found

fcntl.fcntl = opened_meanwhile
tracker = Tracker(root)
tracker.watch((b"",))
kept = open(root + "/file")
assert tracker.take() is not None
print("alive")
"""


def test_who_opens_a_file_while_it_is_asked_about_does_not_end_us(tmp_path: Path) -> None:
    """The kernel tells whoever has a lease on it by a signal."""
    (tmp_path / "file").write_text("x")
    done = subprocess.run(
        [sys.executable, "-c", LEASED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
