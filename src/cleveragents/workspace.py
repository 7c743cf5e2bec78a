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
from collections.abc import Callable, Generator, Mapping, Sequence
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
from cleveragents.lease import LeasedPlan, host_name
from cleveragents.model.plan import Plan
from cleveragents.model.plan_spec import OBSERVED
from cleveragents.model.settings import Settings
from cleveragents.plan_handle import PlanHandle
from cleveragents.store import Store, open_store
from cleveragents.store.tables import RESTORE

if TYPE_CHECKING:
    from cleveragents.apply.database_backups import Held
    from cleveragents.checkpoints.uploads import Uploads
    from cleveragents.execution.caller_executor import ResourceGiven
    from cleveragents.execution.plan_files.lint import Linted
    from cleveragents.execution.use import PlanFile
    from cleveragents.maintenance.check import Checked
    from cleveragents.maintenance.disk_usage import Usage
    from cleveragents.maintenance.doctor import Report
    from cleveragents.maintenance.gc import Collected
    from cleveragents.maintenance.move import Adopted
    from cleveragents.model.plan_spec import PlanSpec
    from cleveragents.model.tool import ToolResult
    from cleveragents.sandbox.protocol import Proposal


class Workspace:
    """A store with everything that works on it."""

    def __init__(self, ctx: Context, recovered: tuple[str, ...] = ()) -> None:
        self.ctx = ctx
        self.recovered = recovered
        """What was left unfinished by an earlier process, and what became of it."""

    def use(self, file: str) -> PlanHandle:
        """Register a plan file without running it."""
        from cleveragents.execution.use import use_plan

        read = self.read(file)
        folder = os.path.dirname(read.path)
        plan = use_plan(
            self.ctx, read.spec, source_path=read.path, source_text=read.text, plan_dir=folder
        )
        return PlanHandle(self.ctx, plan.plan_id)

    def read(self, file: str) -> "PlanFile":
        """A plan file, read and checked; nothing is stored."""
        from cleveragents.execution.use import read_plan

        return read_plan(self.ctx, file)

    def lint(self, file: str) -> "Linted":
        """Everything that is wrong with a plan file, with the line and key of each."""
        from cleveragents.execution.plan_files.lint import lint

        return lint(self.ctx, file)

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
        plan.execute(verb="plan run")
        return plan

    def run_command(
        self, argv: Sequence[str], path: str = ".", *, name: str | None = None
    ) -> PlanHandle:
        """Run one command in a sandbox of `path`, as a plan of one step.

        What it prints is kept; `Talk.attach` of `open_workspace` gives it this process's streams.
        """
        from cleveragents.execution.one_shot import one_step_plan

        spec = one_step_plan(path, tuple(argv), name)
        plan = self.use_spec(spec, source="agents run", folder=spec.resources[0].path)
        plan.execute(verb="run")
        return plan

    def do(
        self,
        goal: str,
        path: str = ".",
        *,
        model: str | None = None,
        name: str | None = None,
        max_steps: int | None = None,
        max_tokens: int | None = None,
    ) -> PlanHandle:
        """Have a language model work towards a goal in a sandbox of `path`.

        `model` is `provider:name`; left out, the setting `actors.model`.
        """
        from cleveragents.execution.one_shot import goal_plan, model_actor

        actor = model_actor(goal, model or self.ctx.settings.model, max_steps, max_tokens)
        spec = goal_plan(path, actor, name)
        plan = self.use_spec(spec, source="agents do", folder=spec.resources[0].path)
        plan.execute(verb="do")
        return plan

    def find(self, text: str) -> PlanHandle:
        """By name, by `last`, or by the beginning or end of its id."""
        from cleveragents.lookup import find_plan

        return PlanHandle(self.ctx, find_plan(self.ctx.store, text)[0].plan_id)

    def plans(self) -> list[Plan]:
        """All of them, newest first."""
        return self.ctx.store.plans.all()

    def check(self, *, read_data: bool = False) -> "Checked":
        """Whether the store is whole; `read_data`: every byte of it."""
        from cleveragents.maintenance.check import check

        return check(self.ctx, read_data)

    def gc(self, *, grace: float | None = None, dry_run: bool = False) -> "Collected":
        """Free what no plan refers to; `grace`: for how many seconds unused content stays."""
        from cleveragents.maintenance.gc import collect

        seconds = self.ctx.settings.gc_grace if grace is None else grace
        return collect(self.ctx, seconds, dry_run)

    def disk_usage(self) -> "Usage":
        """Which plan holds how much of the content store."""
        from cleveragents.maintenance.disk_usage import usage

        return usage(self.ctx)

    def doctor(self, *, fix: bool = False) -> "Report":
        """What this machine offers and what is left over; `fix` removes that."""
        from cleveragents.maintenance.doctor import examine

        return examine(self.ctx, fix)

    def adopt(self) -> "Adopted":
        """Take a store that was moved for where it is now."""
        from cleveragents.maintenance.move import adopt

        return adopt(self.ctx)

    def backups(self, plan: PlanHandle | None = None) -> "list[Held]":
        """The copies of databases from before a plan was applied that are kept."""
        from cleveragents.apply.database_backups import kept, kept_of

        return kept(self.ctx) if plan is None else kept_of(self.ctx, plan.plan)

    def replaced_backups(self, plan: PlanHandle, proposals: "tuple[Proposal, ...]") -> "list[Held]":
        """Those that applying the plan would drop."""
        from cleveragents.apply.database_backups import replaced_by

        return replaced_by(self.ctx, plan.plan, proposals)

    def drop_backups(self, plan: PlanHandle | None = None) -> "list[Held]":
        """Drop them; what they were kept for cannot be reverted any more."""
        from cleveragents.apply.database_backups import release

        by = "agents gc --databases" if plan is None else "agents plan prune --databases"
        return [release(self.ctx, one, by) for one in self.backups(plan)]


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
    store = open_store(settings.home, settings.store_url, settings.lease)
    try:
        fsio.make_private_dir(directory)
        manager, uploads = _content(settings, store, _teller(talk))
        packs = manager.packs
        ctx = Context(
            settings=settings,
            store=store,
            manager=manager,
            checkpoints=CheckpointService(store, manager, settings, now, _warner(talk), uploads),
            talk=talk,
            another=lambda: _another(settings, talk, now),
            execute=_execute,
            execute_child=_execute,
            reconcile=_reconcile,
            settle=_settle,
            take_over=_take_over,
            internal_tools={"plan.revert": _revert},
            now=now,
        )
        if not store.identity.made_at and not store.read_only:
            from cleveragents.maintenance.move import claim

            claim(ctx)
        if uploads is not None and recover and not store.read_only:
            for plan_id in uploads.left_over():
                uploads.begin(plan_id)
        try:
            yield Workspace(ctx, _recovered(ctx) if recover else ())
        finally:
            if uploads is not None and (left := uploads.close(lambda: talk.tell("uploading", {}))):
                talk.tell("warning", {"message": left})
            manager.close()
            packs.close()
    except sqlite3.DatabaseError as error:
        raise machine.of_sqlite(error, f"{settings.home}/store.db") from error
    except msgspec.ValidationError as error:
        raise StoreError(f"the store has a row that cannot be read: {error}") from error
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        if broken := store.broken_rows():
            raise StoreError(f"the store is damaged: {broken[0]}", RESTORE) from error
        raise
    finally:
        store.close()


def _content(
    settings: Settings, store: Store, tell: Callable[[str, int, int], None]
) -> "tuple[CheckpointManager, Uploads | None]":
    """The packs of this machine, and what is behind them if there is a bucket."""
    if not settings.content_url:
        directory, budget = f"{settings.home}/content", settings.content_budget
        packs = Packs(directory, store.objects, budget, store.reserve, store.read_only)
        if store.is_shared:
            packs.if_missing = "agents plan status says which machine has it; else agents check"
        return CheckpointManager(store, packs, settings, tell), None
    from cleveragents.checkpoints.backed import BackedManager, backed_packs, open_desk
    from cleveragents.checkpoints.uploads import Uploads

    uploads = Uploads(lambda: open_desk(settings), settings.home, settings.content_wait)
    return BackedManager(store, backed_packs(settings, store), settings, tell), uploads


def _warner(talk: Talk) -> Callable[[str], None]:
    return lambda message: talk.tell("warning", {"message": message})


def _teller(talk: Talk) -> Callable[[str, int, int], None]:
    return lambda resource, done, of: talk.tell(
        "capturing", {"resource": resource, "bytes": done, "of": of}
    )


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


def _settle(ctx: Context, leased: LeasedPlan, verb: str) -> None:
    if leased.plan.spec["actor"]["kind"] == OBSERVED:
        from cleveragents.execution.observed.settle import settle

        settle(ctx, leased, verb)


def _revert(ctx: Context, leased: LeasedPlan, **inputs: str) -> "ToolResult":
    from cleveragents.apply.revert import revert_paths

    return revert_paths(ctx, leased, **inputs)


def _recovered(ctx: Context) -> tuple[str, ...]:
    """Finish what a dead process left; nearly always there is nothing, and nothing is imported."""
    store = ctx.store
    if os.path.isdir(sockets := f"{ctx.settings.home}/sidecars") and not store.read_only:
        from cleveragents.maintenance.sidecars import sweep

        sweep(sockets)
    if store.identity.is_elsewhere:
        return (f"{store.identity.message}; {store.identity.hint}",)
    unfinished = store.unfinished(host_name() if store.is_shared else None)
    if not unfinished:
        return ()
    if store.read_only:
        return ("the store is read-only: what a process that ended had begun is not finished",)
    from cleveragents.maintenance.recovery import recover

    return recover(ctx, unfinished)


def _take_over(ctx: Context, plan_id: str) -> None:
    from cleveragents.maintenance.recovery import recover

    for text in recover(ctx, [plan_id]):
        ctx.talk.tell("warning", {"message": text})


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
