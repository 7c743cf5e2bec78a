"""Paths of more than 4,096 bytes: twice as deep is twice the work, counted in calls and nodes."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cleveragents.content import descent, fsio
from cleveragents.content.capture import updating
from cleveragents.content.capture.tracker import Tracker
from cleveragents.content.native import walker

LEVELS = 3000
PATH = b"/".join([b"d"] * LEVELS)
COUNTED = """
import os, sys
from cleveragents.content.native import walker
found = walker.walk(os.open(sys.argv[1], os.O_RDONLY), (), ())
print(len(found), sum(isinstance(blob, bytes) for _, blob in found))
"""


@pytest.fixture
def deep(private_process: Path, tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "deep"
    root.mkdir()
    fd = os.open(root, os.O_RDONLY)
    for _ in range(LEVELS):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    yield root
    subprocess.run(["rm", "-rf", root], check=True)


@pytest.mark.skipif(not walker.ACCELERATED, reason="needs the compiled walk")
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to count system calls")
def test_a_walk_opens_each_directory_a_few_times(deep: Path) -> None:
    command = ["strace", "-f", "-c", "-e", "trace=openat,openat2", sys.executable, "-c", COUNTED]
    done = subprocess.run([*command, str(deep)], capture_output=True, text=True, check=False)
    if "PTRACE" in done.stderr:
        pytest.skip(f"strace may not be used here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(LEVELS + 1)] * 2
    counts = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+).*openat2?$", done.stderr, re.MULTILINE)
    assert LEVELS < sum(map(int, counts)) < 4 * LEVELS + 1000, done.stderr


def test_the_walk_in_python_opens_each_directory_a_few_times(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, count = os.open, 0

    def counted(*args: Any, **named: Any) -> int:
        nonlocal count
        count += 1
        return opened(*args, **named)

    monkeypatch.setattr(fsio, "_descend", fsio.python_descend)
    monkeypatch.setattr(os, "open", counted)
    with fsio.directory(str(deep)) as root:
        found = walker.python_walk(root, (), ())
    assert len(found) == LEVELS + 1
    assert all(isinstance(blob, bytes) for _, blob in found)
    assert count < 4 * LEVELS


def test_what_to_look_at_again_is_one_node_per_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    start = updating.Work.__init__

    def count(self: updating.Work) -> None:
        nonlocal made
        made += 1
        start(self)

    monkeypatch.setattr(updating.Work, "__init__", count)
    work = updating.Work()
    for level in range(1, LEVELS + 1):
        work.at(PATH[: 2 * level - 1]).whole = True
    assert made == LEVELS + 1
    assert work.at(b"d/d") is work.below[b"d"].below[b"d"]


WAYS: dict[str, Callable[[int, bytes], int]] = {"Python": fsio.python_descend}
if walker.ACCELERATED:
    from cleveragents.content.native import _walk

    WAYS["compiled"] = _walk.open_below


@pytest.mark.parametrize("way", WAYS)
def test_a_long_path_is_opened_and_no_link_in_it_followed(deep: Path, way: str) -> None:
    descend = WAYS[way]
    with fsio.directory(str(deep)) as root:
        fd = descend(root, PATH)
        assert os.listdir(fd) == ["leaf"]
        os.symlink("..", "link", dir_fd=fd)
        os.close(fd)
        for wrong, error in (
            (PATH + b"/link", NotADirectoryError),
            (PATH + b"/link/d", NotADirectoryError),
            (PATH + b"/leaf", NotADirectoryError),
            (PATH + b"/missing/d", FileNotFoundError),
        ):
            with pytest.raises(error):
                descend(root, wrong)


@pytest.mark.skipif(not Tracker.available(), reason="needs inotify")
def test_a_directory_far_down_is_watched(deep: Path) -> None:
    tracker = Tracker(str(deep))
    try:
        tracker.watch_only({PATH[: 2 * level - 1] for level in range(1, LEVELS + 1)} | {b""})
        assert tracker.sure
        with fsio.directory(str(deep)) as root:
            fd = descent.open_below(root, PATH)
            os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
            os.close(fd)
        told = tracker.take()
        assert told is not None
        assert b"new" in told[PATH]
    finally:
        tracker.close()
