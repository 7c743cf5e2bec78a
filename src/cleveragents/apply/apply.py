"""Make the sandboxes' work real: every target or none, exactly once.

compare -> stage -> intent -> switch -> record. Until the record every switch can be undone;
after a crash the next command goes forward, or back where it cannot.
"""

import re
from typing import Any

import msgspec

from cleveragents import codec, machine
from cleveragents.apply.staging import brought_here, require_own_staging
from cleveragents.apply.targets import (
    alone_on_targets,
    commit_rest,
    in_order,
    is_committed,
    require_own_targets,
    require_targets_here,
    switch_all,
    targets_elsewhere,
)
from cleveragents.apply.tidy import keep_borrowed, tidy
from cleveragents.apply.verify import verify
from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.checkpoints.manager import States
from cleveragents.content import removal
from cleveragents.context import Context
from cleveragents.errors import (
    AgentsError,
    ApplyConflict,
    ApplyRefused,
    NotAllowed,
    ValidationFailed,
)
from cleveragents.execution.leasing import before_looking, work_on
from cleveragents.execution.validate import validate
from cleveragents.lease import (
    LeasedPlan,
    spec_of,
)
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.decision import DecisionKind, DecisionState
from cleveragents.model.ids import new_id
from cleveragents.model.journal import Ending, EntryState, JournalEntry, Operation
from cleveragents.model.lifecycle import require_appliable, require_not_final
from cleveragents.model.plan import Failure, Phase, Plan, State
from cleveragents.model.units import plural
from cleveragents.sandbox.protocol import Applied, ApplyOptions, Proposal
from cleveragents.store import Intent


class Request(msgspec.Struct, frozen=True, kw_only=True):
    mode: str | None = None
    ignored: bool = False
    hooks: bool = False


def options_for(ctx: Context, plan: Plan, plan_spec: Any, request: Request) -> ApplyOptions:
    spec = plan_spec.apply
    mode = request.mode or (str(spec.as_) if spec.as_ else None)
    subject = spec.message or plan.name
    decisions = [
        f"Agents-Decision: {d.question}: {d.chosen}".replace("\n", " ")
        for d in ctx.store.plans.decisions(plan.plan_id)
        if d.state is DecisionState.ACTIVE and d.kind is not DecisionKind.ROOT
    ]
    trailers = "\n".join([f"Agents-Plan: {plan.plan_id}", *decisions])
    return ApplyOptions(
        mode=mode,
        ignored=request.ignored or spec.ignored,
        message=f"{subject.rstrip()}\n\n{trailers}\n",
        branch="agents/" + (re.sub(r"[^A-Za-z0-9_-]+", "-", plan.name).strip("-") or plan.plan_id),
        staging=f"{ctx.staging}/{plan.plan_id}",
        hooks=request.hooks or ctx.settings.run_hooks,
    )


def preview_apply(ctx: Context, plan: Plan, request: Request) -> tuple[Proposal, ...]:
    """What apply would do to each target; changes nothing."""
    require_not_final(plan, "applied")
    require_own_targets(ctx, plan)
    require_targets_here(ctx, plan)
    require_appliable(plan)
    before_looking(ctx, plan.plan_id)
    options = options_for(ctx, plan, spec_of(plan), request)
    origin = _origin(ctx, plan)
    try:
        with ctx.manager.packs.batch() as batch:
            now = ctx.manager.create_checkpoint(plan.plan_id, batch, origin)
            return _compare(ctx, plan, origin, now, options)
    finally:
        removal.remove_tree(options.staging)


def apply(ctx: Context, plan: Plan, request: Request) -> dict[str, Any]:
    """Apply; a plan already applied, perhaps just now by another process, gives that result."""
    if plan.result is not None:
        return _verified(ctx, plan)
    require_targets_here(ctx, plan)
    ctx.manager.sandboxes(plan.plan_id).require_not_only_elsewhere()
    with (
        work_on(ctx, plan.plan_id, "plan apply", patient=True) as leased,
        alone_on_targets(ctx, plan),
    ):
        if leased.plan.result is not None:
            return leased.plan.result
        require_not_final(leased.plan, "applied")
        require_own_targets(ctx, leased.plan)
        require_appliable(leased.plan)
        ignored = request.ignored or leased.spec.apply.ignored
        entry = leased.opened(Operation.APPLY, ignored=ignored)
        with leased.transaction():
            ctx.store.journal.put(entry)
            leased.write(phase=Phase.APPLY, state=State.PROCESSING, error=None)
        try:
            return _apply(ctx, leased, request, entry)
        except (ApplyConflict, ValidationFailed, ApplyRefused) as error:
            _stop(ctx, leased, State.CONSTRAINED, error, entry)
            raise
        except AgentsError as error:
            _stop(ctx, leased, State.ERRORED, error, entry)
            raise
        except OSError as error:
            doing = "a target could not be written; no target was changed"
            refused = machine.of_os(error, doing, ApplyRefused)
            _stop(ctx, leased, State.CONSTRAINED, refused, entry)
            raise refused from error
        except BaseException:
            interrupted = NotAllowed("apply was interrupted; no target was changed")
            _stop(ctx, leased, State.ERRORED, interrupted, entry, EntryState.INTERRUPTED)
            raise


def _verified(ctx: Context, plan: Plan) -> dict[str, Any]:
    """The first result, with a warning on what the targets have lost since."""
    assert plan.result is not None
    entries = ctx.store.journal.of_plan(plan.plan_id)
    first = [entry for entry in entries if entry.operation is Operation.APPLY][-1]
    request = Request(ignored=first.detail.get("ignored", False))
    if targets_elsewhere(ctx, plan):
        return plan.result  # not visible from here
    if lost := verify(ctx, plan, options_for(ctx, plan, spec_of(plan), request)):
        shown = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
        message = (
            f"plan {plan.name!r} was applied, but its targets no longer hold its work"
            f" ({shown}): changed or lost since; agents plan diff {plan.plan_id} shows its work"
        )
        ctx.talk.tell("warning", {"message": message})
    return plan.result


def _stop(
    ctx: Context,
    leased: LeasedPlan,
    state: State,
    error: AgentsError,
    entry: JournalEntry,
    ended: EntryState = EntryState.DONE,
) -> None:
    if leased.plan.result is not None:
        return  # it is applied, even if cleaning up failed
    ending = Ending.REFUSED if state is State.CONSTRAINED else Ending.FAILED
    outcome = {"outcome": str(ending)} if ended is EntryState.DONE else {}
    error.hint = re.sub(r"\bPLAN\b", leased.plan.plan_id, error.hint)
    failure = Failure(type(error).__name__, error.message, error.hint)
    with leased.transaction():
        leased.write(phase=Phase.APPLY, state=state, error=failure)
        ctx.store.journal.put(leased.closed(entry, ended, **outcome))


def _apply(
    ctx: Context, leased: LeasedPlan, request: Request, entry: JournalEntry
) -> dict[str, Any]:
    plan = leased.plan
    options = options_for(ctx, plan, leased.spec, request)
    try:
        origin = _origin(ctx, plan)
        result = _result(ctx, leased, origin)
        proposals = _propose(ctx, leased, origin, result, options)
        validate(ctx, leased)
        if ctx.settings.sandbox_cleanup != "manual":
            # Checks for disk space and budget come before the first target.
            keep_borrowed(ctx, leased)
        return _switch(ctx, leased, proposals, options, entry)
    finally:
        # An apply that could not be undone at once still needs its staged files.
        if all(intent.is_done for intent in ctx.store.intents.of_plan(plan.plan_id)):
            removal.remove_tree(options.staging)


def _origin(ctx: Context, plan: Plan) -> States:
    """The state each sandbox started with."""
    return ctx.checkpoints.initial_states(plan.plan_id)


def _result(ctx: Context, leased: LeasedPlan, origin: States) -> States:
    """The state to apply, kept as the `pre_apply` group while rollback is enabled."""
    ctx.manager.doubt(leased.plan.plan_id)
    if leased.plan.rollback_enabled:
        request = CheckpointRequest(force=True)
        group = ctx.checkpoints.create_checkpoint(CheckpointType.PRE_APPLY, leased, request)
        return ctx.checkpoints.states(group)
    return ctx.checkpoints.keep_states(leased, origin)


def _propose(
    ctx: Context, leased: LeasedPlan, origin: States, result: States, options: ApplyOptions
) -> tuple[Proposal, ...]:
    """Compare with every target; merged texts are then in the store."""
    with ctx.manager.packs.batch() as batch:
        proposals = _compare_in(ctx, leased.plan, origin, result, options, batch)
        batch.seal()
        with leased.transaction():
            ctx.store.objects.add(batch.located.items())
            ctx.store.objects.reuse(batch.reused)
    conflicts = tuple(conflict for item in proposals for conflict in item.conflicts)
    if conflicts:
        shown = ", ".join(f"{c.resource}:{c.path}" for c in conflicts[:5])
        raise ApplyConflict(
            f"{plural(len(conflicts), 'path was', 'paths were')} changed by the plan and in the"
            f" target: {shown}",
            conflicts,
            "resolve them in the target or in the sandbox, then apply again",
        )
    return proposals


def _compare(
    ctx: Context, plan: Plan, origin: States, now: States, options: ApplyOptions
) -> tuple[Proposal, ...]:
    with ctx.manager.packs.batch() as batch:
        return _compare_in(ctx, plan, origin, now, options, batch)


def _compare_in(
    ctx: Context, plan: Plan, origin: States, now: States, options: ApplyOptions, batch: Any
) -> tuple[Proposal, ...]:
    sandboxes = ctx.manager.sandboxes(plan.plan_id)
    return tuple(
        sandboxes[rid].compare(origin[rid], state, options, batch)
        for rid, state in now.items()
        if not sandboxes.resources[rid].source
    )


def _switch(
    ctx: Context,
    leased: LeasedPlan,
    proposals: tuple[Proposal, ...],
    options: ApplyOptions,
    entry: JournalEntry,
) -> dict[str, Any]:
    plan_id = leased.plan.plan_id
    sandboxes = ctx.manager.sandboxes(plan_id)
    staged: dict[str, Any] = {}
    intent = Intent(
        intent_id=new_id(),
        plan_id=plan_id,
        kind="apply",
        state="prepared",
        body={},
        created_at=ctx.now(),
    )
    intent = msgspec.structs.replace(intent, body={"staging": options.staging})
    with leased.transaction():
        ctx.store.intents.put(intent)
    try:
        for rid, proposal in in_order(sandboxes, proposals):
            staged[rid] = sandboxes[rid].stage_apply(proposal, options)
        named = {proposal.resource: list(proposal.control_files) for proposal in proposals}
        notes = {proposal.resource: list(proposal.notes) for proposal in proposals}
        body = {**intent.body, "staged": staged, "control_files": named, "notes": notes}
        body["entry"] = msgspec.to_builtins(entry)
        intent = msgspec.structs.replace(intent, state="staged", body=body)
        with leased.transaction():
            ctx.store.intents.put(intent)
        switch_all(sandboxes, staged)
    except BaseException:
        if intent.state != "staged" or not is_committed(sandboxes, staged):
            undo_switch(ctx, leased, intent, staged)
            raise
        commit_rest(sandboxes, staged)
    return record(ctx, leased, intent)


def undo_switch(ctx: Context, leased: LeasedPlan, intent: Intent, staged: dict[str, Any]) -> None:
    """Undo the switch of every target; the intent stays until that is done."""
    if intent.state != "prepared":
        with leased.transaction():
            ctx.store.intents.put(msgspec.structs.replace(intent, state="undoing"))
    sandboxes = ctx.manager.sandboxes(leased.plan.plan_id)
    for rid, one in reversed(staged.items()):
        sandboxes[rid].undo_apply(one)
    for sandbox in sandboxes.opened.values():
        sandbox.discard_apply(intent.body["staging"])
    with leased.transaction():
        ctx.store.intents.remove(intent.intent_id)


def _applied(one: Applied, intent: Intent) -> dict[str, Any]:
    named = intent.body.get("control_files", {}).get(one.resource, [])
    notes = [*intent.body.get("notes", {}).get(one.resource, []), *one.notes]
    return {**msgspec.to_builtins(one), "notes": notes, "control_files": named}


def record(ctx: Context, leased: LeasedPlan, intent: Intent) -> dict[str, Any]:
    """The one commit that makes it applied, then clean up."""
    plan_id = leased.plan.plan_id
    sandboxes = ctx.manager.sandboxes(plan_id)
    staged: dict[str, Any] = intent.body["staged"]
    entry = codec.convert(intent.body["entry"], JournalEntry)
    result: dict[str, Any] = {
        "plan_id": plan_id,
        "applied": [_applied(sandboxes[r].applied(one), intent) for r, one in staged.items()],
        "conflicts": [],
        "applied_at": ctx.now(),
    }
    with leased.transaction():
        leased.write(phase=Phase.APPLY, state=State.APPLIED, result=result, error=None)
        ctx.store.journal.put(leased.closed(entry, outcome=str(Ending.DONE)))
        ctx.store.intents.put(msgspec.structs.replace(intent, state="committed"))
    try:
        tidy(ctx, leased, msgspec.structs.replace(intent, state="committed"))
    except (AgentsError, OSError) as error:
        # A failure here does not fail the apply: the intent stays, and the next command cleans up.
        text = (
            f"plan {leased.plan.name!r} is applied; leftovers could not be removed yet,"
            f" the next command retries: {error}"
        )
        ctx.talk.tell("warning", {"message": text})
    return result


def finish_apply(ctx: Context, leased: LeasedPlan, intent: Intent) -> None:
    """After a crash: finish if every target still allows it, else undo."""
    intent = brought_here(ctx, intent)
    require_own_staging(ctx, intent)
    if intent.state == "committed":
        tidy(ctx, leased, intent)
        return
    staged: dict[str, Any] = intent.body.get("staged", {})
    if intent.state == "staged":
        sandboxes = ctx.manager.sandboxes(leased.plan.plan_id)
        if is_committed(sandboxes, staged):
            commit_rest(sandboxes, staged)
            record(ctx, leased, intent)
            return
        try:
            switch_all(sandboxes, staged)
        except (AgentsError, OSError):
            if is_committed(sandboxes, staged):
                raise
        else:
            record(ctx, leased, intent)
            return
    undo_switch(ctx, leased, intent, staged)
    removal.remove_tree(intent.body["staging"])
    if "entry" not in intent.body:
        return
    entry = codec.convert(intent.body["entry"], JournalEntry)
    error = ApplyRefused("apply was interrupted and undone", "agents plan apply PLAN")
    _stop(ctx, leased, State.ERRORED, error, entry, EntryState.INTERRUPTED)
