"""Many processes on one store: nobody is locked out, nothing is lost, each plan has one history."""

import os
import random
import sqlite3
import subprocess
import traceback
from collections import Counter
from contextlib import closing
from pathlib import Path

from cleveragents.cli.data import status_data
from cleveragents.errors import CheckpointPruned, NothingToUndo, PlanBusy
from cleveragents.history.checkpoints import prune_plan
from cleveragents.model.journal import EntryState, JournalEntry
from cleveragents.workspace import PlanHandle, Workspace, open_workspace
from tests.harness import Agents, command
from tests.scratch import running_step, wait_until

PROCESSES, PLANS, ROUNDS = 8, 4, 12
EXPECTED = (PlanBusy, CheckpointPruned, NothingToUndo)
"""What a process may be told when another one works on the same plan."""

PLAN = """
name: plan-{number}
resources: {{docs: {{kind: fs-directory, path: docs-{number}}}}}
policy: {{max_checkpoints_per_plan: 8}}
steps:
  - {{id: one, tool: file.write, on: docs, with: {{path: one, content: "1"}}}}
  - {{id: two, tool: file.write, on: docs, with: {{path: sub/two, content: "2"}}}}
  - {{id: three, tool: file.delete, on: docs, with: {{path: old}}}}
"""
WAITING = """
name: waiting
resources: {docs: {kind: fs-directory, path: docs}}
steps:
  - {id: wait, run: 'while [ ! -e "$AGENTS_PLAN_DIR/go" ]; do sleep 0.02; done; echo 1 > done'}
"""


def make_plans(agents: Agents) -> list[str]:
    found: list[str] = []
    with open_workspace() as ws:
        for number in range(PLANS):
            (agents.work / f"docs-{number}").mkdir()
            (agents.work / f"docs-{number}/old").write_text("old")
            file = agents.work / f"plan-{number}.yaml"
            file.write_text(PLAN.format(number=number))
            found.append(ws.use(str(file)).plan_id)
    return found


def act(ws: Workspace, plan: PlanHandle, what: str, label: str) -> None:
    if what == "resume":
        plan.resume()
    elif what == "checkpoint":
        plan.checkpoint(label)
    elif what == "rollback":
        plan.rollback("first")
    elif what == "undo":
        plan.undo()
    elif what == "prune":
        prune_plan(ws.ctx, plan.plan)
    else:
        assert status_data(ws.ctx, plan.plan)["plan_id"] == plan.plan_id


def work(number: int, plans: list[str], log: Path) -> None:
    """What one process does: each time another plan, each time the store opened anew."""
    dice = random.Random(number)
    names = ["resume", "checkpoint", "rollback", "undo", "status", "prune"]
    for turn in range(ROUNDS):
        what, plan_id, label = dice.choice(names), dice.choice(plans), f"by-{number}-{turn}"
        with open_workspace() as ws:
            plan = ws.find(plan_id)
            if plan.plan.head_group_id is None:
                what = "resume"
            try:
                act(ws, plan, what, label)
                told = "ok"
            except EXPECTED as error:
                told = type(error).__name__
        with log.open("a") as out:
            out.write(f"{what} {plan_id} {label} {told}\n")


def in_processes(plans: list[str], root: Path) -> list[list[str]]:
    """Run them all; the lines (operation, plan, label, what it was told) of all of them."""
    children: dict[int, Path] = {}
    for number in range(PROCESSES):
        log = root / f"log-{number}"
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work(number, plans, log)
                status = 0
            except BaseException:  # noqa: BLE001 - the parent shows it
                (root / f"error-{number}").write_text(traceback.format_exc())
            finally:
                os._exit(status)
        children[child] = log
    ended = [os.waitpid(child, 0)[1] for child in children]
    errors = [path.read_text() for path in sorted(root.glob("error-*"))]
    assert not errors, "\n".join(errors)
    assert ended == [0] * PROCESSES
    return [line.split() for log in children.values() for line in log.read_text().splitlines()]


def require_linear(journal: list[JournalEntry]) -> None:
    """Each operation began where the one before it had ended, or later; none overlaps another."""
    last = 0
    for entry in sorted(journal, key=lambda entry: (entry.before.version, entry.entry_id)):
        assert entry.state is EntryState.DONE, entry
        assert entry.after is not None
        assert last <= entry.before.version <= entry.after.version, entry
        last = entry.after.version


def test_eight_processes_share_four_plans(agents: Agents, tmp_path: Path) -> None:
    plans = make_plans(agents)
    done = in_processes(plans, tmp_path)
    assert len(done) == PROCESSES * ROUNDS
    told = Counter(line[3] for line in done)
    assert told["ok"] > PLANS, told
    with open_workspace() as ws:
        store = ws.ctx.store
        for plan_id in plans:
            mine = [line for line in done if line[1] == plan_id and line[3] == "ok"]
            journal = store.journal.of_plan(plan_id)
            require_linear(journal)
            recorded = Counter(str(entry.operation) for entry in journal)
            acknowledged = Counter(line[0] for line in mine)
            for name in ("checkpoint", "rollback", "undo", "prune"):
                assert recorded[name] == acknowledged[name], (name, recorded, acknowledged)
            labels = {group.label for group in store.checkpoints.groups(plan_id) if group.label}
            assert labels == {line[2] for line in mine if line[0] == "checkpoint"}
        assert store.leases.holders() == []
        assert store.intents.all() == []
        assert store.integrity() == []
    require_whole_histories(agents, plans)
    agents.run("check", "--read-data").expect(0)


def require_whole_histories(agents: Agents, plans: list[str]) -> None:
    """Every commit of a plan is in its history, once, and the last of them is the plan."""
    path = Path(agents.env["CLEVERAGENTS_HOME"]) / "store.db"
    with closing(sqlite3.connect(path)) as db:
        for plan_id in plans:
            found = db.execute(
                "SELECT version FROM history WHERE plan_id = ? AND kind = 'plan' ORDER BY version",
                (plan_id,),
            ).fetchall()
            [(version,)] = db.execute("SELECT version FROM plans WHERE plan_id = ?", (plan_id,))
            assert [row[0] for row in found] == list(range(version + 1))


def test_after_eight_processes_every_plan_can_be_finished(agents: Agents, tmp_path: Path) -> None:
    plans = make_plans(agents)
    in_processes(plans, tmp_path)
    with open_workspace() as ws:
        for plan_id in plans:
            plan = ws.find(plan_id)
            plan.resume()
            where = Path(plan.sandboxes["docs"])
            assert sorted(path.name for path in where.rglob("*")) == ["one", "sub", "two"]
            assert (where / "sub/two").read_text() == "2"


def test_the_second_execute_is_told_who_holds_the_plan(agents: Agents) -> None:
    (agents.work / "docs").mkdir()
    (agents.work / "plan.yaml").write_text(WAITING)
    plan_id = agents.run("plan", "use", "plan.yaml", "--json").expect(0).data["plan_id"]
    argv = [command(), "plan", "execute", plan_id, "--json"]
    with subprocess.Popen(argv, cwd=agents.work, env=agents.env, stdout=subprocess.PIPE) as first:
        wait_until(lambda: running_step(agents) == "wait", "the first step")
        second = agents.run("plan", "execute", plan_id, "--json").expect(4)
        error = second.data["error"]
        assert error["type"] == "PlanBusy"
        assert f"process {first.pid}" in error["message"]
        assert "plan execute" in error["message"]
        assert f"kill {first.pid}" in error["hint"]
        (agents.work / "go").touch()
        first.communicate(timeout=600)
    assert first.returncode == 0
    assert agents.run("plan", "status", plan_id, "--json").expect(0).data["state"] == "complete"
    journal = agents.run("plan", "log", plan_id, "--json").expect(0).data
    assert [entry["operation"] for entry in journal["entries"]].count("execute") == 1
