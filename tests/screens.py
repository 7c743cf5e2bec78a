"""One realistic plan, and what a person sees of it: the world of `test_screens`.

Twelve steps over three resources, two child plans side by side, one failure.
"""

import re
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.harness import Agents
from tests.scratch import make_repository

PLAN = """\
name: rename-users
description: Users are people now, in code, database and documentation
resources:
  app: {kind: git-checkout, path: app}
  docs: {kind: fs-directory, path: docs}
  db: {kind: sqlite, path: shop.db}
tools:
  codemod: {run: 'sed -i "s/$1/$2/g" *.py', network: false}
  tests: {run: sh check.sh, read_only: true, network: false}
policy: {max_parallel: 2}
steps:
  - id: survey
    decision:
      question: what has to change
      chosen: three modules, one table, two pages
      rationale: grep finds no other use of the word
    on: app
    run: grep -n users *.py
  - id: schema
    decision:
      question: how to rename the table
      chosen: ALTER TABLE, in place
      alternatives: [a new table and a view, leave it]
      confidence: 0.8
    on: db
    tool: sql
    with:
      script: >
        ALTER TABLE users RENAME TO people;
        ALTER TABLE people ADD COLUMN active INTEGER DEFAULT 1
  - id: backfill
    decision: schema
    on: db
    tool: sql
    with:
      script: >
        UPDATE people SET active = 0 WHERE name = 'Grace';
        INSERT INTO people (name) VALUES ('Barbara')
    checkpoint: schema done
  - id: codemod
    decision: {question: how to rename in code, chosen: a codemod, alternatives: [by hand]}
    on: app
    tool: codemod
    with: {args: [users, people]}
  - id: rename-module
    decision: codemod
    on: app
    tool: file.move
    with: {from: users.py, to: people.py}
  - id: imports
    decision: codemod
    on: app
    tool: codemod
    with: {args: [import users, import people]}
  - id: guide
    subplan:
      group: pages
      steps:
        - id: rewrite-guide
          on: docs
          run: 'sed -i s/users/people/g guide.md; echo guide: 4 places; WAIT'
        - {id: contents, on: docs, run: 'echo "- [People](guide.md)" > contents.md'}
  - id: reference
    subplan:
      group: pages
      steps:
        - {id: rewrite-reference, on: docs, run: 'sed -i s/users/people/g reference.md; WAIT'}
  - id: settings
    on: app
    tool: file.write
    with: {path: settings.toml, content: "table = 'people'\\n"}
  - id: cleanup
    decision: {question: what is not needed any more, chosen: the shim for old clients}
    on: app
    run: rm compat.py
  - id: tests
    decision: {question: does it still work, chosen: the project's own tests}
    on: app
    tool: tests
  - id: changelog
    on: docs
    tool: file.write
    with: {path: changes.md, content: "Users are people.\\n"}
"""
FILES = {
    "app/users.py": """\
\"\"\"Everything about users.\"\"\"

import store


def all_users():
    return store.query("SELECT name FROM users ORDER BY name")


def add(name):
    store.query("INSERT INTO users (name) VALUES (?)", name)
""",
    "app/api.py": """\
import users
from compat import old_names


def get(path):
    if path == "/users":
        return users.all_users()
    return old_names(path)
""",
    "app/store.py": """\
import sqlite3


def query(sql, *values):
    with sqlite3.connect("shop.db") as db:
        return db.execute(sql, values).fetchall()
""",
    "app/compat.py": "def old_names(path):\n    return path.replace('members', 'users')\n",
    "app/check.sh": """\
echo "checking 3 modules"
echo "people.py: ok"
echo "store.py: ok"
echo "api.py: imports compat, which is gone" >&2
echo "1 of 3 modules is broken" >&2
exit 1
""",
    "docs/guide.md": "# Guide\n\nThe shop has users.\nAdd users with `add`.\n\nAll users: /users\n",
    "docs/reference.md": "# Reference\n\n| call | gives |\n| --- | --- |\n| /users | all users |\n",
}


def build(agents: Agents, wait: str = "true") -> str:
    """The shop and its plan file; `wait` is what the child plans do at the end of a step."""
    for name, content in FILES.items():
        path = agents.work / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    make_repository(agents, agents.work / "app")
    with closing(sqlite3.connect(agents.work / "shop.db")) as db, db:
        db.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
        db.executemany("INSERT INTO users (name) VALUES (?)", [("Ada",), ("Grace",), ("Edsger",)])
    (agents.work / "plan.yaml").write_text(PLAN.replace("WAIT", wait))
    return "plan.yaml"


@contextmanager
def place() -> Generator[Path]:
    """A folder whose path is always as long: what is as wide as a path has the same width."""
    with tempfile.TemporaryDirectory(prefix="shop-", dir="/tmp") as folder:
        yield Path(folder)


def settle(agents: Agents) -> None:
    """Let all of it have happened three hours ago, each call in a tenth of a second.

    So no column is wider on a slow machine, and nothing about it need be made the same.
    """
    then = datetime.now(UTC) - timedelta(hours=3, minutes=30)
    ended = then + timedelta(milliseconds=100)
    with closing(sqlite3.connect(f"{agents.env['CLEVERAGENTS_HOME']}/store.db")) as db, db:
        for table in ("tool_calls", "journal"):
            db.execute(f"UPDATE {table} SET started_at = ?", (then.isoformat(),))
        for table in ("tool_calls", "journal", "effects"):
            was = "WHERE ended_at IS NOT NULL"
            db.execute(f"UPDATE {table} SET ended_at = ? {was}", (ended.isoformat(),))
        for table in ("plans", "decisions", "checkpoint_groups", "checkpoints", "effects"):
            db.execute(f"UPDATE {table} SET created_at = ?", (then.isoformat(),))
        db.execute("UPDATE plans SET updated_at = ?", (ended.isoformat(),))
        db.execute("UPDATE checkpoints SET size_bytes = 4096 WHERE size_bytes > 0")


IDS = (
    (r"\b[0-9A-HJKMNP-TV-Z]{26}\b", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    (r"\b(?=[0-9A-Z]*[0-9])[0-9A-HJKMNP-TV-Z]{6}\b", "XXXXXX"),
    (r"\b(?!INSERT|SELECT|UPDATE)[A-HJKMNP-TV-Z]{6}\b", "XXXXXX"),
    (r"[0-9a-f]{7}\.\.[0-9a-f]{7}", "0000000..0000000"),
)
"""What differs from run to run, and what stands for it, exactly as wide."""
TIMES = (
    (r"\b\d+\.\d+s\b|(?<=  )\d\ds\b", "0.0s"),
    (r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", "⠋"),
    (r"\b[\d.]+ KB\b|\b\d+ B\b", ""),
)
"""What a plan that runs, or has just ended, says of time: as wide as the machine is slow."""


def exact(text: str, agents: Agents) -> str:
    """The same to the column; only ids and the folder have others in their place."""
    folder = str(agents.work.parent)
    text = text.replace(folder, "/tmp/shop-" + "x" * len(folder.removeprefix("/tmp/shop-")))
    for pattern, instead in IDS:
        text = re.sub(pattern, instead, text)
    return re.sub(r" +$", "", text, flags=re.M)


def live(text: str, agents: Agents) -> str:
    """A screen with clocks in it: widths that these bring about are made the same."""
    text = exact(text, agents)
    for pattern, instead in TIMES:
        text = re.sub(pattern, instead, text)
    text = re.sub(r" {3,}(?=\S)", "   ", text)
    text = re.sub(r"(?<=\S) *│$|[╮╯]$", "", text, flags=re.M)
    return re.sub(r"─{2,}", "──", re.sub(r" +$", "", text, flags=re.M))
