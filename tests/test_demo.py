"""The demo tells the truth: what it prints is what is in the folder it leaves."""

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from tests.harness import Agents
from tests.schemas import wrong_with


def test_the_demo_fails_recovers_and_applies_both_resources(agents: Agents) -> None:
    done = agents.run("demo").expect(0)
    folder = Path(done.stdout.splitlines()[0].split(" in ")[1])
    try:
        assert "tidy     errored" in done.stdout
        assert "old/notes.txt in the sandbox: there" in done.stdout
        assert "undone: rollback" in done.stdout
        log = subprocess.run(
            ["git", "log", "--oneline"], cwd=folder / "shop", capture_output=True, text=True,
            check=True,
        ).stdout.splitlines()  # fmt: skip
        assert len(log) == 2
        assert log[0].split()[0][:7] in done.stdout
        with closing(sqlite3.connect(folder / "shop.db")) as db:
            assert db.execute("SELECT name FROM people ORDER BY name").fetchall() == [
                ("Ada",),
                ("Grace",),
            ]
        assert (folder / "shop" / "people.md").exists()
        assert not (folder / "shop" / "old").exists()
        agents.env["CLEVERAGENTS_HOME"] = str(folder / "store")
        entries = agents.run("plan", "log", "demo", "--json").expect(0).data["entries"]
        assert [entry["operation"] for entry in entries] == [
            "use", "execute", "external_edit", "resume", "rollback", "undo", "apply",
        ]  # fmt: skip
        agents.run("check", "--read-data").expect(0)
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_the_demo_can_speak_to_programs_and_leave_nothing(agents: Agents) -> None:
    done = agents.run("demo", "--remove", "--json").expect(0)
    assert not wrong_with(done.json, is_closed=True)
    data = done.data
    assert not Path(data["folder"]).exists()
    assert [command["exit_code"] for command in data["commands"]] == [5, 0, 0, 0, 0, 0, 0]
    assert data["seconds"] > 0
    json.dumps(data)


def test_a_demo_that_does_not_go_as_told_says_so(agents: Agents, tmp_path: Path) -> None:
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "git").write_text("#!/bin/sh\necho no git today >&2\nexit 1\n")
    (broken / "git").chmod(0o755)
    agents.env["PATH"] = f"{broken}:{agents.env['PATH']}"
    done = agents.run("demo", "--remove", "--json")
    assert done.rc == 1
    assert "no git today" in done.data["error"]["message"]
