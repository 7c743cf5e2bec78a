"""Reverts an applied plan, by a plan of its own.

Its one step merges the reverse of the applied difference into a sandbox of the targets as they are
now, by the rules of apply; then it is reviewed and applied like any other work.
"""

from typing import Any

from cleveragents.apply.database_backups import require_there
from cleveragents.content import removal
from cleveragents.content.restore.operation import Op
from cleveragents.content.restore.staging import stage
from cleveragents.content.restore.switch import Switch
from cleveragents.content.tree_diff import (
    Difference,
)
from cleveragents.context import Context
from cleveragents.errors import NotAllowed, RollbackDisabled
from cleveragents.lease import LeasedPlan, spec_of
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType, SandboxCheckpoint
from cleveragents.model.ids import new_id
from cleveragents.model.journal import Operation
from cleveragents.model.plan import Plan, State
from cleveragents.model.plan_spec import LONGEST_NAME, ApplySpec, DecisionSpec, PlanSpec, StepSpec
from cleveragents.model.resource import IN_PLACE
from cleveragents.model.tool import CallState, ToolResult, ToolSpec
from cleveragents.model.units import plural
from cleveragents.sandbox.merge import merge_into
from cleveragents.sandbox.protocol import (
    STATEMENTS,
    SWAP,
    Conflict,
    HasEqualStates,
    PathByPath,
    Sandbox,
)

REVERT = "plan.revert"
"""The tool of the one step; plan files cannot name it."""


def reversing_spec(plan: Plan, group: CheckpointGroup, resources: tuple[str, ...]) -> PlanSpec:
    """The plan that reverts another, in those of its resources (pure)."""
    spec = spec_of(plan)
    subject = (spec.apply.message or plan.name).strip().splitlines()[0]
    step = StepSpec(
        id="revert",
        tool=REVERT,
        inputs={"plan": plan.plan_id, "group": group.group_id},
        decision=DecisionSpec(
            question=f"revert plan {plan.name}", chosen=f"what it applied, {group.group_id}"
        ),
    )
    return PlanSpec(
        name=f"revert-{plan.name}"[:LONGEST_NAME],
        description=f"reverts plan {plan.plan_id}",
        resources=tuple(item for item in spec.resources if item.name in resources),
        tools={REVERT: ToolSpec(name=REVERT, builtin=REVERT, network=False)},
        steps=(step,),
        apply=ApplySpec(message=f'Revert "{subject}"\n\nReverts plan {plan.plan_id}.'),
    )


def spec_to_revert(ctx: Context, plan: Plan) -> tuple[PlanSpec, tuple[str, ...]]:
    """The reversing plan, and what it will leave alone, in words."""
    if plan.state is not State.APPLIED or plan.result is None:
        raise NotAllowed(
            f"plan {plan.name!r} is {plan.phase}/{plan.state}: only an applied plan can be"
            " reverted",
            f"agents plan rollback {plan.plan_id} CHECKPOINT",
        )
    if not plan.rollback_enabled:
        raise RollbackDisabled(f"plan {plan.name!r} has rollback_enabled: false: nothing was kept")
    require_there(ctx, plan)
    if (by := reverted_by(ctx.store.plans.all(), plan.plan_id)) is not None:
        raise NotAllowed(
            f"plan {plan.name!r} is already reverted, by plan {by.name!r} {by.plan_id}",
            f"agents plan revert-applied {by.plan_id} restores it",
        )
    in_place = [i["resource"] for i in plan.result["applied"] if i["mode"] == IN_PLACE]
    modes = {
        item["resource"]: item["mode"]
        for item in plan.result["applied"]
        if item["files"] or item["mode"] not in (SWAP, STATEMENTS, IN_PLACE)
    }
    if in_place and not modes:
        raise NotAllowed(
            f"plan {plan.name!r} worked in place: nothing was applied that could be reverted",
            f"agents plan diff {plan.plan_id}",
        )
    if not modes:
        raise NotAllowed(f"plan {plan.name!r} changed nothing when it was applied")
    branches = [name for name, mode in modes.items() if mode == "branch"]
    left = tuple(f"resource {name!r} was applied as a branch: delete that" for name in branches)
    wanted = tuple(name for name in modes if name not in branches)
    if not wanted:
        raise NotAllowed(
            f"plan {plan.name!r} was applied as a branch and changed nothing else",
            "git branch -D BRANCH",
        )
    group = [
        group
        for group in ctx.store.checkpoints.groups(plan.plan_id)
        if CheckpointType.PRE_APPLY in group.triggers
    ][-1]
    ctx.checkpoints.require_readable(group)
    return reversing_spec(plan, group, wanted), left


def reverted_by(plans: list[Plan], plan_id: str) -> Plan | None:
    """The applied plan that reverted this one, unless that one was reverted too (pure)."""
    for other in plans:
        step = next(iter(other.spec["steps"]), None)
        is_it = step is not None and step["tool"] == REVERT and step["inputs"]["plan"] == plan_id
        if is_it and other.state is State.APPLIED and reverted_by(plans, other.plan_id) is None:
            return other
    return None


def nothing_to_revert(plan: Plan) -> NotAllowed:
    return NotAllowed(
        f"nothing to revert: every target is as it was before plan {plan.name!r} {plan.plan_id}",
        f"agents plan diff {plan.plan_id}",
    )


def revert_paths(ctx: Context, leased: LeasedPlan, *, plan: str, group: str) -> ToolResult:
    """The step: every path is reverted, or none, with the conflicts."""
    plan_id = leased.plan.plan_id
    applied = ctx.checkpoints.states(ctx.store.checkpoints.group(group))
    began = ctx.checkpoints.initial_states(plan)
    old = {s.place.resource.name: s for s in ctx.manager.sandboxes(plan).opened.values()}
    now = ctx.checkpoints.look(plan_id, lambda states: states)
    first = ctx.checkpoints.initial_states(plan_id)
    ways: list[_Way] = []
    for rid, sandbox in ctx.manager.sandboxes(plan_id).capturable.items():
        was = old[sandbox.place.resource.name]
        key = was.place.resource.resource_id
        settled = {c.shown for c in sandbox.changes(first[rid], now[rid])}
        way = _Way(ctx, leased, sandbox, now[rid])
        if isinstance(sandbox, PathByPath) and isinstance(was, PathByPath):
            way.merge(was, began[key], applied[key], _with_ignored(ctx, plan))
        else:
            way.replace(began[key], applied[key])
        way.leave_out(settled)
        ways.append(way)
    conflicts = [item for way in ways for item in way.conflicts]
    if conflicts:
        return _refused(conflicts)
    try:
        for way in ways:
            way.stage()
        changed = sum(way.go() for way in ways)
    finally:
        for way in ways:
            way.discard()
    text = f"{plural(changed, 'path')} reverted"
    return ToolResult(ok=True, state=CallState.OK, output=text, output_bytes=len(text))


def _with_ignored(ctx: Context, plan_id: str) -> bool:
    entries = ctx.store.journal.of_plan(plan_id)
    last = [entry for entry in entries if entry.operation is Operation.APPLY][-1]
    return bool(last.detail.get("ignored"))


def _refused(conflicts: list[Conflict]) -> ToolResult:
    lines = "".join(f"{item.resource}: {item.path}: {item.reason}\n" for item in conflicts)
    shown = ", ".join(f"{item.resource}:{item.path}" for item in conflicts[:5])
    return ToolResult(
        ok=False,
        state=CallState.FAILED,
        output=lines,
        output_bytes=len(lines.encode()),
        error=f"{plural(len(conflicts), 'path was', 'paths were')} changed since the plan was"
        f" applied: {shown};"
        " edit them in the sandbox as you want them, then resume",
    )


class _Way:
    """Reverts the applied plan in one sandbox."""

    def __init__(
        self, ctx: Context, leased: LeasedPlan, sandbox: Sandbox, now: SandboxCheckpoint
    ) -> None:
        self._ctx = ctx
        self._leased = leased
        self._sandbox = sandbox
        self._now = now
        self._staging = ctx.manager.staging(leased.plan.plan_id, new_id())
        self._target: SandboxCheckpoint | None = None
        self._was: PathByPath | None = None
        self._work: list[Difference] = []
        self._staged: dict[str, Any] = {}
        self._ops: tuple[Op, ...] = ()
        self._whole = False
        self.conflicts: list[Conflict] = []

    def replace(self, began: SandboxCheckpoint, applied: SandboxCheckpoint) -> None:
        """Revert a whole state: only possible if it is still as applied."""
        self._whole = True
        if self._mark(self._now) == self._mark(applied):
            self._target = began
        elif self._mark(began) not in (self._mark(applied), self._mark(self._now)):
            name = self._sandbox.place.resource.name
            changes = self._sandbox.changes(applied, self._now)
            self.conflicts += [
                Conflict(
                    resource=name,
                    path=path,
                    base=self._mark(applied),
                    ours=self._mark(began),
                    theirs=self._mark(self._now),
                    reason="changed since the plan was applied",
                )
                for path in [change.shown for change in changes] or [name]
            ]

    def _mark(self, state: SandboxCheckpoint) -> str:
        """The mark by which two whole states are equal."""
        sandbox = self._sandbox
        return sandbox.mark(state) if isinstance(sandbox, HasEqualStates) else state.state_hash

    def leave_out(self, settled: set[str]) -> None:
        """Leave out conflicts that somebody settled in the sandbox."""
        if self._whole and settled:
            self.conflicts = []
        self.conflicts = [item for item in self.conflicts if item.path not in settled]

    def merge(
        self,
        was: PathByPath,
        began: SandboxCheckpoint,
        applied: SandboxCheckpoint,
        ignored: bool,
    ) -> None:
        """Merge path by path, as apply does, with the applied state as the common ancestor."""
        forward, _ = was.visible(began, applied, ignored)
        wanted = [Difference(item.path, item.after, item.before) for item in forward]
        place, ctx = self._sandbox.place, self._ctx
        with ctx.manager.packs.batch() as batch:
            merge = merge_into(
                place.root, place.resource.name, wanted, was.read, batch, f"{self._staging}-merge"
            )
            batch.seal()
            with self._leased.transaction():
                ctx.store.objects.add(batch.located.items())
                ctx.store.objects.reuse(batch.reused)
        removal.remove_tree(f"{self._staging}-merge")
        self._was, self._work, self.conflicts = was, merge.work.differences, merge.conflicts

    def stage(self) -> None:
        """Stage everything that can fail, before any switch."""
        if self._target is not None:
            self._staged = self._sandbox.stage(self._now, self._target, self._staging)
        elif self._was is not None:
            self._ops = stage(self._was.read, self._work, self._staging, durable=False)

    def go(self) -> int:
        """Do the switch; returns the number of reverted paths."""
        if self._target is not None:
            self._sandbox.switch(self._staged, self._staging)
            return len(self._sandbox.changes(self._now, self._target))
        if self._was is None:
            return 0
        Switch(self._sandbox.place.root, self._staging, self._ops, force=True).forward()
        return len(self._ops)

    def discard(self) -> None:
        removal.remove_tree(self._staging)
