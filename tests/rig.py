"""The world of tests that use the command: one shop, for pytest, Behave and Robot alike."""

import json
import os
import re
import subprocess
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.databases import Where
from tests.harness import Agents, Outcome, command
from tests.scratch import Snapshot, make_repository, query, snapshot, wait_until

RESOURCES = {
    "app": "{kind: git-checkout, path: app}",
    "docs": "{kind: fs-directory, path: docs}",
    "db": "{kind: sqlite, path: shop.db}",
}
FILES = {
    "app/base.txt": "".join(f"line {n}\n" for n in range(20)),
    "app/greeting.txt": "hello\n",
    "app/old.txt": "old\n",
    "app/.gitignore": "*.log\n",
    "docs/d.txt": "d\n",
    "sell.py": """\
import os, sqlite3
with sqlite3.connect(os.environ["AGENTS_SANDBOX_DB"]) as db:
    db.execute("INSERT INTO users VALUES ('Sold')")
with open("greeting.txt", "a") as greeting:
    greeting.write("sold\\n")
""",
}
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
    "effects",
    "correction_attempts",
    "journal",
    "intents",
)
WAIT = 'touch waiting; while [ ! -e "$AGENTS_PLAN_DIR/go" ]; do sleep 0.02; done'
"""A tool that has begun, and goes on when `finish` says so."""


class Shop:
    """A repository, a directory and a database, with plans over some or all of them."""

    def __init__(self, agents: Agents, users: Iterable[str] = ("Ada", "Grace")) -> None:
        self.agents = agents
        self.home = Path(agents.env["CLEVERAGENTS_HOME"])
        self.store = self.home / "store.db"
        self.work = agents.work
        self.app, self.docs, self.db = (self.work / n for n in ("app", "docs", "shop.db"))
        self.signals = agents.work.parent / "signals"
        self.signals.mkdir()
        agents.env["CLEVERAGENTS_SANDBOX_WRITABLE"] = str(self.signals)
        self.env: dict[str, str] = {}
        self.policy = "{}"
        self.process: subprocess.Popen[str] | None = None
        self._build(users)

    def _build(self, users: Iterable[str]) -> None:
        for name, content in FILES.items():
            path = self.work / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        make_repository(self.agents, self.app)
        query(self.db, "CREATE TABLE users (name TEXT)")
        for name in users:
            query(self.db, "INSERT INTO users VALUES (?)", name)

    def write(
        self,
        steps: str,
        file: str = "plan.yaml",
        policy: str = "",
        more: str = "",
        resources: Iterable[str] = (),
    ) -> str:
        """A plan file; of the resources, those that its text names. SIGNALS is a folder outside."""
        body = textwrap.dedent(steps).strip("\n").replace("SIGNALS", str(self.signals))
        used = resources or [n for n in RESOURCES if f"on: {n}" in body or n == "app"]
        lines = [f"name: {file.removesuffix('.yaml')}", "resources:"]
        lines += [f"  {name}: {RESOURCES[name]}" for name in used]
        lines += [f"policy: {policy or self.policy}", more]
        lines += ["steps:", textwrap.indent(body, "  ")] if body else []
        (self.work / file).write_text("\n".join([*lines, ""]))
        return file

    # Commands

    def run(self, *argv: str, **options: Any) -> Outcome:
        options["env"] = self.env | dict(options.get("env") or {})
        return self.agents.run(*argv, "--json", **options)

    def ok(self, *argv: str, **options: Any) -> dict[str, Any]:
        return self.run(*argv, **options).expect(0).data

    def ran(self, steps: str, **options: Any) -> dict[str, Any]:
        """The plan written and run to its end."""
        return self.ok("plan", "run", self.write(steps, **options))

    def refused(self, *argv: str, kind: str, rc: int = 4) -> dict[str, Any]:
        """The error; it has a hint, and nothing that is kept or lies anywhere has changed."""
        before = self.everything()
        error = self.run(*argv).expect(rc).data["error"]
        assert error["type"] == kind, error
        assert error["hint"]
        after = self.everything()
        assert after == before, [part for part in before if before[part] != after[part]]
        return error

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """A command that goes on while the test does something else."""
        self.process = subprocess.Popen(
            [command(), *argv, "--json"],
            cwd=self.work,
            env=self.agents.env | self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process

    def start_waiting(self, file: str = "plan.yaml") -> None:
        """Run a plan and leave it running, once a tool has written the file `waiting`."""
        self.start("plan", "run", file)
        wait_until(lambda: list(self.home.glob("sandboxes/*/app/waiting")), "the waiting step")

    def finish(self) -> int:
        """Let the waiting step go on, and wait for the plan's end."""
        assert self.process is not None
        (self.work / "go").touch()
        self.process.communicate(timeout=600)
        return self.process.returncode

    def kill(self) -> None:
        """Only our process, if there is one: its tool lives on, as after any crash."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def die_waiting(self, file: str = "plan.yaml") -> None:
        """Our process is killed while a tool waits."""
        self.start_waiting(file)
        assert self.process is not None
        self.process.kill()
        self.finish()

    # What plans say of themselves

    def status(self, plan: str = "plan") -> dict[str, Any]:
        return self.ok("plan", "status", plan)

    def steps(self, plan: str = "plan") -> dict[str, str]:
        return {item["step"]: item["status"] for item in self.status(plan)["progress"]}

    def tree(self, plan: str = "plan", *flags: str) -> list[dict[str, Any]]:
        """Every decision below the root."""
        [root] = self.ok("plan", "tree", plan, *flags)["tree"]
        return list(_below(root))

    def decision(self, question: str, plan: str = "plan") -> str:
        """The one in force."""
        return [d["decision_id"] for d in self.tree(plan) if d["question"] == question][-1]

    # What lies where

    def sandbox(self, plan: str = "last", name: str = "app") -> Path:
        """Of a plan, by its name or id; of the newest if it is not said."""
        [(path,)] = self.rows(
            "SELECT s.path FROM sandboxes s JOIN resources r USING (resource_id)"
            " JOIN plans p ON p.plan_id = r.plan_id"
            " WHERE r.name = ? AND (? IN (p.name, p.plan_id)"
            " OR CAST(? AS TEXT) = 'last' AND p.parent_plan_id IS NULL)"
            " ORDER BY p.seq DESC LIMIT 1",
            name,
            plan,
            plan,
        )
        return Path(path)

    def read(self, path: str, plan: str = "plan", name: str = "app") -> str | None:
        target = self.sandbox(plan, name) / path
        return target.read_text() if target.exists() else None

    def users(self, plan: str = "plan") -> list[str]:
        return [row[0] for row in query(self.sandbox(plan, "db"), "SELECT name FROM users")]

    def times(self, signal: str) -> int:
        """How often a tool said so, by adding a line to a file outside."""
        path = self.signals / signal
        return len(path.read_text().splitlines()) if path.exists() else 0

    def everything(self) -> dict[str, Any]:
        """What a command that is refused must leave alone: tables, sandboxes, the user's own."""
        tables = {name: self.records(f"SELECT * FROM {name}") for name in KEPT_TABLES}
        return tables | {
            "leases": len(self.records("SELECT * FROM leases")),
            "sandboxes": snapshot(self.home / "sandboxes"),
            "inodes of sandboxes": inodes(self.home / "sandboxes"),
            "user's files": snapshot(self.work),
            "inodes of user's files": inodes(self.work),
        }

    def own_files(self) -> Snapshot:
        """The user's, but for our ref in the repository."""
        ours = b"app/.git/refs/cleveragents"
        return {p: seen for p, seen in snapshot(self.work).items() if not p.startswith(ours)}

    def require_whole(self) -> None:
        """Nothing in the store is damaged or left over, also after everything unused is gone."""
        self.ok("gc", "--grace", "0s")
        assert self.ok("check", "--read-data")["problems"] == []
        staging = self.home / "staging"
        assert not staging.exists() or list(staging.iterdir()) == []

    # The store's own tables

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Of the store, past the command."""
        return self._where.query(sql, parameters)

    @property
    def _where(self) -> Where:
        return Where(str(self.home), self.agents.env.get("CLEVERAGENTS_STORE_URL", ""))

    def records(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """Rows by the names of their columns; none where there is no store yet."""
        if not self.store.exists():
            return []
        return self._where.records(sql, parameters)

    def plan_id(self, name: str) -> str:
        return self.records("SELECT plan_id FROM plans WHERE name = ?", name)[0]["plan_id"]

    def children(self, plan: str = "plan") -> dict[str, dict[str, Any]]:
        """Step -> the newest child plan of it."""
        found = self.records(
            "SELECT c.parent_step_id AS step, c.plan_id AS id, c.phase, c.state FROM plans c"
            " JOIN plans p ON p.plan_id = c.parent_plan_id WHERE p.name = ? ORDER BY c.seq",
            plan,
        )
        return {row.pop("step"): row for row in found}

    def groups(self, name: str) -> list[dict[str, Any]]:
        """The groups that are kept, oldest first, each with the rows it made."""
        groups = self.records(
            "SELECT * FROM checkpoint_groups WHERE plan_id = ? AND pruned_at IS NULL ORDER BY seq",
            self.plan_id(name),
        )
        return [
            group
            | {"rows": self.checkpoints(group["group_id"])}
            | {"triggers": json.loads(group["triggers"])}
            for group in groups
        ]

    def checkpoints(self, group_id: str) -> list[dict[str, Any]]:
        return self.records(
            "SELECT c.*, r.name AS resource FROM checkpoints c JOIN resources r USING (resource_id)"
            " WHERE c.group_id = ? ORDER BY c.seq",
            group_id,
        )

    def checkpoint(self, name: str, target: str) -> str:
        """What to type for `"first"`, `the decision of "x"`, `the group after "x"`, ..."""
        if quoted := re.fullmatch(r'"(.*)"', target):
            return quoted[1]
        kinds = {
            "the decision of": "on_decision",
            "the group after": "after_tool_execute",
            "the failed state of": "on_error",
        }
        found = re.fullmatch(r'(the .*) "(.*)"', target)
        assert found is not None, target
        return [
            row["checkpoint_id"]
            for group in self.groups(name)
            for row in group["rows"]
            if row["checkpoint_type"] == kinds[found[1]]
            and json.loads(row["metadata_json"])["step"] == found[2]
        ][-1]

    def oldest_pruned(self, name: str) -> str:
        return self.records(
            "SELECT group_id FROM checkpoint_groups WHERE plan_id = ? AND pruned_at IS NOT NULL"
            " ORDER BY seq",
            self.plan_id(name),
        )[0]["group_id"]


def _below(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for child in node["children"] for each in (child, *_below(child))]


def inodes(root: Path) -> dict[str, tuple[int, int, int]]:
    """Path -> inode, mode and time of change of every file; git's index may refresh itself."""
    found: dict[str, tuple[int, int, int]] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            at = os.lstat(os.path.join(folder, name))
            time = at.st_mtime_ns if name in files else 0
            found[os.path.join(folder, name)] = (at.st_ino, at.st_mode, time)
    return found
