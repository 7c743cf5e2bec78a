"""Copying a tree into a sandbox: compiled and in Python, by two threads, every byte read once."""

import errno
import json
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from cleveragents.content import files, fsio, keys, removal, trees
from cleveragents.content.background import Background
from cleveragents.content.capture import engine, updating
from cleveragents.content.copy import copying, each_file
from cleveragents.content.copy import exchange as exchanging
from cleveragents.content.copy.census import census
from cleveragents.content.copy.exchange import Exchange, Folder
from cleveragents.content.entry import EntryKind
from cleveragents.content.keys import (
    BLOB,
    CHUNKS,
    git_key,
    key_of,
)
from cleveragents.content.native import filecopy
from cleveragents.content.scope import Scope
from cleveragents.errors import SandboxError
from cleveragents.maintenance import gc
from cleveragents.sandbox.tree import TreeSandbox, tree_of
from cleveragents.testing import look
from cleveragents.workspace import open_workspace
from tests.harness import Agents
from tests.scratch import query

LARGE = files.CHUNK
BOTH = [filecopy.python_copy_files, filecopy.copy_files]


def everything(_path: bytes, _is_dir: bool) -> bool:
    return True


@pytest.fixture(params=["compiled", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test that copies a tree is run with both."""
    if request.param == "python":
        monkeypatch.setattr(each_file, "copy_files", filecopy.python_copy_files)
    elif not filecopy.ACCELERATED:
        pytest.skip("the compiled copying was not built")
    return request.param


class Pair:
    """A tree and the place for its copy."""

    def __init__(self, folder: Path) -> None:
        self.source, self.target = folder / "from", folder / "to"
        self.source.mkdir()
        self.target.mkdir()

    def write(self, path: str | bytes, data: bytes = b"x\n", mode: int = 0o644) -> None:
        where = os.path.join(os.fsencode(self.source), os.fsencode(path))
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with open(where, "wb") as file:
            file.write(data)
        os.chmod(where, mode)

    def copy(self, scope: Scope | None = None, **how: Any) -> copying.Copier:
        wanted = how.pop("wanted", everything)
        progress = how.pop("progress", lambda _size: None)
        copier = copying.Copier(scope or Scope(), wanted, progress, **how)
        copier.copy(str(self.source), str(self.target))
        return copier


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


# the compiled function and its twin


def both_ways(
    pair: Pair, names: tuple[bytes, ...], keep: int = filecopy.BYTES
) -> list[tuple[list[Any], bool, bytes]]:
    """What both say of the same files, without inodes and change times."""
    answers: list[tuple[list[Any], bool, bytes]] = []
    for number, copy_files in enumerate(BOTH):
        target = pair.target / str(number)
        target.mkdir()
        with fsio.directory(str(pair.source)) as here, fsio.directory(str(target)) as there:
            buffer = memoryview(bytearray(20 * LARGE))
            made, reflink = copy_files(here, there, names, True, buffer, LARGE, keep)
            plain = [
                one if isinstance(one, int) else ((one[0][1], one[0][2], one[0][4]), one[1])
                for one in made
            ]
            for name, one in zip(names, made, strict=False):
                if not isinstance(one, int):
                    found = os.stat(name, dir_fd=there, follow_symlinks=False)
                    assert files.stamp(found) == one[0]
        counts = [one[1] or 0 for one in plain if not isinstance(one, int)]
        read = sum(counts) if keep == filecopy.BYTES else 0
        answers.append((plain, reflink, bytes(buffer[:read])))
    assert look(pair.target / "0") == look(pair.target / "1")
    return answers


NAMES = st.binary(min_size=1, max_size=20).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
SIZES = st.one_of(st.integers(0, 300), st.sampled_from([4096, LARGE - 1, LARGE, LARGE + 1]))
MODES = st.sampled_from([0o644, 0o600, 0o755, 0o400, 0o4755, 0o2711, 0o1777, 0o666])
TIMES = st.sampled_from([0, -5_000_000_001, 1, 1_700_000_000_123_456_789])


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(NAMES, st.tuples(SIZES, MODES, TIMES), max_size=12),
    st.sampled_from([filecopy.NOTHING, filecopy.BYTES]),
)
def test_both_ways_of_copying_say_and_do_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    tree: dict[bytes, tuple[int, int, int]],
    keep: int,
) -> None:
    pair = Pair(tmp_path_factory.mktemp("twins"))
    for number, (name, (size, mode, mtime)) in enumerate(tree.items()):
        pair.write(name, bytes([number]) * size, mode)
        os.utime(os.path.join(os.fsencode(pair.source), name), ns=(mtime, mtime))
    one, other = both_ways(pair, tuple(sorted(tree)), keep)
    assert one == other
    at = 0
    for name, made in zip(sorted(tree), one[0], strict=True):
        size, mode, mtime = tree[name]
        if size >= LARGE:
            assert made == filecopy.IS_LARGE
            continue
        assert made[0] == (size, mtime, stat.S_IFREG | mode)
        if keep == filecopy.BYTES and made[1] is not None:  # None: the blocks are shared
            where = os.path.join(os.fsencode(pair.source), name)
            assert one[2][at : at + size] == Path(os.fsdecode(where)).read_bytes()
            at += made[1]


@pytest.mark.skipif(not filecopy.HASHES, reason="the processor has no SHA-1")
def test_both_name_a_blob_as_git_does(pair: Pair) -> None:
    """Around every boundary of a block of 64 bytes, of which the head of a blob takes some."""
    sizes = [*range(200), 999, 1000, 4096, 9999, 10_000, 65_536, 99_999, 100_000, LARGE - 1]
    for size in sizes:
        pair.write(str(size), os.urandom(size))
    names = tuple(b"%d" % size for size in sizes)
    one, other = both_ways(pair, names, filecopy.DIGEST)
    assert one == other
    for name, made in zip(names, one[0], strict=True):
        data = (pair.source / os.fsdecode(name)).read_bytes()
        assert made[1] in (git_key(data)[1:], None)  # None: the blocks are shared


@pytest.mark.parametrize("sha1", [False, True])
def test_what_is_the_bases_blob_is_known_and_nothing_else(
    pair: Pair, way: str, sha1: bool, tmp_path: Path
) -> None:
    if shares_blocks(tmp_path):
        pytest.skip("nothing is read here while it is copied")
    pair.write("same", b"same")
    pair.write("sub/changed", b"changed")
    pair.write("sub/new", b"new")
    pair.write("large", b"." * LARGE)
    base = {
        b"same": (git_key(b"same"), 4),
        b"sub/changed": (git_key(b"CHANGED"), 7),
        b"large": (git_key(b"." * LARGE), LARGE),
    }
    copier = pair.copy(base=base.get, sha1=sha1)
    assert {path: known[1] for path, known in copier.known.items()} == {
        path: base[path][0] for path in (b"same", b"large")
    }
    for path, (known, _) in copier.known.items():
        assert files.stamp(os.lstat(pair.target / os.fsdecode(path))) == known


def test_both_leave_alone_what_is_no_small_regular_file(pair: Pair) -> None:
    pair.write("file", b"bytes")
    pair.write("taken", b"new")
    os.mkfifo(pair.source / "pipe")
    (pair.source / "link").symlink_to("file")
    (pair.source / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(pair.source / "socket"))
        names = (b"file", b"pipe", b"link", b"folder", b"socket", b"gone", b"taken")
        one, other = both_ways(pair, names)
    assert one == other
    assert one[0][1:6] == [filecopy.IS_OTHER] * 4 + [errno.ENOENT]
    assert one[2] in (b"bytesnew", b"")  # nothing where blocks are shared
    with (
        fsio.directory(str(pair.source)) as here,
        fsio.directory(str(pair.target / "0")) as there,
    ):
        buffer = memoryview(bytearray(LARGE))
        for copy_files in BOTH:
            made, _ = copy_files(here, there, (b"taken",), False, buffer, LARGE, filecopy.BYTES)
            assert made == [errno.EEXIST]


def test_both_stop_where_another_file_might_not_fit(pair: Pair) -> None:
    names = tuple(b"%d" % number for number in range(6))
    for name in names:
        pair.write(name, b"." * 1000)
    for copy_files in BOTH:
        for keep, count in ((filecopy.BYTES, 3), (filecopy.NOTHING, 6)):
            shutil.rmtree(pair.target)
            pair.target.mkdir()
            with (
                fsio.directory(str(pair.source)) as here,
                fsio.directory(str(pair.target)) as there,
            ):
                buffer = memoryview(bytearray(LARGE + 2000))
                made, reflink = copy_files(here, there, names, False, buffer, LARGE, keep)
            assert (len(made), len(os.listdir(pair.target)), reflink) == (count, count, False)


def test_both_name_what_may_not_be_read(pair: Pair, unprivileged: Path) -> None:
    pair = Pair(unprivileged)
    pair.write("open", b"1")
    pair.write("closed", b"2", 0)
    one, other = both_ways(pair, (b"closed", b"open"))
    assert one == other
    assert one[0][0] == errno.EACCES


def test_a_disk_that_is_full_is_an_error_of_both(pair: Pair) -> None:
    """Here by a limit of the process, which fails with EFBIG."""
    import resource
    import signal

    pair.write("file", b"." * 9000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        for number, copy_files in enumerate(BOTH):
            target = pair.target / str(number)
            target.mkdir()
            with fsio.directory(str(pair.source)) as here, fsio.directory(str(target)) as there:
                buffer = memoryview(bytearray(LARGE))
                made, _ = copy_files(here, there, (b"file",), False, buffer, LARGE, filecopy.BYTES)
            assert made == [errno.EFBIG]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def unprivileged(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        if os.geteuid() != 0:
            yield Path(name)
            return
        os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)


# a whole tree


def test_a_copy_is_what_the_tree_is(pair: Pair, way: str) -> None:
    pair.write("empty", b"")
    pair.write("large", os.urandom(3 * LARGE + 17), 0o755)
    pair.write("exact", os.urandom(LARGE))
    pair.write("sub/deep/er/file", b"deep")
    pair.write("sub/set", b"set", 0o6755)
    pair.write(b"odd\xff\n\x01 name/\xe2\x98", b"odd")
    (pair.source / "none").mkdir()
    os.mkfifo(pair.source / "pipe", 0o640)
    os.chmod(pair.source / "pipe", 0o640)
    (pair.source / "sub/link").symlink_to("/nowhere")
    (pair.source / "sub/to-folder").symlink_to("deep")
    for number in range(300):
        pair.write(f"many/{number}", b"%d" % number)
    (pair.source / "many").chmod(0o2775)
    (pair.source / "sub/deep/er").chmod(0o500)
    (pair.source / "sub/deep").chmod(0o555)
    pair.source.chmod(0o751)
    told: list[int] = []
    pair.copy(progress=told.append)
    assert look(pair.target) == look(pair.source)
    assert stat.S_IMODE(pair.target.stat().st_mode) == 0o751
    for path in pair.source.rglob("*"):
        copy = pair.target / path.relative_to(pair.source)
        if path.is_file() and not path.is_symlink():
            assert copy.stat().st_mtime_ns == path.stat().st_mtime_ns
            assert copy.stat().st_ino != path.stat().st_ino
    sizes = [p.stat().st_size for p in pair.source.rglob("*") if p.is_file() and not p.is_symlink()]
    assert sorted(told) == sorted(sizes)


def test_only_what_belongs_to_it_is_copied(pair: Pair, way: str) -> None:
    for path in ("a", "skip/a", "b/skip/a", "b/c.tmp", "b/kept", "own/x", "not-wanted/x"):
        pair.write(path)
    scope = Scope(exclude=(b"skip", b"*.tmp"), skip=(b"own",))
    seen: list[tuple[bytes, bool]] = []

    def wanted(path: bytes, is_dir: bool) -> bool:
        seen.append((path, is_dir))
        return path != b"not-wanted"

    pair.copy(scope, wanted=wanted)
    assert set(look(pair.target)) == {b"a", b"b", b"b/kept"}
    assert sorted(seen) == [(b"a", False), (b"b", True), (b"b/kept", False), (b"not-wanted", True)]


@pytest.fixture
def deep(tmp_path: Path) -> Generator[Pair]:
    """Removed by `rm`: what pytest does at the end recurses, and fails for all tests."""
    yield Pair(tmp_path)
    subprocess.run(["rm", "-rf", tmp_path / "from", tmp_path / "to"], check=True)


def test_two_thousand_levels_are_no_problem(deep: Pair, way: str) -> None:
    """Also with something beside each, so that threads leave it and come back."""
    depth = 2000
    fd = os.open(deep.source, fsio.DIRECTORY)
    for level in range(depth):
        os.mkdir("d", dir_fd=fd)
        if level % 200 == 0:
            os.mkdir("e", dir_fd=fd)
            os.close(os.open("e/f", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
        below = os.open("d", fsio.DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    with os.fdopen(os.open("bottom", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd), "w") as file:
        file.write("down here")
    os.close(fd)
    deep.copy()
    with (
        fsio.directory(str(deep.target)) as top,
        fsio.parent_of(top, b"d/" * depth + b"bottom") as (at, name),
    ):
        found = os.open(name, os.O_RDONLY, dir_fd=at)
        assert os.read(found, 100) == b"down here"
        os.close(found)
    with fsio.directory(str(deep.target)) as top:
        for level in range(0, depth, 200):
            with fsio.parent_of(top, b"d/" * level + b"e/f") as (at, name):
                assert fsio.lstat_at(at, name) is not None
    for path in (deep.source, deep.target):
        removal.remove_tree(str(path))
        assert not path.exists()


def test_what_vanishes_meanwhile_is_left_out(pair: Pair, way: str) -> None:
    for path in ("file", "folder/file", "stays", "large"):
        pair.write(path)
    (pair.source / "large").write_bytes(b"." * LARGE)
    (pair.source / "link").symlink_to("stays")

    def wanted(path: bytes, _is_dir: bool) -> bool:
        where = pair.source / os.fsdecode(path)
        if path in (b"file", b"link"):
            where.unlink()
        elif path == b"folder":
            shutil.rmtree(where)
        return True

    def gone(_path: bytes) -> None:
        (pair.source / "large").unlink(missing_ok=True)

    pair.copy(wanted=wanted, base=gone)
    assert set(look(pair.target)) <= {b"stays", b"large"}
    assert b"stays" in look(pair.target)


def test_a_directory_that_vanishes_before_somebody_comes_back_to_it_is_left_out(
    pair: Pair, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("top/a/in/file", "top/b/in/file", "stays/file"):
        pair.write(path)
    real, moved = Exchange.add, list[Folder]()

    def add(self: Exchange, folder: Folder) -> None:
        """What is left of `top` is put on the pile, and `top` is gone before it is taken."""
        if folder[0] == b"top":
            moved.append(folder)
            (pair.source / "top").rename(pair.source.parent / "away")
        real(self, folder)

    monkeypatch.setattr(Exchange, "add", add)
    pair.copy()
    assert len(moved) == 1
    copied = look(pair.target)
    assert b"stays/file" in copied
    assert len({b"top/a", b"top/b"} & copied.keys()) == 1


def test_a_large_file_that_is_gone_before_its_turn_is_left_out(pair: Pair, way: str) -> None:
    pair.write("a-large", b"." * LARGE)
    pair.write("small")
    copier = copying.Copier(Scope(), everything, lambda _size: (pair.source / "a-large").unlink())
    copier.copy(str(pair.source), str(pair.target))
    assert set(look(pair.target)) == {b"small"}


@pytest.mark.parametrize("path", ["file", "large", "folder"])
def test_what_may_not_be_read_is_named(unprivileged: Path, way: str, path: str) -> None:
    pair = Pair(unprivileged)
    pair.write("in/file", b"x", 0)
    pair.write("in/large", b"x" * LARGE, 0)
    pair.write("in/folder/file", b"x")
    (pair.source / "in/folder").chmod(0)
    others = tuple(f"in/{name}".encode() for name in ("file", "large", "folder") if name != path)
    try:
        with pytest.raises(SandboxError, match=f"in/{path} cannot be copied: Permission") as told:
            pair.copy(Scope(exclude=others))
        assert f"'in/{path}' to the resource's exclude" in (told.value.hint or "")
    finally:
        (pair.source / "in/folder").chmod(0o700)
    assert threading.active_count() == 1


def test_what_may_not_be_made_is_named_too(unprivileged: Path, way: str) -> None:
    """A device cannot be made without privileges."""
    if not os.access("/dev/null", os.R_OK):
        pytest.skip("no device to copy")
    copier = copying.Copier(Scope(), lambda path, _: path == b"null", lambda _size: None)
    with pytest.raises(SandboxError, match="null cannot be copied: Operation not permitted"):
        copier.copy("/dev", str(unprivileged))


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_turns_into_a_link_meanwhile_is_not_followed(
    pair: Pair, way: str, is_folder: bool
) -> None:
    where = pair.source / "name"
    if is_folder:
        where.mkdir()
    else:
        where.write_bytes(b"bytes")

    def wanted(_path: bytes, _is_dir: bool) -> bool:
        where.rename(pair.source.parent / "away")
        where.symlink_to("/etc" if is_folder else "/etc/passwd")
        return True

    with pytest.raises(SandboxError, match="name changed while it was copied"):
        pair.copy(wanted=wanted)
    assert look(pair.target) == {}


def test_an_error_in_the_books_stops_the_threads(pair: Pair, way: str) -> None:
    for number in range(2000):
        pair.write(f"{number % 50}/{number}", b"." * 5000)

    def full(_size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pair.copy(progress=full)
    assert threading.active_count() == 1
    assert len(os.listdir("/proc/self/fd")) < 100


def test_so_much_waits_and_no_more(
    pair: Pair, way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The threads wait for a slow bookkeeper instead of filling the memory."""
    monkeypatch.setattr(exchanging, "MOST_WAITING", 50_000)
    monkeypatch.setattr(exchanging, "WORTH_WAKING", 1)
    for number in range(400):
        pair.write(f"{number // 4}/{number}", os.urandom(5000))
    most = 0

    class Books:
        """Stands where a batch would, to see what lies there."""

        def put_keyed(self, _key: bytes, _data: bytes) -> None:
            nonlocal most
            weight = exchange[0]._weight
            most = max(most, weight)
            time.sleep(0.001)

    exchange: list[Exchange] = []
    real = Exchange

    def watched(first: Folder) -> Exchange:
        exchange.append(real(first))
        return exchange[0]

    monkeypatch.setattr(copying, "Exchange", watched)
    copier = pair.copy(batch=Books())
    assert len(copier.known) == 400
    assert 0 < most < 50_000 + 2 * 4 * 6000


def test_where_blocks_can_be_shared_nothing_is_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system with reflinks: here the sharing itself is stood in for."""
    monkeypatch.setattr(each_file, "copy_files", filecopy.python_copy_files)
    shared: list[int] = []

    def share(source: int, target: int) -> bool:
        shared.append(os.fstat(source).st_size)
        os.sendfile(target, source, 0, 1 << 30)
        return True

    monkeypatch.setattr(filecopy, "share_blocks", share)
    monkeypatch.setattr(each_file, "share_blocks", share)
    pair.write("small", b"small")
    pair.write("large", b"." * (LARGE + 5))
    copier = pair.copy(base=lambda _path: (git_key(b"small"), 5))
    assert copier.known == {}
    assert sorted(shared) == [5, LARGE + 5]
    assert look(pair.target) == look(pair.source)


def test_a_file_that_grows_large_while_it_is_read_is_left_to_the_other_way(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.write("file", b"small")
    read = os.readv

    def growing(fd: int, buffers: list[memoryview]) -> int:
        with (pair.source / "file").open("ab") as file:
            file.write(b"." * LARGE)
        return read(fd, buffers)

    monkeypatch.setattr("cleveragents.content.native.filecopy.os.readv", growing)
    monkeypatch.setattr(filecopy, "share_blocks", lambda _source, _target: False)
    buffer = memoryview(bytearray(LARGE))
    with fsio.directory(str(pair.source)) as here, fsio.directory(str(pair.target)) as there:
        made = filecopy.python_copy_files(here, there, (b"file",), True, buffer, LARGE, 1)
    assert made == ([filecopy.IS_LARGE], False)
    assert os.listdir(pair.target) == []


def test_something_done_meanwhile_is_waited_for_and_its_error_raised() -> None:
    def broken() -> int:
        raise ValueError("from over there")

    with Background(lambda: 7) as fine:
        assert fine.wait() == 7
    with pytest.raises(ValueError, match="from over there"), Background(broken):
        pass
    with pytest.raises(KeyError), Background(broken):
        raise KeyError("the block's own comes first")


def test_what_is_done_meanwhile_is_traced_like_any_thread_and_leaves_none_behind() -> None:
    def trace(_frame: object, _event: str, _argument: object) -> None: ...

    before = threading.gettrace()
    threading.settrace(trace)
    try:
        assert Background(sys.gettrace).wait() is trace
    finally:
        threading.settrace(before)  # pyright: ignore[reportArgumentType]
    assert Background(threading.get_ident).wait() != threading.get_ident()
    assert threading.active_count() == 1


# the first checkpoint of a directory

PLAN = """
name: copied
resources: {docs: {kind: fs-directory, path: docs}}
steps: [{id: nothing, run: "true"}]
"""


class Directory:
    """A plan over a plain directory, its store and what of it is read."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top = top
        self.docs = top / "docs"
        self.read: list[bytes] = []
        (top / "plan.yaml").write_text(PLAN)
        for number in range(30):
            where = self.docs / f"d{number % 3}" / f"f{number}"
            where.parent.mkdir(parents=True, exist_ok=True)
            where.write_bytes(b"%d\n" % number * 500)
        (self.docs / "large").write_bytes(os.urandom(2 * LARGE + 100))
        (self.docs / "empty").write_bytes(b"")
        monkeypatch.setattr(updating, "look", self.look)
        monkeypatch.setattr(updating, "capture_file", self.capture_file)
        monkeypatch.setenv("CLEVERAGENTS_SANDBOX_CONFINE", "off")

    def look(self, fd: int, name: bytes, limit: int) -> files.Seen | None:
        found = files.look(fd, name, limit)
        if found is not None and found[7] is not None:
            self.read.append(name)
        return found

    def capture_file(
        self, fd: int, name: bytes, path: bytes, batch: Any, base: Any = None
    ) -> tuple[bytes, os.stat_result] | None:
        self.read.append(name)
        return files.capture_file(fd, name, path, batch, base)

    def run(self) -> dict[bytes, str]:
        """The state of each path in the first checkpoint; its content is all there."""
        with open_workspace(str(self.top / "store")) as ws:
            plan = ws.run(str(self.top / "plan.yaml"))
            first = plan.checkpoints()[0]
            sandbox = ws.ctx.manager.sandboxes(plan.plan_id).named("docs")
            assert isinstance(sandbox, TreeSandbox)
            self.size = first.size_bytes
            found = dict(trees.walk(sandbox.manifests, tree_of(first.snapshot)))
            for path, entry in found.items():
                if entry.kind is EntryKind.FILE:
                    content = b"".join(files.content_blocks(sandbox.read, entry.key))
                    assert content == (self.docs / os.fsdecode(path)).read_bytes()
        return {path: entry.described for path, entry in found.items()}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Directory:
    return Directory(tmp_path, monkeypatch)


def shares_blocks(folder: Path) -> bool:
    (folder / "one").write_bytes(b"1")
    (folder / "other").write_bytes(b"")
    with (folder / "one").open("rb") as one, (folder / "other").open("wb") as other:
        return filecopy.share_blocks(one.fileno(), other.fileno())


def test_the_first_checkpoint_of_a_directory_reads_no_file_again(
    directory: Directory, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shares_blocks(tmp_path):
        pytest.skip("nothing is read here while it is copied")
    seeded = directory.run()
    assert directory.read == []
    stored = directory.size
    assert stored > 2 * LARGE
    shutil.rmtree(directory.top / "store")
    with monkeypatch.context() as patch:
        patch.setattr(TreeSandbox, "inherit", lambda _self, _made: None)
        assert directory.run() == seeded
    assert len(directory.read) == 32


def between(
    monkeypatch: pytest.MonkeyPatch, action: Callable[[TreeSandbox], None]
) -> Callable[..., None]:
    """Do something after the sandbox is made and before its first checkpoint."""
    inherit = TreeSandbox.inherit

    def both(self: TreeSandbox, made: TreeSandbox) -> None:
        inherit(self, made)
        action(self)

    monkeypatch.setattr(TreeSandbox, "inherit", both)
    return both


def test_a_collection_before_the_first_checkpoint_takes_nothing_from_it(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Content that no checkpoint refers to yet may go; the capture notices and reads the files."""
    removed: list[int] = []

    def collect(_sandbox: TreeSandbox) -> None:
        with open_workspace(str(tmp_path / "store")) as other:
            removed.append(gc.collect(other.ctx, 0).removed)

    between(monkeypatch, collect)
    directory.run()
    assert removed[0] >= 32
    assert len(directory.read) == 32


def test_content_that_is_condemned_and_still_there_is_used(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def condemn(_sandbox: TreeSandbox) -> None:
        with open_workspace(str(tmp_path / "store")) as other:
            assert gc.collect(other.ctx, 1000).condemned >= 32

    between(monkeypatch, condemn)
    directory.run()
    assert directory.read == []
    with open_workspace(str(tmp_path / "store")) as ws:
        assert gc.collect(ws.ctx, 0).removed == 0


def test_a_collection_during_the_first_checkpoint_is_noticed_by_its_commit(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, once = engine.without_collected, list[int]()

    def collecting(known_files: Any, packs: Any) -> Any:
        kept = real(known_files, packs)
        if known_files and not once:
            with open_workspace(str(tmp_path / "store")) as other:
                once.append(gc.collect(other.ctx, 0).removed)
        return kept

    monkeypatch.setattr(engine, "without_collected", collecting)
    directory.run()
    assert once[0] >= 32
    assert len(set(directory.read)) == 32


def test_a_chunk_that_is_gone_makes_the_large_file_be_read(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (directory.docs / "large").read_bytes()

    def lose(sandbox: TreeSandbox) -> None:
        key = sandbox.seed[b"large"][1]
        assert key[:1] == CHUNKS
        assert key[1:] == blake3(sandbox.place.packs.get(key)).digest()
        gone = key_of(BLOB, data[:LARGE])
        query(directory.top / "store/store.db", "DELETE FROM objects WHERE key = ?", gone)

    between(monkeypatch, lose)
    directory.run()
    assert directory.read == [b"large"]


def test_an_edit_before_the_first_checkpoint_is_read(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same size and with the mtime put back: the change time tells."""

    def edit(sandbox: TreeSandbox) -> None:
        where = os.path.join(sandbox.place.root, "d0/f0")
        before = os.stat(where)
        while os.stat(where).st_ctime_ns == before.st_ctime_ns:
            with open(where, "r+b") as file:
                file.write(b"X")
            os.utime(where, ns=(before.st_atime_ns, before.st_mtime_ns))
        (directory.docs / "d0/f0").write_bytes(Path(where).read_bytes())

    between(monkeypatch, edit)
    directory.run()
    assert directory.read == [b"f0"]


def test_content_that_the_store_has_is_not_stored_twice(
    directory: Directory, tmp_path: Path
) -> None:
    directory.run()
    first = sum(p.stat().st_size for p in (tmp_path / "store/content").iterdir())
    directory.run()
    assert directory.read == []
    again = sum(p.stat().st_size for p in (tmp_path / "store/content").iterdir())
    assert again - first < 2000
    assert directory.size < 2000


# dying while copying


def test_a_process_that_died_while_copying_leaves_nothing_in_the_way(
    agents: Agents, tmp_path: Path
) -> None:
    docs = tmp_path / "work" / "docs"
    for number in range(6):
        (docs / f"d{number}").mkdir(parents=True)
        (docs / f"d{number}" / "file").write_bytes(b"%d" % number * 1000)
        (docs / f"d{number}").chmod(0o555)
    (docs / "large").write_bytes(b"." * (3 * LARGE))
    (agents.work / "plan.yaml").write_text(PLAN.replace("docs}", f"{docs}}}"))
    seen = 0
    for at in (3, 6, 9, 12, 15, 18, 21, 24):
        used = agents.run("plan", "use", "plan.yaml", "--json").expect(0)
        plan = json.loads(used.stdout)["data"]["plan_id"]
        died = agents.run("plan", "execute", plan, env={"CLEVERAGENTS_TEST_KILL_AT": str(at)})
        assert died.rc == -9, died
        seen += ": copied" in died.stderr
        agents.run("plan", "resume", plan).expect(0)
        shown = json.loads(agents.run("plan", "status", plan, "--json").expect(0).stdout)
        sandbox = next(iter(shown["data"]["sandboxes"].values()))
        assert look(Path(sandbox)) == look(docs)
        agents.run("check", "--read-data").expect(0)
    assert seen


# counting before


@pytest.mark.parametrize(
    "scope", [Scope(), Scope(exclude=(b"*.no",)), Scope(skip=(b"b/c/x", b"own"))]
)
def test_what_is_counted_is_what_is_copied(pair: Pair, scope: Scope) -> None:
    """Quickly where no rule can name anything in a directory, else name by name."""
    for number, path in enumerate(("a", "b/x", "b/c/x", "b/c/y.no", "b/c/d/z", "own/x", "own/y")):
        pair.write(path, b"." * (100 + number))
    (pair.source / "b/c/link").symlink_to("y")
    (pair.source / "b/empty").mkdir()
    os.mkfifo(pair.source / "b/pipe")
    found = census(str(pair.source), scope)
    pair.copy(scope)
    copied = [p for p in pair.target.rglob("*") if p.is_symlink() or not p.is_dir()]
    assert found.files == len(copied)
    assert found.size == sum(p.lstat().st_size for p in copied)
    sizes = dict(found.largest(9))
    assert sizes["b"] == sum(p.lstat().st_size for p in copied if "b" in p.parts)
    assert sizes["a"] == 100


@pytest.mark.parametrize("compiled", [True, False])
def test_blobs_are_named_as_git_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """Around every edge of a block of SHA-1, by the processor's instructions and without."""
    if not compiled:
        monkeypatch.setattr(keys, "_compiled_name", lambda: None)
    sizes = [*range(200), 4095, 4096, 65_535, 1 << 20]
    for size in sizes:
        (tmp_path / str(size)).write_bytes(random.Random(size).randbytes(size))
    listed = "".join(f"{tmp_path}/{size}\n" for size in sizes)
    named = subprocess.run(
        ["git", "hash-object", "--no-filters", "--stdin-paths"],
        input=listed, text=True, capture_output=True, check=True,
    ).stdout.split()  # fmt: skip
    found = [git_key((tmp_path / str(size)).read_bytes())[1:].hex() for size in sizes]
    assert found == named
