"""Trees and packs under random use: what was captured comes back, and damage is always seen."""

import os
import random
import resource
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from cleveragents.content import tree_diff, trees
from cleveragents.content.entry import (
    Tree,
)
from cleveragents.content.files import CHUNK, capture_file, content_blocks
from cleveragents.content.keys import (
    BLOB,
    TREE,
    key_of,
)
from cleveragents.content.pack_file import (
    Location,
)
from cleveragents.content.packs import (
    Batch,
    Packs,
)
from cleveragents.content.restore.staging import stage
from cleveragents.content.restore.switch import Switch
from cleveragents.errors import CheckpointFailed, ContentDamaged
from cleveragents.model.resource import Resource
from cleveragents.sandbox.copy_on_write import CopyOnWrite
from cleveragents.sandbox.protocol import Place
from cleveragents.sandbox.tree import tree_of
from cleveragents.testing import killed_at, look, require_same, stamps

MANY, SOME = 60, 30
"""Examples of the cheaper and of the dearer properties."""


class DictIndex:
    """An index in memory: what the store does with rows."""

    def __init__(self) -> None:
        self.known: dict[bytes, Location] = {}

    def find(self, key: bytes) -> Location | None:
        return self.known.get(key)

    def has(self, key: bytes) -> bool:
        return key in self.known

    def locate(self, keys: Iterable[bytes]) -> dict[bytes, Location]:
        return {key: self.known[key] for key in keys if key in self.known}

    def present(self, keys: Collection[bytes]) -> set[bytes]:
        return self.known.keys() & set(keys)


@contextmanager
def opened_packs(index: DictIndex | None = None, folder: str = "") -> Generator[Packs]:
    where = folder or tempfile.mkdtemp()
    packs = Packs(where, index or DictIndex())
    try:
        yield packs
    finally:
        packs.close()
        if not folder:
            shutil.rmtree(where)


def commit(packs: Packs, batch: Batch) -> None:
    batch.seal()
    assert isinstance(packs.index, DictIndex)
    packs.index.known.update(batch.located)
    for learned in batch.after_commit:
        learned()


def put(packs: Packs, *contents: bytes) -> list[bytes]:
    with packs.batch() as batch:
        keys = [batch.put(BLOB, content) for content in contents]
        commit(packs, batch)
    return keys


class Directory:
    """A directory that can be captured as often as one likes; remembers like a sandbox does."""

    def __init__(
        self,
        packs: Packs,
        root: Path | str,
        exclude: tuple[str, ...] = (),
        cache: str | None = None,
    ) -> None:
        where = str(root)
        resource = Resource(
            resource_id="R",
            plan_id="P",
            name="root",
            kind="fs-directory",
            path=where,
            strategy="copy_on_write",
            exclude=exclude,
        )
        place = Place(
            plan_id="P", resource=resource, root=where, path=where, packs=packs, cache=cache
        )
        self.sandbox = CopyOnWrite(place)
        self.packs = packs

    def look_into(self, batch: Batch) -> Tree:
        return tree_of(self.sandbox.capture(batch, None))

    def captured(self) -> Tree:
        with self.packs.batch() as batch:
            tree = self.look_into(batch)
            commit(self.packs, batch)
        return tree


def captured(packs: Packs, root: Path) -> Tree:
    """As a new process would."""
    return Directory(packs, root).captured()


# Random trees: name -> ("file", mode, content) | ("link", text) | ("pipe", mode) | (mode, {...})

NAMES = st.one_of(
    st.sampled_from([b"a", b"b", b"c", b"\n", b"\xff", b".git", b"-x", b" ", "ü".encode()]),
    st.binary(min_size=1, max_size=6).filter(
        lambda name: not set(b"/\0") & set(name) and name not in (b".", b"..")
    ),
)
CONTENTS = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"\r\n", b"\0" * 5000]))
FILES = st.tuples(st.just("file"), st.sampled_from([0o644, 0o755, 0o600, 0o444, 0o4755]), CONTENTS)
LINKS = st.tuples(st.just("link"), st.binary(min_size=1, max_size=9).filter(lambda t: 0 not in t))
PIPES = st.tuples(st.just("pipe"), st.sampled_from([0o644, 0o600]))
FOLDER_MODES = st.sampled_from([0o755, 0o700, 0o1777, 0o555])
NODES = st.recursive(
    st.one_of(FILES, FILES, LINKS, PIPES),
    lambda below: st.tuples(FOLDER_MODES, st.dictionaries(NAMES, below, max_size=4)),
    max_leaves=12,
)
TREES = st.dictionaries(NAMES, NODES, max_size=5)
Node = Any


@st.composite
def edited(draw: st.DrawFn, tree: dict[bytes, Node]) -> dict[bytes, Node]:
    """The tree with some names gone, changed, added or renamed."""
    result: dict[bytes, Node] = {}
    for name, node in tree.items():
        action = draw(st.sampled_from(["keep", "keep", "drop", "replace", "rename", "below"]))
        if action == "keep":
            result[name] = node
        elif action == "replace":
            result[name] = draw(NODES)
        elif action == "rename":
            result[draw(NAMES)] = node
        elif action == "below" and isinstance(node[1], dict):
            result[name] = (draw(FOLDER_MODES), draw(edited(node[1])))
    return result | draw(st.dictionaries(NAMES, NODES, max_size=2))


@st.composite
def two_trees(draw: st.DrawFn) -> tuple[dict[bytes, Node], dict[bytes, Node]]:
    first = draw(TREES)
    return first, draw(st.one_of(edited(first), edited(first), TREES))


def write(root: bytes, tree: dict[bytes, Node]) -> None:
    for name, node in tree.items():
        write_node(os.path.join(root, name), node)


def write_node(path: bytes, node: Node) -> None:
    if node[0] == "file":
        with open(path, "wb") as file:
            file.write(node[2])
        os.chmod(path, node[1])
        os.utime(path, ns=(0, random.randrange(1, 2_000_000_000_000_000_000)))
    elif node[0] == "link":
        os.symlink(node[1], path)
    elif node[0] == "pipe":
        os.mkfifo(path)
        os.chmod(path, node[1])
    else:
        os.mkdir(path)
        write(path, node[1])
        os.chmod(path, node[0])


def become(root: bytes, old: dict[bytes, Node], new: dict[bytes, Node]) -> None:
    """From one tree to the other as a tool would: what is equal is not touched."""
    for name in old.keys() - {name for name in new if new[name] == old.get(name)}:
        path = os.path.join(root, name)
        if isinstance(old[name][1], dict) and name in new and isinstance(new[name][1], dict):
            become(path, old[name][1], new[name][1])
            os.chmod(path, new[name][0])
        elif stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    for name, node in new.items():
        if not os.path.lexists(os.path.join(root, name)):
            write_node(os.path.join(root, name), node)


class Scene:
    """Two states of one directory: captured, changed, captured again."""

    def __init__(self, folder: Path, packs: Packs, first: Node, second: Node) -> None:
        self.packs = packs
        self.root = folder / "root"
        self.root.mkdir()
        self.staging = str(folder / "staging")
        directory = Directory(packs, self.root)
        write(os.fsencode(self.root), first)
        self.before, self.before_stamps = look(self.root), stamps(self.root)
        self.first = directory.captured()
        become(os.fsencode(self.root), first, second)
        self.after, self.after_stamps = look(self.root), stamps(self.root)
        self.second = directory.captured()

    @property
    def read(self) -> Callable[[bytes], bytes]:
        return trees.reading(self.packs.get)

    def back(self, current: Tree | None = None, force: bool = True) -> Switch:
        """The way from the second state, or any other, to the first."""
        shutil.rmtree(self.staging, ignore_errors=True)
        differences = tree_diff.diff(self.read, current or self.second, self.first)
        ops = stage(self.packs.get, differences, self.staging)
        return Switch(str(self.root), self.staging, ops, force=force)


@contextmanager
def scene(both: tuple[Node, Node]) -> Generator[Scene]:
    note(f"first:  {both[0]}\nsecond: {both[1]}")
    with tempfile.TemporaryDirectory() as folder, opened_packs() as packs:
        yield Scene(Path(folder), packs, *both)


@settings(max_examples=MANY)
@given(two_trees())
def test_whatever_happened_the_first_state_comes_back_byte_by_byte(both: tuple[Node, Node]) -> None:
    with scene(both) as one:
        one.back().forward()
        require_same(look(one.root), one.before)
        assert captured(one.packs, one.root).state == one.first.state


@settings(max_examples=MANY)
@given(two_trees())
def test_files_come_back_with_their_mtime_and_others_keep_their_inode(
    both: tuple[Node, Node],
) -> None:
    with scene(both) as one:
        one.back().forward()
        now = stamps(one.root)
        for path, (kind, _, _) in one.before.items():
            if kind == "file" and one.before[path] != one.after.get(path):
                assert now[path][1] == one.before_stamps[path][1], path
            elif kind != "directory" and one.before[path] == one.after.get(path):
                assert now[path] == one.after_stamps[path], path


@settings(max_examples=MANY)
@given(two_trees())
def test_what_was_done_can_be_undone_and_done_again(both: tuple[Node, Node]) -> None:
    with scene(both) as one:
        way = one.back(force=False)
        way.forward()
        way.backward()
        require_same(look(one.root), one.after, "undone")
        require_same(stamps(one.root), one.after_stamps, "undone")
        way.forward()
        require_same(look(one.root), one.before, "done again")


@settings(max_examples=SOME)
@given(two_trees(), st.integers(1, 30))
def test_a_restore_that_crashed_at_any_point_is_finished_by_the_next_process(
    both: tuple[Node, Node], number: int
) -> None:
    with scene(both) as one:
        killed_at(number, one.back().forward)
        one.back(captured(one.packs, one.root)).forward()
        require_same(look(one.root), one.before)


@settings(max_examples=SOME)
@given(two_trees(), st.integers(1, 30), st.integers(1, 10))
def test_an_apply_that_crashed_at_any_point_is_finished_or_undone(
    both: tuple[Node, Node], forward_at: int, backward_at: int
) -> None:
    with scene(both) as one:
        way = one.back(force=False)
        killed_at(forward_at, way.forward)
        way.forward()
        require_same(look(one.root), one.before, "finished")
        killed_at(backward_at, way.backward)
        way.backward()
        require_same(look(one.root), one.after, "taken back")
        require_same(stamps(one.root), one.after_stamps, "taken back")


@settings(max_examples=SOME)
@given(two_trees(), st.integers(1, 30))
def test_whatever_part_of_an_apply_happened_is_undone(both: tuple[Node, Node], number: int) -> None:
    with scene(both) as one:
        way = one.back(force=False)
        killed_at(number, way.forward)
        way.backward()
        require_same(look(one.root), one.after)
        require_same(stamps(one.root), one.after_stamps)


@settings(max_examples=MANY)
@given(two_trees())
def test_the_difference_is_what_an_independent_comparison_finds(both: tuple[Node, Node]) -> None:
    with scene(both) as one:
        found = {
            item.path: str(item.action) for item in tree_diff.diff(one.read, one.first, one.second)
        }
        wanted = {}
        for path in one.before.keys() | one.after.keys():
            if path not in one.after:
                wanted[path] = "removed"
            elif path not in one.before:
                wanted[path] = "added"
            elif one.before[path] != one.after[path]:
                wanted[path] = "changed"
        require_same(found, wanted)


@settings(max_examples=MANY)
@given(two_trees())
def test_two_states_have_the_same_hash_exactly_if_they_are_the_same(
    both: tuple[Node, Node],
) -> None:
    with scene(both) as one:
        assert (one.first.state == one.second.state) == (one.before == one.after)


@st.composite
def many_trees(draw: st.DrawFn) -> list[dict[bytes, Node]]:
    found = [draw(TREES)]
    for _ in range(draw(st.integers(1, 4))):
        found.append(draw(edited(found[-1])))
    return found


@settings(max_examples=SOME)
@given(many_trees(), st.lists(st.sampled_from(["followed", "restarted", ""]), min_size=5))
def test_whoever_remembers_or_follows_sees_what_a_stranger_sees(
    states: list[Node], how: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder, opened_packs() as packs:
        root, cache = Path(folder, "root"), f"{folder}/cache/known"
        root.mkdir()
        directory = Directory(packs, root, cache=cache)
        before: Node = {}
        for after, way in zip(states, how, strict=False):
            if way == "restarted":
                directory.sandbox.close()
                directory = Directory(packs, root, cache=cache)
            elif way == "followed":
                directory.sandbox.follow()
                directory.captured()
            become(os.fsencode(root), before, after)
            assert directory.captured().state == captured(packs, root).state
            before = after
        directory.sandbox.close()


@settings(max_examples=MANY)
@given(TREES)
def test_times_and_inodes_are_not_part_of_the_state(tree: Node) -> None:
    with tempfile.TemporaryDirectory() as folder, opened_packs() as packs:
        states: set[bytes] = set()
        for copy in (Path(folder, "one"), Path(folder, "two")):
            copy.mkdir()
            write(os.fsencode(copy), tree)
            states.add(captured(packs, copy).state)
        assert len(states) == 1


@settings(max_examples=MANY)
@given(TREES)
def test_a_walk_of_the_manifests_names_every_path_parents_first(tree: Node) -> None:
    with scene((tree, tree)) as one:
        walked = [path for path, _ in trees.walk(one.read, one.first)]
        assert set(walked) == set(one.before)
        seen: set[bytes] = set()
        for path in walked:
            parent = path.rpartition(b"/")[0]
            assert not parent or parent in seen
            seen.add(path)
        for path in walked:
            entry = trees.find(one.read, one.first, path)
            assert entry is not None
            assert entry.name == path.rpartition(b"/")[2]


RULES = ("*.log", "cache", "a/b")
LOGGED = st.one_of(NAMES, st.sampled_from([b"x.log", b"cache", b"a", b"b"]))
LOGGED_TREES = st.dictionaries(
    LOGGED,
    st.recursive(
        FILES,
        lambda below: st.tuples(FOLDER_MODES, st.dictionaries(LOGGED, below, max_size=3)),
        max_leaves=8,
    ),
    max_size=4,
)


def is_excluded(path: bytes) -> bool:
    """The rule in words: a name that matches anywhere, or the one path, and all below it."""
    parts = path.split(b"/")
    named = any(part.endswith(b".log") or part == b"cache" for part in parts)
    return named or path == b"a/b" or path.startswith(b"a/b/")


@settings(max_examples=MANY)
@given(LOGGED_TREES, LOGGED_TREES)
def test_excluded_paths_are_never_touched_and_never_in_the_way(first: Node, second: Node) -> None:
    with tempfile.TemporaryDirectory() as folder, opened_packs() as packs:
        root = Path(folder, "root")
        root.mkdir()
        directory = Directory(packs, root, RULES)
        write(os.fsencode(root), first)
        before = directory.captured()
        wanted = {path: seen for path, seen in look(root).items() if not is_excluded(path)}
        become(os.fsencode(root), first, second)
        mine = {path: seen for path, seen in look(root).items() if is_excluded(path)}
        files = {path for path, seen in wanted.items() if seen[0] == "file"}
        assume(not any(path.startswith(file + b"/") for path in mine for file in files))
        after = directory.captured()
        read = trees.reading(packs.get)
        ops = stage(packs.get, tree_diff.diff(read, after, before), f"{folder}/staging")
        Switch(str(root), f"{folder}/staging", ops, force=True).forward()
        now = look(root)
        require_same({p: now[p] for p in now if p in mine}, mine, "excluded")
        # A directory that must not be there stays if it still holds something excluded.
        held = {path for path in now if any(p.startswith(path + b"/") for p in mine)}
        extra = {p for p in now.keys() - wanted.keys() if not is_excluded(p)}
        assert extra <= held
        found = {p: seen for p, seen in now.items() if not is_excluded(p) and p not in extra}
        require_same(found, wanted, "captured")
        if not extra:
            assert directory.captured().state == before.state


# Capturing what changes meanwhile, or cannot be read


class Meddling(Batch):
    """Lets somebody else do something while content is being put."""

    def __init__(self, packs: Packs, meddle: Callable[[], None]) -> None:
        super().__init__(packs)
        self._meddle = meddle

    def put(self, kind: bytes, data: bytes) -> bytes:
        self._meddle()
        return super().put(kind, data)


def rewriting(path: Path, times: int) -> Callable[[], None]:
    """Writes to the file anew, that many times."""
    left = [times]

    def meddle() -> None:
        if left[0]:
            left[0] -= 1
            path.write_bytes(b"version %d" % left[0] * 100)
            os.utime(path, ns=(0, 1_000_000_000 * (left[0] + 1)))

    return meddle


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "busy"
    path.write_bytes(b"x" * 1000)
    with opened_packs() as packs, packs.batch():
        batch = Meddling(packs, rewriting(path, 2))
        fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        key, found = capture_file(fd, b"busy", b"busy", batch)
        os.close(fd)
        commit(packs, batch)
        assert b"".join(content_blocks(packs.get, key)) == path.read_bytes()
        assert found.st_mtime_ns == path.stat().st_mtime_ns


def test_a_file_that_never_stops_changing_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "root/sub").mkdir(parents=True)
    path = tmp_path / "root/sub/busy"
    path.write_bytes(b"x" * CHUNK)
    with opened_packs() as packs:
        batch = Meddling(packs, rewriting(path, 10**6))
        with pytest.raises(CheckpointFailed, match="sub/busy changed 3 times"):
            Directory(packs, tmp_path / "root").look_into(batch)


def test_files_that_vanish_during_the_walk_are_not_in_it(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"f{number:02}").write_text(f"{number}")
        (tmp_path / f"d{number:02}").mkdir()
        (tmp_path / f"d{number:02}/in").write_text(f"in {number}")

    def sweep() -> None:
        for number in range(20):
            (tmp_path / f"f{number:02}").unlink(missing_ok=True)
            shutil.rmtree(tmp_path / f"d{number:02}", ignore_errors=True)

    with opened_packs() as packs:
        Directory(packs, tmp_path).look_into(Meddling(packs, sweep))


@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_cannot_be_read_is_named(what: str) -> None:
    folder = tempfile.mkdtemp(dir="/tmp")
    try:
        os.chmod(folder, 0o755)
        secret = Path(folder, "root/sub/secret")
        secret.parent.mkdir(parents=True)
        secret.write_text("x") if what == "file" else secret.mkdir()
        secret.chmod(0)
        message = as_nobody(partial(capture_only, folder))
        assert "sub/secret cannot be read" in message
        assert "exclude" in message
    finally:
        shutil.rmtree(folder)


def capture_only(folder: str) -> None:
    packs = Packs(folder, DictIndex())
    with packs.preview() as batch:
        Directory(packs, f"{folder}/root").look_into(batch)


def as_nobody(action: Callable[[], None]) -> str:
    """What the error says when somebody without rights does it, in a child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "no error"
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            action()
        except CheckpointFailed as error:
            said = f"{error.message}; {error.hint}"
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_a_change_within_the_same_time_stamp_is_seen(tmp_path: Path) -> None:
    """Same inode, size and mtime as at the capture a moment ago."""
    path = tmp_path / "f"
    path.write_bytes(b"one")
    with opened_packs() as packs:
        directory = Directory(packs, tmp_path)
        for number in range(50):
            before = directory.captured()
            about = path.stat()
            with open(path, "r+b") as file:
                file.write(b"%03d" % number)
            os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
            assert directory.captured().state != before.state, number


def test_a_file_long_untouched_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    (tmp_path / "old").write_bytes(b"old")
    real, puts = time.time_ns, []
    with opened_packs() as packs:
        monkeypatch.setattr(time, "time_ns", lambda: real() + 10_000_000_000)
        directory = Directory(packs, tmp_path)
        before = directory.captured()
        again = Meddling(packs, lambda: puts.append(1))
        assert directory.look_into(again).state == before.state
        assert puts == [], "not even the manifest"
        (tmp_path / "old").write_bytes(b"new")
        os.utime(tmp_path / "old", ns=(0, 0))
        assert directory.captured().state != before.state


def test_a_capture_that_was_not_committed_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    (tmp_path / "f").write_bytes(b"content")
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 10_000_000_000)
    with opened_packs() as packs:
        directory = Directory(packs, tmp_path)
        with packs.batch() as given_up:
            directory.look_into(given_up)
        tree = directory.captured()
        entry = trees.find(trees.reading(packs.get), tree, b"f")
        assert entry is not None
        assert packs.get(entry.key) == b"content"


# Packs


@given(st.lists(st.lists(st.binary(max_size=200), max_size=5), max_size=5))
def test_what_was_put_is_got_back_also_by_another_process(batches: list[list[bytes]]) -> None:
    index = DictIndex()
    with tempfile.TemporaryDirectory() as folder:
        keys: dict[bytes, bytes] = {}
        for contents in batches:
            with opened_packs(index, folder) as packs:
                keys |= dict(zip(put(packs, *contents), contents, strict=True))
        with opened_packs(index, folder) as packs:
            assert all(packs.get(key) == content for key, content in keys.items())
            stored = sum(place.length for place in index.known.values())
            assert packs.size() == (stored + 8 if keys else 0), "equal content is stored once"


@given(st.binary(min_size=1, max_size=300), st.integers(0, 400), st.binary(min_size=1, max_size=99))
def test_a_torn_tail_is_harmless(content: bytes, cut: int, later: bytes) -> None:
    index = DictIndex()
    with tempfile.TemporaryDirectory() as folder:
        with opened_packs(index, folder) as packs:
            [kept] = put(packs, b"before the crash")
            end = packs.size()
            with packs.batch() as torn:
                torn.put(BLOB, content)
                torn.seal()
            os.truncate(f"{folder}/{packs.names()[0]}", min(end + cut, packs.size()))
        with opened_packs(index, folder) as packs:
            [key] = put(packs, later)
            assert packs.get(key) == later
            assert packs.get(kept) == b"before the crash"


def test_a_flipped_bit_anywhere_is_found_when_read() -> None:
    index = DictIndex()
    with tempfile.TemporaryDirectory() as folder, opened_packs(index, folder) as packs:
        put(packs, b"in front")
        [key] = put(packs, b"some content")
        put(packs, b"behind")
        place = index.known[key]
        path = Path(folder, place.pack)
        whole = path.read_bytes()
        for bit in range(place.offset * 8, (place.offset + place.length) * 8):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            with pytest.raises(ContentDamaged):
                packs.get(key)
        path.write_bytes(whole)
        assert packs.get(key) == b"some content"


@given(st.integers(0, 2**31), st.integers(1, 60))
def test_any_cut_of_a_pack_is_found_when_read(seed: int, cut: int) -> None:
    index = DictIndex()
    with tempfile.TemporaryDirectory() as folder, opened_packs(index, folder) as packs:
        [key] = put(packs, random.Random(seed).randbytes(50))
        os.truncate(f"{folder}/{index.known[key].pack}", packs.size() - cut)
        with pytest.raises(ContentDamaged):
            packs.get(key)


def test_content_of_another_kind_is_not_taken_for_it() -> None:
    with opened_packs() as packs:
        [key] = put(packs, b"data")
        place = packs.index.find(key)
        assert place is not None
        with pytest.raises(ContentDamaged):
            packs.read(key_of(TREE, b"data"), place)


@settings(max_examples=SOME)
@given(st.integers(0, 4 * CHUNK), st.integers(1, CHUNK), st.integers(1, 5 * CHUNK))
def test_a_small_change_in_a_large_file_adds_at_most_two_chunks(
    offset: int, length: int, size: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, opened_packs() as packs:
        path = Path(folder, "large")
        path.write_bytes(random.Random(size).randbytes(size))
        captured(packs, Path(folder))
        with open(path, "r+b") as file:
            file.seek(min(offset, size))
            file.write(random.Random(length).randbytes(length))
        with packs.batch() as batch:
            tree = Directory(packs, folder).look_into(batch)
            commit(packs, batch)
        blobs = [key for key in batch.located if key[:1] == BLOB]
        grown = max(0, -(-path.stat().st_size // CHUNK) - -(-size // CHUNK))
        assert len(blobs) <= 2 + grown
        entry = trees.find(trees.reading(packs.get), tree, b"large")
        assert entry is not None
        assert b"".join(content_blocks(packs.get, entry.key)) == path.read_bytes()


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1])
def test_files_at_the_edges_of_a_chunk_come_back(tmp_path: Path, size: int) -> None:
    (tmp_path / "root").mkdir()
    path = tmp_path / "root/f"
    path.write_bytes(random.Random(size).randbytes(size))
    with opened_packs() as packs:
        before = look(tmp_path / "root")
        first = captured(packs, tmp_path / "root")
        path.unlink()
        second = captured(packs, tmp_path / "root")
        read = trees.reading(packs.get)
        ops = stage(packs.get, tree_diff.diff(read, second, first), str(tmp_path / "staging"))
        Switch(str(tmp_path / "root"), str(tmp_path / "staging"), ops).forward()
        require_same(look(tmp_path / "root"), before)


def test_after_a_write_that_failed_the_next_one_is_stored_right(tmp_path: Path) -> None:
    """The disk is full for a while: nothing that was acknowledged later may be lost."""
    with opened_packs(folder=str(tmp_path)) as packs:
        put(packs, b"before")
        with file_size_limit(3000), pytest.raises(Exception):  # noqa: B017, PT011
            put(packs, os.urandom(10_000))
        [key] = put(packs, b"after")
        assert packs.get(key) == b"after"


@contextmanager
def file_size_limit(limit: int) -> Generator[None]:
    """Writes beyond it fail, like on a disk that is full."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_disk_that_is_full_is_an_error_of_the_store(tmp_path: Path) -> None:
    from cleveragents.errors import StoreError

    with opened_packs(folder=str(tmp_path)) as packs:
        put(packs, b"before")
        with file_size_limit(3000), pytest.raises(StoreError):
            put(packs, os.urandom(10_000))


def test_two_writers_never_share_a_pack(tmp_path: Path) -> None:
    one, two = DictIndex(), DictIndex()
    with opened_packs(one, str(tmp_path)) as first, opened_packs(two, str(tmp_path)) as second:
        keys = [put(first, b"a"), put(second, b"b"), put(first, b"c"), put(second, b"d")]
        assert len(first.names()) == 2
        assert [first.get(keys[0][0]), first.get(keys[2][0])] == [b"a", b"c"]
        assert [second.get(keys[1][0]), second.get(keys[3][0])] == [b"b", b"d"]


def test_the_budget_is_kept(tmp_path: Path) -> None:
    from cleveragents.errors import StoreError

    packs = Packs(str(tmp_path), DictIndex(), budget=5000)
    put(packs, os.urandom(2000))
    with pytest.raises(StoreError, match="budget"):
        put(packs, os.urandom(4000))
    packs.close()
