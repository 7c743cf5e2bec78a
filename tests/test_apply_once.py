"""An apply happens once: whoever asks meanwhile gets its result, and what is done never fails."""

import fcntl
import json
import os
import sqlite3
import stat
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from cleveragents.apply import targets
from cleveragents.content import fsio
from cleveragents.errors import ApplyRefused
from cleveragents.workspace import open_workspace
from tests.harness import Agents, command
from tests.needed import needs
from tests.scratch import git, make_repository, query, wait_until

PLAN = """
name: one
resources: {{app: {{kind: {kind}, path: app}}}}
steps:
  - {{id: note, tool: file.write, on: app, with: {{path: NOTES, content: "noted"}}}}
validate:
  - {{on: app, run: [sleep, "{seconds}"]}}
"""


def prepared(agents: Agents, kind: str = "fs-directory", seconds: float = 0) -> Path:
    app = agents.work / "app"
    app.mkdir()
    (app / "old").write_text("old")
    if kind == "git-checkout":
        make_repository(agents, app)
    text = PLAN if seconds else PLAN.partition("validate:")[0]
    (agents.work / "plan.yaml").write_text(text.format(kind=kind, seconds=seconds))
    agents.run("plan", "run", "plan.yaml").expect(0)
    return app


def test_ten_applies_at_the_same_time_all_get_the_first_result(agents: Agents) -> None:
    app = prepared(agents, "git-checkout", seconds=0.5)
    started = [
        subprocess.Popen(
            [command(), "plan", "apply", "last", "--yes", "--json"],
            cwd=agents.work,
            env=agents.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(10)
    ]
    ended = [(*process.communicate(timeout=600), process.returncode) for process in started]
    assert [code for *_, code in ended] == [0] * 10, ended
    results = [json.loads(out)["data"] for out, *_ in ended]
    assert all(result == results[0] for result in results)
    assert git(agents, app, "rev-list", "--count", "HEAD") == "2"


def test_an_apply_waits_for_that_of_another_store_on_the_same_repository(agents: Agents) -> None:
    """It was refused half-way through the other: "text has staged changes of your own"."""
    app = agents.work / "app"
    app.mkdir()
    lines = [f"{number}\n" for number in range(9)]
    (app / "text").write_text("".join(lines))
    make_repository(agents, app)
    plan = "name: {}\nresources: {{app: {{kind: git-checkout, path: app}}}}\nsteps: [{}]\n"
    for name, run in (("one", "echo one >> text"), ("two", "sed -i 1s/^/two/ text")):
        text = plan.format(name, f"{{id: a, run: '{run}'}}")
        (agents.work / f"{name}.yaml").write_text(text)
    other = agents.env | {"CLEVERAGENTS_HOME": f"{agents.work}/other"}
    agents.run("plan", "run", "two.yaml", env=other).expect(0)
    agents.run("plan", "run", "one.yaml").expect(0)
    started: list[subprocess.Popen[str]] = []

    def apply_the_other(name: str) -> None:
        if name != "ref" or started:
            return
        argv = [command(), "plan", "apply", "two", "--yes", "--json"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, cwd=agents.work, env=other, stdout=pipe, text=True)
        started.append(process)
        wait_until(lambda: process.poll() is not None or has_opened(process.pid, app), "a lock")

    with open_workspace() as ws:
        fsio.arm(apply_the_other)
        try:
            ws.find("one").apply()
        finally:
            fsio.arm(None)
    said, _ = started[0].communicate(timeout=600)
    assert started[0].returncode == 0, said
    assert (app / "text").read_text() == "".join(["two", *lines, "one\n"])
    assert git(agents, app, "log", "--format=%s").split()[:2] == ["two", "one"]
    assert git(agents, app, "status", "--porcelain", "--ignored") == ""


def has_opened(pid: int, folder: Path) -> bool:
    """Whether a process has a folder open, as one that waits for its lock has."""
    found: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.add(os.readlink(descriptor))
    return str(folder) in found


def test_an_apply_does_not_wait_for_ever_for_a_program_that_locked_the_folder(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `flock . agents apply` has: it waited for its own end."""
    monkeypatch.setattr(targets, "PATIENCE", 0.2)
    app = prepared(agents)
    with open_workspace() as ws:
        held = os.open(app, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(ApplyRefused, match="another program has locked"):
            ws.find("one").apply()
        os.close(held)
        ws.find("one").apply()
    assert (app / "NOTES").exists()


@pytest.mark.parametrize("kind", ["fs-directory", "sqlite"])
def test_two_resources_in_one_folder_do_not_wait_for_each_other(agents: Agents, kind: str) -> None:
    app = agents.work / "app"
    app.mkdir()
    for name in ("a.db", "b.db"):
        with closing(sqlite3.connect(app / name)) as db:
            db.execute("CREATE TABLE t (x)")
    outer = "" if kind == "sqlite" else "  top: {kind: fs-directory, path: app}\n"
    (agents.work / "plan.yaml").write_text(
        "name: both\nresources:\n  a: {kind: sqlite, path: app/a.db}\n"
        f"  b: {{kind: sqlite, path: app/b.db}}\n{outer}"
        "steps:\n  - {id: a, tool: sql, on: a, with: {script: INSERT INTO t VALUES (1)}}\n"
        "  - {id: b, tool: sql, on: b, with: {script: INSERT INTO t VALUES (2)}}\n"
    )
    agents.run("plan", "run", "plan.yaml").expect(0)
    agents.run("plan", "apply", "both", "--yes").expect(0)
    assert [query(app / f"{name}.db", "SELECT x FROM t") for name in "ab"] == [[(1,)], [(2,)]]


def test_a_second_apply_warns_of_nothing_that_the_first_did_itself(agents: Agents) -> None:
    """It said that a merged file was "changed or lost since", and so of what was left out."""
    app = prepared(agents, "git-checkout")
    lines = "".join(f"{number}\n" for number in range(9))
    (app / "text").write_text(lines)
    (app / ".gitignore").write_text("*.log\n")
    file = agents.work / "merge.yaml"
    file.write_text(
        "name: merge\nresources: {app: {kind: git-checkout, path: app}}\n"
        "steps: [{id: a, run: 'echo plan >> text; echo ignored > x.log'}]\napply: {as: changes}\n"
    )
    agents.run("plan", "run", str(file)).expect(0)
    (app / "text").write_text(f"mine\n{lines}")
    first = agents.run("plan", "apply", "merge", "--yes", "--json").expect(0).data
    assert (app / "text").read_text() == f"mine\n{lines}plan\n"

    again = agents.run("plan", "apply", "merge", "--yes", "--ignored", "--json").expect(0)
    assert (again.data, again.json["messages"]) == (first, [])
    (app / "text").write_text(lines)
    (message,) = agents.run("plan", "apply", "merge", "--yes", "--json").json["messages"]
    assert "(app: text): changed or lost since" in message


def test_a_budget_that_is_used_up_refuses_an_apply_before_any_target_is_touched(
    agents: Agents,
) -> None:
    """It was applied, exited 6, and then waited as an interrupted apply for ever."""
    app = agents.work / "app"
    app.mkdir()
    (app / "large").write_bytes(os.urandom(300_000))
    make_repository(agents, app)
    (agents.work / "plan.yaml").write_text(PLAN.format(kind="git-checkout", seconds=0))
    agents.run("plan", "run", "plan.yaml").expect(0)
    packs = (Path(agents.env["CLEVERAGENTS_HOME"]) / "content").glob("*.pack")
    budget = sum(pack.stat().st_size for pack in packs) + 20_000
    full = {"CLEVERAGENTS_STORE_BUDGET": str(budget)}
    refused = agents.run("plan", "apply", "last", "--yes", "--json", env=full)
    applied = (app / "NOTES").exists()
    assert applied == (refused.rc == 0), refused
    listed = agents.run("plan", "list", "--json").expect(0).json
    assert not listed["messages"], listed
    agents.run("plan", "apply", "last", "--yes").expect(0)
    assert (app / "NOTES").read_text() == "noted"


def test_what_cannot_be_tidied_up_after_an_apply_is_told_and_not_a_failure(
    agents: Agents,
) -> None:
    app = prepared(agents)
    sandboxes = Path(agents.env["CLEVERAGENTS_HOME"]) / "sandboxes"
    held = next(sandboxes.glob("*/app"))
    needs("chattr")
    frozen = subprocess.run(["chattr", "+a", str(held.parent)], capture_output=True, check=False)
    if frozen.returncode:
        pytest.skip(f"a file that cannot be removed needs root and chattr: {frozen.stderr!r}")
    try:
        done = agents.run("plan", "apply", "last", "--yes", "--json")
    finally:
        subprocess.run(["chattr", "-a", str(held.parent)], check=True)
    assert done.rc == 0, done
    assert (app / "NOTES").read_text() == "noted"
    assert any("is applied" in text for text in done.json["messages"]), done
    agents.run("plan", "list").expect(0)
    assert not held.exists()


def test_a_plan_that_another_process_applied_leaves_no_error_when_the_workspace_closes(
    agents: Agents,
) -> None:
    """More than two seconds after its last checkpoint a process reads stat data once more."""
    app = prepared(agents)
    with open_workspace() as ws:
        plan = ws.find("last")
        plan.checkpoint("before")
        ws.ctx.manager.follow(plan.plan_id)
        plan.checkpoint("followed")
        agents.run("plan", "apply", "last", "--yes").expect(0)
        newest = max(path.stat().st_mtime for path in (app, app / "NOTES"))
        wait_until(lambda: time.time() > newest + 2.5, "stat data to become old enough")


def test_every_directory_of_the_store_is_ours_alone_whatever_the_umask(agents: Agents) -> None:
    before = os.umask(0)
    try:
        app = prepared(agents, "git-checkout")
        agents.run("plan", "diff", "last").expect(0)
        (app / "mine").write_text("changed meanwhile")
        agents.run("plan", "rollback", "last", "first", "--yes").expect(0)
        agents.run("plan", "resume", "last").expect(0)
        agents.run("plan", "apply", "last", "--yes", "--as", "changes").expect(0)
        (agents.work / "next.yaml").write_text(
            PLAN.format(kind="git-checkout", seconds=0).replace("NOTES", "MORE")
        )
        agents.run("plan", "run", "next.yaml").expect(0)
    finally:
        os.umask(before)
    home = Path(agents.env["CLEVERAGENTS_HOME"])
    ours = [home, *(home / "sandboxes").iterdir()]
    ours += [path for path in home.iterdir() if path.is_dir()]
    wide = [str(path) for path in ours if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert not wide, wide
    files = [path for path in home.iterdir() if path.is_file()]
    assert not [str(path) for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077]
