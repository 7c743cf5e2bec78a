"""A person's shell in the sandboxes, confined like a tool; its changes are one step."""

import shutil

import msgspec

from cleveragents.checkpoints import effects
from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.checkpoints.manager import States
from cleveragents.context import Context
from cleveragents.errors import NotFound, UsageError
from cleveragents.execution.actor_executor import executor_for
from cleveragents.execution.leasing import work_on
from cleveragents.execution.reconcile import reconcile
from cleveragents.execution.step_writes import writes_of
from cleveragents.execution.tool_call import call_context, ended
from cleveragents.execution.use import step_of
from cleveragents.history.append import with_step
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.decision import Decision, DecisionKind, DecisionState
from cleveragents.model.ids import new_id
from cleveragents.model.journal import STEP, JournalEntry, Operation
from cleveragents.model.lifecycle import require_not_final
from cleveragents.model.plan import Step, StepState
from cleveragents.model.plan_spec import StepSpec
from cleveragents.model.tool import CallState, ToolCall
from cleveragents.model.triggers import nearest
from cleveragents.sandbox.registry import traits_of
from cleveragents.tools import BUILTINS
from cleveragents.tools.runner import run_tool

QUESTION = "what a person changed in a shell"
_NAME = "shell"
_TOOL = BUILTINS["run"]


class Shell(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a shell; `step_id` and `group_id` are empty if nothing changed."""

    exit_code: int
    step_id: str = ""
    group_id: str = ""
    output: str = ""


def work_in_shell(ctx: Context, plan_id: str, argv: tuple[str, ...], on: str | None) -> Shell:
    """Run a shell in the sandbox of a resource; the plan is leased but not `processing`.

    Its step is written when it ends: if we die before that, the changes are a manual edit.
    """
    if shutil.which(argv[0]) is None:
        raise UsageError(f"no such shell: {argv[0]}", "SHELL=/bin/sh agents plan shell")
    with work_on(ctx, plan_id, "plan shell") as leased:
        require_not_final(leased.plan, "worked in")
        name = _resource(leased, on)
        started = leased.plan.head_group_id is not None
        executor = executor_for(ctx, leased)
        executor.strategize()
        if started:
            reconcile(ctx, leased, discard_edits=False)
        executor.prepare()
        return _run(ctx, leased, argv, name)


def _resource(leased: LeasedPlan, on: str | None) -> str:
    """The named resource, or the first directory."""
    resources = leased.spec.resources
    names = [item.name for item in resources]
    if on is not None and on not in names:
        raise NotFound(
            f"plan {leased.plan.name!r} has no resource {on!r}{nearest(on, names)}",
            f"it has {', '.join(names)}",
        )
    folders = [item.name for item in resources if traits_of(item.kind).is_directory]
    return on or (folders or names)[0]


def _run(ctx: Context, leased: LeasedPlan, argv: tuple[str, ...], on: str) -> Shell:
    plan = leased.plan
    spec = StepSpec(id=_unused_id(ctx, leased), tool="run", on=on, inputs={"argv": list(argv)})
    call = ToolCall(
        call_id=new_id(),
        plan_id=plan.plan_id,
        step_id=spec.id,
        attempt=1,
        tool=spec.tool,
        inputs=spec.inputs,
        state=CallState.RUNNING,
        started_at=ctx.now(),
        group_id=plan.head_group_id,
    )
    entry = leased.opened(Operation.EXTERNAL_EDIT, **{STEP: spec.id})
    result = run_tool(_TOOL, spec.inputs, call_context(ctx, leased, spec.id, on))
    code = 1 if result.exit_code is None else result.exit_code
    if plan.head_group_id and ctx.checkpoints.is_at(plan.plan_id, plan.head_group_id):
        return Shell(exit_code=code, output=result.output)
    # A shell returns its last command's exit code: that is no failure of the step.
    done = ended(call, msgspec.structs.replace(result, state=CallState.OK, error=None), ctx.now())
    group_id = _keep(ctx, leased, spec, done, entry)
    return Shell(exit_code=code, step_id=spec.id, group_id=group_id, output=result.output)


def _unused_id(ctx: Context, leased: LeasedPlan) -> str:
    """A new step id: writes are kept under ids, so none is reused."""
    plan_id = leased.plan.plan_id
    taken = {*ctx.store.calls.step_ids(plan_id), *(s.id for s in leased.spec.steps)}
    names = (f"{_NAME}-{number}" if number > 1 else _NAME for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def _keep(
    ctx: Context, leased: LeasedPlan, spec: StepSpec, call: ToolCall, entry: JournalEntry
) -> str:
    """Record step, decision, call, writes and group, in one commit."""
    decision = _decision(ctx, leased, spec, call)
    call = msgspec.structs.replace(call, decision_id=decision.decision_id)
    step = _step(ctx, leased, spec, decision)

    def record(before: States, now: States) -> None:
        store = ctx.store
        effects.note(store, _TOOL, call, spec.on)
        store.effects.happened(call)
        changes = ctx.manager.changes(call.plan_id, before, now)
        store.calls.add_writes(writes_of(store.resources.of_plan(call.plan_id), call, changes))
        store.journal.put(leased.closed(entry))

    request = CheckpointRequest(
        force=True,
        reason=QUESTION,
        step=step,
        steps=(step,),
        decisions=(decision,),
        decision_id=decision.decision_id,
        view_changed=True,
        plan=with_step(leased.spec, spec),
        call=call,
        record=record,
    )
    kind = CheckpointType.AFTER_TOOL_EXECUTE
    return ctx.checkpoints.create_checkpoint(kind, leased, request).group_id


def _decision(ctx: Context, leased: LeasedPlan, spec: StepSpec, call: ToolCall) -> Decision:
    decisions = ctx.store.plans.decisions(leased.plan.plan_id)
    roots = [d for d in decisions if d.parent_id is None and d.state is DecisionState.ACTIVE]
    return Decision(
        decision_id=new_id(),
        plan_id=call.plan_id,
        kind=DecisionKind.USER_INTERVENTION,
        question=QUESTION,
        chosen=" ".join(spec.inputs["argv"]),
        parent_id=roots[-1].decision_id if roots else None,
        step_id=spec.id,
        attempt=leased.plan.attempt,
        created_at=ctx.now(),
    )


def _step(ctx: Context, leased: LeasedPlan, spec: StepSpec, decision: Decision) -> Step:
    steps = ctx.store.plans.steps(leased.plan.plan_id)
    index = max((step.index for step in steps), default=-1) + 1
    return msgspec.structs.replace(
        step_of(leased.plan.plan_id, index, spec),
        state=StepState.COMPLETE,
        attempts=1,
        decision_id=decision.decision_id,
    )
