"""The verbs in one process: through the Python API, and through the command line without a fork."""

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from cleveragents.checkpoints.restoration import (
    rewound_steps,
)
from cleveragents.cli import data as reports
from cleveragents.cli import render
from cleveragents.cli.main import root
from cleveragents.cli.quick import entry
from cleveragents.cli.render import Panel, Reply, Table, Text
from cleveragents.errors import (
    CarryLimit,
    CheckpointPruned,
    ForeignCheckpoint,
    LeaseLost,
    NotAllowed,
    NotFound,
    NothingToUndo,
    PlanApplied,
    PlanCancelled,
    PlanFileError,
    RollbackDisabled,
    StoreError,
    UnappliedWork,
    UsageError,
)
from cleveragents.execution.one_shot import one_step_plan
from cleveragents.execution.preflight import preflight
from cleveragents.execution.run import Reconciled, preview_resume
from cleveragents.execution.use import nest
from cleveragents.history.checkpoints import delete_group, preview_prune, prune_plan
from cleveragents.history.diff import diff_of_failure
from cleveragents.history.rollback import (
    preview,
)
from cleveragents.lookup import find_decision, find_group, find_plan, short_ids
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.journal import EntryState, JournalEntry, Moment, Operation, undo_stack
from cleveragents.model.lifecycle import require_appliable
from cleveragents.model.plan import State
from cleveragents.model.plan_spec import ActorSpec, PlanSpec, ResourceSpec, StepSpec
from cleveragents.model.resource import Action, Change, Resource
from cleveragents.model.retention import Candidate, CheckpointRetentionPolicy, judge
from cleveragents.model.units import plural
from cleveragents.workspace import PlanHandle, Workspace, open_workspace, settings_here

PLAN = """\
name: shop
resources:
  app: {kind: fs-directory, path: app}
steps:
  - id: one
    decision: {question: which name, chosen: people, alternatives: [users]}
    on: app
    run: "echo one > one.txt"
  - id: two
    decision: {question: which file, chosen: two}
    on: app
    run: "echo two > two.txt && rm old.txt"
"""
FAILING = PLAN.replace(
    'rm old.txt"', 'rm old.txt"\n  - {id: three, on: app, run: "echo half > half.txt; test -e ok"}'
)


class Yard:
    """A folder with a directory to work on, a plan file, and a store beside."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.app = top / "app"
        self.app.mkdir(parents=True)
        (self.app / "old.txt").write_text("old\n")

    def plan(self, text: str = PLAN, name: str = "plan.yaml") -> str:
        path = self.top / name
        path.write_text(text)
        return str(path)


class Said(msgspec.Struct, frozen=True):
    code: int
    out: str
    err: str

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.out)["data"]


def agents(*argv: str, expect: int = 0) -> Said:
    """The command line in this process; what it returned is its exit code."""
    result = CliRunner().invoke(root, list(argv), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert result.return_value == expect, (argv, result.output)
    return Said(result.return_value, result.stdout, result.stderr)


@pytest.fixture(autouse=True)
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEVERAGENTS_SANDBOX_CONFINE", "off")


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    made = Yard(tmp_path / "yard")
    monkeypatch.chdir(made.top)
    return made


def files(plan: PlanHandle) -> set[str]:
    return set(os.listdir(plan.sandboxes["app"]))


def write(plan: PlanHandle, name: str, text: str = "by hand\n") -> Path:
    path = Path(plan.sandboxes["app"]) / name
    path.write_text(text)
    return path


# how a reply looks

REPLY = Reply(
    data={"name": "ünï"},
    blocks=(
        Panel("Plan", (("name", "shop"), ("odd", "a\x1b[31mb"))),
        Table(("file", "status"), (("a\nb", "added"),), "Files"),
        Table(("plain",), (("cell",),)),
        Text("stopped: [bold]no markup[/bold]", "red"),
    ),
)


def test_rich_output_shows_panels_tables_and_text_without_reading_markup_or_escapes() -> None:
    out = io.StringIO()
    render.write_rich(REPLY, out)
    shown = out.getvalue()
    assert "Plan" in shown
    assert "shop" in shown
    assert "Files" in shown
    assert "cell" in shown
    assert "a\\nb" in shown
    assert "[bold]no markup[/bold]" in shown
    assert "a\\x1b[31mb" in shown
    assert "\x1b[31mb" not in shown


def test_control_characters_are_shown_as_escapes_but_lines_and_tabs_stay() -> None:
    assert render.safe("a\x1b]0;x\x07\n\tü\u202e") == "a\\x1b]0;x\\x07\n\tü\\u202e"


def test_plain_output_has_one_line_per_row_and_no_escape() -> None:
    out = io.StringIO()
    render.write_plain(REPLY, out)
    lines = out.getvalue().splitlines()
    assert lines[:3] == ["Plan", "  name  shop", "  odd   a\\x1b[31mb"]
    assert lines[3:6] == ["Files", "file  status", "a\\nb  added"]


def test_every_format_says_the_same_of_a_plan(yard: Yard) -> None:
    agents("plan", "run", yard.plan(), "--quiet")
    as_json = agents("plan", "status", "shop", "--json").data
    as_yaml = yaml.safe_load(agents("plan", "status", "shop", "--format", "yaml").out)
    assert as_yaml["status"] == "ok"
    assert as_yaml["command"] == "agents plan status"
    assert as_yaml["data"] == as_json
    rich = agents("plan", "status", "shop", "--format", "rich").out
    plain = agents("plan", "status", "shop").out
    for text in ("execute/complete", "one", "two", as_json["plan_id"]):
        assert text in rich
        assert text in plain
    assert "╭" in rich
    assert "╭" not in plain
    assert agents("plan", "status", "shop", "--quiet").out == ""


# names


def test_last_without_any_plan_is_not_found() -> None:
    with open_workspace() as ws, pytest.raises(NotFound, match="no plan yet"):
        ws.find("last")


def test_plans_are_found_by_name_last_and_either_end_of_the_id(yard: Yard) -> None:
    with open_workspace() as ws:
        old, new = ws.use(yard.plan()), ws.use(yard.plan())
        other = ws.use(yard.plan(PLAN.replace("name: shop", "name: other")))
        assert ws.find("last").plan_id == other.plan_id
        assert ws.find(other.plan_id[-8:].lower()).plan_id == other.plan_id
        found, remark = find_plan(ws.ctx.store, "shop")
        assert found.plan_id == new.plan_id
        assert remark.startswith("2 plans are called 'shop'")
        assert find_plan(ws.ctx.store, "other")[1] == ""
        assert [p.plan_id for p in ws.plans()] == [other.plan_id, new.plan_id, old.plan_id]
        with pytest.raises(NotFound, match="shop"):
            ws.find("shpo")
        with pytest.raises(NotFound):
            ws.find("")
        with pytest.raises(UsageError, match="is ambiguous: 3 plans match") as caught:
            ws.find(old.plan_id[:4])
        assert caught.value.hint == "give more of the id"
    shown = agents("plan", "status", "shop")
    assert "2 plans are called 'shop'" in shown.err


def test_a_plan_without_checkpoints_has_no_first_and_no_last(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.use(yard.plan())
        for text in ("first", "last"):
            with pytest.raises(NotFound, match="no checkpoint yet"):
                find_group(ws.ctx.store, plan.plan, text)
        with pytest.raises(NotAllowed, match="no sandbox yet"):
            plan.checkpoint("too early")
        assert plan.diff().files_changed == 0
        assert preview_resume(ws.ctx, plan.plan).reconciled is Reconciled.NOTHING
        with pytest.raises(NotFound, match="has no error"):
            reports.failed_step(ws.ctx, plan.plan)


def test_groups_are_found_by_first_last_label_and_id_and_not_in_another_plan(yard: Yard) -> None:
    with open_workspace() as ws:
        store = ws.ctx.store
        plan, other = ws.run(yard.plan()), ws.run(yard.plan())
        made = plan.checkpoint("good")
        groups = store.checkpoints.groups(plan.plan_id)
        now = plan.plan
        assert find_group(store, now, "first") == groups[0]
        assert find_group(store, now, "last").group_id == now.head_group_id == made.group_id
        assert find_group(store, now, "good") == made
        assert find_group(store, now, made.group_id.lower()) == made
        row = plan.checkpoints()[0]
        assert find_group(store, now, row.checkpoint_id).group_id == row.group_id
        foreign = other.checkpoints()[0]
        with pytest.raises(ForeignCheckpoint) as caught:
            find_group(store, now, foreign.checkpoint_id)
        assert other.plan_id in caught.value.message
        assert caught.value.hint == f"agents plan rollback {other.plan_id} {foreign.checkpoint_id}"
        with pytest.raises(NotFound, match="good"):
            find_group(store, now, "goood")
        with pytest.raises(UsageError, match="checkpoints"):
            find_group(store, now, made.group_id[:3])


def test_decisions_are_found_by_the_end_of_their_id(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        _, first, second = ws.ctx.store.plans.decisions(plan.plan_id)
        assert find_decision(ws.ctx.store, second.decision_id[-10:]) == second
        assert find_decision(ws.ctx.store, first.decision_id) == first
        with pytest.raises(NotFound, match="nowhere"):
            find_decision(ws.ctx.store, "nowhere")


def test_short_ids_are_the_shortest_ends_that_differ() -> None:
    assert short_ids(["AAAAAAAA1", "AAAAAAAA2"]) == {
        "AAAAAAAA1": "AAAAA1"[-6:],
        "AAAAAAAA2": "AAAAA2",
    }
    long = ["X" + "0" * 10 + "ABCDEF", "Y" + "0" * 10 + "ABCDEF"]
    assert short_ids(long) == {name: name for name in long}
    assert short_ids(["1AAAAAAA", "2BAAAAAA"]) == {"1AAAAAAA": "AAAAAAA", "2BAAAAAA": "BAAAAAA"}
    same = ["X" * 30, "Y" + "X" * 29]
    assert short_ids(same) == {name: name for name in same}


# checkpoints by hand, pruning


def loose(ws: Workspace, plan: PlanHandle) -> list[CheckpointGroup]:
    """Groups that only the retention rule keeps."""
    fixed = ("first", "newest", "undo can reach it")
    names = [v.group_id for v in preview_prune(ws.ctx, plan.plan) if v.reason not in fixed]
    return [ws.ctx.store.checkpoints.group(name) for name in names]


def test_a_pruned_group_is_named_with_the_nearest_kept_one(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        gone = loose(ws, plan)[0]
        delete_group(ws.ctx, plan.plan, gone)
        kept = [g.group_id for g in ws.ctx.store.checkpoints.groups(plan.plan_id)]
        assert gone.group_id not in kept
        near = max(each for each in kept if each < gone.group_id)
        with pytest.raises(CheckpointPruned) as caught:
            plan.rollback(gone.group_id)
        assert caught.value.hint.endswith(f"rollback {plan.plan_id} {near}")


def test_the_first_the_newest_and_a_pinned_group_cannot_be_deleted(yard: Yard) -> None:
    with open_workspace() as ws:
        store = ws.ctx.store
        plan = ws.run(yard.plan())
        pinned = loose(ws, plan)[0]
        with store.transaction():
            store.checkpoints.pin(pinned.group_id, True)
        for text, why in (("first", "first"), ("last", "newest"), (pinned.group_id, "pinned")):
            with pytest.raises(NotAllowed, match=f"stays: {why}"):
                delete_group(ws.ctx, plan.plan, find_group(store, plan.plan, text))
        before = store.checkpoints.count(plan.plan_id)
        with store.transaction():
            store.checkpoints.pin(pinned.group_id, False)
        delete_group(ws.ctx, plan.plan, find_group(store, plan.plan, pinned.group_id))
        assert store.checkpoints.count(plan.plan_id) == before - 1


def test_prune_does_what_its_preview_said_and_keeps_labelled_groups(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        for label in (None, "kept", None, None, None):
            plan.checkpoint(label)
    tight = settings_here(None, {"sandbox.checkpoint.max-checkpoints-per-plan": "3"})
    with open_workspace(settings=tight) as ws:
        plan = ws.find("shop")
        count = ws.ctx.store.checkpoints.count(plan.plan_id)
        told = preview_prune(ws.ctx, plan.plan)
        assert ws.ctx.store.checkpoints.count(plan.plan_id) == count
        assert prune_plan(ws.ctx, plan.plan) == told
        left = {g.group_id: g for g in ws.ctx.store.checkpoints.groups(plan.plan_id)}
        assert set(left) == {v.group_id for v in told if v.keep}
        assert len(left) < count
        assert told[0].reason == "first"
        assert told[-1].reason == "newest"
        assert "kept" in {g.label for g in left.values()}
        last = ws.ctx.store.journal.of_plan(plan.plan_id)[-1]
        assert last.operation is Operation.PRUNE
        assert last.detail["dropped"] == sum(not v.keep for v in told)


def test_a_checkpoint_by_hand_takes_in_edits_by_hand(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        write(plan, "hand.txt")
        unlabelled = plan.checkpoint()
        assert str(unlabelled.checkpoint_type) == "manual"
        write(plan, "more.txt")
        plan.checkpoint("labelled")
        write(plan, "after.txt")
        plan.rollback(unlabelled.group_id)
        assert files(plan) == {"one.txt", "two.txt", "hand.txt"}
        plan.rollback("labelled")
        assert files(plan) == {"one.txt", "two.txt", "hand.txt", "more.txt"}


# rollback, undo, redo, resume


def test_rollback_undo_and_redo_travel_between_the_same_states(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        todo = preview(ws.ctx, plan.plan, find_group(ws.ctx.store, plan.plan, "first"))
        assert todo.dry_run
        assert files(plan) == {"one.txt", "two.txt"}
        done = plan.rollback("first")
        assert not done.dry_run
        assert done.changes == todo.changes
        assert {c.shown for c in done.changes} == {"one.txt", "two.txt", "old.txt"}
        assert done.decisions_after == todo.decisions_after == 2
        assert files(plan) == {"old.txt"}
        assert plan.plan.state is State.QUEUED
        assert plan.undo().operation == "rollback"
        assert files(plan) == {"one.txt", "two.txt"}
        assert plan.plan.state is State.COMPLETE
        assert plan.redo().operation == "rollback"
        assert files(plan) == {"old.txt"}
        with pytest.raises(NothingToUndo, match="nothing to redo"):
            plan.redo()
        assert plan.resume().next_step == "one"
        assert files(plan) == {"one.txt", "two.txt"}


def test_undo_takes_back_edits_by_hand_before_anything_else(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        write(plan, "hand.txt")
        assert plan.undo().operation == "external_edit"
        assert files(plan) == {"one.txt", "two.txt"}
        assert plan.undo().operation == "execute"
        assert files(plan) == {"old.txt"}
        with pytest.raises(NothingToUndo, match="nothing to undo"):
            plan.undo()


def test_resume_of_a_failed_plan_adopts_edits_and_runs_only_what_is_left(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan(FAILING))
        assert plan.plan.state is State.ERRORED
        assert "half.txt" not in files(plan)
        failed = diff_of_failure(ws.ctx, plan.plan)
        assert failed is not None
        assert [f["path"] for f in failed["files"]] == ["half.txt"]
        told = reports.failed_step(ws.ctx, plan.plan)
        assert told["step"] == "three"
        assert told["exit_code"] == 1
        assert told["attempts"] == 1
        with pytest.raises(NotAllowed, match="only a completed plan"):
            require_appliable(plan.plan)
        write(plan, "ok")
        todo = preview_resume(ws.ctx, plan.plan)
        assert (todo.reconciled, todo.next_step) == (Reconciled.ADOPTED, "three")
        assert preview_resume(ws.ctx, plan.plan, True).reconciled is Reconciled.DISCARDED
        done = plan.resume()
        assert done.reconciled is Reconciled.ADOPTED
        assert [c.shown for c in done.changes] == ["ok"]
        assert files(plan) == {"one.txt", "two.txt", "half.txt", "ok"}
        steps = {s.step_id: s.attempts for s in ws.ctx.store.plans.steps(plan.plan_id)}
        assert steps == {"one": 1, "two": 1, "three": 2}
        assert plan.resume().next_step is None


def test_resume_can_discard_edits_by_hand(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan(FAILING))
        write(plan, "ok")
        done = plan.resume(discard_edits=True)
        assert done.reconciled is Reconciled.DISCARDED
        assert files(plan) == {"one.txt", "two.txt"}
        assert plan.plan.state is State.ERRORED


def test_a_plan_without_rollback_refuses_to_go_back(yard: Yard) -> None:
    text = PLAN + "policy: {rollback_enabled: false}\n"
    with open_workspace() as ws:
        plan = ws.run(yard.plan(text))
        for verb in (plan.undo, plan.redo, plan.checkpoint):
            with pytest.raises(RollbackDisabled):
                verb()


def test_steps_that_did_not_exist_then_are_removed(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        one, two = ws.ctx.store.plans.steps(plan.plan_id)
        changed, removed = rewound_steps([one, two], {"one": one})
        assert (changed, removed) == ([], ["two"])


def entry_of(operation: Operation, name: str, state: EntryState = EntryState.DONE) -> JournalEntry:
    return JournalEntry(
        entry_id=name, plan_id="p", operation=operation, state=state, before=Moment(None, 0),
        started_at="",
    )  # fmt: skip


def test_the_undo_stack_leaves_out_what_is_open_and_ends_redo_at_a_new_operation() -> None:
    run = entry_of(Operation.EXECUTE, "run")
    back = entry_of(Operation.ROLLBACK, "back")
    undo, redo = entry_of(Operation.UNDO, "u"), entry_of(Operation.REDO, "r")
    prune = entry_of(Operation.PRUNE, "p")
    unfinished = entry_of(Operation.RESUME, "open", EntryState.OPEN)
    assert undo_stack([run, back, undo, unfinished, prune]) == ([run], [back])
    assert undo_stack([run, back, undo, redo]) == ([run, back], [])
    assert undo_stack([run, undo, back]) == ([back], [])
    assert undo_stack([undo, redo]) == ([], [])


# the end of a plan


def test_a_diff_between_groups_shows_only_what_lies_between(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        plan.checkpoint("a")
        write(plan, "hand.txt")
        plan.checkpoint("b")
        assert [f.path for f in plan.diff("a", "b").files] == ["hand.txt"]
        back = plan.diff("b", "a").files
        assert [(f.path, f.status, f.deletions) for f in back] == [("hand.txt", "removed", 1)]
        whole = plan.diff()
        assert {f.path for f in whole.files} == {"one.txt", "two.txt", "old.txt", "hand.txt"}
        assert (whole.insertions, whole.deletions) == (3, 1)


def test_after_apply_the_work_is_real_and_the_diff_still_shows_it(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        before = plan.diff()
        applied = plan.apply()
        assert applied["applied"][0]["files"] == 3
        assert set(os.listdir(yard.app)) == {"one.txt", "two.txt"}
        assert plan.diff().patch == before.patch
        for verb in (plan.resume, plan.undo, plan.checkpoint, plan.cancel):
            with pytest.raises(PlanApplied):
                verb()
        assert plan.delete() == 0
        assert ws.plans() == []


def test_a_cancelled_plan_changes_nothing_and_goes_nowhere(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        assert plan.cancel().state is State.CANCELLED
        assert files(plan) == {"one.txt", "two.txt"}
        with pytest.raises(PlanCancelled):
            plan.resume()
        with pytest.raises(PlanCancelled):
            plan.rollback("first")
        assert os.listdir(yard.app) == ["old.txt"]


def test_cancel_can_remove_the_sandbox_and_the_diff_stays(yard: Yard) -> None:
    settings = settings_here(None, {"sandbox.cleanup": "on_terminal"})
    with open_workspace(settings=settings) as ws:
        plan = ws.run(yard.plan())
        where = Path(plan.sandboxes["app"])
        patch = plan.diff().patch
        plan.cancel()
        assert not where.exists()
        assert plan.diff().patch == patch
        assert plan.delete() == 0


def test_delete_refuses_to_lose_work_unless_forced(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        where = Path(plan.sandboxes["app"])
        with pytest.raises(UnappliedWork, match="3 changes"):
            plan.delete()
        assert where.exists()
        assert plan.delete(force=True) == 3
        assert not where.exists()
        assert ws.plans() == []


# what is refused before anything starts


def problems(ws: Workspace, *resources: ResourceSpec, steps: tuple[StepSpec, ...] = ()) -> str:
    spec = PlanSpec(name="x", resources=resources, steps=steps)
    with pytest.raises(PlanFileError) as caught:
        preflight(ws.ctx, spec, "plan.yaml")
    assert caught.value.hint == "nothing was created"
    return "\n".join(caught.value.problems)


def test_preflight_names_everything_that_is_wrong_at_once(yard: Yard) -> None:
    (yard.top / "text").write_text("this is no database")
    with open_workspace() as ws:
        told = problems(
            ws,
            ResourceSpec(name="odd", kind="fs-directory", path="/\udcff"),
            ResourceSpec(name="new", kind="bucket", path="/x"),
            ResourceSpec(name="none", kind="fs-directory", path=str(yard.top / "nowhere")),
            ResourceSpec(name="wide", kind="fs-directory", path="/"),
            ResourceSpec(name="repo", kind="git-checkout", path=str(yard.app)),
            ResourceSpec(name="db", kind="sqlite", path=str(yard.top / "text")),
        )
        assert ws.plans() == []
    for text in (
        "'odd': its path is not UTF-8",
        "'new': kind 'bucket' is not available yet",
        "resource 'none':",
        "resource 'wide':",
        "resource 'repo':",
        "'db': not a SQLite database",
    ):
        assert text in told


def test_an_unsafe_tool_needs_the_policy_to_allow_it(yard: Yard) -> None:
    text = PLAN + "tools:\n  risky: {run: [touch, x], unsafe: true}\n"
    with open_workspace() as ws:
        with pytest.raises(PlanFileError, match="tool 'risky' is unsafe"):
            ws.use(yard.plan(text))
        ws.use(yard.plan(text + "policy: {allow_unsafe: true}\n"))


def test_one_step_plans_say_what_is_wrong_with_where_or_what(yard: Yard) -> None:
    spec = one_step_plan(str(yard.app), ("/bin/echo", "hi"), None)
    assert (spec.name, spec.resources[0].kind) == ("echo", "fs-directory")
    assert spec.resources[0].path == str(yard.app.resolve())
    with pytest.raises(UsageError, match="no such directory"):
        one_step_plan(str(yard.top / "nowhere"), ("true",), None)
    with pytest.raises(UsageError, match="not UTF-8"):
        one_step_plan(str(yard.app), ("echo", "\udcff"), None)


def test_nested_resources_know_the_nearest_one_around_them() -> None:
    def made(name: str, path: str) -> Resource:
        return Resource(
            resource_id=name, plan_id="p", name=name, kind="fs-directory", path=path,
            strategy="copy_on_write",
        )  # fmt: skip

    found = {r.name: r for r in nest([made("a", "/a"), made("b", "/a/b"), made("c", "/a/b/c/d")])}
    assert (found["b"].outer, found["b"].place) == ("a", "b")
    assert (found["c"].outer, found["c"].place) == ("b", "c/d")
    assert not found["a"].outer
    assert not nest([made("a", "/a"), made("ab", "/ab")])[1].outer


def test_a_strategy_that_a_kind_does_not_have_is_refused(yard: Yard) -> None:
    wrong = ResourceSpec(
        name="app", kind="fs-directory", path=str(yard.app), strategy="git_worktree"
    )
    spec = PlanSpec(name="x", resources=(wrong,), steps=())
    with open_workspace() as ws, pytest.raises(PlanFileError, match="no strategy 'git_worktree'"):
        ws.use_spec(spec, source="here", folder=str(yard.top))


def test_a_tree_above_the_limit_is_not_carried_unasked(yard: Yard) -> None:
    settings = settings_here(None, {"sandbox.carry-limit-files": "1"})
    (yard.app / "second").write_text("")
    with open_workspace(settings=settings) as ws:
        plan = ws.use(yard.plan())
        with pytest.raises(CarryLimit):
            plan.execute()


# the workspace


def test_settings_can_be_read_where_the_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert settings_here(str(tmp_path / "store")).home == str(tmp_path / "store")


def damage(sql: str) -> None:
    with closing(sqlite3.connect(f"{os.environ['CLEVERAGENTS_HOME']}/store.db")) as db, db:
        db.execute(sql)


def test_a_row_that_cannot_be_read_is_a_store_error(yard: Yard) -> None:
    with open_workspace() as ws:
        ws.use(yard.plan())
    damage("UPDATE plans SET spec = '[]'")
    with pytest.raises(StoreError, match="a row that cannot be read"), open_workspace() as ws:
        ws.plans()
    assert "cannot be read" in agents("plan", "list", expect=6).err


# reports


def test_a_file_name_that_is_not_utf_8_is_given_in_base64_besides() -> None:
    odd = Change(resource="app", path=b"\xff.txt", action=Action.REMOVED)
    told = reports.change_data(odd)
    assert (told["file_b64"], told["action"]) == ("/y50eHQ=", "removed")
    plain = Change(resource="app", path=b"a.txt", action=Action.CHANGED)
    assert reports.change_data(plain) == {"resource": "app", "file": "a.txt", "action": "restored"}


def test_decisions_taken_back_are_shown_only_on_request_and_can_be_explained(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        (top,) = reports.tree_data(ws.ctx, plan.plan, False)
        one, two = top["children"]
        assert (one["question"], one["steps"], two["chosen"]) == ("which name", ["one"], "two")
        told = reports.explain_data(ws.ctx, find_decision(ws.ctx.store, two["decision_id"]))
        assert [s["id"] for s in told["steps"]] == ["two"]
        assert {w["path"] for w in told["wrote"]} == {"two.txt", "old.txt"}
        assert len({w.path for w in ws.ctx.store.calls.writes(plan.plan_id)}) == 3
        explained = agents("plan", "explain", two["decision_id"])
        assert "two.txt" in explained.out
        assert "not given" in explained.out
        plan.rollback("first")
        assert [d["children"] for d in reports.tree_data(ws.ctx, plan.plan, False)] == [[]]
        gone = reports.tree_data(ws.ctx, plan.plan, True)[0]["children"]
        assert [d["state"] for d in gone] == ["superseded"] * 2
    assert "which name" not in agents("plan", "tree", "shop").out
    assert "which name: people (superseded)" in agents("plan", "tree", "--show-superseded").out


def test_a_shown_checkpoint_lists_steps_done_and_decisions_in_force(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        store = ws.ctx.store
        first = reports.group_data(ws.ctx, plan.plan, find_group(store, plan.plan, "first"))
        assert first["steps_done"] == []
        assert len(first["decisions_in_force"]) == 1
        made = reports.group_data(ws.ctx, plan.plan, plan.checkpoint("end"))
        assert made["steps_done"] == ["one", "two"]
        assert len(made["decisions_in_force"]) == 3
        assert made["label"] == "end"
        assert made["type"] == "manual"
        assert all("snapshot" not in row["metadata"] for row in made["checkpoints"])


# the command line


@pytest.mark.parametrize("way", [(), ("--json",)])
def test_looking_at_a_plan_works_for_people_and_for_programs(
    yard: Yard, way: tuple[str, ...]
) -> None:
    if not way:
        assert "no plan yet" in agents("plan", "list").out
    failed = agents("plan", "run", yard.plan(FAILING), *way, expect=5)
    assert ("x three:" in failed.err) is (not way)
    expected = {
        ("plan", "list"): "shop",
        ("plan", "status"): "three",
        ("plan", "tree"): "which name",
        ("plan", "checkpoints"): "app",
        ("plan", "checkpoint", "show", "shop", "first"): "group",
        ("plan", "diff", "--stat"): "one.txt",
        ("plan", "log"): "execute",
        ("plan", "errors"): "half.txt",
        ("plan", "prune", "shop", "--dry-run"): "first",
        ("plan", "resume", "shop", "--dry-run"): "three",
        ("plan", "rollback", "shop", "first", "--dry-run"): "one.txt",
        ("check",): "checkpoints",
        ("check", "--read-data"): "objects",
        ("gc", "--dry-run"): "removed",
        ("du",): "shop",
        ("config", "list"): "sandbox.cleanup",
        ("config", "get", "sandbox.cleanup"): "on_apply",
    }
    for argv, text in expected.items():
        said = agents(*argv, *way)
        assert text in said.out, argv
        if way:
            told = json.loads(said.out)
            assert told["status"] == "ok"
            assert told["exit_code"] == 0
            words = [w for w in argv if w.isalpha() and w not in ("shop", "first")]
            assert told["command"].split()[1:] == words[: len(told["command"].split()) - 1]


@pytest.mark.parametrize("way", [(), ("--json",)])
def test_working_on_a_plan_works_for_people_and_for_programs(
    yard: Yard, way: tuple[str, ...]
) -> None:
    with open_workspace() as ws:
        group = loose(ws, ws.run(yard.plan()))[0].group_id
    for argv, text in (
        (("checkpoint", "create", "shop", "--label", "good"), "checkpoint"),
        (("checkpoint", "pin", "shop", group), group),
        (("checkpoint", "pin", "shop", group, "--off"), group),
        (("checkpoint", "delete", "shop", group, "--yes"), group),
        (("prune", "shop"), "newest"),
        (("undo", "shop"), "execute"),
        (("redo", "shop"), "execute"),
        (("rollback", "shop", "first", "--yes"), "one.txt"),
        (("resume", "shop"), "shop"),
        (("apply", "shop", "--dry-run"), "two.txt"),
        (("apply", "shop", "--yes"), "app"),
        (("delete", "shop"), "shop"),
    ):
        assert text in agents("plan", *argv, *way).out, argv
    assert set(os.listdir(yard.app)) == {"one.txt", "two.txt"}


def test_without_a_terminal_nothing_is_done_that_needs_a_yes(yard: Yard) -> None:
    agents("plan", "run", yard.plan(), "-q")
    for argv in (
        ("rollback", "shop", "first"),
        ("apply", "shop"),
        ("checkpoint", "delete", "shop", "first"),
    ):
        said = agents("plan", *argv, "--json", expect=4)
        assert said.data["error"]["type"] == "Declined"
        assert said.data["error"]["hint"] == f"agents plan {' '.join(argv)} --json --yes"
    said = agents("plan", "delete", "shop", expect=4)
    assert "3 changes that were never applied" in said.err
    assert os.listdir(yard.app) == ["old.txt"]


def test_used_then_executed_then_cancelled_on_the_command_line(yard: Yard) -> None:
    used = agents("plan", "use", yard.plan())
    assert "next: agents plan execute" in used.out
    assert agents("plan", "execute", "shop", "--json").data["state"] == "complete"
    cancelled = agents("plan", "cancel", "shop", "--json").data
    assert cancelled["state"] == "cancelled"
    assert "is cancelled" in agents("plan", "resume", "shop", "--dry-run", expect=4).err
    assert "3 files changed" in agents("plan", "diff", "shop", "--from", "first").out


def test_resume_tells_what_became_of_edits_by_hand(yard: Yard) -> None:
    agents("plan", "run", yard.plan(FAILING), "-q", expect=5)
    sandbox = agents("plan", "status", "--json").data["sandboxes"]["app"]
    Path(sandbox, "ok").write_text("")
    said = agents("plan", "resume", "shop", "--discard-edits", "--json", expect=5)
    assert any("1 manual edit discarded" in text for text in json.loads(said.out)["messages"])
    Path(sandbox, "ok").write_text("")
    said = agents("plan", "resume", "shop")
    assert "1 manual edit adopted" in said.err
    assert "resumed from checkpoint" in said.err


def test_one_command_runs_in_a_sandbox_of_a_directory(yard: Yard) -> None:
    said = agents("run", "--on", str(yard.app), "--json", "--", "sh", "-c", "rm old.txt; echo hi")
    assert said.data["output"].strip() == "hi"
    assert said.data["exit_code"] == 0
    assert said.data["name"] == "sh"
    assert os.listdir(yard.app) == ["old.txt"]
    named = agents("run", "--name", "named", "--on", "app", "--json", "--", "echo", "hi")
    assert named.data["name"] == "named"
    assert agents("run", "--on", "app", "--json", "--", "false", expect=1).data["exit_code"] == 1
    assert "no such directory" in agents("run", "--on", "nowhere", "--", "true", expect=125).err


def test_settings_are_set_and_unset_for_oneself_and_for_the_project(yard: Yard) -> None:
    key = "sandbox.cleanup"
    agents("config", "set", key, "manual")
    assert agents("config", "get", key).out == "manual\n"
    agents("config", "set", key, "on_terminal", "--project", "--json")
    told = agents("config", "get", key, "--json").data
    assert told["value"] == "on_terminal"
    assert (yard.top / ".cleveragents.toml").exists()
    assert agents("config", "get", key, "--set", f"{key}=on_apply").out == "on_apply\n"
    agents("config", "unset", key, "--project")
    assert agents("config", "get", key).out == "manual\n"
    agents("config", "unset", key, "--json")
    assert agents("config", "get", key).out == "on_apply\n"
    said = agents("config", "get", "sandbox.claenup", expect=2)
    assert "unknown setting" in said.err
    assert key in said.err


def test_a_wrong_grace_and_a_wrong_override_are_wrong_use() -> None:
    said = agents("gc", "--grace", "soon", "--json", expect=2)
    assert said.data["error"]["message"].startswith("--grace:")
    assert agents("gc", "--grace", "0s", "--json").data["removed"] == 0
    said = agents("plan", "list", "--set", "no.such=1", expect=2)
    assert "no.such" in said.err


def test_doctor_answers_in_both_forms() -> None:
    assert agents("doctor").out
    assert json.loads(agents("doctor", "--json").out)["command"] == "agents doctor"


def enter(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    """As the installed command does it, in this process."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "argv", ["agents", *argv])
    try:
        with pytest.raises(SystemExit) as stop:
            entry()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_wrong_use_is_told_in_the_form_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enter(monkeypatch, "plan", "rollback", "x", "--json") == 2
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == 2
    assert told["data"]["error"]["type"] == "UsageError"
    assert told["data"]["error"]["hint"] == "agents plan rollback --help"
    assert enter(monkeypatch, "plan", "rolback") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no such command: rolback" in said.err
    assert "rollback" in said.err
    assert enter(monkeypatch, "plan", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)["data"] == {"plans": []}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch: pytest.MonkeyPatch, answer: str, *argv: str) -> int:
    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    return root.main(list(argv), prog_name="agents", standalone_mode=False)


def test_at_a_terminal_the_question_is_asked_and_the_answer_taken(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_workspace() as ws:
        ws.run(yard.plan())
        ws.run(yard.plan(PLAN.replace("name: shop", "name: other")))
    assert at_terminal(monkeypatch, "n", "plan", "apply", "shop") == 4
    said = capsys.readouterr().err
    assert "apply 3 changes?" in said
    assert "declined" in said
    assert os.listdir(yard.app) == ["old.txt"]
    assert at_terminal(monkeypatch, "y", "plan", "delete", "other") == 0
    assert "3 changes were never applied; delete the plan?" in capsys.readouterr().err
    assert at_terminal(monkeypatch, "y", "plan", "apply", "shop") == 0
    assert set(os.listdir(yard.app)) == {"one.txt", "two.txt"}


def test_at_a_terminal_a_large_tree_is_carried_if_one_says_so(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (yard.app / "second").write_text("")
    argv = ("plan", "run", yard.plan(), "--set", "sandbox.carry-limit-files=1")
    assert at_terminal(monkeypatch, "n", *argv) == 4
    assert "copy it anyway?" in capsys.readouterr().err
    assert at_terminal(monkeypatch, "y", *argv) == 0
    said = agents("run", "--on", "app", "--set", "sandbox.carry-limit-files=1", "true", expect=125)
    assert "copy it anyway?" not in said.err


def test_debug_lets_the_error_itself_through(yard: Yard) -> None:
    with pytest.raises(NotFound, match="no plan"):
        agents("plan", "status", "nowhere", "--debug")


def test_every_problem_of_a_plan_file_has_a_line_of_its_own(yard: Yard) -> None:
    path = yard.plan("name: bad\nresources: {app: {kind: fs-directory, path: nowhere}}\nstep: []\n")
    said = agents("plan", "use", path, "--json", expect=2)
    found = said.data["error"]["problems"]
    assert len(found) > 1
    lines = agents("plan", "use", path, expect=2).err.splitlines()
    assert [f"error: {problem}" for problem in found] == lines[: len(found)]


def test_a_conflict_names_the_file_that_both_changed(yard: Yard) -> None:
    text = PLAN.replace("echo one > one.txt", "echo plan > old.txt").replace("&& rm old.txt", "")
    agents("plan", "run", yard.plan(text), "-q")
    (yard.app / "old.txt").write_text("somebody else\n")
    said = agents("plan", "apply", "shop", "--yes", expect=4)
    assert "app: old.txt" in said.err
    told = agents("plan", "apply", "shop", "--yes", "--json", expect=4).data
    assert [c["path"] for c in told["conflicts"]] == ["old.txt"]
    assert "conflict: old.txt" in agents("plan", "apply", "shop", "--dry-run").out
    assert (yard.app / "old.txt").read_text() == "somebody else\n"


def test_ignored_files_are_counted_but_not_shown_and_control_files_are_pointed_out(
    yard: Yard,
) -> None:
    (yard.app / ".gitignore").write_text("*.log\n")
    for argv in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "start")):
        subprocess.run(["git", *argv], cwd=yard.app, check=True)
    below = yard.app / "below"
    below.mkdir()
    script = "echo x > x.log; echo y > y; echo '*.tmp' >> .gitattributes"
    script = f"cd .. && {script}"
    told = agents("run", "--on", str(below), "--json", "--", "sh", "-c", script).data
    assert list(told["sandboxes"]) == ["work"]
    shown = agents("plan", "diff", "last", "--stat").out
    assert "1 ignored path left out" in shown
    assert "x.log" not in shown
    assert "x.log" in agents("plan", "diff", "last", "--stat", "--ignored").out
    proposal = agents("plan", "apply", "last", "--dry-run", "--json").data["would_apply"][0]
    assert proposal["ignored"] == 1
    assert set(proposal["files"]) == {"y", ".gitattributes"}
    assert proposal["control_files"] == [".gitattributes"]
    plain = agents("plan", "apply", "last", "--dry-run").out
    assert "control files: .gitattributes" in plain
    assert "1 ignored path left out" in plain


def test_status_says_what_cannot_be_rolled_back(yard: Yard) -> None:
    text = PLAN + "policy: {rollback_enabled: false}\n"
    agents("plan", "use", yard.plan(text.replace("path: app}", "path: app, exclude: ['*.o']}")))
    shown = agents("plan", "status", "--set", f"sandbox.writable={yard.top}").out
    assert "rollback_enabled is false" in shown
    assert f"{yard.top}: not rolled back" in shown
    assert "never captured in app  *.o" in shown


def test_a_store_that_lacks_a_table_is_damaged(yard: Yard) -> None:
    with open_workspace() as ws:
        ws.use(yard.plan())
    damage("DROP TABLE steps")
    with pytest.raises(StoreError, match="the store is damaged"), open_workspace() as ws:
        ws.find("shop").execute()


def test_help_lists_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enter(monkeypatch, "plan", "--help") == 0
    shown = capsys.readouterr().out
    for name in ("rollback", "resume", "apply", "checkpoint"):
        assert f"  {name} " in shown


def test_a_lease_that_was_given_back_is_good_for_nothing(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        lease = ws.ctx.store.leases.get(plan.plan_id)
        assert lease is not None
        assert not lease.held
        with pytest.raises(LeaseLost, match="taken over"):
            ws.ctx.store.leases.check(lease)
        assert diff_of_failure(ws.ctx, plan.plan) is None


# retention, as a pure rule


def candidate(number: int, kind: str = "manual", **fields: Any) -> Candidate:
    group = CheckpointGroup(
        group_id=f"g{number}", plan_id="p", decision_id=None, step_index=0, version=0, view_mark=0,
        checkpoint_type=CheckpointType(kind), triggers=(kind,), label=fields.pop("label", None),
        members={}, created_at=f"2026-01-0{number}T00:00:00+00:00",
    )  # fmt: skip
    return Candidate(
        group=group, size_bytes=10, reachable=False, superseded=fields.pop("superseded", False)
    )


def dropped(policy: CheckpointRetentionPolicy, *candidates: Candidate) -> dict[str, str]:
    now = datetime(2026, 1, 9, tzinfo=UTC)
    return {v.group_id: v.reason for v in judge(policy, candidates, now) if not v.keep}


def test_superseded_groups_go_first_then_those_around_steps_and_decisions_last() -> None:
    groups = (
        candidate(1),
        candidate(2, "on_decision"),
        candidate(3),
        candidate(4, "after_step"),
        candidate(5, superseded=True),
        candidate(6),
    )
    order = [
        set(dropped(CheckpointRetentionPolicy(max_checkpoints=most), *groups))
        for most in (6, 5, 4, 3, 2, 1)
    ]
    assert order == [
        set(),
        {"g5"},
        {"g5", "g4"},
        {"g5", "g4", "g3"},
        {"g5", "g4", "g3", "g2"},
        {"g5", "g4", "g3", "g2"},
    ]


def test_groups_are_kept_by_number_and_age_and_dropped_for_bytes() -> None:
    groups = tuple(candidate(n, label="l" if n == 2 else None) for n in range(1, 8))
    few = CheckpointRetentionPolicy(max_checkpoints=1, keep_last=3)
    assert set(dropped(few, *groups)) == {"g3", "g4"}
    young = CheckpointRetentionPolicy(max_checkpoints=1, keep_within=timedelta(days=5))
    assert set(dropped(young, *groups)) == {"g3"}
    small = CheckpointRetentionPolicy(max_bytes=50)
    assert dropped(small, *groups) == {"g3": "over 50 bytes", "g4": "over 50 bytes"}


# damage and other actors


def test_check_names_every_problem_and_exits_with_6(yard: Yard) -> None:
    agents("plan", "run", yard.plan(), "-q")
    for pack in Path(os.environ["CLEVERAGENTS_HOME"], "content").rglob("*"):
        if pack.is_file():
            pack.unlink()
    told = agents("check", "--read-data", "--json", expect=6).data
    assert told["problems"]
    assert told["error"]["message"] == f"{plural(len(told['problems']), 'problem')} found"
    shown = agents("check", "--read-data", expect=6)
    assert told["problems"][0] in shown.out


def test_an_actor_that_is_not_there_yet_and_a_file_for_a_folder_are_refused(yard: Yard) -> None:
    path = str(yard.app / "old.txt")
    spec = PlanSpec(
        name="x",
        resources=(ResourceSpec(name="app", kind="fs-directory", path=path),),
        steps=(),
        actor=ActorSpec(kind="process", command=("true",)),
    )
    with open_workspace() as ws, pytest.raises(PlanFileError) as caught:
        preflight(ws.ctx, spec, "plan.yaml")
    first, second = caught.value.problems
    assert "old.txt" in first
    assert second == "plan.yaml: actor kind 'process' is not available yet"
