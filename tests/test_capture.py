"""The engine never misses a change: whatever is done to a tree, it says what a fresh walk says."""

import ctypes
import errno
import mmap
import os
import random
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from cleveragents.content import fsio
from cleveragents.content.capture import statcache, updating
from cleveragents.content.capture.engine import TreeEngine
from cleveragents.content.capture.mappings import mapped_files
from cleveragents.content.capture.statcache import Known, StatCache
from cleveragents.content.entry import (
    Tree,
)
from cleveragents.content.files import Seen
from cleveragents.content.native import walker
from cleveragents.content.pack_file import (
    Location,
)
from cleveragents.content.packs import (
    Packs,
)
from cleveragents.content.scope import Scope
from cleveragents.errors import CheckpointFailed

HEAVY = os.environ.get("CLEVERAGENTS_HEAVY") == "1"


class Index(dict[bytes, Location]):
    """The index of a store, in memory."""

    def find(self, key: bytes) -> Location | None:
        return self.get(key)

    def has(self, key: bytes) -> bool:
        return key in self

    def locate(self, keys: Iterable[bytes]) -> dict[bytes, Location]:
        return {key: self[key] for key in keys if key in self}

    def present(self, keys: Collection[bytes]) -> set[bytes]:
        return self.keys() & set(keys)


class Bench:
    """A tree, an engine that follows it, and the means to check it."""

    def __init__(self, folder: Path, *, follow: bool, scope: Scope | None = None) -> None:
        self.root = folder / "tree"
        self.root.mkdir()
        (folder / "content").mkdir()
        self.index = Index()
        self.packs = Packs(os.fspath(folder / "content"), self.index)
        self.cache = os.fspath(folder / "cache" / "stat")
        self.scope = scope or Scope()
        self.follow = follow
        self.engine = self.new_engine()

    def new_engine(self) -> TreeEngine:
        engine = TreeEngine(os.fspath(self.root), self.scope, {}, self.packs, self.cache)
        if self.follow:
            engine.track()
        return engine

    def restart(self) -> None:
        """As a new process would find it."""
        self.engine.close()
        self.engine = self.new_engine()

    def capture(self, *, commit: bool = True) -> Tree:
        with self.packs.batch() as batch:
            tree = self.engine.capture(batch)
            if commit:
                batch.seal()
                self.index.update(batch.located)
        if commit:
            for learned in batch.after_commit:
                learned()
        return tree

    def truth(self) -> Tree:
        with self.packs.preview() as batch:
            return TreeEngine(os.fspath(self.root), self.scope, {}, self.packs).capture(batch)

    def check(self) -> None:
        assert self.capture().state == self.truth().state

    def close(self) -> None:
        self.engine.close()
        self.packs.close()


@contextmanager
def bench(folder: Path, **options: bool) -> Iterator[Bench]:
    made = Bench(folder, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


class Clock:
    """The engine's clock: stands still until it is told to go on, however slow the machine is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = time.time_ns
        self._now = time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda: self._now)

    def go_on(self) -> None:
        """To a moment at which everything written so far is old."""
        self._now = self._real() + 2 * statcache.RACY_NS


class Vandal:
    """Does something to a tree, at random but repeatable."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.chance = random.Random(seed)
        self.maps: list[mmap.mmap] = []
        self.count = 0

    def paths(self, *, folders: bool) -> list[Path]:
        found = [p for p in self.root.rglob("*") if not p.is_symlink()]
        return sorted(p for p in found if p.is_dir() == folders)

    def folder(self) -> Path:
        return self.chance.choice([self.root, *self.paths(folders=True)])

    def file(self) -> Path:
        files = self.paths(folders=False)
        return self.chance.choice(files) if files else self.write()

    def fresh(self) -> Path:
        self.count += 1
        return self.folder() / f"n{self.count}"

    def write(self) -> Path:
        path = self.fresh()
        path.write_bytes(self.chance.randbytes(self.chance.randint(0, 200)))
        return path

    def edit(self) -> None:
        path = self.file()
        path.write_bytes(self.chance.randbytes(max(path.stat().st_size, 1)))

    def forge(self) -> None:
        """Other content of the same size, with the old time stamps."""
        path = self.file()
        old = path.stat()
        path.write_bytes(self.chance.randbytes(max(old.st_size, 1)))
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))

    def make_folder(self) -> None:
        path = self.fresh() / "a" / "b"
        path.mkdir(parents=True)
        (path / "deep").write_text("deep")

    def move(self) -> None:
        candidates = self.paths(folders=self.chance.random() < 0.6)
        if candidates:
            source, target = self.chance.choice(candidates), self.fresh()
            if source not in target.parents:
                source.rename(target)

    def swap(self) -> None:
        folders = self.paths(folders=True)
        if len(folders) > 1:
            a, b = self.chance.sample(folders, 2)
            if a not in b.parents and b not in a.parents:
                aside = self.root / "aside"
                a.rename(aside)
                b.rename(a)
                aside.rename(b)

    def remove(self) -> None:
        folders = self.paths(folders=True)
        if folders and self.chance.random() < 0.3:
            shutil.rmtree(self.chance.choice(folders))
        else:
            self.file().unlink()

    def chmod(self) -> None:
        either = self.paths(folders=self.chance.random() < 0.5)
        if either:
            self.chance.choice(either).chmod(self.chance.choice([0o700, 0o755, 0o750]))

    def symlink(self) -> None:
        self.fresh().symlink_to(self.chance.choice(["n1", "/etc", "missing"]))

    def hard_link(self) -> None:
        self.fresh().hardlink_to(self.file())

    def map(self) -> None:
        path = self.file()
        if path.stat().st_size:
            with path.open("r+b") as file:
                self.maps.append(mmap.mmap(file.fileno(), 0))

    def write_mapped(self) -> None:
        if self.maps:
            one = self.chance.choice(self.maps)
            one[self.chance.randrange(len(one))] = self.chance.randrange(256)

    def act(self) -> None:
        self.chance.choice(
            [
                self.write, self.edit, self.edit, self.forge, self.make_folder, self.move,
                self.swap, self.remove, self.chmod, self.symlink, self.hard_link, self.map,
                self.write_mapped,
            ]
        )()  # fmt: skip


def furnished(one: Bench, seed: int) -> Vandal:
    """Something to do things to, captured."""
    vandal = Vandal(one.root, seed)
    for _ in range(20):
        vandal.write()
    vandal.make_folder()
    one.check()
    return vandal


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel tells", "kernel lists"])
@pytest.mark.parametrize("access", [mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_WRITE, 7])
def test_who_has_mapped_a_file_for_writing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, access: int, kernel: bool
) -> None:
    """Whatever else may be done with its pages, and whether a kernel before 6.11 is asked."""

    def is_not_told(*_: object) -> None:
        raise OSError(errno.ENOTTY, "not by this kernel")

    if not kernel:
        monkeypatch.setattr("fcntl.ioctl", is_not_told)
    for name in ("read\nonly", "private", "line\nbreak"):
        (tmp_path / name).write_bytes(bytes(100))
    assert not mapped_files(str(tmp_path))
    with (
        (tmp_path / "read\nonly").open("rb") as read,
        (tmp_path / "private").open("r+b") as private,
        (tmp_path / "line\nbreak").open("r+b") as written,
        mmap.mmap(read.fileno(), 0, prot=mmap.PROT_READ),
        mmap.mmap(private.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=access),
    ):
        assert not mapped_files(str(tmp_path))
        with mmap.mmap(written.fileno(), 0, prot=access):
            assert mapped_files(str(tmp_path)) == {b"line\nbreak"}
        assert not mapped_files(str(tmp_path))


@pytest.mark.parametrize("linked", [False, True], ids=["one name", "two names"])
@pytest.mark.parametrize("follow", [True, False], ids=["events", "walks"])
def test_what_is_written_through_a_mapping_is_found_whenever_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follow: bool, linked: bool
) -> None:
    """Only the first write to a page changes the stamp of the file."""
    monkeypatch.setattr("cleveragents.content.capture.statcache.RACY_NS", 20_000_000)
    with bench(tmp_path, follow=follow) as one:
        (one.root / "folder").mkdir()
        (one.root / "file").write_bytes(bytes(100))
        if linked:
            (one.root / "folder" / "other").hardlink_to(one.root / "file")
        with (one.root / "file").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0] = 1
            one.capture()
            time.sleep(0.05)
            one.restart()
            one.check()
            for byte in range(2, 5):
                mapped[0] = byte
                one.restart()
                one.check()


@pytest.mark.parametrize("seed", range(12 if HEAVY else 4))
@pytest.mark.parametrize("follow", [True, False], ids=["events", "walks"])
def test_nothing_that_is_done_to_a_tree_is_missed(tmp_path: Path, seed: int, follow: bool) -> None:
    with bench(tmp_path, follow=follow) as one:
        vandal = furnished(one, seed)
        for turn in range(40):
            for _ in range(vandal.chance.randint(0, 4)):
                vandal.act()
            if vandal.chance.random() < 0.2:
                one.capture(commit=False)
            if vandal.chance.random() < 0.1:
                one.restart()
            assert one.capture().state == one.truth().state, f"turn {turn}"
        for mapped in vandal.maps:
            mapped.close()


def test_a_tree_that_is_written_to_meanwhile_is_known_once_it_rests(tmp_path: Path) -> None:
    with bench(tmp_path, follow=True) as one:
        vandal = Vandal(one.root, 5)
        for _ in range(30):
            vandal.write()
        one.check()
        stop, refused = threading.Event(), list[str]()

        def work() -> None:
            while not stop.is_set():
                try:
                    vandal.act()
                except OSError:
                    continue

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(20):
                try:
                    one.capture()
                except CheckpointFailed as error:
                    refused.append(error.message)
        finally:
            stop.set()
            thread.join()
        one.check()
        assert all("changed" in text for text in refused)
        for mapped in vandal.maps:
            mapped.close()


def test_after_an_overflow_the_tree_is_walked(tmp_path: Path) -> None:
    with bench(tmp_path, follow=True) as one:
        (one.root / "f").write_text("1")
        one.check()
        for number in range(20_000):
            os.utime(one.root / "f", ns=(number, number))
            if number % 2:
                (one.root / "g").touch()
            else:
                (one.root / "g").unlink(missing_ok=True)
        (one.root / "late").write_text("late")
        assert one.engine.tracker is not None
        assert one.engine.tracker.take() is None
        one.check()
        (one.root / "later").write_text("later")
        one.check()


def test_without_watches_left_it_walks_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_args: object) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(fsio.libc(), "inotify_add_watch", no_more)
    with bench(tmp_path, follow=True) as one:
        (one.root / "f").write_text("1")
        one.check()
        (one.root / "f").write_text("2")
        one.check()
        assert one.engine.tracker is None


def test_what_nobody_touched_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, follow=False) as one:
        old = 1_000_000_000 * 10**9
        for name in ("a", "b"):
            (one.root / name).write_text(name)
            os.utime(one.root / name, ns=(old, old))
        one.capture()
        monkeypatch.setattr("cleveragents.content.capture.statcache.RACY_NS", -(10**18))
        read: list[bytes] = []
        real = updating.look

        def counting(fd, name, limit):  # type: ignore[no-untyped-def]
            found = real(fd, name, limit)
            if found and found[7] is not None:
                read.append(name)
            return found

        monkeypatch.setattr(updating, "look", counting)
        (one.root / "b").write_text("B")
        one.restart()
        one.check()
        assert read.count(b"a") == 1  # by the fresh walk it is compared with
        assert read.count(b"b") == 2


def test_a_cache_that_was_tampered_with_is_not_used(tmp_path: Path) -> None:
    with bench(tmp_path, follow=False) as one:
        (one.root / "f").write_text("1")
        one.capture()
        one.engine.close()
        data = bytearray(Path(one.cache).read_bytes())
        data[-3] ^= 1
        Path(one.cache).write_bytes(bytes(data))
        one.engine = one.new_engine()
        assert one.engine.known is None
        one.check()


def test_a_tree_that_was_collected_meanwhile_is_captured_anew(tmp_path: Path) -> None:
    with bench(tmp_path, follow=False) as one:
        (one.root / "d").mkdir()
        (one.root / "d" / "f").write_text("1")
        one.capture()
        one.index.clear()
        one.check()


@pytest.mark.skipif(not walker.ACCELERATED, reason="the compiled walker was not built")
def test_both_walkers_give_the_same_answer(tmp_path: Path) -> None:
    vandal = Vandal(tmp_path, 11)
    for _ in range(200):
        vandal.act()
    for mapped in vandal.maps:
        mapped.close()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / os.fsdecode(b"\xff\nname")).write_text("odd")
    (tmp_path / "skipped" / "below").mkdir(parents=True)
    deep = tmp_path
    for _ in range(30):
        deep = deep / ("x" * 200)
        os.mkdir(deep) if len(str(deep)) < 3500 else None
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        for names, paths in (((), ()), ((b"below",), (b"skipped",))):
            fast = walker.walk(fd, names, paths)
            assert sorted(fast) == sorted(walker.python_walk(fd, names, paths))
            assert any(path == b"skipped" for path, _ in fast) is (not names)
    finally:
        os.close(fd)


def test_the_walkers_read_what_stat_says(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("12345")
    (tmp_path / "g").hardlink_to(tmp_path / "f")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        for walk in {walker.walk, walker.python_walk}:
            blob = dict(walk(fd, (), ()))[b""]
            assert isinstance(blob, bytes)
            found = (tmp_path / "f").stat()
            wanted = (
                found.st_ino, 5, found.st_mtime_ns, found.st_ctime_ns, found.st_mode
            )  # fmt: skip
            assert walker.unpack(blob) == {b"f": wanted, b"g": wanted}
            assert set(walker.linked(blob)) == {b"f", b"g"}
            latest = max(found.st_mtime_ns, found.st_ctime_ns)
            assert walker.newest(blob) == latest
            assert walker.mark(latest) <= blob < walker.mark(latest + 1)
    finally:
        os.close(fd)


def test_a_directory_that_cannot_be_read_is_reported_by_both(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    fd = os.open(tmp_path / "d", os.O_RDONLY)
    shutil.rmtree(tmp_path / "d")
    (tmp_path / "d").write_text("")
    try:
        for walk in {walker.walk, walker.python_walk}:
            assert dict(walk(fd, (), ()))[b""] == walker.NOTHING
    finally:
        os.close(fd)


@pytest.mark.parametrize("seed", range(8 if HEAVY else 3))
@pytest.mark.parametrize("follow", [True, False], ids=["events", "walks"])
def test_what_a_process_leaves_behind_hides_no_change_from_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, follow: bool
) -> None:
    """What a process with events reads again at the end counts only if nothing happened since."""
    monkeypatch.setattr("cleveragents.content.capture.statcache.RACY_NS", 50_000_000)
    with bench(tmp_path, follow=follow) as one:
        vandal = furnished(one, seed)
        for turn in range(12):
            for _ in range(vandal.chance.randint(0, 3)):
                vandal.act()
            one.capture(commit=vandal.chance.random() < 0.8)
            for mapped in vandal.maps:
                mapped.close()
            vandal.maps.clear()
            time.sleep(0.06)
            for _ in range(vandal.chance.choice((0, 0, 1))):
                vandal.act()
            if one.engine.tracker is not None and vandal.chance.random() < 0.4:
                one.engine.tracker.distrust()  # as after an overflow
            else:
                one.restart()
            assert one.capture().state == one.truth().state, f"turn {turn}"


def test_while_one_process_follows_a_tree_others_read_only_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command beside an agent's session read all of it, for as long as the session lived."""
    clock = Clock(monkeypatch)
    with bench(tmp_path, follow=True) as one:
        for name in ("a", "b", "c"):
            (one.root / name).mkdir()
            (one.root / name / "f").write_text(name)
        clock.go_on()
        one.check()
        (one.root / "a" / "f").write_text("A")
        one.check()
        other = TreeEngine(os.fspath(one.root), one.scope, {}, one.packs, one.cache)
        looked: list[bytes] = []
        real = updating.look
        with monkeypatch.context() as patch:

            def seeing(fd: int, name: bytes, most: int) -> Seen | None:
                looked.append(name)
                return real(fd, name, most)

            patch.setattr(updating, "look", seeing)
            with one.packs.preview() as batch:
                tree = other.capture(batch)
        assert looked == [b"f"]
        assert tree.state == one.truth().state


@pytest.mark.parametrize("touched", [False, True])
def test_what_was_seen_young_proves_something_once_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, touched: bool
) -> None:
    clock = Clock(monkeypatch)
    with bench(tmp_path, follow=True) as one:
        for name in ("a", "b", "c"):
            (one.root / name).write_text(name)
        one.check()
        clock.go_on()
        if touched:
            (one.root / "a").write_text("A")
        one.follow = False
        one.restart()
        looked: list[bytes] = []
        real = updating.look
        with monkeypatch.context() as patch:

            def seeing(fd: int, name: bytes, most: int) -> Seen | None:
                looked.append(name)
                return real(fd, name, most)

            patch.setattr(updating, "look", seeing)
            tree = one.capture()
        assert set(looked) == ({b"a", b"b", b"c"} if touched else set())
        assert tree.state == one.truth().state


def test_a_write_through_a_name_outside_is_not_taken_for_what_was_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cleveragents.content.capture.statcache.RACY_NS", 100_000_000)
    with bench(tmp_path, follow=True) as one:
        (one.root / "a").write_text("a")
        (tmp_path / "outside").hardlink_to(one.root / "a")
        one.check()
        time.sleep(0.2)
        (tmp_path / "outside").write_text("changed")
        time.sleep(0.2)
        one.restart()
        assert one.capture().state == one.truth().state


def test_a_write_through_a_name_outside_counts_until_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cleveragents.content.capture.statcache.RACY_NS", 50_000_000)
    with bench(tmp_path, follow=True) as one:
        (one.root / "a").write_text("a")
        (tmp_path / "outside").hardlink_to(one.root / "a")
        one.check()
        (tmp_path / "outside").write_text("changed")
        time.sleep(0.1)
        one.capture(commit=False)
        one.check()
        one.check()


@pytest.mark.parametrize("kept", [True, False])
def test_a_write_through_a_name_made_outside_meanwhile_is_found_by_the_next_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """No event tells of it; so the stat data it left must not be taken for what was captured."""
    monkeypatch.setattr("cleveragents.content.capture.statcache.RACY_NS", 50_000_000)
    with bench(tmp_path, follow=True) as one:
        for name in ("a", "b"):
            (one.root / name).write_text(name)
        one.check()
        (tmp_path / "outside").hardlink_to(one.root / "a")
        (tmp_path / "outside").write_text("changed")
        if not kept:
            (tmp_path / "outside").unlink()
        time.sleep(0.1)
        one.capture()
        one.restart()
        assert one.capture().state == one.truth().state


def test_of_two_processes_that_began_alike_only_the_first_is_believed(tmp_path: Path) -> None:
    """The other's tree with the first one's stat data would be something nobody saw."""
    path, root = os.fspath(tmp_path / "cache"), os.fspath(tmp_path)
    began = Known(Tree(b"began", b"began"), {b"%d" % n: b"as it was" for n in range(50)}, 1)
    StatCache(path, root).keep(began)
    first, other = StatCache(path, root), StatCache(path, root)
    assert first.load() == other.load() == began
    seen = Known(Tree(b"first", b"first"), {**began.stats, b"3": b"first"}, 2)
    first.keep(seen)
    other.keep(Known(Tree(b"other", b"other"), {**began.stats, b"4": b"other"}, 3))
    after = StatCache(path, root)
    assert after.load() == seen
    gone = Known(seen.tree, {path: blob for path, blob in seen.stats.items() if path != b"7"}, 4)
    after.keep(gone)
    assert StatCache(path, root).load() == gone


def test_the_cache_grows_by_what_changed_and_is_written_anew_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cleveragents.content.capture.statcache.RACY_NS", 20_000_000)
    with bench(tmp_path, follow=False) as one:
        for number in range(50):
            (one.root / f"d{number}").mkdir()
            (one.root / f"d{number}" / "f").write_text("1")
        one.capture()
        one.restart()
        sizes = [os.path.getsize(one.cache)]
        for number in range(60):
            (one.root / f"d{number % 50}" / "f").write_text(f"turn {number}")
            one.check()
            one.restart()
            sizes.append(os.path.getsize(one.cache))
        steps = [after - before for before, after in pairwise(sizes)]
        assert max(steps) < sizes[0] / 10
        assert any(step < 0 for step in steps)
        assert max(sizes) <= 2 * sizes[0] + 100


def test_a_torn_end_of_the_cache_costs_only_what_it_said(tmp_path: Path) -> None:
    with bench(tmp_path, follow=False) as one:
        for number in range(20):
            (one.root / f"d{number}").mkdir()
            (one.root / f"d{number}" / "f").write_text("1")
        one.capture()
        one.restart()
        whole = os.path.getsize(one.cache)
        for text in ("2", "3"):
            (one.root / "d3" / "f").write_text(text)
            one.check()
            one.restart()
        assert os.path.getsize(one.cache) > whole
        os.truncate(one.cache, os.path.getsize(one.cache) - 1)
        one.engine = one.new_engine()
        assert one.engine.known is not None
        one.check()
        one.restart()
        assert one.engine.known is not None
        assert one.engine.known.tree == one.capture()


@pytest.mark.parametrize("how", ["swap", "replace"])
def test_a_folder_that_was_exchanged_and_comes_back_is_not_taken_for_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What stat says inside a folder stays with the folder, whatever it is called meanwhile."""
    monkeypatch.setattr("cleveragents.content.capture.statcache.RACY_NS", 50_000_000)

    def turn(root: Path) -> None:
        (root / "a").rename(root / "aside")
        (root / "b").rename(root / "a")
        (root / "aside").rename(root / ("b" if how == "swap" else "away"))

    with bench(tmp_path, follow=True) as one:
        for name in ("a", "b"):
            (one.root / name / "sub").mkdir(parents=True)
            (one.root / name / "sub" / "f").write_text(name)
        one.check()
        time.sleep(0.1)
        one.restart()
        one.check()
        turn(one.root)
        one.check()
        time.sleep(0.1)
        one.restart()
        (one.root / "a").rename(one.root / "c")
        (one.root / ("b" if how == "swap" else "away")).rename(one.root / "a")
        one.follow = False
        one.engine.close()
        one.engine = one.new_engine()
        assert one.capture().state == one.truth().state


def test_folders_exchanged_while_they_are_captured_are_not_taken_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk saw one of them, and what was read then is the other's."""
    monkeypatch.setattr("cleveragents.content.capture.statcache.RACY_NS", 50_000_000)
    with bench(tmp_path, follow=True) as one:

        def turn() -> None:
            (one.root / "a").rename(one.root / "aside")
            (one.root / "b").rename(one.root / "a")
            (one.root / "aside").rename(one.root / "b")

        for name in ("a", "b"):
            (one.root / name / "sub").mkdir(parents=True)
            (one.root / name / "sub" / "f").write_text(name)
        time.sleep(0.1)
        walks: list[walker.Found] = []
        real = one.engine.walk

        def meanwhile() -> walker.Found:
            walks.append(real())
            if len(walks) == 2:  # the first is to know what to watch
                turn()
            return walks[-1]

        monkeypatch.setattr(one.engine, "walk", meanwhile)
        one.capture()
        turn()
        one.restart()
        assert len(walks) == 2
        assert one.capture().state == one.truth().state


def test_after_an_overflow_only_what_changed_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if all was made just before the first capture: it is old by the time of a later one."""
    monkeypatch.setattr("cleveragents.content.capture.statcache.RACY_NS", 100_000_000)
    with bench(tmp_path, follow=True) as one:
        for number in range(20):
            (one.root / f"d{number}").mkdir()
            (one.root / f"d{number}" / "f").write_text("1")
        one.check()
        time.sleep(0.2)
        Clock(monkeypatch)  # what is written from now on is young, however long it takes
        (one.root / "d3" / "f").write_text("2")
        one.check()
        assert one.engine.tracker is not None
        one.engine.tracker.distrust()
        (one.root / "d4" / "f").write_text("3")
        looked: list[tuple[bytes, int]] = []
        real = updating.look

        def seeing(fd: int, name: bytes, most: int) -> Seen | None:
            looked.append((name, os.fstat(fd).st_ino))
            return real(fd, name, most)

        with monkeypatch.context() as patch:
            patch.setattr(updating, "look", seeing)
            tree = one.capture()
        folders = {os.stat(one.root / name).st_ino for name in ("d3", "d4")}
        assert {folder for _, folder in looked} == folders
        assert tree.state == one.truth().state


def test_what_cannot_be_read_again_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with bench(tmp_path, follow=True) as one:
        (one.root / "d").mkdir()
        (one.root / "d" / "f").write_text("1")
        one.check()
        clock.go_on()
        walks: list[walker.Found] = []

        def refused() -> walker.Found:
            walks.append([(b"d", errno.EACCES)])
            return walks[-1]

        with monkeypatch.context() as patch:
            patch.setattr(one.engine, "walk", refused)
            for text in ("2", "3"):
                (one.root / "d" / "f").write_text(text)
                one.check()
        assert len(walks) == 1
