"""Effects outside the sandboxes: the ledger, and how rollback and undo show it."""

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from cleveragents.cli import rollback_data
from cleveragents.cli.common import Options, command, failure, found
from cleveragents.cli.options import plan_argument
from cleveragents.cli.render import Block, Panel, Reply, Table
from cleveragents.errors import CompensationFailed
from cleveragents.model.effect import Effect, EffectState, Outlook
from cleveragents.model.plan import Plan
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace

STATES = {
    "intended": "may have happened",
    "happened": "happened",
    "compensating": "waiting for its compensation",
    "compensated": "compensated",
    "failed": "its compensation failed",
    "accepted": "accepted as lost",
    "lost": "could not be undone",
}


@command("plan effects")
@plan_argument
@click.option("--retry", is_flag=True, help="Retry the compensations that failed.")
def effects(ws: Workspace, options: Options, plan: str, retry: bool) -> Reply:
    """List what a plan did, or may have done, outside the sandboxes, oldest first."""
    one, notes = found(ws, plan)
    if retry:
        one.retry_compensations()
    recorded = one.effects()
    rows = tuple(
        (
            effect.step_id,
            effect.tool,
            "not known" if effect.effect_class == "unknown" else str(effect.effect_class),
            ", ".join(effect.side_effects),
            STATES[effect.state] + (f": {effect.error}" if effect.error else ""),
        )
        for effect in recorded
    )
    reply = Reply(
        data={
            "plan_id": one.plan_id,
            "effects": [rollback_data.effect_data(effect) for effect in recorded],
            "count": rollback_data.effects_count(recorded),
        },
        blocks=(Table(("step", "tool", "class", "what", "state"), rows),),
        messages=notes,
    )
    return (
        not_compensated(reply, one.plan, Outlook(compensable=tuple(recorded))) if retry else reply
    )


def outside_line(effect: dict[str, Any]) -> str:
    what = ", ".join(effect["side_effects"]) or "not known"
    why = f": {effect['error']}" if effect["error"] else ""
    return f"step {effect['step']}, {effect['tool']}: {what}, {STATES[effect['state']]}{why}"


def _line(effect: Effect) -> str:
    from cleveragents.checkpoints.effects import (
        shown,
    )

    why = f": {effect.error}" if effect.error else ""
    return f"{shown(effect)}, {STATES[effect.state]}{why}" if _ended(effect) else shown(effect)


def _ended(effect: Effect) -> bool:
    return effect.state in (EffectState.COMPENSATED, EffectState.FAILED)


def outside_blocks(outlook: Outlook) -> tuple[Block, ...]:
    """What a rollback or undo does, or would do, outside the sandboxes; nothing if nothing."""
    rows = (
        *(("compensate", _line(effect)) for effect in outlook.compensable),
        *(("cannot be undone", _line(effect)) for effect in outlook.irreversible),
        *_unknown(outlook),
        *(("not done again", _line(effect)) for effect in outlook.not_repeated),
    )
    return (Panel("Outside the Sandboxes", rows),) if rows else ()


def _unknown(outlook: Outlook) -> tuple[tuple[str, str], ...]:
    """One line for all undeclared effects: most steps declare nothing."""
    steps = outlook.unknown_steps
    had = "it" if len(steps) == 1 else "they"
    return (("not known", f"what {_who(steps)} did: {had} had network"),) if steps else ()


def _who(steps: Sequence[str]) -> str:
    """`a, b and 12 more`."""
    more = [f"{len(steps) - NAMED + 1} more"] if len(steps) > NAMED else []
    named = [*(steps[: NAMED - 1] if more else steps), *more]
    return " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))


NAMED = 4


def outside_text(outlook: Outlook) -> str:
    """The same as lines before a question."""
    lines = [
        *(f"compensate: {_line(effect)}" for effect in outlook.compensable),
        *(f"cannot be undone: {_line(effect)}" for effect in outlook.irreversible),
        *(f"not done again: {_line(effect)}" for effect in outlook.not_repeated),
    ]
    if outlook.unknown:
        who = _who(outlook.unknown_steps)
        lines.append(f"not known: what {who} did outside the sandboxes")
    return "".join(f"{line}\n" for line in lines)


def as_ended(ws: Workspace, outlook: Outlook) -> Outlook:
    """The same with each compensation as the ledger has it now."""
    wanted = {effect.effect_id for effect in outlook.compensable}
    plans = {effect.plan_id for effect in outlook.compensable}
    recorded = [effect for plan_id in plans for effect in PlanHandle(ws.ctx, plan_id).effects()]
    ended = tuple(effect for effect in recorded[::-1] if effect.effect_id in wanted)
    return msgspec.structs.replace(outlook, compensable=ended)


def not_compensated(reply: Reply, plan: Plan, outlook: Outlook) -> Reply:
    """The reply, as an error if a compensation failed; the rollback itself is done."""
    failed = [effect for effect in outlook.compensable if effect.state is EffectState.FAILED]
    if not failed:
        return reply
    error = CompensationFailed(
        f"not compensated: {'; '.join(map(_line, failed))}",
        f"agents plan effects {plan.plan_id} --retry",
    )
    told = failure(error, reply.data)
    return msgspec.structs.replace(
        told, blocks=reply.blocks, messages=(*reply.messages, *told.messages)
    )
