"""Work on the resource itself: nothing to apply, and every switch can be undone."""

import os
from functools import partial

from cleveragents.sandbox.protocol import (
    InPlace,
)
from cleveragents.testing.bench import Bench
from cleveragents.testing.crash import killed_at
from cleveragents.testing.observe import Seen, require_same
from cleveragents.testing.state_contract import REF, StateContract


class InPlaceContract(StateContract):
    """The same for a strategy that works on the resource itself."""

    strategy = "in_place"

    def test_there_is_nothing_to_apply(self, made: Bench) -> None:
        origin = made.capture()
        self.all_changes(made.path)
        result = made.capture(origin)
        before = self.exactly(made.root)
        staged = made.stage_apply(origin, result)
        made.sandbox.switch_apply(staged)
        made.sandbox.undo_apply(staged)
        made.sandbox.finish_apply(staged)
        assert made.sandbox.applied(staged).files == 0
        require_same(self.exactly(made.root), before)

    def test_remove_leaves_the_resource_alone(self, made: Bench) -> None:
        made.capture()
        self.all_changes(made.path)
        before = self.exactly(made.root)
        made.sandbox.remove()
        made.sandbox.remove()
        assert not os.path.exists(made.place.ours)
        found = self.exactly(made.root)
        require_same(_without_ref(found), _without_ref(before))

    def test_a_switch_can_be_undone_after_a_crash_at_any_point(self, made: Bench) -> None:
        first = made.capture()
        self.all_changes(made.path)
        current = made.capture(first)
        exact, number = self.exactly(made.root), 0
        while True:
            number += self.stride
            staging = made.staging()
            staged = made.sandbox.stage(current, first, staging)
            died = killed_at(number, partial(made.sandbox.switch, staged, staging))
            assert isinstance(made.sandbox, InPlace)
            made.sandbox.undo_switch(staged)
            made.sandbox.undo_switch(staged)
            require_same(self.exactly(made.root), exact, f"killed at point {number}")
            if not died:
                break
        assert number > self.stride, "no fault point was reached"


def _without_ref(seen: dict[bytes, Seen]) -> dict[bytes, Seen]:
    return {path: what for path, what in seen.items() if REF not in path}
