"""One entry per operation on a plan, with the state before and after: what undo and redo walk."""

from enum import StrEnum
from typing import Any

import msgspec


class Operation(StrEnum):
    USE = "use"
    EXECUTE = "execute"
    RESUME = "resume"
    PROMPT = "prompt"
    """What a person asked of an agent that is observed, with all it did for that."""
    ROLLBACK = "rollback"
    RESTORE = "restore"
    CORRECT = "correct"
    EXTERNAL_EDIT = "external_edit"
    CHECKPOINT = "checkpoint"
    UNDO = "undo"
    REDO = "redo"
    APPLY = "apply"
    CANCEL = "cancel"
    PRUNE = "prune"


UNDOABLE = frozenset(
    {
        Operation.EXECUTE,
        Operation.RESUME,
        Operation.PROMPT,
        Operation.ROLLBACK,
        Operation.RESTORE,
        Operation.CORRECT,
        Operation.EXTERNAL_EDIT,
    }
)


OUTCOME = "outcome"


class EntryState(StrEnum):
    OPEN = "open"
    DONE = "done"
    INTERRUPTED = "interrupted"


class Ending(StrEnum):
    """How an operation ended that is neither open nor interrupted; kept in its `detail`."""

    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"


class Moment(msgspec.Struct, frozen=True):
    """A point of a plan's life one can return to: content from a group, view from the history."""

    group_id: str | None
    version: int


STEP = "step"
"""In the detail of an entry: the step that `plan shell` made."""
TAKEN_OVER_BY = "taken_over_by"
"""In the detail of an entry: the machine that ended it because its process had died."""


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    entry_id: str
    plan_id: str
    operation: Operation
    state: EntryState
    before: Moment
    after: Moment | None = None
    target: str | None = None
    """For undo and redo: the entry that was undone or redone."""
    detail: dict[str, Any] = {}
    started_at: str
    ended_at: str | None = None

    @property
    def shown_state(self) -> str:
        """What became of it: `done` only if it did what it was to do."""
        if self.state is EntryState.DONE:
            return self.detail.get(OUTCOME, Ending.DONE.value)
        return self.state.value


def are_edits(entry: JournalEntry) -> bool:
    """Whether it is a person's edits, and not the step that `plan shell` makes of them."""
    return entry.operation is Operation.EXTERNAL_EDIT and STEP not in entry.detail


def undo_stack(
    entries: list[JournalEntry], *, in_place: bool
) -> tuple[list[JournalEntry], list[JournalEntry]]:
    """The operations that undo and redo would take next, last first taken (pure).

    A new undoable operation ends redo; apply, cancel and prune are not undone and stay out.
    In place a person's edits stay whatever is undone.
    """
    done: list[JournalEntry] = []
    undone: list[JournalEntry] = []
    for entry in entries:
        if entry.state is EntryState.OPEN or (in_place and are_edits(entry)):
            continue
        if entry.operation is Operation.UNDO and done:
            undone.append(done.pop())
        elif entry.operation is Operation.REDO and undone:
            done.append(undone.pop())
        elif entry.operation in UNDOABLE:
            done.append(entry)
            undone.clear()
    return done, undone
