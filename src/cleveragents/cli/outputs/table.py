"""The `data` of every command as types: what `agents schema` prints.

Where a command prints one of our own values, the value itself is the type. `tests/test_schema.py`
runs every command and compares: a key that is missing here, or here only, fails.
"""

from cleveragents.cli.outputs.around import (
    Databases,
    Demo,
    HooksChanged,
    HooksStatus,
    Linted,
    NewPlan,
    OneSchema,
    SchemaNames,
    Script,
    SettingSet,
    SettingsList,
    SettingUnset,
    Started,
)
from cleveragents.cli.outputs.changing import (
    Appended,
    Applied,
    CommandRun,
    ConversationBack,
    ConversationResumed,
    Corrected,
    CorrectionOutlook,
    GoalRun,
    Patches,
    PlanDeleted,
    PlanReport,
    Pruned,
    Redo,
    Reverted,
    Rollback,
    ShellEnded,
    Undo,
    WouldAppend,
    WouldApply,
    WouldResume,
)
from cleveragents.cli.outputs.cluster import (
    ClusterStatus,
    Scheduled,
    Submitted,
    Unscheduled,
    WorkerStopped,
)
from cleveragents.cli.outputs.looking import (
    Checkpoints,
    CreatedGroup,
    DecisionWork,
    Errors,
    Group,
    GroupDeleted,
    Log,
    Output,
    Pinned,
    PlanEffects,
    Plans,
    PlanStatus,
    Tree,
)
from cleveragents.cli.outputs.values import PlanRun
from cleveragents.config import ConfigValue
from cleveragents.history.diff import Diff
from cleveragents.history.export import ExportedBranch
from cleveragents.history.opened import Opened
from cleveragents.maintenance.check import Checked
from cleveragents.maintenance.disk_usage import Usage
from cleveragents.maintenance.doctor import Report
from cleveragents.maintenance.gc import Collected
from cleveragents.maintenance.move import Adopted
from cleveragents.maintenance.shared import Copied, StoreStatus
from cleveragents.model.decision import Decision

Shape = tuple[type, ...]
"""One object: all that these have."""
OUTPUTS: dict[str, tuple[Shape, ...]] = {
    "init": ((Started,),),
    "run": ((CommandRun,),),
    "do": ((GoalRun,),),
    "store init": ((StoreStatus,),),
    "store status": ((StoreStatus,),),
    "store migrate": ((StoreStatus,),),
    "store copy": ((Copied,),),
    "check": ((Checked,),),
    "du": ((Usage,),),
    "gc": ((Collected, Databases),),
    "doctor": ((Report,), (Adopted,)),
    "demo": ((Demo,),),
    "completion": ((Script,),),
    "schema": ((OneSchema,), (SchemaNames,)),
    "worker": ((WorkerStopped,),),
    "cluster status": ((ClusterStatus,),),
    "cluster unschedule": ((Unscheduled,),),
    "config list": ((SettingsList,),),
    "config get": ((ConfigValue,),),
    "config set": ((SettingSet,),),
    "config unset": ((SettingUnset,),),
    "hook install": ((HooksChanged,),),
    "hook uninstall": ((HooksChanged,),),
    "hook status": ((HooksStatus,),),
    "plan new": ((NewPlan,),),
    "plan lint": ((Linted,),),
    "plan use": ((PlanRun,),),
    "plan run": ((PlanRun,),),
    "plan submit": ((Submitted,), (Scheduled,)),
    "plan execute": ((PlanRun,),),
    "plan resume": ((PlanRun,), (WouldResume,), (ConversationResumed,)),
    "plan status": ((PlanStatus,),),
    "plan list": ((Plans,),),
    "plan tree": ((Tree,),),
    "plan explain": ((Decision, DecisionWork),),
    "plan checkpoints": ((Checkpoints,),),
    "plan checkpoint create": ((CreatedGroup,),),
    "plan checkpoint show": ((Group,),),
    "plan checkpoint pin": ((Pinned,),),
    "plan checkpoint delete": ((GroupDeleted,),),
    "plan diff": ((Diff,),),
    "plan output": ((Output,),),
    "plan errors": ((Errors,),),
    "plan effects": ((PlanEffects,),),
    "plan log": ((Log,),),
    "plan prune": ((Pruned,),),
    "plan rollback": ((Rollback,), (ConversationBack,)),
    "plan undo": ((Undo,),),
    "plan redo": ((Redo,),),
    "plan correct": (
        (CorrectionOutlook,),
        (CorrectionOutlook, PlanRun, Corrected),
        (WouldAppend,),
        (Appended,),
    ),
    "plan apply": ((Applied,), (WouldApply,)),
    "plan revert-applied": ((Reverted,),),
    "plan shell": ((ShellEnded,),),
    "plan open": ((Opened,),),
    "plan export": ((Patches,), (ExportedBranch,)),
    "plan report": ((PlanReport,),),
    "plan cancel": ((PlanRun,),),
    "plan delete": ((PlanDeleted,),),
}
"""Command -> what its `data` may be."""
