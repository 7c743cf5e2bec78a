"""The tools of `agents mcp` and their results.

Each call opens and closes the store: nothing is held between calls.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cleveragents.actors import OBSERVED
from cleveragents.execution.observed.settle import is_alive
from cleveragents.model.checkpoint import CheckpointGroup, RollbackResult
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace, open_workspace

LONGEST_PATCH = 100_000
MOST_PATHS = 200
AGAIN = "done; files that you remember may differ, read them again; plan_undo undoes it"


@dataclass(frozen=True)
class PlanStatus:
    plan_id: str
    name: str
    phase: str
    state: str
    steps: list[dict[str, str]]
    sandboxes: dict[str, str]
    """Name of each resource -> where its files are now."""
    checkpoints: int
    last_checkpoint: str
    error: str


@dataclass(frozen=True)
class CheckpointInfo:
    id: str
    type: str
    label: str
    created_at: str
    step: str
    question: str
    """The decision or prompt that it belongs to."""
    here: bool
    """Whether the plan stands at it."""


@dataclass(frozen=True)
class CheckpointList:
    plan_id: str
    checkpoints: list[CheckpointInfo]
    """Oldest first."""
    left_out: int


@dataclass(frozen=True)
class PlanDiff:
    plan_id: str
    files_changed: int
    insertions: int
    deletions: int
    paths: list[str]
    patch: str


@dataclass(frozen=True)
class Restored:
    """What a rollback or undo did, or would do."""

    done: bool
    plan_id: str
    checkpoint: str
    paths: list[str]
    paths_in_all: int
    decisions_after: int
    tool_calls_after: int
    cannot_be_undone: list[str]
    say: str = ""
    """What to do next."""
    command: list[str] = field(default_factory=list[str])
    """For the person to run, if it was not done here."""


@dataclass(frozen=True)
class Recorded:
    plan_id: str
    decision_id: str
    checkpoint: str


class Plans:
    """`default`: the plan when none is named; "" for the newest of this directory."""

    def __init__(self, home: str | None = None, default: str = "") -> None:
        self._home = home
        self._default = default

    @contextmanager
    def _opened(self, plan: str) -> Generator[tuple[Workspace, PlanHandle]]:
        with open_workspace(self._home) as ws:
            yield ws, ws.find(plan or self._default)

    def all(self) -> list[dict[str, str]]:
        with open_workspace(self._home) as ws:
            return [
                {"plan_id": p.plan_id, "name": p.name, "phase": str(p.phase), "state": str(p.state)}
                for p in ws.plans()
            ]

    def status(self, plan: str) -> PlanStatus:
        with self._opened(plan) as (ws, one):
            now, store = one.plan, ws.ctx.store
            return PlanStatus(
                plan_id=now.plan_id,
                name=now.name,
                phase=str(now.phase),
                state=str(now.state),
                steps=[
                    {"id": step.step_id, "tool": step.tool, "state": str(step.state)}
                    for step in store.plans.steps(now.plan_id)
                ],
                sandboxes=one.sandboxes if now.head_group_id else {},
                checkpoints=store.checkpoints.count(now.plan_id),
                last_checkpoint=now.head_group_id or "",
                error=now.error.message if now.error else "",
            )

    def checkpoints(self, plan: str, limit: int) -> CheckpointList:
        with self._opened(plan) as (ws, one):
            groups = ws.ctx.store.checkpoints.groups(one.plan_id)
            shown = groups[-limit:]
            infos = [_info(ws, one, group) for group in shown]
            return CheckpointList(one.plan_id, infos, left_out=len(groups) - len(shown))

    def diff(self, plan: str, start: str, end: str) -> PlanDiff:
        with self._opened(plan) as (_, one):
            found = one.diff(start or None, end or None)
            cut = "\n[cut]\n" if len(found.patch) > LONGEST_PATCH else ""
            return PlanDiff(
                plan_id=one.plan_id,
                files_changed=found.files_changed,
                insertions=found.insertions,
                deletions=found.deletions,
                paths=[file.path for file in found.files[:MOST_PATHS]],
                patch=found.patch[:LONGEST_PATCH] + cut,
            )

    def create(self, plan: str, label: str) -> CheckpointInfo:
        with self._opened(plan) as (ws, one):
            return _info(ws, one, one.checkpoint(label or None))

    def record(self, plan: str, question: str, chosen: str, about: dict[str, Any]) -> Recorded:
        with self._opened(plan) as (_, one):
            decision_id = one.record_decision(question, chosen, **about)
            return Recorded(one.plan_id, decision_id, one.plan.head_group_id or "")

    def preview(self, plan: str, checkpoint: str) -> Restored:
        with self._opened(plan) as (_, one):
            return _restored(one.preview_rollback(checkpoint))

    def rollback(self, plan: str, checkpoint: str) -> Restored:
        with self._opened(plan) as (_, one):
            return _restored(one.rollback(checkpoint), AGAIN)

    def undo(self, plan: str) -> Restored:
        with self._opened(plan) as (_, one):
            return _restored(one.undo().result, AGAIN)

    def in_a_turn(self, plan: str) -> str:
        """The plan's id if its own agent is working in it now, else ""."""
        with self._opened(plan) as (ws, one):
            store, now = ws.ctx.store, one.plan
            if now.spec["actor"]["kind"] != OBSERVED:
                return ""
            sessions = store.sessions.of_plan(one.plan_id)
            gone = bool(sessions) and not any(not s.pid or is_alive(s) for s in sessions)
            return "" if gone or not store.journal.open_entries(one.plan_id) else one.plan_id


def _info(ws: Workspace, one: PlanHandle, group: CheckpointGroup) -> CheckpointInfo:
    steps = {step.index: step.step_id for step in ws.ctx.store.plans.steps(one.plan_id)}
    questions = {d.decision_id: d.question for d in ws.ctx.store.plans.decisions(one.plan_id)}
    return CheckpointInfo(
        id=group.group_id,
        type=str(group.checkpoint_type),
        label=group.label or "",
        created_at=group.created_at,
        step=steps.get(group.step_index, ""),
        question=questions.get(group.decision_id or "", ""),
        here=group.group_id == one.plan.head_group_id,
    )


def _restored(result: RollbackResult, say: str = "") -> Restored:
    paths = [f"{change.action}: {change.resource}: {change.shown}" for change in result.changes]
    return Restored(
        done=bool(say),
        plan_id=result.plan_id,
        checkpoint=result.group_id,
        paths=paths[:MOST_PATHS],
        paths_in_all=len(paths),
        decisions_after=result.decisions_after,
        tool_calls_after=result.tool_calls_after,
        cannot_be_undone=[effect.tool for effect in result.effects.irreversible],
        say=say,
    )
