"""A project on which a real agent works against the scripted model, in place or in a sandbox."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agents.programs import Lab, Program, session
from tests.agents.scripted_model import Call, Request, ScriptedModel

FOLDER = os.environ.get("CLEVERAGENTS_TEST_AGENTS", "")
needs_agents = pytest.mark.skipif(
    not FOLDER, reason="the agents are not installed: run nox -s agents, which needs npm"
)
AGENTS = Path(sys.executable).with_name("agents")
World = tuple[dict[str, str], list[int]]
"""Files with their content, and an x where one may be executed; the rows of the database."""
START = ({"old.txt": "old\n"}, [])
INSIDE = ({"old.txt": "old\n", "one.txt": "one\n"}, [])
ONE = ({"new/made-one.txt": "made\n", "one.txt": "one\n"}, [1])
TWO = ({"made-two.txt": "made\n", "one.txt": "one\nx", "two.txt": "two\n"}, [1, 2])


class Live:
    """A project, a store, and an agent that works there with our hooks installed."""

    def __init__(self, program: Program, lab: Lab, model: ScriptedModel) -> None:
        self.program, self.lab, self.model = program, lab, model
        lab.env["CLEVERAGENTS_HOME"] = str(lab.home.parent / "store")
        model.scripts = session(
            {
                "one": [
                    [program.write(f"{lab.project}/one.txt", "one\n")],
                    [
                        program.shell(
                            "rm old.txt; mkdir new; echo made > new/made-one.txt; echo did one"
                        )
                    ],
                    [self.row(1)],
                ],
                "two": [
                    [program.write(f"{lab.project}/two.txt", "two\n")],
                    [
                        program.shell(
                            "rm -r new; echo made > made-two.txt; chmod +x one.txt; echo did two"
                        )
                    ],
                    [self.row(2)],
                ],
                "look": [],
            }
        )
        subprocess.run(("git", "init", "-q", str(lab.project)), check=True)
        (lab.project / "old.txt").write_text("old\n")
        with sqlite3.connect(lab.project / "app.db") as database:
            database.execute("CREATE TABLE rows (value)")
        database.close()

    def row(self, value: int) -> Call:
        code = (
            "import sqlite3; c = sqlite3.connect('app.db'); "
            f"c.execute('INSERT INTO rows VALUES ({value})'); c.commit(); print('row', {value})"
        )
        return self.program.shell(f'{sys.executable} -c "{code}"')

    def agents(self, *words: str) -> dict[str, Any]:
        at = words.index("--") if "--" in words else len(words)
        done = self.lab.run((str(AGENTS), *words[:at], "--json", *words[at:]))
        assert done.stdout, (words, done.stderr)
        reply = json.loads(done.stdout)
        assert reply["exit_code"] == 0, (words, reply["data"], reply["messages"], done.stderr)
        return reply["data"]

    def prepare(self) -> None:
        self.agents("hook", "install", self.program.name)

    def start(self, prompt: str) -> str:
        """Work on a first prompt; returns the plan that followed it."""
        self.run((self.program.command, *self.program.flags, *self.program.ask(prompt)))
        return self.newest

    def resume(self, conversation: dict[str, Any], prompt: str) -> Request:
        """What the model is sent first when the conversation is continued."""
        before = len(self.model.requests)
        argv = conversation["continue"]
        at = argv.index("--") + 1 if "--" in argv else 0
        own = (str(AGENTS), *argv[1:at]) if at else ()
        self.run((*own, *self.program.resumed(argv[at:], prompt)))
        return next(one for one in self.model.requests[before:] if one.tools)

    def run(self, argv: tuple[str, ...]) -> None:
        done = self.lab.run(argv)
        assert done.returncode == 0, (argv, done.stdout[-2000:], done.stderr[-2000:])

    @property
    def newest(self) -> str:
        (status,) = self.agents("hook", "status", self.program.name)["agents"]
        return status["plan"]

    def world(self, plan: str) -> World:
        """Every file as the agent sees it, and the rows of the database."""
        del plan
        return world_in(self.lab.project, self.lab.project / "app.db")

    def groups(self, plan: str) -> list[dict[str, Any]]:
        return self.agents("plan", "checkpoints", plan)["groups"]


class Boxed(Live):
    """The same in sandboxes: nothing is installed, and nothing of the project changes."""

    def prepare(self) -> None:
        if not shutil.which("bwrap"):
            pytest.skip("bubblewrap is not installed: NOTHING WAS TRIED IN A SANDBOX")

    def start(self, prompt: str) -> str:
        argv = (self.program.command, *self.program.flags, *self.program.ask(prompt))
        return self.agents("run", "--", *argv)["plan_id"]

    def world(self, plan: str) -> World:
        assert world_in(self.lab.project, self.lab.project / "app.db") == START
        boxes = self.agents("plan", "status", plan)["sandboxes"]
        return world_in(Path(boxes["work"]), Path(boxes["work"]) / "app.db")


def world_in(folder: Path, database: Path) -> World:
    names = [
        path
        for path in sorted(folder.rglob("*"))
        if ".git" not in path.relative_to(folder).parts and not path.name.startswith("app.db")
    ]
    files = {
        str(path.relative_to(folder)): path.read_text() + ("x" * (path.stat().st_mode >> 6 & 1))
        for path in names
        if path.is_file()
    }
    connection = sqlite3.connect(database)
    rows = [row[0] for row in connection.execute("SELECT value FROM rows ORDER BY value")]
    connection.close()
    return files, rows


def end_of(groups: list[dict[str, Any]], prompt: str) -> str:
    return [g["group_id"] for g in groups if prompt in (g["question"] or "")][-1]


def results_in(request: Request) -> set[str]:
    """What its tools answered, each once: Gemini CLI sends them twice when it resumes."""
    return {result for message in request.seen for result in message.results}
