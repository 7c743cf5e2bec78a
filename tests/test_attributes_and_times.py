"""Attributes, ACLs and times are part of what is captured and put back."""

import os
import stat
import subprocess
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cleveragents.content import attributes, fsio
from cleveragents.content.entry import (
    Entry,
    EntryKind,
)
from cleveragents.content.native import manifests
from cleveragents.workspace import PlanHandle, open_workspace
from tests.needed import needs
from tests.test_apply_targets import Bench


def tool(*argv: str) -> str:
    needs(argv[0])
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def bench(tmp_path: Path) -> Generator[Bench]:
    with ExitStack() as stack:
        one = Bench(tmp_path / "bench", stack)
        one.write("file")
        one.write("folder/inner")
        try:
            os.setxattr(one.target / "file", "user.old", b"old")
        except OSError as error:
            pytest.skip(f"no extended attributes here: {error}")
        os.setxattr(one.target / "folder", "user.on-folder", b"old")
        yield one


def exactly(root: Path) -> dict[str, object]:
    """Every path with mode, mtime (but of directories) and attributes."""
    found: dict[str, object] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        about = path.lstat()
        names = [] if path.is_symlink() else sorted(os.listxattr(path))
        found[str(path.relative_to(root))] = (
            about.st_mode,
            0 if stat.S_ISDIR(about.st_mode) else about.st_mtime_ns,
            [(name, os.getxattr(path, name)) for name in names if name != "security.selinux"],
        )
    return found


def sandbox(plan: PlanHandle) -> Path:
    [path] = plan.sandboxes.values()
    return Path(path)


def test_a_sandbox_has_the_attributes_of_what_it_was_made_from(bench: Bench) -> None:
    (bench.target / "big").write_bytes(b"x" * 300_000)
    os.setxattr(bench.target / "big", "user.big", b"1")
    os.symlink("file", bench.target / "link")
    os.mkfifo(bench.target / "pipe")
    for name in ("link", "pipe", "big"):
        os.utime(bench.target / name, ns=(1, 1_000_000_001), follow_symlinks=False)
    tool("setfacl", "-m", "u:12:rw", str(bench.target / "file"))
    tool("setfacl", "-d", "-m", "u:12:rw", str(bench.target / "folder"))
    os.setxattr(bench.target, "user.top", b"1")
    plan = bench.run("true")
    assert exactly(sandbox(plan)) == exactly(bench.target)


CHANGES = {
    "set": "setfattr -n user.new -v 1 file",
    "changed": "setfattr -n user.old -v 1 file",
    "removed": "setfattr -x user.old file",
    "on a folder": "setfattr -n user.new -v 1 folder; setfattr -x user.on-folder folder",
    "on the root": "setfattr -n user.new -v 1 .",
    "acl": "setfacl -m u:12:r file; setfacl -m u:12:rwx folder",
    "default acl": "setfacl -d -m u:12:rwx folder; echo x > folder/new",
    "with the content": "echo more >> file; setfattr -n user.new -v 1 file",
    "lost by a rename": "cp file x; mv x file",
    "with the folder": "rm -r folder file",
    "touched": "touch -d 2001-01-01 file folder/inner",
    "far away": "touch -d 2400-01-01 file; touch -d 1905-01-01 folder/inner",
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("again", [False, True], ids=["same process", "another process"])
def test_what_a_step_does_is_put_back_and_brought_again(
    bench: Bench, name: str, again: bool
) -> None:
    """To the first group, and by undo to the last one: each time exactly what it was."""
    needs(*(word for word in ("setfattr", "setfacl") if word in CHANGES[name]))
    plan = bench.run(CHANGES[name])
    root, before = sandbox(plan), exactly(bench.target)
    after = exactly(root)
    assert after != before
    with ExitStack() as stack:
        if again:
            ws = stack.enter_context(open_workspace(settings=bench.settings))
            plan = ws.find(plan.plan_id)
        plan.rollback("first")
        assert exactly(root) == before
        plan.undo()
        assert exactly(root) == after


def test_a_touched_file_keeps_its_inode_and_is_no_change(bench: Bench) -> None:
    plan = bench.run("touch -d 2001-01-01 file")
    inode = (sandbox(plan) / "file").stat().st_ino
    assert plan.diff().files_changed == 0
    result = plan.rollback("first")
    assert (sandbox(plan) / "file").stat().st_ino == inode
    assert (sandbox(plan) / "file").stat().st_mtime_ns == (bench.target / "file").stat().st_mtime_ns
    assert not result.changes


def test_names_of_one_file_are_names_of_one_file_again(bench: Bench) -> None:
    plan = bench.run("ln file other; ln file folder/third; echo alone > alone")
    plan.checkpoint("linked")
    root = sandbox(plan)
    for name in ("file", "alone"):
        with (root / name).open("a") as one:
            one.write("more\n")
    plan.rollback("linked")
    assert (root / "folder/third").read_text() == (root / "file").read_text() == "text\n"
    inodes = {(root / name).stat().st_ino for name in ("file", "other", "folder/third")}
    assert len(inodes) == 1
    assert (root / "alone").stat().st_nlink == 1
    plan.undo()
    assert (root / "other").read_text() == "text\nmore\n"
    assert (root / "file").stat().st_nlink == 3


def test_links_and_pipes_come_back_with_their_times(bench: Bench) -> None:
    os.symlink("file", bench.target / "link")
    os.mkfifo(bench.target / "pipe")
    for name in ("link", "pipe"):
        os.utime(bench.target / name, ns=(1, 1_000_000_001), follow_symlinks=False)
    plan = bench.run("rm link pipe; touch -h -d 2001-01-01 file")
    plan.rollback("first")
    assert exactly(sandbox(plan)) == exactly(bench.target)


def test_only_what_a_plan_did_to_attributes_is_applied(bench: Bench) -> None:
    needs("setfattr")
    plan = bench.run("setfattr -n user.new -v 1 file folder; setfattr -x user.on-folder folder")
    os.setxattr(bench.target / "file", "user.mine", b"2")
    assert len(plan.diff().files) == 2
    plan.apply()
    assert sorted(os.listxattr(bench.target / "file")) == ["user.mine", "user.new", "user.old"]
    assert os.listxattr(bench.target / "folder") == ["user.new"]


def test_an_entry_without_attributes_is_written_as_ever() -> None:
    """Stores that exist stay what they are: keys, states and hashes."""
    entries = [
        Entry(b"a", EntryKind.FILE, 0o644, 3, 5, b"b" + b"k" * 32),
        Entry(b"d", EntryKind.DIRECTORY, 0o755, key=b"t" + b"k" * 32, state=b"s" * 32),
    ]
    data = manifests.manifest(entries)
    assert data[:2] == b"\x92\x97"
    assert manifests.state_text(data) == (b"f644 1 33 ab" + b"k" * 32 + b"d755 1 32 d" + b"s" * 32)


@pytest.mark.parametrize("twin", [manifests.state_text, manifests.python_state_text])
def test_attributes_make_another_state(twin: object) -> None:
    assert callable(twin)
    some = attributes.packed({b"user.a": b"1"})
    key, state = b"b" + b"k" * 32, b"s" * 32
    texts = {
        twin(manifests.manifest([entry]))
        for entry in (
            Entry(b"a", EntryKind.FILE, 0o644, 3, 5, key),
            Entry(b"a", EntryKind.FILE, 0o644, 3, 5, key, some),
            Entry(b"a", EntryKind.DIRECTORY, 0o644, key=key, state=state),
            Entry(b"a", EntryKind.DIRECTORY, 0o644, key=key, state=state + some),
        )
    }
    assert len(texts) == 4
    assert texts == {
        manifests.python_state_text(manifests.manifest([entry]))
        for entry in (
            Entry(b"a", EntryKind.FILE, 0o644, 3, 5, key),
            Entry(b"a", EntryKind.FILE, 0o644, 3, 5, key, some),
            Entry(b"a", EntryKind.DIRECTORY, 0o644, key=key, state=state),
            Entry(b"a", EntryKind.DIRECTORY, 0o644, key=key, state=state + some),
        )
    }


@pytest.mark.parametrize("year", [1902, 1969, 1970, 2261, 2263, 2400, 2445])
def test_compiled_and_python_know_the_same_times(tmp_path: Path, year: int) -> None:
    from datetime import UTC, datetime

    from cleveragents.content import files
    from cleveragents.content.native import walker

    moment = int(datetime(year, 3, 1, tzinfo=UTC).timestamp()) * 10**9 + 123
    with fsio.directory(str(tmp_path)) as fd:
        made = fsio.put(fd, b"f", b"data", 0o644, moment)
        found = os.stat(b"f", dir_fd=fd)
        if abs(found.st_mtime_ns - moment) > 10**9:
            pytest.skip(f"this file system does not know the year {year}")
        assert made == fsio.inode_of(found)
        assert files.look(fd, b"f", 100) == files.python_look(fd, b"f", 100)
        assert sorted(walker.walk(fd, (), ())) == sorted(walker.python_walk(fd, (), ()))
        [(_, blob)] = walker.walk(fd, (), ())
        assert isinstance(blob, bytes)
        assert walker.unpack(blob)[b"f"] == files.stamp(found)
