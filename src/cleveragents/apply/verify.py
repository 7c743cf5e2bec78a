"""Whether the targets of an applied plan still have its work."""

from cleveragents import codec
from cleveragents.content import removal
from cleveragents.context import Context
from cleveragents.errors import AgentsError
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.plan import Plan
from cleveragents.sandbox.protocol import Applied, ApplyOptions, ReportsLost


def verify(ctx: Context, plan: Plan, options: ApplyOptions) -> list[str]:
    """The parts of an applied plan's work that the targets lack now; changes nothing."""
    groups = ctx.store.checkpoints.groups(plan.plan_id)
    before = [group for group in groups if CheckpointType.PRE_APPLY in group.triggers]
    if plan.result is None or not before:
        return []
    origin, result = (
        ctx.checkpoints.initial_states(plan.plan_id),
        ctx.checkpoints.states(before[-1]),
    )
    done = {item["resource"]: codec.convert(item, Applied) for item in plan.result["applied"]}
    missing: list[str] = []
    for rid, sandbox in ctx.manager.sandboxes(plan.plan_id).opened.items():
        applied = done.get(sandbox.place.resource.name)
        if applied is None or not applied.files or rid not in origin or rid not in result:
            continue
        if not isinstance(sandbox, ReportsLost):
            continue  # it cannot tell
        try:
            with ctx.manager.packs.preview() as batch:
                lost = sandbox.lost(applied, origin[rid], result[rid], options, batch)
        except (AgentsError, OSError) as error:
            lost = [str(error)]
        finally:
            removal.remove_tree(options.staging)
        missing += [f"{applied.resource}: {text}" for text in lost]
    return missing
