"""What decisions in force wrote, and where to roll their paths back to."""

import math
from collections.abc import Iterable

from cleveragents import codec
from cleveragents.context import Context
from cleveragents.errors import CorrectionRefused
from cleveragents.model.checkpoint import CheckpointGroup
from cleveragents.model.decision import Decision, DecisionKind, DecisionState
from cleveragents.model.impact import Deed, Spot, Touched
from cleveragents.model.plan import Plan, Step
from cleveragents.model.plan_spec import StepSpec
from cleveragents.model.resource import Action, Change, show_path
from cleveragents.model.tool import Write
from cleveragents.sandbox.registry import traits_of


class Facts:
    """A plan's decisions in force and their writes."""

    def __init__(self, ctx: Context, plan: Plan) -> None:
        self._ctx = ctx
        self.plan = plan
        self.decisions: list[Decision] = [
            d for d in ctx.store.plans.decisions(plan.plan_id) if d.state is DecisionState.ACTIVE
        ]
        self.steps: list[Step] = ctx.store.plans.steps(plan.plan_id)
        self._order = ctx.store.order_of(plan.plan_id)
        calls = ctx.store.calls
        self.writes: list[tuple[str | None, Write]] = calls.writes_by_decision(plan.plan_id)
        self._by_decision: dict[str | None, list[Write]] = {}
        for name, write in self.writes:
            self._by_decision.setdefault(name, []).append(write)
        self._whole = {
            resource.resource_id
            for resource in ctx.store.resources.of_plan(plan.plan_id)
            if not traits_of(resource.kind).is_directory
        }
        self._ignored = self._find_ignored()
        self.deeds: list[Deed] = self._in_order()

    def decisions_of(self, steps: set[str]) -> set[str]:
        return {s.decision_id for s in self.steps if s.step_id in steps and s.decision_id}

    def steps_of(self, decisions: set[str]) -> set[str]:
        return {s.step_id for s in self.steps if s.decision_id in decisions}

    def _in_order(self) -> list[Deed]:
        """Decisions in the order made; writes after the next decision, in the order written.

        That happens with steps that share a decision, and with parallel child plans.
        """
        ids = [d.decision_id for d in self.decisions]
        order = self._order
        placed: dict[str, Deed] = {}
        for decision, after in zip(self.decisions, [*ids[1:], None], strict=True):
            wrote = self._by_decision.get(decision.decision_id, [])
            late = [w for w in wrote if after is not None and order[w.call_id] > order[after]]
            placed[decision.decision_id] = self._deed(decision, [w for w in wrote if w not in late])
            for call in {w.call_id for w in late}:
                spots = self._spots(w for w in late if w.call_id == call)
                placed[call] = Deed(
                    decision_id=decision.decision_id, wrote=spots, is_record=_is_record(decision)
                )
        return [placed[name] for name in sorted(placed, key=order.__getitem__)]

    def _spots(self, writes: Iterable[Write]) -> frozenset[Spot]:
        return frozenset(
            (w.resource_id, b"" if w.resource_id in self._whole else w.path)
            for w in writes
            if not self._is_ignored(w)
        )

    def _deed(self, decision: Decision, wrote: list[Write]) -> Deed:
        steps = [s for s in self.steps if s.decision_id == decision.decision_id]
        specs = [codec.convert(s.spec, StepSpec) for s in steps]
        given = [
            s.decision.influences for s in specs if s.decision and not isinstance(s.decision, str)
        ]
        return Deed(
            decision_id=decision.decision_id,
            parent_id=decision.parent_id,
            steps=tuple(s.step_id for s in steps),
            needs=frozenset(name for spec in specs for name in spec.needs),
            influences=frozenset(name for names in given for name in names),
            wrote=self._spots(wrote),
            is_record=_is_record(decision),
        )

    def _is_ignored(self, write: Write) -> bool:
        return write.path in self._ignored.get(write.resource_id, ())

    def _find_ignored(self) -> dict[str, frozenset[bytes]]:
        head = self.plan.head_group_id
        if head is None or not self.writes:
            return {}
        states = self._ctx.checkpoints.states(self._ctx.store.checkpoints.group(head))
        sandboxes = self._ctx.manager.sandboxes(self.plan.plan_id)
        found: dict[str, frozenset[bytes]] = {}
        for rid, state in states.items():
            changes = {
                w.path: Change("", w.path, Action.CHANGED, w.before, w.after)
                for _, w in self.writes
                if w.resource_id == rid
            }
            found[rid] = sandboxes[rid].ignored(tuple(changes.values()), state)
        return found

    def rollback_point(self, gone: set[str]) -> tuple[str | None, dict[str, set[bytes]]]:
        """The group from before the set's first call, and the paths to roll back to it."""
        in_force = {d.decision_id for d in self.decisions}
        paths: dict[str, set[bytes]] = {}
        others: dict[str, set[bytes]] = {}
        for decision, write in self.writes:
            if decision in gone:
                paths.setdefault(write.resource_id, set()).add(write.path)
            elif paths and decision in in_force:
                others.setdefault(write.resource_id, set()).add(write.path)
        for rid, mine in paths.items():
            self._leave_shared(rid, mine, others.get(rid, set()))
        paths = {rid: some for rid, some in paths.items() if some}
        if not paths:
            return None, {}
        group = self._group_before(gone)
        self._require_unmixed(group, gone, paths)
        return group.group_id, paths

    def _leave_shared(self, rid: str, mine: set[bytes], others: set[bytes]) -> None:
        """Keep ignored paths that others wrote too; the git directory is all or nothing."""
        hidden = self._ignored.get(rid, frozenset())
        mine -= {path for path in mine & others if path in hidden}
        if any(_in_git(path) and path in hidden for path in others):
            mine -= {path for path in mine if _in_git(path) and path in hidden}

    def _require_unmixed(
        self, group: CheckpointGroup, gone: set[str], paths: dict[str, set[bytes]]
    ) -> None:
        """Refuse if another decision may have written the same paths without a group between."""
        since, back = self._order[group.group_id], Touched()
        for rid, some in paths.items():
            back.add((rid, path) for path in some)
        for decision, write in self.writes:
            if decision in gone:
                return
            spot = (write.resource_id, write.path)
            if self._order[write.call_id] > since and back.overlaps((spot,)):
                raise CorrectionRefused(
                    f"step {write.step_id!r} wrote {show_path(write.path)} before this decision,"
                    " and there is no checkpoint between them",
                    "correct that step's decision, or use --cascade with it",
                )

    def _group_before(self, gone: set[str]) -> CheckpointGroup:
        calls = self._ctx.store.calls.of_plan(self.plan.plan_id)
        first = next((c for c in calls if c.decision_id in gone), None)
        kept = {g.group_id: g for g in self._ctx.store.checkpoints.groups(self.plan.plan_id)}
        if first is None or first.group_id not in kept:
            limit = self._order[first.call_id] if first else math.inf
            near = [g for g in kept.values() if self._order[g.group_id] < limit]
            target = (near or list(kept.values()))[-1].group_id
            raise CorrectionRefused(
                "the checkpoint from before this decision was pruned",
                f"roll back to the nearest kept one: agents plan rollback {self.plan.plan_id}"
                f" {target}",
            )
        group = kept[first.group_id]
        self._ctx.checkpoints.require_readable(group)
        return group


def _is_record(decision: Decision) -> bool:
    return decision.kind in (DecisionKind.USER_INTERVENTION, DecisionKind.ROOT)


def _in_git(path: bytes) -> bool:
    return path.split(b"/")[0] == b".git"
