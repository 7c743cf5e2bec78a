"""What every kind of sandbox must keep, as tests to inherit (`cleveragents[testing]`).

    class TestMySandbox(SandboxContract):
        kind, strategy = "my-kind", "my-strategy"

        def make_source(self, folder): ...
        def changes(self): ...
        def all_changes(self, path): ...

The kind has to be registered (entry point `cleveragents.sandboxes`). For readable failures say
`pytest.register_assert_rewrite("cleveragents.testing")` in your `conftest.py`. Nothing else of
the package imports this. `look` is a walk of its own: it shares no code with what it judges.
"""

import os
import signal
import stat
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from cleveragents.content import fsio
from cleveragents.content.packs import Packs
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.ids import new_id
from cleveragents.model.resource import Resource
from cleveragents.sandbox.protocol import ApplyOptions, Making, Place, Proposal, Sandbox
from cleveragents.sandbox.registry import open_sandbox
from cleveragents.store import Store, open_store

Seen = tuple[str, int, bytes]
"""Kind, permission bits, and content: a file's bytes, a link's text, a device's number."""
Change = Callable[[Path], None]
OURS = b".cleveragents-"
"""How everything we put into a target while applying begins."""
REF = b".git/refs/cleveragents"
"""The one thing a sandbox of a repository may leave there while it lives."""


def look(root: Path, leave_out: tuple[bytes, ...] = ()) -> dict[bytes, Seen]:
    """Every path below, links not followed; `leave_out` are names at the top."""
    found: dict[bytes, Seen] = {}
    for path, about in _walk(os.fsencode(root), leave_out):
        found[path] = _seen(os.path.join(os.fsencode(root), path), about)
    return found


def _walk(root: bytes, leave_out: tuple[bytes, ...]) -> list[tuple[bytes, os.stat_result]]:
    found: list[tuple[bytes, os.stat_result]] = []
    waiting = [name for name in os.listdir(root) if name not in leave_out]
    while waiting:
        path = waiting.pop()
        about = os.lstat(os.path.join(root, path))
        found.append((path, about))
        if stat.S_ISDIR(about.st_mode):
            below = os.listdir(os.path.join(root, path))
            waiting += [os.path.join(path, name) for name in below]
    return sorted(found, key=lambda item: item[0])


def _seen(path: bytes, about: os.stat_result) -> Seen:
    mode = stat.S_IMODE(about.st_mode)
    if stat.S_ISLNK(about.st_mode):
        return "link", 0, os.readlink(path)
    if stat.S_ISDIR(about.st_mode):
        return "directory", mode, b""
    if stat.S_ISREG(about.st_mode):
        with open(path, "rb") as content:
            return "file", mode, content.read()
    return f"special {stat.S_IFMT(about.st_mode):o}", mode, b"%d" % about.st_rdev


def require_same(found: object, wanted: object, when: str = "") -> None:
    """Equal, else an error that names what differs and not all the rest."""
    if found == wanted:
        return
    if isinstance(found, dict) and isinstance(wanted, dict):
        here = cast("dict[bytes, object]", found)
        there = cast("dict[bytes, object]", wanted)
        lines = [
            f"{path!r}: {_short(here.get(path))}, not {_short(there.get(path))}"
            for path in sorted(here.keys() | there.keys())
            if here.get(path) != there.get(path)
        ]
        raise AssertionError("\n".join([when or "differs", *lines]))
    raise AssertionError(f"{when} {_short(cast('object', found))}, not {_short(wanted)}")


def _short(value: object) -> str:
    text = "absent" if value is None else repr(value)
    return text if len(text) < 300 else f"{text[:300]}... ({len(text)} characters)"


def stamps(root: Path) -> dict[bytes, tuple[int, int]]:
    """Inode and mtime of everything that is not a directory."""
    return {
        path: (about.st_ino, about.st_mtime_ns)
        for path, about in _walk(os.fsencode(root), ())
        if not stat.S_ISDIR(about.st_mode)
    }


def killed_at(number: int, action: Callable[[], object]) -> bool:
    """Do it in a child that dies at its n-th fault point; False if it got to its end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            setattr(fsio, "_points", 0)  # noqa: B010
            setattr(fsio, "_kill_at", number)  # noqa: B010
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            action()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the action failed in the child"
    return False


class Bench:
    """A store of its own, and the sandbox of one resource in it."""

    def __init__(self, folder: Path, store: Store, packs: Packs, resource: Resource) -> None:
        self.folder = folder
        self.store = store
        self.packs = packs
        self.source = Path(resource.path)
        base = self.source.name
        root = folder / "sandbox" / base
        self.place = Place(
            plan_id=resource.plan_id,
            resource=resource,
            root=str(root),
            path=str(root / base if self.source.is_file() else root),
            packs=packs,
            cache=str(folder / "cache" / "app"),
        )
        self.sandbox = open_sandbox(self.place)
        self._staged = 0

    @property
    def root(self) -> Path:
        return Path(self.place.root)

    @property
    def path(self) -> Path:
        return Path(self.place.path)

    def create(self) -> None:
        os.makedirs(os.path.dirname(self.place.root), exist_ok=True)
        origin = self.sandbox.create(making())
        self.place = _replace(self.place, origin=origin)
        self.reopen()

    def reopen(self) -> Sandbox:
        """As a new process would find it: nothing remembered."""
        self.sandbox.close()
        self.sandbox = open_sandbox(self.place)
        return self.sandbox

    def fresh_look(self) -> SandboxCheckpoint:
        """The state as somebody sees it who knows nothing of earlier ones; nothing is kept."""
        stranger = open_sandbox(_replace(self.place, cache=None))
        try:
            with self.packs.looking() as batch:
                return stranger.capture(batch, None, strict=False)
        finally:
            stranger.close()

    def capture(
        self, previous: SandboxCheckpoint | None = None, strict: bool = True
    ) -> SandboxCheckpoint:
        """Capture and keep: the content is in the store when this returns."""
        with self.packs.batch() as batch:
            state = self.sandbox.capture(batch, previous, strict)
            batch.seal()
            with self.store.transaction():
                self.store.objects.add(batch.located.items())
                assert self.store.objects.reuse(batch.reused) == []
        for learned in batch.after_commit:
            learned()
        return state

    def staging(self) -> str:
        self._staged += 1
        return str(self.folder / f"staging{self._staged}")

    def go(self, current: SandboxCheckpoint, target: SandboxCheckpoint) -> None:
        staging = self.staging()
        self.sandbox.switch(self.sandbox.stage(current, target, staging), staging)

    def options(self, **given: Any) -> ApplyOptions:
        values: dict[str, Any] = {
            "mode": None,
            "ignored": True,
            "message": "applied\n",
            "branch": "agents/test",
            "staging": self.staging(),
        }
        return ApplyOptions(**(values | given))

    def propose(
        self, origin: SandboxCheckpoint, result: SandboxCheckpoint, options: ApplyOptions
    ) -> Proposal:
        with self.packs.batch() as batch:
            proposal = self.sandbox.compare(origin, result, options, batch)
            batch.seal()
            with self.store.transaction():
                self.store.objects.add(batch.located.items())
        return proposal

    def stage_apply(self, origin: SandboxCheckpoint, result: SandboxCheckpoint) -> dict[str, Any]:
        options = self.options()
        return self.sandbox.stage_apply(self.propose(origin, result, options), options)


class Start:
    """A sandbox that was just made, and how everything looked then."""

    def __init__(self, made: Bench) -> None:
        self.made = made
        self.state = made.capture()
        self.exact = look(made.root)
        self.times = stamps(made.root)
        self.source = look(made.source.parent)

    def is_now(self) -> bool:
        here, there = look(self.made.root), look(self.made.source.parent)
        return here == self.exact and there.keys() == self.source.keys()


def making() -> Making:
    def refuse(problem: str, hint: str) -> None:
        raise AssertionError(f"asked about the size: {problem}; {hint}")

    return Making(
        limit_bytes=1 << 30, limit_files=10_000, confirm=refuse, progress=lambda _name, _size: None
    )


def _replace(place: Place, **fields: Any) -> Place:
    import msgspec

    return msgspec.structs.replace(place, **fields)


@contextmanager
def open_bench(
    folder: Path, source: Path, kind: str, strategy: str, **fields: Any
) -> Generator[Bench]:
    """A bench that is closed at the end; the sandbox is not made yet."""
    store = open_store(str(folder / "store"))
    (folder / "content").mkdir()
    packs = Packs(str(folder / "content"), store.objects)
    plan_id = new_id()
    resource = Resource(
        resource_id=new_id(),
        plan_id=plan_id,
        name="app",
        kind=kind,
        path=str(source),
        strategy=strategy,
        **fields,
    )
    bench = Bench(folder, store, packs, resource)
    try:
        yield bench
    finally:
        bench.sandbox.close()
        packs.close()
        store.close()


class SandboxContract:
    """Inherit this, say what the resource is and how a tool may change it."""

    kind: ClassVar[str]
    strategy: ClassVar[str]
    private: ClassVar[tuple[bytes, ...]] = ()
    """Names at the top that the sandbox, or the target, has for itself."""
    keeps_mtime: ClassVar[bool] = True
    stride: ClassVar[int] = 1
    """Every how many fault points a crash is tried."""

    def make_source(self, folder: Path) -> Path:
        """The user's resource, made below the folder."""
        raise NotImplementedError

    def changes(self) -> dict[str, Change]:
        """What a tool may do to the sandbox's path; each of them makes another state."""
        raise NotImplementedError

    def all_changes(self, path: Path) -> None:
        """Many of them at once, so that a crash can fall between two."""
        raise NotImplementedError

    def seen_of_target(self, source: Path) -> object:
        """The user's resource as users see it."""
        return look(source, self.private)

    def seen_of_result(self, path: Path) -> object:
        """The sandbox, in the same terms."""
        return look(path, self.private)

    def untouched(self, folder: Path) -> tuple[dict[bytes, Seen], dict[bytes, tuple[int, int]]]:
        """All that lies around the user's resource, to be the same before and after."""
        return look(folder), stamps(folder)

    def around(self, source: Path) -> object:
        """What else of the target apply may move and undo must bring back."""
        return None

    @pytest.fixture
    def new_bench(self, tmp_path: Path) -> Generator[Callable[[], Bench]]:
        """Makes benches, each in a folder of its own, and closes them at the end."""
        with ExitStack() as opened:

            def make() -> Bench:
                folder = tmp_path / str(len(list(tmp_path.iterdir())))
                (folder / "users").mkdir(parents=True)
                source = self.make_source(folder / "users")
                return opened.enter_context(open_bench(folder, source, self.kind, self.strategy))

            yield make

    @pytest.fixture
    def bench(self, new_bench: Callable[[], Bench]) -> Bench:
        return new_bench()

    @pytest.fixture
    def made(self, bench: Bench) -> Bench:
        """The sandbox is there."""
        bench.create()
        return bench

    def with_each_change(
        self,
        new_bench: Callable[[], Bench],
        subtests: pytest.Subtests,
        check: Callable[[Start, Change], None],
    ) -> None:
        """One change after the other, on one bench, or a new one where it was not brought back."""
        start: Start | None = None
        for name, change in self.changes().items():
            if start is None or not start.is_now():
                bench = new_bench()
                bench.create()
                start = Start(bench)
            with subtests.test(name):
                check(start, change)

    # create

    def test_create_makes_an_equal_copy(self, made: Bench) -> None:
        require_same(self.seen_of_result(made.path), self.seen_of_target(made.source))

    def test_create_leaves_the_source_as_it_was(self, bench: Bench) -> None:
        before = self.untouched(bench.source.parent)
        bench.create()
        after = self.untouched(bench.source.parent)
        require_same({p: after[0][p] for p in after[0] if REF not in p}, before[0])
        require_same({p: after[1][p] for p in after[1] if REF not in p}, before[1])

    def test_what_create_returns_is_plain_data(self, made: Bench) -> None:
        import json

        assert json.loads(json.dumps(made.place.origin)) == made.place.origin

    # capture

    def test_capture_is_deterministic(self, made: Bench) -> None:
        first = made.capture()
        again = made.capture(first)
        made.reopen()
        fresh = made.capture()
        assert first.state_hash == again.state_hash == fresh.state_hash
        assert first.root == fresh.root

    def test_capturing_the_same_state_again_adds_nothing(self, made: Bench) -> None:
        first = made.capture()
        again = made.capture(first)
        assert again.added_bytes == 0

    def test_the_same_bytes_written_again_are_the_same_state(self, made: Bench) -> None:
        first = made.capture()
        for path, (kind, mode, content) in look(made.root).items():
            if kind == "file":
                where = os.path.join(os.fsencode(made.root), path)
                os.unlink(where)
                with open(where, "wb") as again:
                    again.write(content)
                os.chmod(where, mode)
        assert made.capture(first).state_hash == first.state_hash

    def test_every_kind_of_change_changes_the_hash(
        self, new_bench: Callable[[], Bench], subtests: pytest.Subtests
    ) -> None:
        def check(start: Start, change: Change) -> None:
            made = start.made
            change(made.path)
            assert look(made.root) != start.exact, "the change changes nothing"
            changed = made.capture(start.state)
            made.reopen()
            assert changed.state_hash != start.state.state_hash
            assert made.capture(start.state).state_hash == changed.state_hash
            assert made.sandbox.changes(start.state, changed)
            made.go(changed, start.state)

        self.with_each_change(new_bench, subtests, check)

    @pytest.mark.parametrize("how", ["followed", "in one process", "each in a new process"])
    def test_what_was_known_before_hides_no_change(
        self, new_bench: Callable[[], Bench], subtests: pytest.Subtests, how: str
    ) -> None:
        """Whoever remembers or follows sees what a stranger sees."""

        def check(start: Start, change: Change) -> None:
            made = start.made
            if how == "followed":
                made.sandbox.follow()
                assert made.capture(start.state).state_hash == start.state.state_hash
            change(made.path)
            if how == "each in a new process":
                made.reopen()
            changed = made.capture(start.state)
            assert changed.state_hash == made.fresh_look().state_hash
            assert changed.state_hash != start.state.state_hash
            staging = made.staging()
            staged = made.sandbox.stage(changed, start.state, staging)
            made.sandbox.switch(staged, staging)
            with made.packs.looking() as batch:
                back = made.sandbox.recapture(batch, staged)
            assert back.state_hash == start.state.state_hash
            assert made.capture(changed).state_hash == start.state.state_hash

        self.with_each_change(new_bench, subtests, check)

    def test_after_a_doubt_everything_is_looked_at(self, made: Bench) -> None:
        first = made.capture()
        self.all_changes(made.path)
        made.sandbox.doubt()
        assert made.capture(first).state_hash == made.fresh_look().state_hash

    def test_capture_and_restore_leave_the_source_alone(self, made: Bench) -> None:
        before = self.untouched(made.source.parent)
        first = made.capture()
        self.all_changes(made.path)
        made.go(made.capture(first), first)
        made.sandbox.changes(first, first)
        self.require_untouched(made, before)

    def test_changes_between_equal_states_are_none(self, made: Bench) -> None:
        first = made.capture()
        assert made.sandbox.changes(first, made.capture(first)) == ()

    # restore

    def test_restore_brings_back_every_byte(
        self, new_bench: Callable[[], Bench], subtests: pytest.Subtests
    ) -> None:
        def check(start: Start, change: Change) -> None:
            made = start.made
            change(made.path)
            changed = made.capture(start.state)
            exact = look(made.root)
            made.go(changed, start.state)
            require_same(look(made.root), start.exact)
            made.go(start.state, changed)
            require_same(look(made.root), exact, "forward again")
            assert made.capture(start.state).state_hash == changed.state_hash
            made.go(changed, start.state)

        self.with_each_change(new_bench, subtests, check)

    def test_restore_brings_back_mtimes_and_touches_nothing_else(
        self, new_bench: Callable[[], Bench], subtests: pytest.Subtests
    ) -> None:
        def check(start: Start, change: Change) -> None:
            made = start.made
            change(made.path)
            changed = made.capture(start.state)
            seen, times = look(made.root), stamps(made.root)
            made.go(changed, start.state)
            after = stamps(made.root)
            untouched = {p for p in times if times[p] == start.times.get(p)} & {
                p for p, what in seen.items() if what == start.exact.get(p)
            }
            assert untouched or len(times) == 1
            require_same({p: after[p] for p in untouched}, {p: times[p] for p in untouched})
            if self.keeps_mtime:
                files = {p for p, what in start.exact.items() if what[0] == "file"}
                require_same({p: after[p][1] for p in files}, {p: start.times[p][1] for p in files})
            start.times = after

        self.with_each_change(new_bench, subtests, check)

    def test_stage_leaves_the_live_state_alone(self, made: Bench) -> None:
        first = made.capture()
        self.all_changes(made.path)
        changed = made.capture(first)
        exact, times = look(made.root), stamps(made.root)
        made.sandbox.stage(changed, first, made.staging())
        require_same(look(made.root), exact)
        require_same(stamps(made.root), times)

    def test_switch_may_be_repeated(self, made: Bench) -> None:
        first = made.capture()
        exact = look(made.root)
        self.all_changes(made.path)
        staging = made.staging()
        staged = made.sandbox.stage(made.capture(first), first, staging)
        made.sandbox.switch(staged, staging)
        times = stamps(made.root)
        made.sandbox.switch(staged, staging)
        require_same(look(made.root), exact)
        require_same(stamps(made.root), times)

    def test_switch_goes_on_from_a_crash_at_any_point(self, made: Bench) -> None:
        first = made.capture()
        exact = look(made.root)
        current, number = first, 0
        while True:
            number += self.stride
            self.all_changes(made.path)
            current = made.capture(current)
            staging = made.staging()
            staged = made.sandbox.stage(current, first, staging)
            died = killed_at(number, partial(made.sandbox.switch, staged, staging))
            made.sandbox.switch(staged, staging)
            require_same(look(made.root), exact, f"killed at point {number}")
            assert made.capture(first).state_hash == first.state_hash
            if not died:
                break
        assert number > self.stride, "no fault point was reached"

    def test_damaged_content_stops_stage_before_anything_moves(self, made: Bench) -> None:
        from cleveragents.errors import ContentDamaged

        first = made.capture()
        self.all_changes(made.path)
        changed = made.capture(first)
        exact = look(made.root)
        for name in made.packs.names():
            pack = made.folder / "content" / name
            pack.write_bytes(b"\0" * pack.stat().st_size)
        made.reopen()
        with pytest.raises(ContentDamaged):
            made.sandbox.stage(changed, first, made.staging())
        require_same(look(made.root), exact)

    # apply

    def test_compare_changes_nothing(self, made: Bench) -> None:
        origin = made.capture()
        self.all_changes(made.path)
        result = made.capture(origin)
        before = self.untouched(made.source.parent)
        proposal = made.propose(origin, result, made.options())
        assert proposal.files
        assert proposal.conflicts == ()
        self.require_untouched(made, before)

    def test_no_work_means_no_files(self, made: Bench) -> None:
        origin = made.capture()
        assert made.propose(origin, origin, made.options()).files == ()

    def test_apply_brings_the_target_to_the_result_and_undo_brings_it_back(
        self, new_bench: Callable[[], Bench], subtests: pytest.Subtests
    ) -> None:
        def check(start: Start, change: Change) -> None:
            made = start.made
            before = (self.seen_of_target(made.source), self.around(made.source))
            change(made.path)
            result = made.capture(start.state)
            staged = made.stage_apply(start.state, result)
            made.sandbox.switch_apply(staged)
            made.sandbox.switch_apply(staged)
            applied = self._without_staging(self.seen_of_target(made.source))
            require_same(applied, self.seen_of_result(made.path), "applied")
            made.sandbox.undo_apply(staged)
            made.sandbox.undo_apply(staged)
            self.require_back(made, before, "undone")
            made.go(result, start.state)

        self.with_each_change(new_bench, subtests, check)

    def test_staging_an_apply_leaves_the_target_as_it_was(self, made: Bench) -> None:
        origin = made.capture()
        before = self.seen_of_target(made.source)
        self.all_changes(made.path)
        made.stage_apply(origin, made.capture(origin))
        require_same(self._without_staging(self.seen_of_target(made.source)), before)

    def test_apply_leaves_nothing_but_the_result(self, made: Bench) -> None:
        origin = made.capture()
        self.all_changes(made.path)
        staged = made.stage_apply(origin, made.capture(origin))
        made.sandbox.switch_apply(staged)
        done = made.sandbox.applied(staged)
        made.sandbox.finish_apply(staged)
        made.sandbox.finish_apply(staged)
        assert done.files > 0
        require_same(self.seen_of_target(made.source), self.seen_of_result(made.path))
        assert not [path for path in look(made.source.parent) if OURS in path]

    def test_what_was_staged_for_an_apply_can_be_thrown_away(self, made: Bench) -> None:
        origin = made.capture()
        before = (self.seen_of_target(made.source), self.around(made.source))
        self.all_changes(made.path)
        options = made.options()
        proposal = made.propose(origin, made.capture(origin), options)
        made.sandbox.stage_apply(proposal, options)
        made.reopen()
        made.sandbox.discard_apply(options.staging)
        made.sandbox.discard_apply(options.staging)
        self.require_back(made, before)
        assert not [path for path in look(made.source.parent) if OURS in path]

    def test_apply_goes_on_from_a_crash_at_any_point(self, made: Bench) -> None:
        origin = made.capture()
        self.all_changes(made.path)
        result = made.capture(origin)
        before = (self.seen_of_target(made.source), self.around(made.source))
        number = 0
        while True:
            number += self.stride
            staged = made.stage_apply(origin, result)
            died = killed_at(number, partial(made.sandbox.switch_apply, staged))
            made.sandbox.switch_apply(staged)
            seen = self._without_staging(self.seen_of_target(made.source))
            require_same(seen, self.seen_of_result(made.path), f"killed at point {number}")
            made.sandbox.undo_apply(staged)
            self.require_back(made, before, f"undone after point {number}")
            if not died:
                break

    def test_undo_takes_back_whatever_part_of_apply_happened(self, made: Bench) -> None:
        origin = made.capture()
        self.all_changes(made.path)
        result = made.capture(origin)
        before = (self.seen_of_target(made.source), self.around(made.source))
        number = 0
        while True:
            number += self.stride
            staged = made.stage_apply(origin, result)
            died = killed_at(number, partial(made.sandbox.switch_apply, staged))
            killed_at(1 + number % 5, partial(made.sandbox.undo_apply, staged))
            made.sandbox.undo_apply(staged)
            self.require_back(made, before, f"killed at point {number}")
            if not died:
                break
        assert number > self.stride, "no fault point was reached"

    # remove

    def test_remove_leaves_nothing(self, bench: Bench) -> None:
        before = self.untouched(bench.source.parent)
        bench.create()
        bench.capture()
        bench.sandbox.remove()
        bench.sandbox.remove()
        assert not bench.root.exists()
        self.require_untouched(bench, before)

    def require_untouched(
        self, bench: Bench, before: tuple[dict[bytes, Seen], dict[bytes, tuple[int, int]]]
    ) -> None:
        after = self.untouched(bench.source.parent)
        require_same(after[0], before[0])
        require_same(after[1], before[1])

    def require_back(self, made: Bench, before: tuple[object, object], when: str = "") -> None:
        """The target, and what apply may move around it, are as they were."""
        require_same(self.seen_of_target(made.source), before[0], when)
        require_same(self.around(made.source), before[1], when)

    def _without_staging(self, seen: object) -> object:
        if not isinstance(seen, dict):
            return seen
        tree = cast("dict[bytes, object]", seen)
        return {path: what for path, what in tree.items() if OURS not in path}
