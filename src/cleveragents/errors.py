"""Everything that can go wrong, as one tree; the branch decides the exit code.

AgentsError                         1  an internal error, if nothing below fits
  UsageError                        2  wrong use, wrong plan file, wrong setting
    PlanFileError  ConfigError
  NotFound                          3  no such plan, checkpoint, decision
  NotAllowed                        4  right, but not now
    PlanApplied  PlanCancelled  PlanBusy  LeaseLost
    ForeignCheckpoint  CheckpointPruned  RollbackDisabled
    ApplyConflict  MergeConflict  ValidationFailed  ApplyRefused  NothingToUndo
    UnappliedWork  CarryLimit  Declined  CorrectionRefused  LossNotAccepted  MayHaveHappened
    Stopped  StoreElsewhere  UnsafeName  NotInBucket
  ExecutionFailed                   5  a sandbox or a tool failed
    SandboxError  SandboxMissing  SandboxNotOurs
    ToolFailed  CheckpointFailed  CompensationFailed  ActorFailed  ConversationError
  StoreError                        6  the store is damaged or out of reach
    ContentDamaged  BucketUnreachable  BucketRefused
    MachineError  DiskFull  ReadOnlyStore
"""

from typing import NamedTuple


class AgentsError(Exception):
    """An error that names the thing and, in `hint`, what to type next."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AgentsError):
    exit_code = 2


class Problem(NamedTuple):
    """One thing that is wrong in a plan file; an empty `key`: it is about no single one."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


class PlanFileError(UsageError):
    """The plan file is wrong; `problems` has every line that is."""

    def __init__(
        self,
        problems: tuple[str, ...],
        hint: str = "",
        spec: object = None,
        found: tuple[Problem, ...] = (),
    ) -> None:
        super().__init__("; ".join(problems), hint)
        self.problems = problems
        self.found = found
        """The same in parts, for those that were found by reading the file."""
        self.spec = spec
        """What could be read of the plan anyway."""


class ConfigError(UsageError):
    pass


class NotFound(AgentsError):
    exit_code = 3


class NotAllowed(AgentsError):
    exit_code = 4


class PlanApplied(NotAllowed):
    pass


class PlanCancelled(NotAllowed):
    pass


class PlanBusy(NotAllowed):
    pass


class LeaseLost(NotAllowed):
    pass


class StoreElsewhere(NotAllowed):
    """The store is a copy, or was moved: it may be read and not written."""


class ForeignCheckpoint(NotAllowed):
    pass


class CheckpointPruned(NotAllowed):
    pass


class RollbackDisabled(NotAllowed):
    pass


class ApplyConflict(NotAllowed):
    """Both the plan and somebody else changed the same thing."""

    def __init__(self, message: str, conflicts: tuple[object, ...], hint: str = "") -> None:
        super().__init__(message, hint)
        self.conflicts = conflicts


class MergeConflict(ApplyConflict):
    """A child plan and its parent, or another child, changed the same thing."""


class RollbackConflict(ApplyConflict):
    """The agent and somebody else changed the same thing in place."""


class Stopped(NotAllowed):
    """Somebody else's failure, or Ctrl-C, ends this plan's run; it can be resumed later."""


class ValidationFailed(NotAllowed):
    pass


class ApplyRefused(NotAllowed):
    pass


class NothingToUndo(NotAllowed):
    pass


class UnappliedWork(NotAllowed):
    pass


class CarryLimit(NotAllowed):
    pass


class Declined(NotAllowed):
    pass


class CorrectionRefused(NotAllowed):
    pass


class LossNotAccepted(NotAllowed):
    """A rollback would leave behind what cannot be undone; `effects` has it."""

    def __init__(self, message: str, effects: tuple[object, ...], hint: str = "") -> None:
        super().__init__(message, hint)
        self.effects = effects


class MayHaveHappened(NotAllowed):
    """A step would be repeated whose effects may be there already; `effects` has them."""

    def __init__(self, message: str, effects: tuple[object, ...], hint: str = "") -> None:
        super().__init__(message, hint)
        self.effects = effects


class UnsafeName(NotAllowed):
    """A git tree, a manifest or a row names a place outside of where it belongs."""

    def __init__(self, message: str, hint: str = "nothing was written there") -> None:
        super().__init__(message, hint)


class NotInBucket(NotAllowed):
    """What has to be in the bucket first, before a step with effects or for another machine."""


class ExecutionFailed(AgentsError):
    exit_code = 5


class SandboxError(ExecutionFailed):
    pass


class SandboxMissing(SandboxError):
    pass


class SandboxNotOurs(SandboxError):
    pass


class ToolFailed(ExecutionFailed):
    pass


class CheckpointFailed(ExecutionFailed):
    pass


class CompensationFailed(ExecutionFailed):
    """The plan was rolled back; something it had done outside the sandboxes is still there."""


class ActorFailed(ExecutionFailed):
    """Who proposes the steps ended too early, did not answer, or cannot be understood."""

    output = ""
    """What it wrote to stderr."""


class ConversationError(ExecutionFailed):
    """An agent's conversation cannot be brought to a point; nothing of it was changed."""


class StoreError(AgentsError):
    exit_code = 6


class ContentDamaged(StoreError):
    pass


class BucketUnreachable(StoreError):
    """The bucket does not answer, or lacks what it should have."""


class BucketRefused(StoreError):
    """The bucket cannot be used: it would lose what two machines write at once."""


class MachineError(StoreError):
    """The operating system refused something: the machine has to be fixed, not the store."""


class DiskFull(MachineError):
    """There is no room, or only what is kept for getting out of this."""


class ReadOnlyStore(MachineError):
    """The store can be read and not written."""
