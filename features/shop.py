"""A git repository, a database beside it, a plan over both, and the store's own tables."""

import json
import re
import sqlite3
import subprocess
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.harness import Agents, Outcome, command
from tests.scratch import make_repository, query, snapshot, wait_until

RESOURCES = "{app: {kind: git-checkout, path: app}, db: {kind: sqlite, path: shop.db}}"
SELL = """\
import os, sqlite3
with sqlite3.connect(os.environ["AGENTS_SANDBOX_DB"]) as db:
    db.execute("INSERT INTO users VALUES ('Sold')")
with open("greeting.txt", "a") as greeting:
    greeting.write("sold\\n")
"""
KEPT_TABLES = (
    "plans",
    "steps",
    "decisions",
    "resources",
    "sandboxes",
    "checkpoint_groups",
    "checkpoints",
    "group_members",
    "tool_calls",
    "writes",
    "journal",
    "intents",
)


class Shop:
    def __init__(self, agents: Agents) -> None:
        self.agents = agents
        self.app = agents.work / "app"
        self.database = agents.work / "shop.db"
        self.home = Path(agents.env["CLEVERAGENTS_HOME"])
        self.policy = "{}"
        self.env: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None

    def build(self) -> None:
        self.app.mkdir()
        (self.app / "greeting.txt").write_text("hello\n")
        (self.app / "old.txt").write_text("old\n")
        make_repository(self.agents, self.app)
        query(self.database, "CREATE TABLE users (name TEXT)")
        query(self.database, "INSERT INTO users VALUES ('Ada'), ('Grace')")
        (self.agents.work / "sell.py").write_text(SELL)

    def write_plan(self, name: str, steps: str) -> None:
        head = f"name: {name}\nresources: {RESOURCES}\npolicy: {self.policy}\nsteps:\n"
        plan = head + textwrap.indent(textwrap.dedent(steps), "  ") + "\n"
        (self.agents.work / f"{name}.yaml").write_text(plan)

    def run(self, *argv: str) -> Outcome:
        return self.agents.run(*argv, "--json", env=self.env)

    def start(self, name: str) -> None:
        """Run a plan and leave it running, once a tool has written the file `waiting`."""
        self.process = subprocess.Popen(
            [command(), "plan", "run", f"{name}.yaml", "--json"],
            cwd=self.agents.work,
            env=self.agents.env | self.env,
            stdout=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: list(self.home.glob("sandboxes/*/app/waiting")), "the waiting step")

    def finish(self) -> int:
        """Let the waiting step go on, and wait for the plan's end."""
        assert self.process is not None
        (self.agents.work / "go").touch()
        self.process.communicate(timeout=60)
        return self.process.returncode

    def rows(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        if not (self.home / "store.db").exists():
            return []
        with closing(sqlite3.connect(self.home / "store.db")) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(sql, parameters)]

    def plan_id(self, name: str) -> str:
        return self.rows("SELECT plan_id FROM plans WHERE name = ?", name)[0]["plan_id"]

    def groups(self, name: str) -> list[dict[str, Any]]:
        """The groups that are kept, oldest first, each with the rows it made."""
        groups = self.rows(
            "SELECT * FROM checkpoint_groups WHERE plan_id = ? AND pruned_at IS NULL"
            " ORDER BY group_id",
            self.plan_id(name),
        )
        return [
            group
            | {"rows": self.checkpoints(group["group_id"])}
            | {"triggers": json.loads(group["triggers"])}
            for group in groups
        ]

    def checkpoints(self, group_id: str) -> list[dict[str, Any]]:
        return self.rows(
            "SELECT c.*, r.name AS resource FROM checkpoints c JOIN resources r USING (resource_id)"
            " WHERE c.group_id = ? ORDER BY c.checkpoint_id",
            group_id,
        )

    def sandbox(self, name: str) -> Path:
        """Of the newest plan."""
        found = self.rows(
            "SELECT s.path FROM sandboxes s JOIN resources r USING (resource_id)"
            " WHERE r.name = ? ORDER BY s.sandbox_id",
            name,
        )
        return Path(found[-1]["path"])

    def checkpoint(self, name: str, target: str) -> str:
        """What to type for `"first"`, `the decision of "x"`, `the group after "x"`, ..."""
        if quoted := re.fullmatch(r'"(.*)"', target):
            return quoted[1]
        if target == "a checkpoint of the other plan":
            return self.checkpoint("other", 'the decision of "other"')
        if target == "the oldest pruned group":
            return self.oldest_pruned(name)
        if target == "the checkpoint of the oldest pruned group":
            return self.noted[self.oldest_pruned(name)]
        kinds = {
            "the decision of": "on_decision",
            "the group after": "after_tool_execute",
            "the failed state of": "on_error",
        }
        words, step = re.fullmatch(r'(the .*) "(.*)"', target).groups()
        found = [
            row["checkpoint_id"]
            for group in self.groups(name)
            for row in group["rows"]
            if row["checkpoint_type"] == kinds[words]
            and json.loads(row["metadata_json"])["step"] == step
        ]
        return found[-1]

    def note_checkpoints(self, name: str) -> None:
        """Group id -> a checkpoint of it, as somebody has written it down before it is pruned."""
        self.noted = {g["group_id"]: g["rows"][0]["checkpoint_id"] for g in self.groups(name)}

    def oldest_pruned(self, name: str) -> str:
        return self.rows(
            "SELECT group_id FROM checkpoint_groups WHERE plan_id = ? AND pruned_at IS NOT NULL"
            " ORDER BY group_id",
            self.plan_id(name),
        )[0]["group_id"]

    def everything(self) -> dict[str, Any]:
        """All that a refused command must leave alone."""
        return {
            "user's files": snapshot(self.agents.work),
            "sandboxes": snapshot(self.home / "sandboxes"),
            **{table: self.rows(f"SELECT * FROM {table}") for table in KEPT_TABLES},
        }
