"""Whether the targets of an applied plan still have its work."""

from cleveragents import codec
from cleveragents.content import removal
from cleveragents.content.packs import Batch
from cleveragents.context import Context
from cleveragents.errors import AgentsError
from cleveragents.model.checkpoint import CheckpointType, SandboxCheckpoint
from cleveragents.model.plan import Plan
from cleveragents.sandbox.git.apply import GitTarget
from cleveragents.sandbox.protocol import Applied, ApplyOptions, Sandbox
from cleveragents.sandbox.sqlite.snapshot import SqliteSnapshot
from cleveragents.sandbox.tree import TreeSandbox


def verify(ctx: Context, plan: Plan, options: ApplyOptions) -> list[str]:
    """What the targets lack of an applied plan's work now; looks and changes nothing."""
    groups = ctx.store.checkpoints.groups(plan.plan_id)
    before = [group for group in groups if CheckpointType.PRE_APPLY in group.triggers]
    if plan.result is None or not before:
        return []
    origin, result = ctx.checkpoints.began_with(plan.plan_id), ctx.checkpoints.states(before[-1])
    done = {item["resource"]: codec.convert(item, Applied) for item in plan.result["applied"]}
    missing: list[str] = []
    for rid, sandbox in ctx.manager.sandboxes(plan.plan_id).opened.items():
        applied = done.get(sandbox.place.resource.name)
        if applied is None or not applied.files or rid not in origin or rid not in result:
            continue
        try:
            with ctx.manager.packs.looking() as batch:
                lost = _lost(sandbox, applied, origin[rid], result[rid], options, batch)
        except (AgentsError, OSError) as error:
            lost = [str(error)]
        finally:
            removal.remove_tree(options.staging)
        missing += [f"{applied.resource}: {text}" for text in lost]
    return missing


def _lost(
    sandbox: Sandbox,
    applied: Applied,
    origin: SandboxCheckpoint,
    result: SandboxCheckpoint,
    options: ApplyOptions,
    batch: Batch,
) -> list[str]:
    if applied.commit is not None and isinstance(sandbox, GitTarget):
        held = sandbox.repository.holds(applied.commit)
        return [] if held else [f"no branch has commit {applied.commit}"]
    if isinstance(sandbox, TreeSandbox):
        # Not the kind's own way: another branch may be checked out by now.
        found = TreeSandbox.compare(sandbox, origin, result, options, batch)
    elif isinstance(sandbox, SqliteSnapshot):
        found = sandbox.compare(origin, result, options, batch)
    else:
        return []
    return sorted({*found.files, *(conflict.path for conflict in found.conflicts)})
