"""A sandbox is a copy, and a target takes its work over or is as it was."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from cleveragents.testing.bench import Bench, Start
from cleveragents.testing.crash import killed_at
from cleveragents.testing.observe import Seen, look, require_same
from cleveragents.testing.state_contract import Change, StateContract

OURS = b".cleveragents-"
"""How everything we put into a target while applying begins."""


class SandboxContract(StateContract):
    """Inherit this, say what the resource is and how a tool may change it."""

    def around(self, source: Path) -> object:
        """What else of the target apply may move and undo must bring back."""
        return None

    def seen_of_target(self, source: Path) -> object:
        """The user's resource as users see it."""
        return look(source, self.private)

    def seen_of_result(self, path: Path) -> object:
        """The sandbox, in the same terms."""
        return look(path, self.private)

    def test_create_makes_an_equal_copy(self, made: Bench) -> None:
        require_same(self.seen_of_result(made.path), self.seen_of_target(made.source))

    def test_capture_and_restore_leave_the_source_alone(self, made: Bench) -> None:
        before = self.untouched(made.source.parent)
        first = made.capture()
        self.all_changes(made.path)
        made.go(made.capture(first), first)
        made.sandbox.changes(first, first)
        self.require_untouched(made, before)

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

    def test_apply_continues_from_a_crash_at_any_point(self, made: Bench) -> None:
        def go_on(staged: dict[str, Any], number: int) -> str:
            made.sandbox.switch_apply(staged)
            seen = self._without_staging(self.seen_of_target(made.source))
            require_same(seen, self.seen_of_result(made.path), f"killed at point {number}")
            made.sandbox.undo_apply(staged)
            return f"undone after point {number}"

        self.with_each_crash_of_apply(made, go_on)

    def test_undo_takes_back_whatever_part_of_apply_happened(self, made: Bench) -> None:
        def take_back(staged: dict[str, Any], number: int) -> str:
            killed_at(1 + number % 5, partial(made.sandbox.undo_apply, staged))
            made.sandbox.undo_apply(staged)
            return f"killed at point {number}"

        self.with_each_crash_of_apply(made, take_back)

    def with_each_crash_of_apply(
        self, made: Bench, after: Callable[[dict[str, Any], int], str]
    ) -> None:
        """The target is as it was after each death of an apply and what `after` does then."""
        origin = made.capture()
        self.all_changes(made.path)
        result = made.capture(origin)
        before = (self.seen_of_target(made.source), self.around(made.source))
        number, died = 0, True
        while died:
            number += self.stride
            staged = made.stage_apply(origin, result)
            died = killed_at(number, partial(made.sandbox.switch_apply, staged))
            self.require_back(made, before, after(staged, number))
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
