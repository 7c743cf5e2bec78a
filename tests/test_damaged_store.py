"""A damaged store is named as such, by every command that meets it."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cleveragents.errors import (
    StoreError,
)
from cleveragents.model.units import plural
from cleveragents.workspace import open_workspace
from tests.harness import Agents
from tests.in_process import Yard, cli, damage_store


def test_a_row_that_cannot_be_read_is_a_store_error(yard: Yard) -> None:
    with open_workspace() as ws:
        ws.use(yard.plan())
    damage_store("UPDATE plans SET spec = '[]'")
    with pytest.raises(StoreError, match="a row that cannot be read"), open_workspace() as ws:
        ws.plans()
    assert "cannot be read" in cli("plan", "list", expect=6).stderr


def test_a_store_that_lacks_a_table_is_damaged(yard: Yard) -> None:
    with open_workspace() as ws:
        ws.use(yard.plan())
    damage_store("DROP TABLE steps")
    with pytest.raises(StoreError, match="the store is damaged"), open_workspace() as ws:
        ws.find("shop").execute()


def test_check_names_every_problem_and_exits_with_6(yard: Yard) -> None:
    cli("plan", "run", yard.plan(), "-q")
    for pack in Path(os.environ["CLEVERAGENTS_HOME"], "content").rglob("*"):
        if pack.is_file():
            pack.unlink()
    told = cli("check", "--read-data", "--json", expect=6).data
    assert told["problems"]
    assert told["error"]["message"] == f"{plural(len(told['problems']), 'problem')} found"
    shown = cli("check", "--read-data", expect=6)
    assert told["problems"][0] in shown.stdout


ASK = """
name: ask
resources: {work: {kind: fs-directory, path: work}}
steps: [{id: one, tool: file.write, with: {path: .envrc, content: "x\\n"}}]
"""


@pytest.fixture
def plan(agents: Agents) -> Agents:
    (agents.work / "work").mkdir()
    (agents.work / "plan.yaml").write_text(ASK)
    agents.run("plan", "run", "plan.yaml").expect(0)
    return agents


def test_a_damaged_store_is_exit_code_six_and_an_odd_row_too(plan: Agents) -> None:
    store = Path(plan.env["CLEVERAGENTS_HOME"]) / "store.db"
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE plans SET spec = '[]', source_text = 1, attempt = 'x'")
    assert plan.run("plan", "list", "--json").expect(6).data["error"]["type"] == "StoreError"
    store.write_bytes(store.read_bytes()[:4096] + b"garbage" * 2000)
    assert plan.run("plan", "list", "--json").expect(6).data["error"]["type"] == "StoreError"
    store.write_bytes(b"")
    error = plan.run("plan", "list", "--json").expect(6).data["error"]
    assert "gone or empty" in error["message"]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE sandboxes SET resource_id = 'none'",
        "UPDATE sandboxes SET origin = 'not JSON'",
        "UPDATE checkpoints SET metadata_json = ''",
        "UPDATE checkpoints SET root_key = 'text'",
        "UPDATE plans SET result = '{', error = '{'",
        "UPDATE resources SET resource_id = resource_id || '-'",
    ],
)
def test_damaged_rows_are_no_internal_error_of_any_command(plan: Agents, damage: str) -> None:
    store = Path(plan.env["CLEVERAGENTS_HOME"]) / "store.db"
    with closing(sqlite3.connect(store)) as db, db:
        db.execute(damage)
    assert plan.run("check", "--json").expect(6).data["error"]["type"] == "StoreError"
    for argv in (("plan", "status", "last"), ("plan", "diff", "last"), ("plan", "tree", "last"),
                 ("plan", "rollback", "last", "first", "--yes"), ("plan", "apply", "last", "--yes"),
                 ("plan", "delete", "last", "--yes"), ("gc",)):  # fmt: skip
        done = plan.run(*argv, "--json")
        assert done.rc != 1, done
    assert not (plan.work / "work/.envrc").exists()
