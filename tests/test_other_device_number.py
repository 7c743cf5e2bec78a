"""A file system may have another device number after a reboot: its sandboxes are still ours."""

import sqlite3
from contextlib import closing

from tests.harness import Agents

PLAN = """
name: one
resources: {app: {kind: fs-directory, path: app}}
steps:
  - {id: first, run: "echo new > file"}
"""


def renumber(agents: Agents, column: str) -> None:
    """As if the store had been written on another device, or for another directory."""
    with closing(sqlite3.connect(f"{agents.env['CLEVERAGENTS_HOME']}/store.db")) as db:
        db.execute(f"UPDATE sandboxes SET identity = {column}")
        db.commit()


def prepared(agents: Agents) -> None:
    (agents.work / "app").mkdir()
    (agents.work / "app" / "file").write_text("old\n")
    (agents.work / "plan.yaml").write_text(PLAN)
    agents.run("plan", "run", "plan.yaml").expect(0)


def test_a_sandbox_on_a_renumbered_device_is_rolled_back_and_applied(agents: Agents) -> None:
    prepared(agents)
    renumber(agents, "'4711:' || substr(identity, instr(identity, ':') + 1)")
    agents.run("plan", "rollback", "one", "first", "--yes").expect(0)
    agents.run("plan", "resume", "one").expect(0)
    agents.run("plan", "apply", "one", "--yes").expect(0)
    assert (agents.work / "app" / "file").read_text() == "new\n"


def test_another_directory_in_its_place_is_refused(agents: Agents) -> None:
    prepared(agents)
    renumber(agents, "substr(identity, 1, instr(identity, ':')) || '1'")
    refused = agents.run("plan", "rollback", "one", "first", "--yes").expect(5)
    assert "is not the directory this plan made" in refused.stderr
