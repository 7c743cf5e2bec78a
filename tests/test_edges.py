"""The rare turns: a disk that fails, a kernel that cannot, and others at work at the same time."""

import ctypes
import errno
import fcntl
import os
import shutil
import stat
import struct
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from cleveragents import lease
from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.checkpoints.prune import policy_of, reachable_groups, verdicts_on
from cleveragents.checkpoints.sandboxes import layout
from cleveragents.content import files, fsio, removal, reserve
from cleveragents.content.capture.statcache import StatCache
from cleveragents.content.capture.tracker import Tracker
from cleveragents.content.entry import (
    Entry,
    EntryKind,
)
from cleveragents.content.files import blocks, capture_file, write_content
from cleveragents.content.fsio import inode_of
from cleveragents.content.keys import (
    BLOB,
    key_of,
)
from cleveragents.content.native import walker
from cleveragents.content.restore import switch
from cleveragents.content.restore.staging import stage
from cleveragents.content.restore.switch import Switch
from cleveragents.content.scope import Scope
from cleveragents.content.tree_diff import (
    Difference,
)
from cleveragents.errors import (
    ApplyRefused,
    CheckpointFailed,
    ContentDamaged,
    NotAllowed,
    NotFound,
    PlanBusy,
    SandboxError,
    SandboxMissing,
    SandboxNotOurs,
    StoreError,
)
from cleveragents.execution import executor as executing
from cleveragents.execution.executor import PlanExecutor
from cleveragents.execution.sandboxes import make_sandboxes
from cleveragents.lease import (
    LeasedPlan,
    hold,
    working_on,
)
from cleveragents.maintenance import recovery
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.ids import new_id
from cleveragents.model.journal import EntryState, Operation
from cleveragents.model.plan import Failure, Phase, State, StepState
from cleveragents.model.plan_spec import KeepSpec, PolicySpec
from cleveragents.model.settings import Settings
from cleveragents.model.tool import CallState
from cleveragents.sandbox.protocol import LastsLater
from cleveragents.store import Intent, open_store
from cleveragents.tools import carried, leftovers
from cleveragents.workspace import PlanHandle, Workspace, open_workspace
from tests.test_content_properties import opened_packs, put
from tests.test_engine import bench

# The file layer


def fail_with(code: int) -> Callable[..., Any]:
    def failing(*_args: Any, **_options: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return failing


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


@pytest.fixture
def old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsio, "_renameat2", lambda *_: False)


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


def test_a_libc_without_renameat2_or_a_file_system_without_it_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("1")
    with fsio.directory(str(tmp_path)) as fd:
        assert not fsio._renameat2(fd, b"a", fd, b"b", 1 << 20)
        monkeypatch.setattr(fsio, "_libc", SimpleNamespace)
        fsio.rename(b"a", fd, b"b", fd)
    assert (tmp_path / "b").read_text() == "1"


@contextmanager
def somebody() -> Generator[Path]:
    """A folder, and the rights of an ordinary user in it."""
    folder = Path(tempfile.mkdtemp())
    was = os.geteuid()
    if was == 0:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(was)
        shutil.rmtree(folder, ignore_errors=True)


def test_what_a_tool_closed_is_opened_up_for_an_ordinary_user() -> None:
    with somebody() as folder:
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
    with somebody() as folder:
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


# Files in and out


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
    with opened_packs() as store, store.batch() as batch, somebody() as folder:
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


def test_nothing_is_stored_when_the_disk_is_as_good_as_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened_packs() as store:
        monkeypatch.setattr(fsio, "free_bytes", lambda _path: reserve.SIZE + reserve.MARGIN + 70)
        with pytest.raises(StoreError, match="the disk is full"):
            put(store, b"x" * 71)
        (key,) = put(store, b"3")
        assert store.get(key) == b"3"


def test_what_was_only_looked_at_cannot_be_sealed() -> None:
    with opened_packs() as store, store.looking() as batch:
        batch.put(BLOB, b"x")
        with pytest.raises(AssertionError, match="only looked at"):
            batch.seal()


def test_a_pack_that_is_gone_or_in_use_cannot_be_locked() -> None:
    with opened_packs() as store:
        assert store.try_lock("gone.pack") is None
        put(store, b"x")
        store.rest()
        (name,) = store.names()
        with open(f"{store.directory}/{name}", "rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            assert store.try_lock(name) is None
        fd = store.try_lock(name)
        assert fd is not None
        os.close(fd)


def test_a_stat_cache_of_another_form_is_not_used(tmp_path: Path) -> None:
    data = msgspec.msgpack.encode(["not", "what", 1])
    record = len(data).to_bytes(8, "little") + blake3(data).digest() + data
    (tmp_path / "cache").write_bytes(record)
    assert StatCache(str(tmp_path / "cache"), str(tmp_path)).load() is None


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
    with somebody() as folder:
        (folder / "closed").mkdir(mode=0)
        (folder / "mounted").mkdir()
        lstat_at = fsio.lstat_at

        def foreign(fd: int, name: bytes) -> Any:
            found = lstat_at(fd, name)
            if name != b"mounted" or found is None:
                return found
            names = [n for n in dir(found) if n.startswith("st_")]
            return SimpleNamespace(**{n: getattr(found, n) for n in names} | {"st_dev": -1})

        monkeypatch.setattr(fsio, "lstat_at", foreign)
        with fsio.directory(str(folder)) as fd:
            found = dict(walker.python_walk(fd, (), ()))
    assert found.pop(b"mounted") == errno.EXDEV
    assert found.pop(b"closed") == errno.EACCES
    assert found.keys() == {b""}


# The engine


def test_a_directory_made_while_the_tree_is_walked_is_followed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, follow=True) as one:
        walk, late = one.engine.walk, one.root / "late"

        def walk_and_meet() -> walker.Found:
            found = walk()
            late.mkdir(exist_ok=True)
            return found

        monkeypatch.setattr(one.engine, "walk", walk_and_meet)
        one.capture()
        (late / "unseen").write_text("x")
        one.check()


def test_known_content_that_was_collected_is_read_anew(tmp_path: Path) -> None:
    with bench(tmp_path, follow=False) as one:
        (one.root / "sub").mkdir()
        (one.root / "sub/file").write_text("x")
        one.capture()
        one.index.clear()
        (one.root / "sub/more").write_text("y")
        tree = one.capture()
        assert tree.state == one.truth().state
        assert tree.key in one.index


def test_an_event_about_an_excluded_directory_does_no_harm(tmp_path: Path) -> None:
    with bench(tmp_path, follow=True, scope=Scope(exclude=(b"build",))) as one:  # type: ignore[arg-type]
        (one.root / "build").mkdir()
        (one.root / "file").write_text("x")
        before = one.capture()
        (one.root / "build").chmod(0o711)
        assert one.capture().state == before.state
        (one.root / "file").write_text("y")
        one.check()


def test_a_hard_link_that_appears_is_followed_through_its_other_name(tmp_path: Path) -> None:
    with bench(tmp_path, follow=True) as one:
        (one.root / "file").write_text("x")
        one.capture()
        os.link(one.root / "file", tmp_path / "outside")
        (one.root / "file").chmod(0o600)
        one.capture()
        (tmp_path / "outside").write_text("written elsewhere")
        one.check()


def test_a_directory_that_is_gone_is_gone_when_only_a_file_in_it_was_named(
    tmp_path: Path,
) -> None:
    with bench(tmp_path, follow=False) as one:
        (one.root / "sub").mkdir()
        (one.root / "sub/file").write_text("x")
        (one.root / "kept").write_text("k")
        one.capture()
        shutil.rmtree(one.root / "sub")
        with one.packs.batch() as batch:
            tree = one.engine.capture(batch, touched=[b"sub/file"])
            assert tree.state == one.truth().state


def test_what_is_excluded_in_a_directory_does_not_change_its_state(tmp_path: Path) -> None:
    with bench(tmp_path, follow=False, scope=Scope(exclude=(b"*.log",))) as one:  # type: ignore[arg-type]
        (one.root / "logs").mkdir()
        before = one.capture()
        (one.root / "logs/a.log").write_text("x")
        assert one.capture().state == before.state
        (one.root / "logs/a.txt").write_text("x")
        assert one.capture().state != before.state


@pytest.mark.parametrize(
    ("code", "said"), [(errno.EXDEV, "mount point"), (errno.EACCES, "cannot be read")]
)
def test_what_cannot_be_captured_must_be_excluded(
    code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, follow=False, scope=Scope(exclude=(b"out*",))) as one:  # type: ignore[arg-type]
        walk = one.engine.walk
        for name in (b"outside", b"gone", b"sub/dir"):
            told = errno.ENOENT if name == b"gone" else code

            def finding(name: bytes = name, told: int = told) -> walker.Found:
                return [*walk(), (name, told)]

            monkeypatch.setattr(one.engine, "walk", finding)
            if name != b"sub/dir":
                one.capture()
                continue
            with pytest.raises(CheckpointFailed, match=f"sub/dir .*{said}") as caught:
                one.capture()
            assert "'sub/dir' to the resource's exclude" in caught.value.hint


def test_a_new_directory_that_is_a_mount_point_or_closed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, follow=False) as one:
        (one.root / "sub").mkdir()
        inode, fstat = (one.root / "sub").stat().st_ino, os.fstat

        def foreign(fd: int) -> Any:
            found = fstat(fd)
            return SimpleNamespace(st_dev=-1) if found.st_ino == inode else found

        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", foreign)
            with pytest.raises(CheckpointFailed, match="sub is a mount point"):
                one.capture()
        opening = fsio.directory

        def closed(path: str | bytes, dir_fd: int | None = None) -> Any:
            if path == b"sub":
                raise PermissionError(errno.EACCES, "closed")
            return opening(path, dir_fd)

        with monkeypatch.context() as patch:
            patch.setattr(fsio, "directory", closed)
            with pytest.raises(CheckpointFailed, match="sub cannot be read"):
                one.capture()
        one.check()


def test_the_link_to_an_inner_resource_must_stay_what_it_is(tmp_path: Path) -> None:
    scope = Scope(links={b"in/db": b"/elsewhere"})
    with bench(tmp_path, follow=False, scope=scope) as one:  # type: ignore[arg-type]
        (one.root / "in").mkdir()
        link = one.root / "in/db"
        for make in (
            lambda: None,
            lambda: link.write_text("a file now"),
            lambda: link.symlink_to("/another"),
        ):
            link.unlink(missing_ok=True)
            make()
            with pytest.raises(SandboxError, match="in/db is no longer the link"):
                one.engine.require_links()
        link.unlink()
        link.symlink_to("/elsewhere")
        one.engine.require_links()


def test_an_engine_without_anything_known_learns_nothing_from_events(tmp_path: Path) -> None:
    with bench(tmp_path, follow=True) as one:
        one.capture()
        (one.root / "file").write_text("x")
        with one.packs.batch() as batch:
            one.engine.capture(batch)
            one.engine.known = None
            for learned in batch.after_commit:
                learned()
        assert one.engine.known is None


# The tracker


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
    tracker._parse(struct.pack("iIII", -1, mask, 0, 0))
    assert tracker.take() is None


def test_no_more_watches_means_doubt_but_a_directory_that_is_gone_does_not(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker.watch((b"never/there",))
    assert tracker.sure

    def no_more(*_args: Any) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(tracker, "_libc", SimpleNamespace(inotify_add_watch=no_more))
    tracker.watch((b"sub",))
    assert not tracker.sure
    tracker.watch((b"",))
    assert tracker.take() is None


def test_a_tracker_that_cannot_read_or_was_closed_is_not_trusted(tracker: Tracker) -> None:
    os.close(tracker.fileno())
    tracker._fd = os.open("/", os.O_RDONLY)
    tracker.drain()
    assert not tracker.sure
    tracker.close()
    assert tracker.fileno() == -1


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


# Switching


def file_entry(name: bytes, data: bytes) -> Entry:
    return Entry(name, EntryKind.FILE, 0o644, len(data), files.NO_TIME, key_of(BLOB, data))


class Stage:
    """A root, and one or more differences to bring it over."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        self.staging = str(folder / "staging")
        self.contents: dict[bytes, bytes] = {}

    def file(self, name: bytes, data: bytes) -> Entry:
        self.contents[key_of(BLOB, data)] = data
        return file_entry(name, data)

    def switch(
        self,
        *differences: Difference,
        expected: dict[bytes, tuple[int, int, int]] | None = None,
        force: bool = False,
    ) -> Switch:
        ops = stage(self.contents.__getitem__, differences, self.staging, expected)
        return Switch(str(self.root), self.staging, ops, force=force)


@pytest.fixture
def staged(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def seen(path: Path) -> tuple[int, int, int]:
    return inode_of(path.lstat())


def test_a_file_that_appeared_or_was_edited_meanwhile_stops_an_apply(staged: Stage) -> None:
    new, old = staged.file(b"a", b"new"), staged.file(b"a", b"old")
    (staged.root / "a").write_text("somebody's")
    appeared = staged.switch(Difference(b"a", None, new), expected={})
    with pytest.raises(ApplyRefused, match="a changed while"):
        appeared.forward()
    shutil.rmtree(staged.staging)
    expected = {b"a": seen(staged.root / "a")}
    edited = staged.switch(Difference(b"a", old, new), expected=expected)
    (staged.root / "a").write_text("edited meanwhile")
    with pytest.raises(ApplyRefused, match="a changed while"):
        edited.forward()
    edited.backward()
    assert (staged.root / "a").read_text() == "edited meanwhile"


def test_what_the_exchange_took_out_goes_back_if_it_is_not_what_was_meant(
    staged: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = staged.root / "a"
    path.write_text("old")
    difference = Difference(b"a", staged.file(b"a", b"old"), staged.file(b"a", b"new"))
    one = staged.switch(difference, expected={b"a": seen(path)})
    exchange, times = fsio.exchange, []

    def late_edit(*args: Any) -> None:
        if not times:
            path.write_text("a quick edit")
        times.append(args)
        exchange(*args)

    monkeypatch.setattr(switch.fsio, "exchange", late_edit)
    with pytest.raises(ApplyRefused, match="a changed while"):
        one.forward()
    assert path.read_text() == "a quick edit"
    assert len(times) == 2


def test_undo_keeps_an_edit_and_puts_what_was_there_beside_it(staged: Stage) -> None:
    path = staged.root / "a"
    path.write_text("old")
    difference = Difference(b"a", staged.file(b"a", b"old"), staged.file(b"a", b"new"))
    one = staged.switch(difference, expected={b"a": seen(path)})
    one.forward()
    assert path.read_text() == "new"
    with path.open("a") as file:
        file.write(" and edited")
    one.backward()
    assert path.read_text() == "new and edited"
    assert (staged.root / "a.before-apply").read_text() == "old"


def test_a_directory_of_excluded_files_makes_way_and_keeps_them(staged: Stage) -> None:
    (staged.root / "a").mkdir()
    (staged.root / "a/x.log").write_text("kept")
    (staged.root / "a.kept-1").mkdir()
    one = staged.switch(Difference(b"a", None, staged.file(b"a", b"new")), force=True)
    one.forward()
    assert (staged.root / "a").read_text() == "new"
    assert (staged.root / "a.kept-2/x.log").read_text() == "kept"
    assert os.listdir(staged.root / "a.kept-1") == []


def test_a_directory_cannot_be_kept_under_a_thousand_names(
    staged: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (staged.root / "a").mkdir()
    one = staged.switch(Difference(b"a", None, staged.file(b"a", b"new")), force=True)
    there = (staged.root / "a").lstat()
    monkeypatch.setattr(switch.fsio, "lstat_at", lambda _fd, _name: there)
    with pytest.raises(SandboxError, match="a cannot be replaced"):
        one.forward()
    assert (staged.root / "a").is_dir()


def test_a_directory_of_the_user_that_is_not_empty_is_never_removed(staged: Stage) -> None:
    (staged.root / "a").mkdir()
    (staged.root / "a/theirs").write_text("x")
    gone = Difference(b"a", Entry(b"a", EntryKind.DIRECTORY, 0o755), None)
    with pytest.raises(OSError, match="not empty"):
        staged.switch(gone, expected={}).forward()
    shutil.rmtree(staged.staging)
    staged.switch(gone, force=True).forward()
    assert (staged.root / "a/theirs").read_text() == "x"


def test_a_read_only_root_is_opened_for_the_switch_and_closed_again(staged: Stage) -> None:
    staged.root.chmod(0o555)
    staged.switch(Difference(b"a", None, staged.file(b"a", b"new")), force=True).forward()
    assert stat.S_IMODE(staged.root.stat().st_mode) == 0o555
    assert (staged.root / "a").read_text() == "new"


def test_a_device_that_cannot_be_made_is_told_before_anything_moves(
    staged: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "mknod", fail_with(errno.EPERM))
    device = Entry(b"null", EntryKind.CHARACTER, 0o666, key=b"259")
    with pytest.raises(SandboxError, match="a device file cannot be made again"):
        staged.switch(Difference(b"null", None, device))
    assert os.listdir(staged.root) == []


def test_a_way_that_fails_for_another_reason_than_being_gone_is_not_passed_over(
    staged: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (staged.root / "sub").mkdir()
    (staged.root / "sub/a").write_text("old")
    one = staged.switch(Difference(b"sub/a", staged.file(b"a", b"old"), None), force=True)
    with monkeypatch.context() as patch:
        patch.setattr(switch.fsio, "below", fail_with(errno.EIO))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            one.forward()
    assert (staged.root / "sub/a").exists()
    one.forward()
    assert not (staged.root / "sub/a").exists()
    one.backward()
    assert (staged.root / "sub/a").read_text() == "old"
    with monkeypatch.context() as patch:
        patch.setattr(switch.fsio, "sync", fail_with(errno.EIO))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            switch.sync_in_place(os.fspath(staged.root), one._ops)


def test_a_removal_whose_directory_is_gone_as_well_is_already_done(staged: Stage) -> None:
    one = staged.switch(Difference(b"sub/a", staged.file(b"a", b"old"), None), force=True)
    one.forward()
    assert os.listdir(staged.root) == []


# What came along, and what was left running


def test_an_environment_is_named_by_the_file_that_does_the_most_harm(tmp_path: Path) -> None:
    def nothing(_path: str) -> bool:
        return False

    env = tmp_path / "app/.venv"
    (env / "bin").mkdir(parents=True)
    (env / "lib/python3.11/site-packages").mkdir(parents=True)
    (env / "pyvenv.cfg").write_text("command = python -m venv /own/app/.venv")
    assert carried.naming_files(str(tmp_path), "/own/app", nothing) == ["app/.venv/pyvenv.cfg"]
    (env / "bin/python").symlink_to("/own/app/python")
    (env / "bin/tool").write_text("#!/own/app/.venv/bin/python\n")
    assert carried.naming_files(str(tmp_path), "/own/app", nothing) == ["app/.venv/bin/tool"]
    path_file = env / "lib/python3.11/site-packages/app.pth"
    path_file.write_text("/own/app/src\n")
    assert carried.naming_files(str(tmp_path), "/own/app", nothing) == [
        "app/.venv/lib/python3.11/site-packages/app.pth"
    ]
    assert carried.naming_files(str(tmp_path), "/another", nothing) == []
    assert carried.naming_files(str(tmp_path), "/own/app", lambda path: path == "app") == []


def test_looking_for_environments_ends_early_in_a_huge_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "z"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyvenv.cfg").write_text("/own")
    monkeypatch.setattr(carried, "MOST_FOLDERS", 2)
    assert carried.naming_files(str(tmp_path), "/own", lambda _: False) == ["a/pyvenv.cfg"]


def test_files_that_cannot_be_read_name_nothing() -> None:
    with somebody() as folder:
        (folder / "env").mkdir()
        (folder / "env/pyvenv.cfg").write_text("/own")
        (folder / "env/pyvenv.cfg").chmod(0)
        (folder / "closed").mkdir(mode=0)
        assert carried.naming_files(str(folder), "/own", lambda _: False) == []


@contextmanager
def fled(plan_id: str, step_id: str) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["sleep", "60"],
        env={**os.environ, "AGENTS_PLAN_ID": plan_id, "AGENTS_STEP_ID": step_id},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_what_a_step_left_is_ended_and_another_steps_is_not(
    has_pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    plan = new_id()
    with fled(plan, "one") as first, fled(plan, "two") as second:
        assert leftovers.end_leftovers(plan, "one") == 1
        assert first.wait(5) == -9
        assert second.poll() is None
        assert leftovers.end_leftovers(plan) == 1
        assert second.wait(5) == -9
        assert leftovers.end_leftovers(plan) == 0


def test_a_process_that_cannot_be_killed_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = new_id()
    monkeypatch.setattr(leftovers, "PATIENCE", 0.05)
    with fled(plan, "one") as process:
        monkeypatch.setattr(leftovers.signal, "pidfd_send_signal", fail_with(errno.EPERM))
        assert leftovers.end_leftovers(plan) == 0
        assert process.poll() is None


def test_where_there_is_no_proc_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = new_id()
    with fled(plan, "one") as process, monkeypatch.context() as patch:
        patch.setattr(leftovers.os, "listdir", fail_with(errno.ENOENT))
        assert leftovers.end_leftovers(plan) == 0
        assert process.poll() is None


# Plans


class Yard:
    """A store, and a directory for plans to work on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.docs = root / "docs"
        self.docs.mkdir(parents=True)
        (self.docs / "start").write_text("start")
        self.settings = Settings(home=str(root / "store"), confine="off")

    @contextmanager
    def open(self) -> Generator[Workspace]:
        """As another process would."""
        with open_workspace(settings=self.settings) as ws:
            yield ws

    def use(self, ws: Workspace, text: str) -> PlanHandle:
        head = "name: edges\nresources: {docs: {kind: fs-directory, path: docs}}\n"
        (self.root / "plan.yaml").write_text(head + text)
        return ws.use(str(self.root / "plan.yaml"))


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    monkeypatch.setenv("CLEVERAGENTS_SANDBOX_CONFINE", "off")
    return Yard(tmp_path / "yard")


def execute(ws: Workspace, plan: PlanHandle) -> list[float]:
    """Run a plan without waiting; the pauses it would have made."""
    slept: list[float] = []
    with working_on(ws.ctx.store, plan.plan_id, "test", ws.ctx.now) as leased:
        executor = PlanExecutor(ws.ctx, leased, sleep=slept.append)
        executor.strategize()
        executor.prepare()
        executor.execute(Operation.EXECUTE)
    return slept


def box(plan: PlanHandle) -> Path:
    return Path(plan.sandboxes["docs"])


def states(ws: Workspace, plan: PlanHandle) -> dict[str, StepState]:
    return {s.step_id: s.state for s in ws.ctx.store.plans.steps(plan.plan_id)}


THIRD_TIME = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n; test $n -ge 2"


@pytest.mark.parametrize(
    ("text", "pauses"),
    [
        (f"steps: [{{id: a, run: {THIRD_TIME!r}, retries: 5}}]", [0.1, 0.5]),
        (
            f"policy: {{max_retries_per_step: 2}}\nsteps: [{{id: a, run: {THIRD_TIME!r}}}]",
            [0.1, 0.5],
        ),
        (
            f"tools: {{t: {{run: {THIRD_TIME!r}, idempotent: true}}}}\nsteps: [{{id: a, tool: t}}]",
            [0.1, 0.5],
        ),
    ],
    ids=["step", "policy", "idempotent"],
)
def test_a_step_is_tried_again_with_growing_pauses(
    yard: Yard, text: str, pauses: list[float]
) -> None:
    with yard.open() as ws:
        plan = yard.use(ws, text)
        assert execute(ws, plan) == pauses
        assert plan.plan.state is State.COMPLETE
        calls = ws.ctx.store.calls.of_plan(plan.plan_id)
        assert [(c.attempt, c.state) for c in calls] == [
            (1, CallState.FAILED),
            (2, CallState.FAILED),
            (3, CallState.OK),
        ]
        assert (box(plan) / "n").read_text() == "3\n"


def test_without_any_rule_a_step_is_tried_once(yard: Yard) -> None:
    with yard.open() as ws:
        plan = yard.use(ws, "steps: [{id: a, run: 'false'}]")
        assert execute(ws, plan) == []
        assert len(ws.ctx.store.calls.of_plan(plan.plan_id)) == 1


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("rollback_plan", {"start"}),
        ("rollback_step", {"start", "one"}),
        ("stop", {"start", "one", "half"}),
    ],
)
def test_a_failure_takes_back_as_much_as_the_policy_says(
    yard: Yard, policy: str, left: set[str]
) -> None:
    with yard.open() as ws:
        plan = yard.use(
            ws,
            f"policy: {{on_failure: {policy}}}\n"
            "steps: [{id: a, run: touch one}, {id: b, run: touch half; false}]",
        )
        execute(ws, plan)
        assert set(os.listdir(box(plan))) == left
        assert plan.plan.state is State.ERRORED
        assert plan.plan.error is not None
        assert plan.plan.error.step == "b"
        assert plan.plan.error.undo_to is None
        first = StepState.QUEUED if policy == "rollback_plan" else StepState.COMPLETE
        assert states(ws, plan) == {"a": first, "b": StepState.ERRORED}


def test_a_tool_that_says_it_only_reads_fails_if_it_writes(yard: Yard) -> None:
    with yard.open() as ws:
        plan = yard.use(
            ws,
            "tools: {good: {run: cat start, read_only: true},"
            " bad: {run: echo > oops, read_only: true}}\n"
            "steps: [{id: a, tool: good}, {id: b, tool: bad}]",
        )
        execute(ws, plan)
        assert states(ws, plan) == {"a": StepState.COMPLETE, "b": StepState.ERRORED}
        assert plan.plan.error is not None
        assert "bad says it is read-only and changed" in plan.plan.error.message
        assert "oops" in plan.plan.error.message
        assert os.listdir(box(plan)) == ["start"]


def test_steps_can_share_a_decision_and_a_milestone_has_its_name(yard: Yard) -> None:
    with yard.open() as ws:
        plan = yard.use(
            ws,
            "steps: [{id: a, run: touch one, decision: {question: q, chosen: c}},"
            " {id: b, run: touch two, decision: a, checkpoint: both}, {id: c, run: touch three}]",
        )
        execute(ws, plan)
        assert plan.plan.state is State.COMPLETE
        steps = {s.step_id: s.decision_id for s in ws.ctx.store.plans.steps(plan.plan_id)}
        assert steps["a"] == steps["b"] != steps["c"]
        questions = [d.question for d in ws.ctx.store.plans.decisions(plan.plan_id)]
        assert questions == ["edges", "q", "c"]
        known = ws.ctx.store.plans.all_decision_ids()
        assert len(known) == 3
        assert (steps["a"], plan.plan_id) in known
        plan.rollback("both")
        assert set(os.listdir(box(plan))) == {"start", "one", "two"}


@pytest.mark.parametrize("required", [True, False])
def test_a_tool_does_not_write_without_a_checkpoint_from_before_unless_allowed(
    yard: Yard, required: bool
) -> None:
    policy = f"policy: {{auto_create_on: [], require_checkpoints: {str(required).lower()}}}\n"
    with yard.open() as ws:
        plan = yard.use(ws, policy + "steps: [{id: a, run: touch one}]")
        with working_on(ws.ctx.store, plan.plan_id, "test", ws.ctx.now) as leased:
            executor = PlanExecutor(ws.ctx, leased)
            executor.strategize()
            make_sandboxes(ws.ctx, leased)
            if not required:
                executor.execute(Operation.EXECUTE)
                assert (box(plan) / "one").exists()
                return
            with pytest.raises(CheckpointFailed, match="no checkpoint exists from before"):
                executor.execute(Operation.EXECUTE)
        assert os.listdir(box(plan)) == ["start"]
        assert plan.plan.state is State.ERRORED
        assert plan.plan.error is not None
        assert plan.plan.error.type == "CheckpointFailed"
        assert executed(ws, plan) == [EntryState.DONE]
        entries = ws.ctx.store.journal.of_plan(plan.plan_id)
        (entry,) = [e for e in entries if e.operation is Operation.EXECUTE]
        assert entry.detail["outcome"] == "failed"


def executed(ws: Workspace, plan: PlanHandle) -> list[EntryState]:
    entries = ws.ctx.store.journal.of_plan(plan.plan_id)
    return [e.state for e in entries if e.operation is Operation.EXECUTE]


def test_an_interrupt_leaves_a_plan_that_can_go_on(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_args: Any) -> Any:
        raise KeyboardInterrupt

    with yard.open() as ws:
        plan = yard.use(ws, TWO)
        with monkeypatch.context() as patch:
            patch.setattr(executing, "run_tool", interrupted)
            with pytest.raises(KeyboardInterrupt):
                execute(ws, plan)
        assert plan.plan.state is State.ERRORED
        assert plan.plan.error is not None
        assert plan.plan.error.type == "Interrupted"
        assert plan.plan.error.hint == f"agents plan resume {plan.plan_id}"
        assert executed(ws, plan) == [EntryState.INTERRUPTED]
        plan.resume()
        assert plan.plan.state is State.COMPLETE
        assert set(os.listdir(box(plan))) == {"start", "one", "two"}


def test_a_step_whose_result_cannot_be_kept_counts_as_failed(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with yard.open() as ws:
        plan = yard.use(ws, TWO)
        creating = ws.ctx.checkpoints.create_checkpoint

        def refusing(trigger: CheckpointType, *args: Any, **options: Any) -> Any:
            if trigger is CheckpointType.AFTER_TOOL_EXECUTE:
                raise CheckpointFailed("a mount point is in the way")
            return creating(trigger, *args, **options)

        monkeypatch.setattr(ws.ctx.checkpoints, "create_checkpoint", refusing)
        execute(ws, plan)
        assert plan.plan.error is not None
        assert plan.plan.error.message == "step a: a mount point is in the way"
        assert states(ws, plan)["a"] is StepState.ERRORED
        assert os.listdir(box(plan)) == ["start"]


def test_a_tool_that_neither_writes_nor_promises_to_only_read_is_not_checked(yard: Yard) -> None:
    with yard.open() as ws:
        plan = yard.use(
            ws, "tools: {t: {run: echo > log, writes: false}}\nsteps: [{id: a, tool: t}]"
        )
        execute(ws, plan)
        assert plan.plan.state is State.COMPLETE
        assert (box(plan) / "log").exists()


TWO = "steps: [{id: a, run: touch one, checkpoint: early}, {id: b, run: touch two}]"


def done(yard: Yard, ws: Workspace, text: str = TWO) -> PlanHandle:
    plan = yard.use(ws, text)
    execute(ws, plan)
    assert plan.plan.state is State.COMPLETE
    return plan


def test_going_back_cancels_the_child_plans_that_came_later(yard: Yard) -> None:
    with yard.open() as ws:
        plan = done(yard, ws)
        children = {}
        with ws.ctx.store.transaction():
            for name, state in (("open", State.QUEUED), ("over", State.APPLIED)):
                child = msgspec.structs.replace(
                    plan.plan,
                    plan_id=new_id(),
                    name=name,
                    state=state,
                    version=0,
                    parent_plan_id=plan.plan_id,
                    created_at=ws.ctx.now(),
                    head_group_id=None,
                    last_checkpoint_id=None,
                )
                children[name] = ws.ctx.store.plans.add(child, ()).plan_id
        result = plan.rollback("early")
        assert result.child_plans_invalidated == 1
        get = ws.ctx.store.plans.get
        assert get(children["open"]).state is State.CANCELLED
        assert get(children["over"]).state is State.APPLIED


def waiting(plan: PlanHandle, group_id: str) -> Intent:
    return Intent(
        intent_id=new_id(),
        plan_id=plan.plan_id,
        kind="restore",
        state="staged",
        body={"group_id": group_id, "plan": {}},
        created_at="2026-01-01T00:00:00+00:00",
    )


def test_what_cannot_be_finished_is_told_and_blocks_only_its_plan(yard: Yard) -> None:
    with yard.open() as ws:
        plan, other = done(yard, ws), yard.use(ws, TWO)
        intent = waiting(plan, "no-such-group")
        with ws.ctx.store.transaction():
            ws.ctx.store.intents.put(intent)
    with yard.open() as ws:
        (said,) = ws.recovered
        assert "an interrupted restore is pending: no checkpoint group no-such-group" in said
        store = ws.ctx.store
        assert "no-such-group" in reachable_groups(store, store.plans.get(plan.plan_id))
        with (
            pytest.raises(NotAllowed, match="interrupted restore"),
            working_on(store, plan.plan_id, "test", ws.ctx.now),
        ):
            raise AssertionError
        with working_on(store, plan.plan_id, "test", ws.ctx.now, whatever_waits=True) as leased:
            assert leased.plan.plan_id == plan.plan_id
        with working_on(store, other.plan_id, "test", ws.ctx.now) as leased:
            assert leased.plan.plan_id == other.plan_id
        assert [item.intent_id for item in store.intents.all()] == [intent.intent_id]


def test_a_restore_that_was_interrupted_is_finished_by_whoever_comes_next(yard: Yard) -> None:
    with yard.open() as ws:
        plan = done(yard, ws)
        (group,) = [g for g in ws.ctx.store.checkpoints.groups(plan.plan_id) if g.label]
        with ws.ctx.store.transaction():
            ws.ctx.store.intents.put(waiting(plan, group.group_id))
    with yard.open() as ws:
        assert ws.recovered == ("plan 'edges': an interrupted restore was finished",)
        assert set(os.listdir(box(ws.find("edges")))) == {"start", "one"}
        assert ws.ctx.store.intents.all() == []


def die_while(ws: Workspace, plan: PlanHandle, **fields: Any) -> None:
    """Leave the plan as a process does that was killed while it held it."""
    store = ws.ctx.store
    with hold(store, plan.plan_id, "test", ws.ctx.now) as lease:
        leased = LeasedPlan(store, plan.plan, lease, ws.ctx.now)
        with leased.transaction():
            store.journal.put(leased.opened(Operation.RESUME))
            if fields:
                leased.write(**fields)
    with store.transaction():
        store.leases.put(msgspec.structs.replace(lease, held=True, started="0"))


def test_a_plan_whose_process_died_is_freed_and_its_operation_ended(yard: Yard) -> None:
    with yard.open() as ws:
        plan = done(yard, ws)
        die_while(ws, plan, state=State.PROCESSING)
        staging = Path(ws.ctx.manager.staging(plan.plan_id, "never-begun"))
        staging.mkdir()
    with yard.open() as ws:
        assert ws.recovered == ("plan 'edges': its process ended before it finished",)
        plan = ws.find("edges")
        assert plan.plan.state is State.ERRORED
        assert plan.plan.error is not None
        assert plan.plan.error.hint == f"agents plan resume {plan.plan_id}"
        assert ws.ctx.store.journal.open_entries(plan.plan_id) == []
        last = ws.ctx.store.journal.of_plan(plan.plan_id)[-1]
        assert (last.operation, last.state) == (Operation.RESUME, EntryState.INTERRUPTED)
        assert not staging.exists()
        assert ws.ctx.store.leases.held() == []
    with yard.open() as ws:
        assert ws.recovered == ()


def test_an_operation_nobody_will_end_is_ended_also_when_the_plan_rests(yard: Yard) -> None:
    with yard.open() as ws:
        plan = done(yard, ws)
        die_while(ws, plan)
    with yard.open() as ws:
        assert ws.recovered == ()
        assert ws.ctx.store.journal.open_entries(plan.plan_id) == []
        assert ws.find("edges").plan.state is State.COMPLETE


def test_a_plan_that_died_before_it_began_is_simply_queued_again(yard: Yard) -> None:
    with yard.open() as ws:
        die_while(ws, yard.use(ws, TWO), state=State.PROCESSING)
    with yard.open() as ws:
        assert len(ws.recovered) == 1
        assert ws.find("edges").plan.state is State.QUEUED


def test_what_the_validations_of_a_dead_apply_left_is_taken_back(yard: Yard) -> None:
    with yard.open() as ws:
        plan = done(yard, ws, "validate: [{run: 'true'}]\n" + TWO)
        with working_on(ws.ctx.store, plan.plan_id, "test", ws.ctx.now) as leased:
            leased.commit(phase=Phase.APPLY, state=State.QUEUED)
            request = CheckpointRequest(force=True)
            ws.ctx.checkpoints.create_checkpoint(CheckpointType.PRE_APPLY, leased, request)
        (box(plan) / "residue").write_text("x")
        die_while(ws, plan, state=State.PROCESSING)
    with yard.open() as ws:
        plan = ws.find("edges")
        assert set(os.listdir(box(plan))) == {"start", "one", "two"}
        assert plan.plan.error is not None
        assert plan.plan.error.hint == f"agents plan apply {plan.plan_id}"


def test_recovery_leaves_alone_what_another_process_took_first(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_args: Any) -> Any:
        raise PlanBusy("held", "wait")

    with yard.open() as ws:
        plan = done(yard, ws)
        die_while(ws, plan, state=State.PROCESSING)
        with ws.ctx.store.transaction():
            ws.ctx.store.intents.put(waiting(plan, "x"))
    monkeypatch.setattr(recovery, "hold", busy)
    with yard.open() as ws:
        assert ws.recovered == ()
        assert ws.find("edges").plan.state is State.PROCESSING
        assert len(ws.ctx.store.intents.all()) == 1


def test_a_machine_that_does_not_tell_its_boot_is_like_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (fsio, lease):
        monkeypatch.setattr(module, "open", fail_with(errno.ENOENT), raising=False)
    assert fsio.boot_id() == "unknown"
    assert lease.start_time(os.getpid()) is None


def test_what_undo_can_reach_is_kept_and_the_plans_own_policy_goes_first(yard: Yard) -> None:
    own = PolicySpec(max_checkpoints_per_plan=3, keep=KeepSpec(last=2, within="1h", bytes=5))
    policy = policy_of(own, yard.settings)
    assert (policy.max_checkpoints, policy.keep_last, policy.max_bytes) == (3, 2, 5)
    assert policy.keep_within is not None
    assert policy.keep_within.total_seconds() == 3600
    bare = policy_of(PolicySpec(), yard.settings)
    assert bare.max_checkpoints == yard.settings.max_checkpoints_per_plan
    assert bare.keep_within is None
    with yard.open() as ws:
        store = ws.ctx.store
        unused = yard.use(ws, TWO)
        assert verdicts_on(store, unused.plan, policy, ws.ctx.now()) == ()
        plan = done(yard, ws)
        verdicts = verdicts_on(store, plan.plan, policy, ws.ctx.now())
        assert len(verdicts) == store.checkpoints.count(plan.plan_id)
        kept = {v.group_id for v in verdicts if v.keep}
        assert plan.plan.head_group_id in kept
        failed = msgspec.structs.replace(
            plan.plan, error=Failure("T", "m", group_id="G", undo_to="U")
        )
        assert {"G", "U", plan.plan.head_group_id} <= reachable_groups(store, failed)


def test_nothing_is_captured_in_a_sandbox_that_is_missing_or_not_ours(yard: Yard) -> None:
    with yard.open() as ws:
        plan = done(yard, ws)
        path = box(plan)
        path.rename(path.parent / "away")
        with pytest.raises(SandboxMissing, match="is missing"):
            plan.checkpoint("x")
        path.mkdir()
        (path / "theirs").write_text("x")
        with pytest.raises(SandboxNotOurs, match="not the directory this plan made"):
            plan.rollback("early")
        assert os.listdir(path) == ["theirs"]


def test_two_resources_of_one_folder_name_have_sandboxes_of_their_own(yard: Yard) -> None:
    with yard.open() as ws:
        plan = yard.use(ws, TWO)
        (docs,) = ws.ctx.store.resources.of_plan(plan.plan_id)
    replace = msgspec.structs.replace
    given = [
        docs,
        replace(docs, resource_id="2", name="more", path="/else/docs"),
        replace(docs, resource_id="3", name="dot", path="/home/.config"),
        replace(docs, resource_id="4", name="db", kind="sqlite", path="/var/app.db"),
        replace(docs, resource_id="5", name="own", strategy="none", path="/etc/own"),
    ]
    assert layout(given, "/s", "P") == {
        docs.resource_id: ("/s/P/docs", "/s/P/docs"),
        "2": ("/s/P/more-docs", "/s/P/more-docs"),
        "3": ("/s/P/dot-config", "/s/P/dot-config"),
        "4": ("/s/P/db", "/s/P/db/app.db"),
        "5": ("/etc/own", "/etc/own"),
    }


def test_a_sandbox_written_to_during_a_rollback_is_noticed_and_finished_later(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with yard.open() as ws:
        plan = done(yard, ws)
        (sandbox,) = ws.ctx.manager.sandboxes(plan.plan_id).opened.values()
        assert isinstance(sandbox, LastsLater)
        switching = sandbox.switch_now

        def disturbed(*args: Any) -> None:
            switching(*args)
            (box(plan) / "intruder").write_text("x")

        monkeypatch.setattr(sandbox, "switch_now", disturbed)
        with pytest.raises(CheckpointFailed, match="is not what its checkpoint says"):
            plan.rollback("early")
    with yard.open() as ws:
        assert ws.recovered == ("plan 'edges': an interrupted restore was finished",)
        assert set(os.listdir(box(ws.find("edges")))) == {"start", "one"}


def test_a_checkpoint_whose_content_is_gone_is_not_offered(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with yard.open() as ws:
        plan = done(yard, ws)
        manager = ws.ctx.manager
        rows = ws.ctx.store.checkpoints.of_plan(plan.plan_id)
        assert manager.list_checkpoints(plan.plan_id) == [row.snapshot for row in rows]
        lost = rows[0].root_key
        has = manager.packs.has
        monkeypatch.setattr(manager.packs, "has", lambda key: key != lost and has(key))
        offered = manager.list_checkpoints(plan.plan_id)
        assert offered == [row.snapshot for row in rows if row.root_key != lost]
        assert len(offered) < len(rows)


def test_what_is_not_in_the_store_is_said_to_be_missing(yard: Yard) -> None:
    with yard.open() as ws:
        with pytest.raises(NotFound, match="no checkpoint group X"):
            ws.ctx.store.checkpoints.group("X")
        with pytest.raises(NotFound, match="no checkpoint X"):
            ws.ctx.store.checkpoints.checkpoint("X")
        with pytest.raises(NotFound, match="no plan X"):
            ws.ctx.store.plans.get("X")


def test_a_store_is_not_begun_anew_over_content_or_where_there_is_no_place(
    tmp_path: Path,
) -> None:
    (tmp_path / "home/content").mkdir(parents=True)
    (tmp_path / "home/content/x.pack").write_text("x")
    with pytest.raises(StoreError, match="has content, but its database is gone"):
        open_store(str(tmp_path / "home"))
    assert os.listdir(tmp_path / "home") == ["content"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be made"):
        open_store(str(tmp_path / "file/home"))


def test_a_store_gives_back_the_pages_it_no_longer_uses(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "home"))
    try:
        file = tmp_path / "home/store.db"
        with store.transaction():
            store._db.execute("CREATE TABLE filler (x)")
            store._db.execute("INSERT INTO filler VALUES (zeroblob(4000000))")
        with store.transaction():
            store._db.execute("DROP TABLE filler")
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before = file.stat().st_size
        store.compact()
        assert file.stat().st_size < before / 2
        assert store.integrity() == []
    finally:
        store.close()


def test_what_waits_keeps_its_staging_and_is_looked_at_again_under_the_lease(yard: Yard) -> None:
    with yard.open() as ws:
        plan = done(yard, ws)
        die_while(ws, plan)
        with ws.ctx.store.transaction():
            ws.ctx.store.intents.put(waiting(plan, "no-such-group"))
        staging = Path(ws.ctx.manager.staging(plan.plan_id, "begun"))
        staging.mkdir()
        recovery._clean(ws.ctx, plan.plan_id)
        assert staging.exists()
        assert len(ws.ctx.store.journal.open_entries(plan.plan_id)) == 1
        assert recovery._recover_intent(ws.ctx, waiting(plan, "finished by another")) == []
        assert recovery._free(ws.ctx, plan.plan_id) == []
        assert plan.plan.state is State.COMPLETE


def test_an_interrupted_apply_is_finished_as_an_apply(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[str] = []
    with yard.open() as ws:
        plan = done(yard, ws)
        intent = msgspec.structs.replace(waiting(plan, ""), kind="apply")
        with ws.ctx.store.transaction():
            ws.ctx.store.intents.put(intent)
    monkeypatch.setattr(
        recovery, "finish_apply", lambda _ctx, _leased, found: finished.append(found.intent_id)
    )
    with yard.open() as ws:
        assert ws.recovered == ("plan 'edges': an interrupted apply was finished",)
    assert finished == [intent.intent_id]


def test_a_resource_without_a_sandbox_need_not_be_ours(yard: Yard) -> None:
    with yard.open() as ws:
        plan = done(yard, ws)
        sandboxes = ws.ctx.manager.sandboxes(plan.plan_id)
        ((rid, record),) = sandboxes.records.items()
        away = msgspec.structs.replace(record, root="/nowhere")
        sandboxes.records[rid] = away
        with pytest.raises(SandboxMissing):
            sandboxes.require_ours()
        sandboxes.records[rid] = msgspec.structs.replace(away, strategy="none")
        sandboxes.require_ours()


def test_a_process_whose_number_was_given_away_is_not_killed() -> None:
    plan = new_id()
    with fled(plan, "one") as process:
        assert not leftovers._kill(process.pid, {b"AGENTS_PLAN_ID=another"})
        assert process.poll() is None


def test_the_ancestors_of_this_process_are_known_as_far_as_they_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {os.getpid(), os.getppid()} <= leftovers._ancestry()
    monkeypatch.setattr(leftovers, "open", fail_with(errno.EACCES), raising=False)
    assert leftovers._ancestry() == {os.getpid()}


def test_a_tracker_at_its_limit_is_given_up_and_every_capture_walks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, follow=True) as one:
        (one.root / "sub").mkdir()
        monkeypatch.setattr(Tracker, "watch_only", lambda self, _paths: self.distrust())
        one.capture()
        assert one.engine.tracker is None
        (one.root / "sub/file").write_text("x")
        one.check()


def test_an_overflow_or_an_order_to_doubt_makes_the_next_capture_walk(tmp_path: Path) -> None:
    with bench(tmp_path, follow=True) as one:
        (one.root / "file").write_text("x")
        one.capture()
        assert one.engine.tracker is not None
        one.engine.tracker.distrust()
        (one.root / "file").write_text("lost in the overflow")
        one.check()
        one.engine.doubt()
        (one.root / "file").write_text("again")
        one.check()


def test_a_hard_linked_file_whose_folder_is_gone_is_gone(tmp_path: Path) -> None:
    with bench(tmp_path, follow=True) as one:
        (one.root / "sub").mkdir()
        (one.root / "sub/a").write_text("x")
        os.link(one.root / "sub/a", one.root / "b")
        one.capture()
        assert set(one.engine.linked) == {b"sub/a", b"b"}
        shutil.rmtree(one.root / "sub")
        one.check()


def test_a_stat_cache_that_is_torn_is_not_used(tmp_path: Path) -> None:
    with bench(tmp_path, follow=False) as one:
        (one.root / "file").write_text("x")
        one.capture()
        one.restart()
        assert StatCache(one.cache, str(one.root)).load() is not None
        with open(one.cache, "r+b") as file:
            file.truncate(os.path.getsize(one.cache) - 1)
        assert StatCache(one.cache, str(one.root)).load() is None
        one.restart()
        one.check()


def test_a_directory_in_place_of_a_file_and_back_can_be_undone(staged: Stage) -> None:
    path = staged.root / "a"
    path.write_text("old")
    folder = Entry(b"a", EntryKind.DIRECTORY, 0o750)
    inner = staged.file(b"x", b"inner")
    one = staged.switch(
        Difference(b"a", staged.file(b"a", b"old"), folder), Difference(b"a/x", None, inner)
    )
    one.forward()
    assert (path / "x").read_text() == "inner"
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    one.backward()
    assert path.read_text() == "old"
    one.backward()
    assert path.read_text() == "old"
