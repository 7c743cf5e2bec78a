"""`agents demo`: a throw-away repository and database, a plan that fails, and everything after.

Every line is the result of a real command, run in a process of its own.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from typing import Any

import click

from cleveragents.cli.common import Options, command
from cleveragents.cli.render import Reply, Text
from cleveragents.errors import AgentsError
from cleveragents.model.units import plural

PLAN = """\
name: demo
resources:
  app: {kind: git-checkout, path: shop}
  db:  {kind: sqlite, path: shop.db}
steps:
  - id: rename
    decision: {question: how to rename users to people, chosen: sed, alternatives: [manually]}
    on: app
    run: "sed -i s/users/people/ api.py && git mv users.md people.md"
  - {id: schema, tool: sql, on: db, with: {script: "ALTER TABLE users RENAME TO people"}}
  - {id: tidy, on: app, run: "rm -r old && sh ./tidy.sh"}
"""


class Stage:
    """Runs commands and reports their results."""

    def __init__(self, folder: str, quiet: bool) -> None:
        self.folder = folder
        self._quiet = quiet
        self.told: list[dict[str, Any]] = []
        self._env = {**os.environ, "CLEVERAGENTS_HOME": f"{folder}/store"}

    def say(self, text: str = "") -> None:
        if not self._quiet:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def shell(self, *argv: str, cwd: str | None = None) -> str:
        done = subprocess.run(
            argv, cwd=cwd or self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise AgentsError(f"{' '.join(argv)} failed: {done.stderr.strip()}")
        return done.stdout

    def agents(self, *arguments: str, expect: int = 0) -> dict[str, Any]:
        """Run our own command; returns its envelope. An unexpected exit code ends the demo."""
        self.say(f"$ agents {' '.join(arguments)}")
        done = subprocess.run(
            [sys.executable, "-m", "cleveragents", *arguments, "--json"],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != expect:
            raise AgentsError(
                f"agents {' '.join(arguments)} gave {done.returncode}, not {expect}",
                done.stderr.strip() or done.stdout[-300:],
            )
        reply = json.loads(done.stdout)
        self.told.append(
            {"command": reply["command"], "exit_code": done.returncode, "data": reply["data"]}
        )
        return reply["data"]


def build(stage: Stage) -> None:
    """A git repository with a SQLite file beside it."""
    shop = f"{stage.folder}/shop"
    os.makedirs(f"{shop}/old")
    for name, text in {
        "api.py": "def users():\n    return 'users'\n",
        "users.md": "# users\n",
        "old/notes.txt": "keep me until the plan is sure\n",
    }.items():
        with open(f"{shop}/{name}", "w", encoding="utf-8") as target:
            target.write(text)
    stage.shell("git", "init", "-q", "-b", "main", shop)
    stage.shell("git", "config", "user.name", "Demo", cwd=shop)
    stage.shell("git", "config", "user.email", "demo@example.invalid", cwd=shop)
    stage.shell("git", "add", "-A", cwd=shop)
    stage.shell("git", "commit", "-q", "-m", "shop", cwd=shop)
    with closing(sqlite3.connect(f"{stage.folder}/shop.db")) as db, db:
        db.execute("CREATE TABLE users (name TEXT)")
        db.executemany("INSERT INTO users VALUES (?)", [("Ada",), ("Grace",)])
    with open(f"{stage.folder}/plan.yaml", "w", encoding="utf-8") as target:
        target.write(PLAN)


def tables(path: str) -> str:
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return ", ".join(row[0] for row in found)


def play(stage: Stage) -> None:
    say = stage.say
    say(f"a git repository and a SQLite file in {stage.folder}")
    build(stage)
    say("\n1. Run a plan of three steps; the last one fails")
    ran = stage.agents("plan", "run", "plan.yaml", expect=5)
    for step in ran["steps"]:
        say(f"   {step['id']:<8} {step['state']}")
    say(f"   {ran['error']['message']}")
    say("\n2. What the failed step did, and that it was rolled back")
    failed = stage.agents("plan", "errors", "demo")
    for item in failed["diff"]["files"]:
        say(f"   {item['status']:<8} {item['path']}  (kept for inspection, not in the sandbox)")
    sandbox = ran["sandboxes"]["app"]
    say(f"   old/notes.txt in the sandbox: {'there' if _there(sandbox) else 'gone'}")
    say(f"   tables in the sandbox: {tables(ran['sandboxes']['db'])}")
    say(f"   tables in your database: {tables(f'{stage.folder}/shop.db')}")
    say("\n3. Fix it in the sandbox and resume: finished steps do not run again")
    with open(f"{sandbox}/tidy.sh", "w", encoding="utf-8") as target:
        target.write("echo tidied > TIDY\n")
    say("   wrote tidy.sh")
    resumed = stage.agents("plan", "resume", "demo")
    for step in resumed["steps"]:
        say(f"   {step['id']:<8} {step['state']}, {plural(step['attempts'], 'attempt')}")
    say("\n4. Roll back to before the first decision, and undo that")
    back = stage.agents("plan", "rollback", "demo", "first", "--yes")
    changes = plural(len(back["changes_reverted"]), "change")
    say(f"   {changes} rolled back, verified by hash")
    say(f"   tables in the sandbox: {tables(ran['sandboxes']['db'])}")
    undone = stage.agents("plan", "undo", "demo")
    restored = plural(len(undone["changes_reverted"]), "change")
    say(f"   undone: {undone['undone']}; {restored} restored")
    say("\n5. Show the difference, then apply it: both resources or none")
    shown = stage.agents("plan", "diff", "demo")
    for item in shown["files"]:
        say(f"   {item['status']:<8} {item['resource']}: {item['path']}")
    applied = stage.agents("plan", "apply", "demo", "--yes")
    for item in applied["applied"]:
        commit = f", commit {item['commit'][:10]}" if item["commit"] else ""
        say(f"   {item['resource']}: {plural(item['files'], 'path')} as {item['mode']}{commit}")
    say(f"   tables in your database: {tables(f'{stage.folder}/shop.db')}")
    log = stage.shell("git", "log", "--oneline", cwd=f"{stage.folder}/shop").splitlines()
    say(f"   git log: {' | '.join(log)}")


def _there(sandbox: str) -> bool:
    return os.path.exists(f"{sandbox}/old/notes.txt")


@command("demo", context=False)
@click.option("--keep/--remove", default=True, help="Keep the demo's folder, or remove it.")
def demo(options: Options, keep: bool) -> Reply:
    """Run a short demonstration on throw-away data: run, fail, resume, roll back, undo, apply."""
    began = time.perf_counter()
    folder = tempfile.mkdtemp(prefix="agents-demo-")
    stage = Stage(folder, options.quiet or options.form in ("json", "yaml"))
    try:
        play(stage)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    seconds = time.perf_counter() - began
    where = f"everything is in {folder}" if keep else f"{folder} was removed"
    look = f"CLEVERAGENTS_HOME={folder}/store agents plan log demo" if keep else ""
    text = f"\n{plural(len(stage.told), 'command')} in {seconds:.1f} s; {where}"
    return Reply(
        data={"folder": folder, "kept": keep, "seconds": round(seconds, 3), "commands": stage.told},
        blocks=(Text(text, verbatim=True), *((Text(f"look around: {look}"),) if look else ())),
    )
