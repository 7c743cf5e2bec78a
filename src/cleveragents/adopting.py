"""Edits by hand become part of the plan."""

from cleveragents.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.context import Context
from cleveragents.journal import Operation
from cleveragents.session import Session


def adopt_edits(
    ctx: Context, session: Session, kind: CheckpointType = CheckpointType.EXTERNAL_EDIT
) -> CheckpointGroup:
    """What a person changed in the sandbox becomes part of the plan, and can be undone as one."""
    entry = session.opened(Operation.EXTERNAL_EDIT)
    with session.transaction():
        ctx.store.journal.put(entry)
    group = ctx.checkpoints.create_checkpoint(kind, session, force=True, reason="edited by hand")
    with session.transaction():
        ctx.store.journal.put(session.closed(entry))
    return group
