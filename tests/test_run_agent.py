"""`agents run -- AGENT`: a known agent in a sandbox at its own paths, followed call by call.

The agent here is a script of the name of a real one that speaks as that one does; the real
programs are run by `nox -s agents`.
"""

import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.killed import left_over
from tests.scratch import sleeps, wait_until
from tests.test_confinement import needs_bwrap, needs_landlock

AGENT = """\
#!{python}
import json, os, sqlite3, subprocess, sys

settings = json.load(open(sys.argv[sys.argv.index("--settings") + 1]))
work = os.getcwd()


def hook(event, **payload):
    body = dict(payload, session_id="run-1", cwd=work, hook_event_name=event)
    for entry in settings["hooks"].get(event, []):
        for one in entry["hooks"]:
            done = subprocess.run(one["command"], shell=True, input=json.dumps(body).encode())
            assert done.returncode == 0


def call(number, tool, act):
    hook("PreToolUse", tool_name=tool, tool_use_id=f"c{{number}}", tool_input={{"n": number}})
    act()
    hook("PostToolUse", tool_use_id=f"c{{number}}", tool_response={{}})


def write(name, text):
    with open(os.path.join(work, name), "w") as file:
        file.write(text)


def row():
    with sqlite3.connect("app.db") as db:
        db.execute("INSERT INTO t VALUES ('by the agent')")


hook("SessionStart", source="startup")
hook("UserPromptSubmit", prompt="first prompt", prompt_id="p1")
call(1, "Write", lambda: write("one.txt", "1"))
call(2, "Bash", lambda: os.unlink(os.path.join(work, "a.txt")))
hook("Stop", last_assistant_message="did one", prompt_id="p1")
hook("UserPromptSubmit", prompt="second prompt", prompt_id="p2")
call(3, "Write", lambda: write("two.txt", os.environ.get("ANTHROPIC_API_KEY", "none")))
if os.path.exists("app.db"):
    call(4, "Bash", row)
hook("Stop", last_assistant_message="did two", prompt_id="p2")
print("works in", work)
print("said by the agent", os.environ.get("PRIVATE_THING", "hidden"))
open(os.path.expanduser("~/.claude/history"), "w").write("x")
hook("SessionEnd", reason="exit")
sys.exit({code})
"""


def install(agents: Agents, code: int = 0, text: str = AGENT) -> dict[str, str]:
    """The agent on the PATH; returns the environment to run it in."""
    folder = agents.work.parent / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "claude"
    program.write_text(text.format(python=sys.executable, work=agents.work, code=code))
    program.chmod(0o755)
    (agents.work / "a.txt").write_text("a\n")
    path = f"{folder}:{agents.env['PATH']}"
    # what is too late for an agent that waits is not what is tried here
    slow = {"CLEVERAGENTS_SESSION_HOOK_BUDGET": "60s"}
    return {"PATH": path, "ANTHROPIC_API_KEY": "key-1", "PRIVATE_THING": "secret", **slow}


def test_its_prompts_and_calls_are_the_plans_and_nothing_is_real_yet(agents: Agents) -> None:
    env = install(agents)
    done = agents.run("run", "--json", "--", "claude", "-p", "x", env=env).expect(0)
    data = done.data
    assert [item["prompt"] for item in data["prompts"]] == ["first prompt", "second prompt"]
    assert [(item["tool_calls"], item["files"]) for item in data["prompts"]] == [(2, 2), (1, 1)]
    assert "said by the agent hidden" in data["output"]
    assert os.listdir(agents.work) == ["a.txt"]
    assert Path(agents.env["HOME"], ".claude/history").exists()
    assert str(Path(agents.env["HOME"], ".claude")) in data["not_rolled_back"]
    plan = data["plan_id"]
    diff = agents.run("plan", "diff", plan, "--json").expect(0).data
    assert {item["path"]: item["status"] for item in diff["files"]} == {
        "a.txt": "removed",
        "one.txt": "added",
        "two.txt": "added",
    }
    refused = agents.run("plan", "undo", plan).expect(5)
    assert "did not say where its session is kept" in refused.stderr
    agents.run("plan", "undo", plan, "--files-only").expect(0)
    agents.run("plan", "apply", plan, "--yes").expect(0)
    assert os.listdir(agents.work) == ["one.txt"]


def test_the_agent_has_its_key_and_no_store_keeps_it(agents: Agents) -> None:
    env = install(agents)
    data = agents.run("run", "--json", "--", "claude", env=env).expect(0).data
    agents.run("plan", "apply", data["plan_id"], "--yes").expect(0)
    assert (agents.work / "two.txt").read_text() == "key-1"
    with closing(sqlite3.connect(Path(agents.env["CLEVERAGENTS_HOME"], "store.db"))) as db:
        assert "key-1" not in "\n".join(db.iterdump())


def test_a_variable_that_is_named_reaches_the_agent(agents: Agents) -> None:
    env = install(agents)
    done = agents.run("run", "--env", "PRIVATE_THING", "--", "claude", env=env).expect(0)
    assert "said by the agent secret" in done.stdout


def test_a_database_goes_with_the_files(agents: Agents) -> None:
    env = install(agents)
    with closing(sqlite3.connect(agents.work / "app.db")) as db, db:
        db.execute("CREATE TABLE t (x)")
    argv = ("run", "--json", "--resource", "db=app.db", "--", "claude")
    data = agents.run(*argv, env=env).expect(0).data

    def rows() -> list[tuple[str]]:
        with closing(sqlite3.connect(agents.work / "app.db")) as db:
            return db.execute("SELECT x FROM t").fetchall()

    assert rows() == []
    agents.run("plan", "undo", data["plan_id"], "--files-only").expect(0)
    agents.run("plan", "redo", data["plan_id"]).expect(0)
    agents.run("plan", "apply", data["plan_id"], "--yes").expect(0)
    assert rows() == [("by the agent",)]


@needs_bwrap
def test_with_a_database_in_the_repository_it_still_works_at_its_own_path(agents: Agents) -> None:
    env = install(agents)
    with closing(sqlite3.connect(agents.work / "app.db")) as db, db:
        db.execute("PRAGMA journal_mode=wal")
        db.execute("CREATE TABLE t (x)")
    argv = ("run", "--json", "--resource", "db=app.db", "--", "claude")
    data = agents.run(*argv, env=env).expect(0).data
    assert f"works in {agents.work}\n" in data["output"]
    changed = agents.run("plan", "diff", data["plan_id"], "--json").expect(0).data["files"]
    files = {item["path"] for item in changed if item["resource"] == "work"}
    assert files == {"a.txt", "one.txt", "two.txt"}
    agents.run("plan", "apply", data["plan_id"], "--yes").expect(0)
    with closing(sqlite3.connect(agents.work / "app.db")) as db:
        assert db.execute("SELECT x FROM t").fetchall() == [("by the agent",)]


@needs_landlock
def test_without_bwrap_it_says_where_the_agent_works(agents: Agents) -> None:
    """It is not mounted at the project's own path there, which agents like to name."""
    env = install(agents)
    argv = ("run", "--json", "--set", "sandbox.confine=landlock", "--", "claude")
    done = agents.run(*argv, env=env).expect(0)
    boxes = agents.run("plan", "status", done.data["plan_id"], "--json").expect(0).data["sandboxes"]
    told = (
        f"without bwrap the agent sees {agents.work} as {boxes['work']}, and can write only there"
    )
    assert [text for text in done.json["messages"] if text.startswith(told)]


AGAIN = AGENT.replace(
    'call(2, "Bash", lambda: os.unlink(os.path.join(work, "a.txt")))',
    'call(len(sys.argv), "Write", lambda: write(f"{{len(sys.argv)}}.txt", "x"))',
)


def test_a_conversation_is_continued_in_the_sandboxes_it_worked_in(agents: Agents) -> None:
    env = install(agents, text=AGAIN)
    plan = agents.run("run", "--json", "--", "claude", env=env).expect(0).data["plan_id"]
    status = agents.run("plan", "status", plan, "--json").expect(0).data
    line = status["conversation"]["continue"]
    assert line == ["agents", "run", "--plan", plan, "--", "claude", "--resume", "run-1"]
    again = agents.run("run", "--json", *line[2:], env=env).expect(0).data
    assert again["plan_id"] == plan
    diff = agents.run("plan", "diff", plan, "--json").expect(0).data
    assert {item["path"] for item in diff["files"]} == {"3.txt", "5.txt", "one.txt", "two.txt"}
    assert os.listdir(agents.work) == ["a.txt"]
    agents.run("plan", "resume", plan).expect(0)
    agents.run("plan", "apply", plan, "--yes").expect(0)
    done = agents.run("run", "--plan", plan, "--", "claude", env=env).expect(125)
    assert "applied" in done.stderr


def test_only_what_an_agent_did_in_sandboxes_is_continued_in_them(agents: Agents) -> None:
    env = install(agents, text=AGAIN)
    agents.run("run", "--", "true").expect(0)
    done = agents.run("run", "--plan", "true", "--", "claude", env=env).expect(125)
    assert "follows no agent" in done.stderr
    assert "for agents" in agents.run("run", "--plan", "true", "--", "true").expect(125).stderr
    body = {"session_id": "s1", "cwd": str(agents.work), "hook_event_name": "UserPromptSubmit"}
    argv = [sys.executable, "-m", "cleveragents", "hook", "event", "claude-code"]
    told = json.dumps({**body, "prompt": "x"}).encode()
    subprocess.run(argv, input=told, env=agents.env, check=True)
    done = agents.run("run", "--plan", "s1", "--", "claude", env=env).expect(125)
    assert "works in place" in done.stderr


def test_a_session_that_continues_without_its_sandboxes_is_another_plans(agents: Agents) -> None:
    env = install(agents, text=AGAIN)
    plan = agents.run("run", "--json", "--", "claude", env=env).expect(0).data["plan_id"]
    body = {"session_id": "run-1", "cwd": str(agents.work), "hook_event_name": "UserPromptSubmit"}
    argv = [sys.executable, "-m", "cleveragents", "hook", "event", "claude-code"]
    told = json.dumps({**body, "prompt": "outside", "prompt_id": "p9"}).encode()
    subprocess.run(argv, input=told, env=agents.env, check=True)
    status = agents.run("plan", "status", "run-1", "--json").expect(0).data
    assert status["plan_id"] != plan
    boxed = agents.run("run", "--json", "--", "claude", "--resume", "run-1", env=env).expect(0).data
    assert boxed["plan_id"] not in (plan, status["plan_id"])


def test_hooks_that_are_installed_too_leave_a_run_to_its_own(agents: Agents) -> None:
    """Inside they could reach neither a sidecar nor the store, and would wait for one."""
    text = AGAIN.replace(
        'settings["hooks"].get(event, [])', 'settings["hooks"].get(event, []) + own(event)'
    ).replace(
        "def hook(",
        "def own(event):\n    path = os.path.expanduser('~/.claude/settings.json')\n"
        "    return json.load(open(path))['hooks'].get(event, [])\n\n\ndef hook(",
    )
    env = install(agents, text=text)
    assert "has not called us" not in agents.run("doctor").expect(0).stdout
    agents.run("hook", "install", "claude-code").expect(0)
    assert "claude-code has not called us yet" in agents.run("doctor").expect(0).stdout
    agents.run("run", "--", "claude", env=env).expect(0)
    assert len(agents.run("plan", "list", "--json").expect(0).data["plans"]) == 1
    assert left_over(Path(agents.env["CLEVERAGENTS_HOME"])) == []


def test_its_exit_code_and_its_words_are_its_own(agents: Agents) -> None:
    env = install(agents, code=7)
    done = agents.run("run", "--", "claude", env=env).expect(7)
    assert done.stdout.splitlines()[1:] == ["said by the agent hidden"]
    assert "first prompt" in done.stderr
    assert "agents plan apply" in done.stderr


def test_an_agent_that_never_calls_its_hooks_is_told_of(agents: Agents) -> None:
    env = install(agents, text="#!/bin/sh\necho b > b.txt\n# {python} {work} {code}\n")
    done = agents.run("run", "--", "claude", env=env).expect(0)
    assert "never called its hooks" in done.stderr
    plan = agents.run("plan", "list", "--json").data["plans"][0]["plan_id"]
    agents.run("plan", "apply", plan, "--yes").expect(0)
    assert (agents.work / "b.txt").read_text() == "b\n"


def test_nothing_is_left_of_a_run(agents: Agents, tmp_path: Path) -> None:
    env = install(agents)
    agents.run("run", "--", "claude", env={**env, "TMPDIR": str(tmp_path)}).expect(0)
    assert os.listdir(tmp_path) == []
    settings = Path(agents.env["HOME"], ".claude")
    assert [path.name for path in settings.iterdir()] == ["history"], "nothing was installed"


def test_an_agent_that_is_not_there_is_named(agents: Agents) -> None:
    (agents.work / "a.txt").write_text("a\n")
    done = agents.run("run", "--", "opencode", env={"PATH": "/usr/bin:/bin"}).expect(127)
    assert "no such command: opencode" in done.stderr


@pytest.mark.parametrize("wrong", ["db", "=app.db", "db="])
def test_a_resource_is_a_name_and_a_path(agents: Agents, wrong: str) -> None:
    env = install(agents)
    done = agents.run("run", "--resource", wrong, "--", "claude", env=env).expect(125)
    assert "NAME=PATH" in done.stderr
    agents.run("run", "--resource", "db=app.db", "--", "true").expect(125)


def test_killed_with_its_agent_it_leaves_a_plan_that_is_right(agents: Agents) -> None:
    text = AGENT.replace('hook("Stop", last_assistant_message="did one", prompt_id="p1")', "kill()")
    text = text.replace(
        "def row():",
        "def kill():\n    open(work + '/late.txt', 'w').write('x')\n"
        "    print('now', flush=True)\n    import time; time.sleep(600)\n\n\ndef row():",
    )
    folder = Path(agents.env["HOME"], "tmp")
    folder.mkdir()
    env = install(agents, text=text) | {"TMPDIR": str(folder)}
    run = subprocess.Popen(
        [sys.executable, "-m", "cleveragents", "run", "--", "claude"],
        env=agents.env | env,
        cwd=agents.work,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == b"now\n"
    run.kill()
    run.communicate()
    assert len(list(folder.glob("agents-run-*/agent.sock"))) == 1
    data = agents.run("plan", "status", "run-1", "--json").expect(0).data
    assert list(folder.glob("agents-run-*")) == []
    assert left_over(Path(agents.env["CLEVERAGENTS_HOME"])) == []
    assert [item["status"] for item in data["progress"]] == ["complete", "complete"]
    agents.run("plan", "undo", "run-1").expect(0)
    diff = agents.run("plan", "diff", "run-1", "--json").expect(0).data
    assert json.dumps(diff["files"]).count("late.txt") <= 1
    agents.run("check").expect(0)


CTRL_C = "\x03"


class Reviewed:
    """`agents run -- claude` at a terminal, and what is typed when the agent has ended."""

    def __init__(self, agents: Agents, env: dict[str, str], *answers: str) -> None:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "cleveragents", "run", "--", "claude"],
            cwd=agents.work,
            env=agents.env | env | {"TERM": "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        seen, waiting = b"", list(answers)
        while True:
            try:
                seen += os.read(ours, 65536)
            except OSError:
                break
            # A question ends with a colon and a blank; the answer is typed when it is there.
            if waiting and seen.endswith(b": "):
                if (answer := waiting.pop(0)) == CTRL_C:
                    wait_until(lambda: sleeps(process.pid), "somebody who waits for an answer")
                    process.send_signal(signal.SIGINT)
                else:
                    os.write(ours, answer.encode() + b"\n")
        os.close(ours)
        assert not waiting, (waiting, seen)
        self.code, self.seen = process.wait(), seen.decode("utf-8", "replace").replace("\r", "")

    def word(self, pattern: str) -> str:
        found = re.search(pattern, self.seen, re.MULTILINE)
        assert found, self.seen
        return found[1]


def test_at_a_terminal_all_of_it_can_be_applied_at_once(agents: Agents) -> None:
    env = install(agents)
    done = Reviewed(agents, env, "all", "y")
    assert done.code == 0
    assert "first prompt" in done.seen
    assert "second prompt" in done.seen
    assert "the plan is applied" in done.seen
    assert sorted(os.listdir(agents.work)) == ["one.txt", "two.txt"]


@pytest.mark.parametrize("answers", [(CTRL_C,), ("all", CTRL_C)])
def test_ctrl_c_at_the_review_applies_nothing_and_says_how_to_continue(
    agents: Agents, answers: tuple[str, ...]
) -> None:
    done = Reviewed(agents, install(agents), *answers)
    assert done.code == 0
    assert "declined" not in done.seen
    assert "agents plan apply" in done.seen
    assert os.listdir(agents.work) == ["a.txt"]


def test_at_a_terminal_some_paths_can_be_applied(agents: Agents) -> None:
    env = install(agents)
    done = Reviewed(agents, env, "some", "none.txt", "some", "two.txt a.txt", "y")
    assert "nothing changed at 'none.txt'" in done.seen
    assert "apply 2 changes, leave out one.txt?" in done.seen
    assert "left out: one.txt" in done.seen
    assert os.listdir(agents.work) == ["two.txt"]


def test_at_a_terminal_nothing_is_left_out_before_the_yes(agents: Agents) -> None:
    """It said "not done" after the other paths had been removed from the sandbox."""
    env = install(agents)
    done = Reviewed(agents, env, "some", "two.txt", "n", "all", "y")
    assert "apply 1 change, leave out a.txt, one.txt?" in done.seen
    assert "apply 3 changes?" in done.seen
    assert sorted(os.listdir(agents.work)) == ["one.txt", "two.txt"]


def test_at_a_terminal_a_path_in_a_new_folder_can_be_applied_alone(agents: Agents) -> None:
    """Its folder was left out with all in it; of a renamed file the old name stayed away."""
    made = '(os.mkdir("new"), write("new/x", "1"), os.rename("b.txt", "new/y"))'
    env = install(agents, text=AGENT.replace('write("one.txt", "1")', made))
    (agents.work / "b.txt").write_text("".join(f"{number}\n" for number in range(30)))
    done = Reviewed(agents, env, "some", "new/x", "y")
    assert "leave out a.txt, b.txt, new/y, two.txt?" in done.seen
    assert sorted(os.listdir(agents.work)) == ["a.txt", "b.txt", "new"]
    assert os.listdir(agents.work / "new") == ["x"]


def test_at_a_terminal_a_file_that_was_moved_is_applied_as_moved(agents: Agents) -> None:
    """With its old folder left out it came back, and was there twice."""
    made = '(os.mkdir("lib"), os.rename("src/old", "lib/new"), os.rmdir("src"))'
    env = install(agents, text=AGENT.replace('write("one.txt", "1")', made))
    (agents.work / "src").mkdir()
    (agents.work / "src" / "old").write_text("".join(f"{number}\n" for number in range(30)))
    done = Reviewed(agents, env, "some", "lib", "y")
    assert "leave out a.txt, two.txt?" in done.seen
    assert sorted(os.listdir(agents.work)) == ["a.txt", "lib"]
    assert os.listdir(agents.work / "lib") == ["new"]


def test_at_a_terminal_nothing_is_applied_unless_one_says_so(agents: Agents) -> None:
    env = install(agents)
    done = Reviewed(agents, env, "all", "n", "")
    assert "agents plan apply" in done.seen
    assert os.listdir(agents.work) == ["a.txt"]


def test_at_a_terminal_letters_are_enough_and_who_leaves_has_applied_nothing(
    agents: Agents,
) -> None:
    env = install(agents)
    done = Reviewed(agents, env, "x", "s", "\x04")
    assert done.code == 0
    assert "type all, some, roll back or nothing, or the first letter" in done.seen
    assert "paths or folders" in done.seen
    assert "internal error" not in done.seen
    plan = done.word(r"^next: agents plan diff (\w+)$")
    assert f"\n      agents plan apply {plan}\n" in done.seen
    assert f"\n      agents plan resume {plan}\n" in done.seen
    assert os.listdir(agents.work) == ["a.txt"]


KEPT = AGENT.replace(
    "\n\n\ndef hook(",
    """
kept = os.path.expanduser("~/.claude/run-1.jsonl")
said = [
    dict(type="user", uuid="u1", promptId="p1", message=dict(content="x")),
    dict(type="assistant", uuid="u2", parentUuid="u1",
         message=dict(content=[dict(type="tool_use", id="c1")])),
    dict(type="user", uuid="u3", parentUuid="u2", promptId="p1",
         message=dict(content=[dict(type="tool_result", tool_use_id="c1")])),
]
with open(kept, "w") as file:
    file.writelines(json.dumps(dict(one, sessionId="run-1")) + "\\n" for one in said)


def hook(""",
    1,
).replace("body = dict(payload,", "body = dict(payload, transcript_path=kept,")
"""The same, with a session that it keeps, up to the end of the first call."""


def test_at_a_terminal_one_can_go_back_to_a_point_first(agents: Agents) -> None:
    """Before the first prompt the conversation is a new one; later ones have to be cut."""
    env = install(agents, text=KEPT)
    done = Reviewed(agents, env, "r", "nobody", "roll back", "first", "nothing")
    assert "  first prompt" in done.seen
    assert "has no checkpoint 'nobody'" in done.seen
    plan = done.word(r"agents plan diff (\w+)")
    assert agents.run("plan", "diff", plan, "--json").expect(0).data["files"] == []
    line = agents.run("plan", "status", plan, "--json").expect(0).data["conversation"]["continue"]
    assert line[:7] == ["agents", "run", "--plan", plan, "--", "claude", "--session-id"]
    agents.run("plan", "undo", plan, "--files-only").expect(0)
    assert agents.run("plan", "diff", plan, "--json").expect(0).data["files_changed"] == 3


def test_at_a_terminal_what_was_rolled_back_is_not_counted(agents: Agents) -> None:
    env = install(agents, text=KEPT)
    done = Reviewed(agents, env, "r", "s1", "nothing")
    before, after = done.seen.split("to checkpoint: s1")
    assert re.search(r"first prompt +2 calls +2 files\n", before), before
    assert re.search(r"first prompt +1 call +1 file\n", after), after


REFUSED = """\
#!{python}
import json, os, subprocess, sys

path = sys.argv[sys.argv.index("--settings") + 1]
hooks = json.load(open(path))["hooks"]


def hook(event, **payload):
    body = dict(payload, session_id="run-1", cwd=os.getcwd(), hook_event_name=event)
    command = hooks[event][0]["hooks"][0]["command"]
    done = subprocess.run(command, shell=True, input=json.dumps(body).encode(), stderr=-1)
    print(event, done.returncode, done.stderr.decode().strip())


hook("UserPromptSubmit", prompt="first prompt", prompt_id="p1")
hook("PreToolUse", tool_name="Bash", tool_use_id="c1", tool_input={{}})
hook("PostToolUse", tool_use_id="c1", tool_response={{}})
os.unlink(os.path.join(os.path.dirname(path), "agent.sock"))
hook("PreToolUse", tool_name="Bash", tool_use_id="c2", tool_input={{}})
hook("Stop", last_assistant_message="done", prompt_id="p1")
"""


@pytest.mark.parametrize(("closed", "code"), [("true", 2), ("false", 0)])
def test_closed_means_in_a_run_too_that_no_tool_runs_without_a_checkpoint(
    agents: Agents, closed: str, code: int
) -> None:
    """The agent takes away the socket: from then on nobody can make one."""
    env = install(agents, text=REFUSED)
    argv = ("run", "--json", "--set", f"session.fail-closed={closed}", "--", "claude")
    said = agents.run(*argv, env=env).expect(0).data["output"]
    why = " no checkpoint could be made: failed nobody listens" if code else " "
    assert said.splitlines() == [
        "UserPromptSubmit 0 ",
        "PreToolUse 0 ",
        "PostToolUse 0 ",
        f"PreToolUse {code}{why}",
        "Stop 0 ",
    ]
