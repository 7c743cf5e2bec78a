"""The Python API, and the only place where anything is wired to anything.

with open_workspace() as ws:
    plan = ws.run("plan.yaml")
    plan.rollback("first")
    plan.resume()
    plan.apply()

    plan = ws.plan("notes", resources={"app": "."})
    with plan.decision("where notes go", "NOTES.md") as d:
        d.call("file.write", path="NOTES.md", content="first")
    plan.apply()
"""

import os
import sqlite3
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from cleveragents import machine
from cleveragents.checkpoints.manager import CheckpointManager
from cleveragents.checkpoints.service import CheckpointService
from cleveragents.config import load_settings
from cleveragents.content import fsio
from cleveragents.content.packs import Packs
from cleveragents.context import Context, Talk, utc_now
from cleveragents.errors import StoreError
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import Checkpoint, CheckpointGroup, RollbackResult
from cleveragents.model.plan import Plan, State
from cleveragents.model.settings import Settings
from cleveragents.store import open_store

if TYPE_CHECKING:
    from cleveragents.execution.caller_executor import OpenDecision, ResourceGiven
    from cleveragents.execution.run import Resumption
    from cleveragents.history.diff import Diff
    from cleveragents.history.undo import Undone
    from cleveragents.model.decision import Correction
    from cleveragents.model.effect import Effect
    from cleveragents.model.plan_spec import PlanSpec
    from cleveragents.model.tool import ToolResult


class PlanHandle:
    """One plan, with the verbs of the command line."""

    def __init__(self, ctx: Context, plan_id: str) -> None:
        self._ctx = ctx
        self.plan_id = plan_id

    @property
    def plan(self) -> Plan:
        """As the store has it now."""
        return self._ctx.store.plans.get(self.plan_id)

    @property
    def sandboxes(self) -> dict[str, str]:
        """Name of each resource -> where the plan works on it."""
        return self._ctx.manager.sandboxes(self.plan_id).paths

    @property
    def actor_state(self) -> Any:
        """What its actor last asked to be kept, or had kept at the group one went back to."""
        return self.plan.actor_state

    @contextmanager
    def decision(
        self,
        question: str,
        chosen: str = "",
        *,
        alternatives: Sequence[str] = (),
        rationale: str = "",
        confidence: float | None = None,
        parent: str | None = None,
        influences: Sequence[str] = (),
        repeat: Collection[str] = (),
    ) -> Generator["OpenDecision"]:
        """Record a decision of a plan made by `Workspace.plan`, and hold the plan for its calls.

        `parent` and `influences` name earlier steps, whose decisions are meant. If an exception
        leaves the block, the plan is errored; the next decision goes on from there. `repeat` names
        steps that failed or died and may do outside the sandboxes what they may have done before.
        """
        from cleveragents.actors.protocol import DecisionProposal
        from cleveragents.execution.caller_executor import deciding

        asked = DecisionProposal(
            question=question,
            chosen=chosen,
            alternatives=tuple(alternatives),
            rationale=rationale,
            confidence=confidence,
            parent=parent,
            influences=tuple(influences),
        )
        with deciding(self._ctx, self.plan_id, asked, repeat) as opened:
            yield opened

    def complete(self) -> None:
        """Say that a plan made by `Workspace.plan` is done; `apply` says it too."""
        from cleveragents.execution.caller_executor import complete

        complete(self._ctx, self.plan_id)

    def execute(self) -> "Resumption":
        from cleveragents.execution.run import execute_plan

        return execute_plan(self._ctx, self.plan_id)

    def resume(
        self,
        *,
        discard_edits: bool = False,
        plan_file: str | None = None,
        repeat: Collection[str] = (),
        accept_loss: bool = False,
    ) -> "Resumption":
        """`repeat`: the steps that may do outside the sandboxes what they may have done before."""
        from cleveragents.execution.run import execute_plan
        from cleveragents.execution.use import read_plan
        from cleveragents.history.revise import resume_with

        if plan_file is None:
            return execute_plan(
                self._ctx,
                self.plan_id,
                verb="plan resume",
                discard_edits=discard_edits,
                repeat=repeat,
            )
        return resume_with(
            self._ctx,
            self.plan_id,
            read_plan(self._ctx, plan_file),
            discard_edits=discard_edits,
            repeat=repeat,
            accept_loss=accept_loss,
        )

    def correct(
        self,
        decision: str,
        guidance: str,
        *,
        plan_file: str | None = None,
        cascade: bool = False,
        accept_loss: bool = False,
    ) -> "Correction":
        """Take a decision back with what hangs on it, and do that again."""
        from cleveragents.execution.use import read_plan
        from cleveragents.history import correct as correction
        from cleveragents.lookup import find_decision

        request = correction.Request(
            guidance=guidance,
            plan_file=read_plan(self._ctx, plan_file) if plan_file else None,
            cascade=cascade,
            accept_loss=accept_loss,
        )
        found = find_decision(self._ctx.store, decision, self.plan_id)
        return correction.correct(self._ctx, found, request)

    def checkpoints(self) -> list[Checkpoint]:
        return self._ctx.checkpoints.list_checkpoints(self.plan_id)

    def checkpoint(self, label: str | None = None) -> CheckpointGroup:
        from cleveragents.history.checkpoints import create_manual

        return create_manual(self._ctx, self.plan, label)

    def rollback(self, checkpoint: str, *, accept_loss: bool = False) -> RollbackResult:
        from cleveragents.history import rollback as rolling
        from cleveragents.lookup import find_group

        plan = self.plan
        group = find_group(self._ctx.store, plan, checkpoint)
        return rolling.rollback(self._ctx, plan, group, accept_loss=accept_loss)

    def restore(self, checkpoint: str, *only: str) -> RollbackResult:
        """Put back just these resources or paths, and leave the plan as it is."""
        from cleveragents.history.restore_paths import restore_only
        from cleveragents.lookup import find_group

        plan = self.plan
        group = find_group(self._ctx.store, plan, checkpoint)
        return restore_only(self._ctx, plan, group, only)

    def undo(self, *, accept_loss: bool = False) -> "Undone":
        from cleveragents.history import undo

        return undo.undo(self._ctx, self.plan, accept_loss=accept_loss)

    def redo(self, *, accept_loss: bool = False) -> "Undone":
        from cleveragents.history import undo

        return undo.redo(self._ctx, self.plan, accept_loss=accept_loss)

    def effects(self) -> "list[Effect]":
        """What its calls did, or may have done, outside the sandboxes."""
        return self._ctx.store.effects.of_plan(self.plan_id)

    def diff(self, start: str | None = None, end: str | None = None) -> "Diff":
        from cleveragents.history.diff import diff_between
        from cleveragents.lookup import find_group

        plan = self.plan
        groups = [
            find_group(self._ctx.store, plan, text) if text else None for text in (start, end)
        ]
        return diff_between(self._ctx, plan, groups[0], groups[1])

    def apply(
        self, mode: str | None = None, *, ignored: bool = False, hooks: bool = False
    ) -> dict[str, Any]:
        from cleveragents.apply import apply as applying
        from cleveragents.execution.caller_executor import completes_when_applied

        if completes_when_applied(self._ctx, self.plan_id):
            self.complete()
        request = applying.Request(mode=mode, ignored=ignored, hooks=hooks)
        return applying.apply(self._ctx, self.plan, request)

    def revert_applied(self) -> "PlanHandle":
        """A new plan, executed, that takes back what this one applied."""
        from cleveragents.apply.revert import nothing_to_revert, spec_to_revert
        from cleveragents.maintenance import delete as ending

        plan = self.plan
        spec, _ = spec_to_revert(self._ctx, plan)
        made = Workspace(self._ctx).use_spec(spec, source=f"plan {plan.name}", folder=plan.plan_dir)
        made.execute()
        if made.plan.state is State.COMPLETE and not ending.unapplied(self._ctx, made.plan):
            made.delete(force=True)
            raise nothing_to_revert(plan)
        return made

    def cancel(self) -> Plan:
        from cleveragents.maintenance import delete as ending

        return ending.cancel(self._ctx, self.plan)

    def delete(self, *, force: bool = False) -> int:
        from cleveragents.maintenance import delete as ending

        return ending.delete(self._ctx, self.plan, force=force)


class Workspace:
    """A store with everything that works on it."""

    def __init__(self, ctx: Context, recovered: tuple[str, ...] = ()) -> None:
        self.ctx = ctx
        self.recovered = recovered
        """What was left unfinished by an earlier process, and what became of it."""

    def use(self, file: str) -> PlanHandle:
        """Register a plan file without running it."""
        from cleveragents.execution.use import read_plan, use_plan

        read = read_plan(self.ctx, file)
        folder = os.path.dirname(read.path)
        plan = use_plan(
            self.ctx, read.spec, source_path=read.path, source_text=read.text, plan_dir=folder
        )
        return PlanHandle(self.ctx, plan.plan_id)

    def use_spec(self, spec: "PlanSpec", *, source: str, folder: str, text: str = "") -> PlanHandle:
        """The same for a plan that was built and not read."""
        from cleveragents.execution.preflight import preflight
        from cleveragents.execution.use import use_plan

        preflight(self.ctx, spec, source, folder)
        plan = use_plan(self.ctx, spec, source_path="", source_text=text, plan_dir=folder)
        return PlanHandle(self.ctx, plan.plan_id)

    def plan(
        self,
        name: str,
        resources: "Mapping[str, ResourceGiven]",
        *,
        description: str = "",
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        policy: Mapping[str, Any] | None = None,
        validate: Sequence[Mapping[str, Any]] = (),
        apply: Mapping[str, Any] | None = None,
        folder: str | os.PathLike[str] = ".",
    ) -> PlanHandle:
        """A plan without a file: its decisions and steps come from the caller.

        A resource is a path or the keys of a plan file's resource; the other parts are those of a
        plan file. Relative paths start from `folder`.
        """
        from cleveragents.execution.caller_executor import drafted

        where = os.path.abspath(folder)
        parts = {
            "description": description,
            "tools": tools,
            "policy": policy,
            "validate": validate,
            "apply": apply,
        }
        spec, text = drafted(name, resources, where, parts)
        return self.use_spec(spec, source=f"plan {name!r}", text=text, folder=where)

    def run(self, file: str) -> PlanHandle:
        """Use a plan file and execute it."""
        plan = self.use(file)
        plan.execute()
        return plan

    def find(self, text: str) -> PlanHandle:
        """By name, by `last`, or by the beginning or end of its id."""
        from cleveragents.lookup import find_plan

        return PlanHandle(self.ctx, find_plan(self.ctx.store, text)[0].plan_id)

    def plans(self) -> list[Plan]:
        """All of them, newest first."""
        return self.ctx.store.plans.all()


@contextmanager
def open_workspace(
    home: str | None = None,
    *,
    settings: Settings | None = None,
    talk: Talk | None = None,
    now: Callable[[], str] = utc_now,
    recover: bool = True,
) -> Generator[Workspace]:
    """Store, content, manager, service: built here, passed on, closed at the end.

    `recover`: finish first what dead processes left; off only beside a workspace that did.
    """
    settings, talk = settings or settings_here(home), talk or Talk()
    directory = f"{settings.home}/content"
    store = open_store(settings.home)
    try:
        fsio.make_private_dir(directory)
        packs = Packs(
            directory, store.objects, settings.content_budget, store.reserve, store.read_only
        )
        manager = CheckpointManager(store, packs, settings)
        ctx = Context(
            settings=settings,
            store=store,
            manager=manager,
            checkpoints=CheckpointService(store, manager, settings, now, _warner(talk)),
            talk=talk,
            another=lambda: _another(settings, talk, now),
            execute=_execute,
            reconcile=_reconcile,
            internal_tools={"plan.revert": _revert},
            now=now,
        )
        if not store.identity.made_at and not store.read_only:
            from cleveragents.maintenance.move import claim

            claim(ctx)
        try:
            yield Workspace(ctx, _recovered(ctx) if recover else ())
        finally:
            manager.close()
            packs.close()
    except sqlite3.DatabaseError as error:
        raise machine.of_sqlite(error, f"{settings.home}/store.db") from error
    except msgspec.ValidationError as error:
        raise StoreError(f"the store has a row that cannot be read: {error}") from error
    finally:
        store.close()


def _warner(talk: Talk) -> Callable[[str], None]:
    return lambda message: talk.tell("warning", {"message": message})


@contextmanager
def _another(settings: Settings, talk: Talk | None, now: Callable[[], str]) -> Generator[Context]:
    with open_workspace(settings=settings, talk=talk, now=now, recover=False) as workspace:
        yield workspace.ctx


def _execute(ctx: Context, plan_id: str) -> None:
    from cleveragents.execution.run import execute_plan

    execute_plan(ctx, plan_id)


def _reconcile(ctx: Context, leased: LeasedPlan) -> None:
    from cleveragents.maintenance.reboot import reconcile

    reconcile(ctx, leased)


def _revert(ctx: Context, leased: LeasedPlan, **inputs: str) -> "ToolResult":
    from cleveragents.apply.revert import revert_paths

    return revert_paths(ctx, leased, **inputs)


def _recovered(ctx: Context) -> tuple[str, ...]:
    """Finish what a dead process left; nearly always there is nothing, and nothing is imported."""
    store = ctx.store
    if store.identity.is_elsewhere:
        return (f"{store.identity.said}; {store.identity.hint}",)
    waiting = store.intents.all() or store.plans.processing() or store.leases.held()
    if not (waiting or store.effects.plans_waiting()):
        return ()
    if store.read_only:
        return ("the store is read-only: what a process that ended had begun is not finished",)
    from cleveragents.maintenance.recovery import recover

    return recover(ctx)


def settings_here(home: str | None = None, overrides: Mapping[str, str] | None = None) -> Settings:
    """The settings in force for this directory and environment."""
    environ = dict(os.environ)
    if home is not None:
        environ["CLEVERAGENTS_HOME"] = home
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = "/"
    return load_settings(here, environ, overrides)
