"""States and the way back: what holds wherever the work is done."""

import os
from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from cleveragents.testing.bench import Bench, Start, open_bench
from cleveragents.testing.crash import killed_at
from cleveragents.testing.observe import Seen, look, require_same, stamps

Change = Callable[[Path], None]


REF = b".git/refs/cleveragents"
"""The one thing a sandbox of a repository may leave there while it lives."""


class StateContract:
    """What holds wherever the work is done, in a copy or in place: states, and the way back."""

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

    def untouched(self, folder: Path) -> tuple[dict[bytes, Seen], dict[bytes, tuple[int, int]]]:
        """All that lies around the user's resource, to be the same before and after."""
        return look(folder), stamps(folder)

    def exactly(self, root: Path) -> dict[bytes, Seen]:
        """What a restore has to bring back."""
        return look(root)

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
                start = Start(bench, self.exactly)
            with subtests.test(name):
                check(start, change)

    # create

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
            assert self.exactly(made.root) != start.exact, "the change changes nothing"
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
        """A sandbox that remembers or follows changes sees what a fresh one sees."""

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
            with made.packs.preview() as batch:
                back = made.sandbox.recapture(batch, staged)
            assert back.state_hash == start.state.state_hash
            assert made.capture(changed).state_hash == start.state.state_hash

        self.with_each_change(new_bench, subtests, check)

    def test_after_a_doubt_everything_is_looked_at(self, made: Bench) -> None:
        first = made.capture()
        self.all_changes(made.path)
        made.sandbox.doubt()
        assert made.capture(first).state_hash == made.fresh_look().state_hash

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
            exact = self.exactly(made.root)
            made.go(changed, start.state)
            require_same(self.exactly(made.root), start.exact)
            made.go(start.state, changed)
            require_same(self.exactly(made.root), exact, "forward again")
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
            seen, times = self.exactly(made.root), stamps(made.root)
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
        exact, times = self.exactly(made.root), stamps(made.root)
        made.sandbox.stage(changed, first, made.staging())
        require_same(self.exactly(made.root), exact)
        require_same(stamps(made.root), times)

    def test_switch_may_be_repeated(self, made: Bench) -> None:
        first = made.capture()
        exact = self.exactly(made.root)
        self.all_changes(made.path)
        staging = made.staging()
        staged = made.sandbox.stage(made.capture(first), first, staging)
        made.sandbox.switch(staged, staging)
        times = stamps(made.root)
        made.sandbox.switch(staged, staging)
        require_same(self.exactly(made.root), exact)
        require_same(stamps(made.root), times)

    def test_switch_continues_from_a_crash_at_any_point(self, made: Bench) -> None:
        first = made.capture()
        exact = self.exactly(made.root)
        current, number = first, 0
        while True:
            number += self.stride
            self.all_changes(made.path)
            current = made.capture(current)
            staging = made.staging()
            staged = made.sandbox.stage(current, first, staging)
            died = killed_at(number, partial(made.sandbox.switch, staged, staging))
            made.sandbox.switch(staged, staging)
            require_same(self.exactly(made.root), exact, f"killed at point {number}")
            assert made.capture(first).state_hash == first.state_hash
            if not died:
                break
        assert number > self.stride, "no fault point was reached"

    def test_damaged_content_stops_stage_before_anything_moves(self, made: Bench) -> None:
        from cleveragents.errors import ContentDamaged

        first = made.capture()
        self.all_changes(made.path)
        changed = made.capture(first)
        exact = self.exactly(made.root)
        for name in made.packs.names():
            pack = made.folder / "content" / name
            pack.write_bytes(b"\0" * pack.stat().st_size)
        made.reopen()
        with pytest.raises(ContentDamaged):
            made.sandbox.stage(changed, first, made.staging())
        require_same(self.exactly(made.root), exact)
