"""Plans written, run and looked at from the command line, for tests of what plans do."""

import json
import os
import textwrap
from pathlib import Path
from typing import Any

from tests.harness import Agents, Outcome
from tests.scratch import make_repository, query

RESOURCES = {
    "app": "{kind: git-checkout, path: app}",
    "docs": "{kind: fs-directory, path: docs}",
    "db": "{kind: sqlite, path: shop.db}",
}


class Shop:
    """A repository, a directory and a database, with plans over some or all of them."""

    def __init__(self, agents: Agents) -> None:
        self.agents = agents
        self.store = Path(agents.env["CLEVERAGENTS_HOME"]) / "store.db"
        self.work = agents.work
        self.app, self.docs, self.db = (self.work / n for n in ("app", "docs", "shop.db"))
        self.signals = agents.work.parent / "signals"
        self.signals.mkdir()
        agents.env["CLEVERAGENTS_SANDBOX_WRITABLE"] = str(self.signals)
        self.app.mkdir()
        (self.app / "base.txt").write_text("".join(f"line {n}\n" for n in range(20)))
        (self.app / ".gitignore").write_text("*.log\n")
        make_repository(agents, self.app)
        self.docs.mkdir()
        (self.docs / "d.txt").write_text("d\n")
        query(self.db, "CREATE TABLE users (name TEXT)")

    def write(self, steps: str, file: str = "plan.yaml", policy: str = "{}", more: str = "") -> str:
        """A plan file; of the resources, those that its text names. SIGNALS is a folder outside."""
        body = textwrap.dedent(steps).strip("\n").replace("SIGNALS", str(self.signals))
        used = {n: r for n, r in RESOURCES.items() if f"on: {n}" in body or n == "app"}
        lines = [f"name: {file.removesuffix('.yaml')}", "resources:"]
        lines += [f"  {name}: {what}" for name, what in used.items()]
        lines += [f"policy: {policy}", more, "steps:", textwrap.indent(body, "  "), ""]
        (self.work / file).write_text("\n".join(lines))
        return file

    def agent(self, *argv: str, **options: Any) -> Outcome:
        return self.agents.run(*argv, "--json", **options)

    def ok(self, *argv: str, **options: Any) -> dict[str, Any]:
        return self.agent(*argv, **options).expect(0).data

    def ran(self, steps: str, **options: Any) -> dict[str, Any]:
        """The plan written and run to its end."""
        return self.ok("plan", "run", self.write(steps, **options))

    def refused(self, *argv: str, kind: str, rc: int = 4) -> dict[str, Any]:
        """The error; it has a hint, and nothing that is kept or lies anywhere has changed."""
        before = self.everything()
        error = self.agent(*argv).expect(rc).data["error"]
        assert error["type"] == kind, error
        assert error["hint"]
        after = self.everything()
        changed = {key for key in before | after if before.get(key) != after.get(key)}
        assert not changed, changed
        return error

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return query(self.store, sql, *parameters)

    def times(self, signal: str) -> int:
        """How often a tool said so, by adding a line to a file outside."""
        path = self.signals / signal
        return len(path.read_text().splitlines()) if path.exists() else 0

    def sandbox(self, plan: str = "last", name: str = "app") -> Path:
        return Path(self.ok("plan", "status", plan)["sandboxes"][name])

    def read(self, path: str, plan: str = "plan", name: str = "app") -> str | None:
        target = self.sandbox(plan, name) / path
        return target.read_text() if target.exists() else None

    def users(self, plan: str = "plan") -> list[str]:
        return [row[0] for row in query(self.sandbox(plan, "db"), "SELECT name FROM users")]

    def tree(self, plan: str = "plan", *flags: str) -> list[dict[str, Any]]:
        """Every decision below the root."""
        [root] = self.ok("plan", "tree", plan, *flags)["tree"]
        return list(_below(root))

    def decision(self, question: str, plan: str = "plan") -> str:
        """The one in force."""
        return [d["decision_id"] for d in self.tree(plan) if d["question"] == question][-1]

    def status(self, plan: str = "plan") -> dict[str, Any]:
        return self.ok("plan", "status", plan)

    def steps(self, plan: str = "plan") -> dict[str, str]:
        return {item["step"]: item["status"] for item in self.status(plan)["progress"]}

    def children(self, plan: str = "plan") -> dict[str, dict[str, Any]]:
        """Step -> the newest child plan of it."""
        rows = self.rows(
            "SELECT c.parent_step_id, c.plan_id, c.phase, c.state FROM plans c"
            " JOIN plans p ON p.plan_id = c.parent_plan_id WHERE p.name = ? ORDER BY c.plan_id",
            plan,
        )
        return {row[0]: dict(zip(("id", "phase", "state"), row[1:], strict=True)) for row in rows}

    def everything(self) -> dict[str, Any]:
        """What a command that is refused must leave alone: tables, sandboxes, the user's own."""
        tables = ("plans", "steps", "decisions", "checkpoint_groups", "journal", "intents")
        tables += ("correction_attempts", "tool_calls", "effects", "leases")
        found: dict[str, Any] = {}
        for name in tables:
            rows = self.rows(f"SELECT * FROM {name}")
            found[name] = json.dumps(rows, default=repr) if name != "leases" else len(rows)
        return found | inodes(self.store.parent / "sandboxes") | inodes(self.work)

    def require_whole(self) -> None:
        """Nothing in the store is damaged or left over, also after everything unused is gone."""
        self.ok("gc", "--grace", "0s")
        assert self.ok("check", "--read-data")["problems"] == []
        staging = self.store.parent / "staging"
        assert not staging.exists() or list(staging.iterdir()) == []


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
