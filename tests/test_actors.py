"""Actors: programs and callables that propose the steps of a plan while it runs.

Every actor here is a real process, started by the installed command or by `open_workspace`.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cleveragents.actors import pyactor
from cleveragents.actors.lines import LineActor
from cleveragents.errors import ActorFailed
from cleveragents.lease import (
    working_on,
)
from cleveragents.model.decision import Decision, DecisionKind
from cleveragents.model.ids import new_id
from cleveragents.tools import conversation
from cleveragents.workspace import open_workspace
from tests.harness import Agents, Outcome, command
from tests.scratch import query, running_step, snapshot, wait_until

NAP = f"4711.{os.getpid()}"
"""Seconds that nobody else sleeps, also not the same suite beside this one."""
TALK = """
import json, os, sys, time

def say(**message):
    print(json.dumps({k.rstrip("_"): v for k, v in message.items()}), flush=True)

def hear():
    line = sys.stdin.readline()
    return json.loads(line) if line else None

def write(path, content, **more):
    say(type="step", tool="file.write", with_={"path": path, "content": content}, **more)
    return hear()

def shell(text, **more):
    say(type="step", run=text, **more)
    return hear()

start = hear()
with open(os.environ["TMPDIR"] + "/log", "w") as log:
    log.write("an actor may write here")
"""


class Stage:
    """A folder to work on, and plans whose actor is a script of the test."""

    def __init__(self, agents: Agents) -> None:
        self.agents = agents
        self.app = agents.work / "app"
        self.app.mkdir()
        (self.app / "a.txt").write_text("a\n")

    def script(self, body: str, more: str = "", actor: str = "") -> None:
        (self.agents.work / "agent.py").write_text(TALK + textwrap.dedent(body))
        actor = actor or "{command: [python3, agent.py]}"
        (self.agents.work / "plan.yaml").write_text(
            f"name: acted\nresources:\n  app: {{kind: fs-directory, path: app}}\n"
            f"actor: {actor}\n{textwrap.dedent(more)}"
        )

    def run(self, body: str, more: str = "", **options: Any) -> Outcome:
        self.script(body, more)
        return self.agents.run("plan", "run", "plan.yaml", "--json", **options)

    def resume(self) -> Outcome:
        return self.agents.run("plan", "resume", "acted", "--json")

    def fails(self, body: str, more: str = "", **options: Any) -> str:
        """The plan stops because of its actor, and can be resumed; what it says."""
        found = self.run(body, more, **options).expect(5)
        assert (found.data["phase"], found.data["state"]) == ("execute", "errored")
        assert found.data["error"]["hint"]
        return found.data["error"]["message"]

    @property
    def sandbox(self) -> Path:
        status = self.agents.run("plan", "status", "acted", "--json").expect(0)
        return Path(status.data["sandboxes"]["app"])

    def steps(self) -> dict[str, str]:
        status = self.agents.run("plan", "status", "acted", "--json").expect(0)
        return {item["step"]: item["status"] for item in status.data["progress"]}

    def tree(self, *options: str) -> list[dict[str, Any]]:
        (root,) = (
            self.agents.run("plan", "tree", "acted", "--json", *options).expect(0).data["tree"]
        )
        return root["children"]

    def heard(self) -> list[dict[str, Any]]:
        """What the actor wrote down of its `start` messages, through a step."""
        return [json.loads(line) for line in (self.sandbox / "heard").read_text().splitlines()]


@pytest.fixture
def stage(agents: Agents) -> Stage:
    return Stage(agents)


NOTE_START = """
heard = {k: start[k] for k in ("guidance", "done", "state")}
shell("cat >> heard <<'END'\\n" + json.dumps(heard) + "\\nEND")
"""


def test_a_command_decides_and_its_steps_run_in_the_sandbox(stage: Stage) -> None:
    before = snapshot(stage.app)
    done = stage.run("""
        say(type="decision", question="how", chosen="by hand", alternatives=["sed"],
            rationale="small", confidence=0.5, id="how")
        first = write("b.txt", "b\\n")
        assert first == {"type": "result", "step": "s1", "ok": True, "output": first["output"],
                         "error": None, "undone": False}, first
        seen = shell("cat a.txt b.txt", id="look")
        assert (seen["step"], seen["output"]) == ("look", "a\\nb\\n"), seen
        say(type="decision", question="and then", chosen="a folder", id="then", parent="how")
        shell("mkdir c")
        shell("rm b.txt", decision="how")
        shell("touch d", decision="look")
        say(type="done")
    """).expect(0)
    assert (done.data["phase"], done.data["state"]) == ("execute", "complete")
    assert [step["index"] for step in done.data["steps"]] == [0, 1, 2, 3, 4]
    assert sorted(os.listdir(stage.sandbox)) == ["a.txt", "c", "d"]
    (how,) = stage.tree()
    assert (how["question"], how["chosen"]) == ("how", "by hand")
    assert how["steps"] == ["s1", "look", "s3", "s4"]
    assert [child["steps"] for child in how["children"]] == [["s2"]]
    told = stage.agents.run("plan", "explain", how["decision_id"], "--json").expect(0).data
    assert told["kind"] == "actor"
    assert (told["alternatives"], told["confidence"]) == (["sed"], 0.5)
    assert snapshot(stage.app) == before
    stage.agents.run("plan", "apply", "acted", "--yes").expect(0)
    assert (stage.app / "d").exists()


def test_a_decision_is_recorded_with_a_group_before_its_first_step(stage: Stage) -> None:
    stage.run("""
        say(type="decision", question="q", chosen="c")
        write("b", "")
        say(type="done")
    """).expect(0)
    (decision,) = stage.tree()
    rows = stage.agents.run("plan", "checkpoints", "acted", "--json").data["checkpoints"]
    mine = [row["type"] for row in rows if row["decision_id"] == decision["decision_id"]]
    assert mine == ["on_decision", "before_tool_execute", "after_tool_execute"]


def test_a_step_without_a_decision_makes_its_own(stage: Stage) -> None:
    stage.run("""
        write("b", "", id="first")
        write("c", "")
        say(type="done")
    """).expect(0)
    assert [(d["question"], d["chosen"]) for d in stage.tree()] == [
        ("first", "file.write"),
        ("s1", "file.write"),
    ]


def test_start_tells_of_the_plan_its_tools_and_its_resources(stage: Stage) -> None:
    stage.run(
        """
        plan = start["plan"]
        assert (start["guidance"], start["done"], start["state"]) == ([], [], None), start
        assert (plan["name"], plan["description"], plan["attempt"]) == ("acted", "why", 1), plan
        assert plan["resources"] == {"app": "fs-directory"}
        assert plan["tools"]["file.write"]["with"]["path"] == {"type": "path", "required": True}
        assert plan["tools"]["greet"] == {"description": "say hello", "read_only": True,
            "with": {"args": {"type": "texts", "required": False},
                     "stdin": {"type": "text", "required": False}}}, plan["tools"]["greet"]
        assert plan["tools"]["own"]["with"] is None
        assert plan["id"] == os.environ["AGENTS_PLAN_ID"]
        assert os.path.exists(os.environ["AGENTS_SANDBOX_APP"] + "/a.txt")
        assert "SECRET" not in os.environ
        say(type="step", tool="greet", with_={"args": ["you"]})
        assert hear()["output"] == "hello you\\n"
        say(type="done")
        """,
        """
        description: why
        tools:
          greet: {run: [echo, hello], description: say hello, read_only: true}
          own: {python: "m:f"}
        """,
        env={"SECRET": "x"},
    ).expect(0)


# failures of steps


def test_the_actor_sees_a_failed_step_rolled_back_and_does_something_else(stage: Stage) -> None:
    done = stage.run("""
        bad = shell("echo half > half; echo why; exit 3")
        assert not bad["ok"] and bad["undone"] and bad["output"] == "why\\n", bad
        assert bad["error"] == "exit code 3: why", bad
        assert shell("test ! -e half")["ok"]
        say(type="done")
    """).expect(0)
    assert done.data["state"] == "complete"
    assert stage.steps() == {"s2": "complete"}
    assert [d["steps"] for d in stage.tree()] == [["s2"]]
    assert not (stage.sandbox / "half").exists()
    again = stage.agents.run("plan", "execute", "acted", "--json").expect(0)
    assert again.data["state"] == "complete"


def test_a_failed_step_may_be_asked_for_again_by_its_id(stage: Stage) -> None:
    stage.run("""
        assert not shell("exit 1", id="x")["ok"]
        assert shell("touch x", id="x")["ok"]
        say(type="done")
    """).expect(0)
    assert stage.steps() == {"x": "complete"}


def test_done_after_a_failure_is_a_failed_plan(stage: Stage) -> None:
    message = stage.fails("""
        shell("exit 3")
        say(type="decision", question="give up", chosen="yes")
        say(type="done")
    """)
    assert message == "step s1: exit code 3"


def test_an_actor_that_dies_after_a_failure_leaves_both_reasons(stage: Stage) -> None:
    message = stage.fails("""
        shell("exit 3")
        sys.exit("I give up")
    """)
    assert message == (
        "step s1: exit code 3; then the actor ended before it said done: exit code 1: I give up"
    )
    told = stage.agents.run("plan", "errors", "acted", "--json").expect(0).data
    assert told["step"] == "s1"


@pytest.mark.parametrize(("policy", "left"), [("stop", True), ("rollback_plan", False)])
def test_a_policy_that_ends_the_plan_does(stage: Stage, policy: str, left: bool) -> None:
    message = stage.fails(
        """
        write("b", "b")
        shell("echo half > half; exit 3")
        shell("echo never")
        say(type="done")
        """,
        f"policy: {{on_failure: {policy}}}",
    )
    assert message == "step s2: exit code 3"
    assert (stage.sandbox / "half").exists() is left
    assert (stage.sandbox / "b").exists() is left


def test_a_failure_that_takes_earlier_steps_with_it_ends_the_run(stage: Stage) -> None:
    """Without triggers there is only the first group to go back to."""
    body = """
        if start["done"] or os.path.exists(os.environ["AGENTS_SANDBOX_APP"] + "/b"):
            sys.exit("not anew")
        write("b", "b")
        shell("exit 3")
        say(type="done")
    """
    message = stage.fails(body, "policy: {auto_create_on: []}")
    assert message == "step s2: exit code 3"
    assert not (stage.sandbox / "b").exists()
    assert stage.resume().expect(5).data["error"]["message"] == "step s4: exit code 3"


def test_without_groups_a_first_step_that_fails_does_not_lose_the_actors_state(
    stage: Stage,
) -> None:
    stage.run(
        """
        say(type="decision", question="q", chosen="c", id="q")
        say(type="state", state=7)
        assert not shell("exit 3")["ok"]
        assert shell("touch b")["ok"]
        say(type="done")
        """,
        "policy: {auto_create_on: []}",
    ).expect(0)
    (plan,) = query(store_of(stage.agents), "SELECT actor_state FROM plans")
    assert plan == ("7",)


def store_of(agents: Agents) -> Path:
    return Path(agents.env["CLEVERAGENTS_HOME"]) / "store.db"


# hostile and broken actors


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("print('hello', flush=True)", "the actor, line 1: JSON is malformed: "),
        ("os.write(1, b'\\xff\\xfe\\x00\\n')", "the actor, line 1: "),
        ("print('[1]')", "the actor, line 1: Expected `object`, got `array`: [1]"),
        ("say(type='frobnicate')", "the actor, line 1: Invalid value 'frobnicate'"),
        ("say(x=1)", "the actor, line 1: Object missing required field `type`"),
        ("say(type='done', now=True)", "unknown field `now`"),
        ("say(type='decision')", "missing required field `question`"),
        ("say(type='decision', question='q', confidence=2)", "Expected `float` <= 1"),
        ("print('[' * 200_000)", "the actor, line 1: "),
        ("print(); say(type='step', tool='file.wrte')", "no tool named 'file.wrte', did you mean"),
        ("say(type='step')", "the actor, line 1: a step has either 'tool' or 'run'"),
        ("say(type='step', run='x', with_={'a': 1})", "'with' is for a 'tool' only"),
        ("say(type='step', tool='file.read', with_={})", "input 'path' of file.read is missing"),
        ("say(type='step', run='ls', on='ap')", "unknown resource 'ap', did you mean 'app'?"),
        ("say(type='step', run='ls', id='a b')", "the actor, line 1: "),
        ("say(type='step', run='ls', needs=['x'])", "unknown step 'x' in 'needs'"),
        ("say(type='step', run='ls', decision='x')", "no decision and no step is called 'x'"),
        ("shell('ls', id='x'); shell('ls', id='x')", "line 2: step 'x' already exists"),
        ("say(type='subplan', file='x.yaml')", "the actor, line 1: no such plan file: "),
        ("say(type='subplan')", "a subplan has either 'file' or 'steps'"),
        ("say(type='subplan', steps=[{'runn': 'ls'}])", "unknown key 'runn' in step 'step-1'"),
        ("say(type='state', state='x' * 300_000)", "a state of 300,002 bytes: at most 262,144"),
    ],
)
def test_what_cannot_be_understood_is_named_with_its_line(
    stage: Stage, said: str, message: str
) -> None:
    found = stage.fails(f"{said}\nsys.stdout.flush()\nhear()")
    assert message in found
    assert "\n" not in found


def test_a_line_without_end_is_refused(stage: Stage) -> None:
    assert "a line of more than 4 MiB" in stage.fails(
        "while True: os.write(1, b'x' * 65536)", timeout=600
    )


def test_a_flood_of_messages_is_refused(stage: Stage) -> None:
    found = stage.fails("for n in range(10**6): say(type='state', state=0)", timeout=600)
    assert "1000 messages without a step" in found


def test_an_actor_that_floods_and_does_not_listen_is_refused(stage: Stage) -> None:
    """Its step's output does not fit into the pipe, and it only talks."""
    found = stage.fails(
        "say(type='step', run='head -c 500000 /dev/zero | tr \\\\\\\\0 x')\n"
        'while True: os.write(1, b\'{"type": "state", "state": 1}\\n\' * 2000)',
        timeout=600,
    )
    assert "more than 4 MiB and does not read its answers" in found


def test_a_flood_of_errors_and_blank_lines_is_bounded_by_the_time_limit(stage: Stage) -> None:
    found = stage.fails(
        "while True: os.write(2, b'e' * 65536); os.write(1, b'\\n' * 1000)",
        env={"CLEVERAGENTS_ACTORS_ANSWER_TIMEOUT": "1s"},
        timeout=600,
    )
    assert found == "the actor did not answer within 1 s"


def test_an_actor_that_never_answers_is_ended_with_what_it_started(stage: Stage) -> None:
    found = stage.fails(
        f"import subprocess\nsubprocess.Popen(['sleep', '{NAP}'], start_new_session=True)\n"
        "time.sleep(1000)",
        env={"CLEVERAGENTS_ACTORS_ANSWER_TIMEOUT": "1s"},
        timeout=600,
    )
    assert found == "the actor did not answer within 1 s"
    assert not sleeping(NAP)


def sleeping(mark: str) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", mark.encode()]:
            found.append(path.parts[2])
    return found


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("sys.exit('no idea')", "exit code 1: no idea"),
        ("sys.exit(0)", "exit code 0"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_an_actor_that_ends_too_early_leaves_a_plan_to_resume(
    stage: Stage, said: str, message: str
) -> None:
    found = stage.fails(f"if not start['done']:\n    write('b', 'b')\n    {said}\nsay(type='done')")
    assert found.startswith("the actor ended before it said done: ")
    assert message in found
    assert stage.resume().expect(0).data["state"] == "complete"
    assert stage.steps() == {"s1": "complete"}


def test_an_actor_that_closes_its_output_has_ended(stage: Stage) -> None:
    """Under bwrap its pipe stays open with it, and the time limit counts."""
    found = stage.fails("os.close(1); time.sleep(1000)", "policy: {confine: landlock}", timeout=600)
    assert found == "the actor ended before it said done: it closed its output"


def test_what_it_wrote_to_stderr_is_shown_by_errors(stage: Stage) -> None:
    stage.fails("print('one', file=sys.stderr); print('two', file=sys.stderr); sys.exit(4)")
    told = stage.agents.run("plan", "errors", "acted", "--json").expect(0).data
    assert told["output"] == "one\ntwo\n"
    assert told["error"]["type"] == "ActorFailed"


def test_its_last_line_needs_no_newline_and_it_need_not_end(stage: Stage) -> None:
    stage.run('sys.stdout.write(\'{"type": "done"}\')').expect(0)
    stage.run("say(type='done'); time.sleep(1000)").expect(0)


@pytest.mark.parametrize("how", ["bwrap", "landlock"])
def test_a_program_that_is_gone_when_the_plan_runs_is_named(stage: Stage, how: str) -> None:
    stage.script("", f"policy: {{confine: {how}}}", actor="{command: [./agent.sh]}")
    program = stage.agents.work / "agent.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    stage.agents.run("plan", "use", "plan.yaml").expect(0)
    program.unlink()
    found = stage.agents.run("plan", "execute", "acted", "--json").expect(5)
    assert found.data["error"]["message"].endswith("no such command: ./agent.sh")


def test_a_plan_whose_folder_is_gone_says_so(stage: Stage) -> None:
    stage.script("say(type='done')")
    folder = stage.agents.work / "plans"
    folder.mkdir()
    for name in ("plan.yaml", "agent.py"):
        (stage.agents.work / name).rename(folder / name)
    plan = folder / "plan.yaml"
    plan.write_text(plan.read_text().replace("path: app", "path: ../app"))
    stage.agents.run("plan", "use", "plans/plan.yaml").expect(0)
    folder.rename(stage.agents.work / "moved")
    found = stage.agents.run("plan", "execute", "acted", "--json").expect(5)
    assert found.data["error"]["message"] == f"the actor: the folder {folder} is missing"


def test_an_actor_that_ends_before_its_answer_reaches_it(stage: Stage) -> None:
    found = stage.fails(
        "say(type='step', run='head -c 900000 /dev/zero | tr \\\\0 x; sleep 0.5')\nsys.exit(4)"
    )
    assert found == "the actor ended before it said done: exit code 4"
    assert stage.steps() == {"s1": "complete"}


def test_actors_where_the_system_has_no_descriptors_of_processes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "pidfd", no_descriptor)
    stage.script("""
        if not start["done"]:
            write("b", "b")
            sys.exit(4)
        say(type="done")
    """)
    with open_workspace(stage.agents.env["CLEVERAGENTS_HOME"]) as ws:
        plan = ws.run(str(stage.agents.work / "plan.yaml"))
        assert plan.plan.error is not None
        assert plan.plan.error.message.endswith("exit code 4")
        plan.resume()
        assert plan.plan.error is None


def no_descriptor(_pid: int) -> None:
    return None


CONFINED = ("bwrap", "landlock")


@pytest.mark.parametrize("how", CONFINED)
def test_an_actor_writes_neither_to_the_users_tree_nor_to_sandbox_and_store(
    stage: Stage, how: str
) -> None:
    home = stage.agents.env["CLEVERAGENTS_HOME"]
    before = snapshot(stage.app)
    stage.run(
        f"""
        def denied(path):
            try:
                with open(path, "w") as file:
                    file.write("x")
            except OSError:
                return True
            return False

        assert denied({str(stage.app / "new")!r})
        assert denied(os.environ["AGENTS_SANDBOX_APP"] + "/a.txt")
        assert denied(os.environ["AGENTS_SANDBOX_APP"] + "/new")
        assert denied({home!r} + "/store.db")
        assert denied({home!r} + "/new")
        assert denied("new")
        assert not denied(os.environ["TMPDIR"] + "/new")
        assert open(os.environ["AGENTS_SANDBOX_APP"] + "/a.txt").read() == "a\\n"
        write("b", "b")
        assert open(os.environ["AGENTS_SANDBOX_APP"] + "/b").read() == "b"
        say(type="done")
        """,
        f"policy: {{confine: {how}}}",
    ).expect(0)
    assert snapshot(stage.app) == before
    assert sorted(os.listdir(stage.sandbox)) == ["a.txt", "b"]


def test_an_actor_inside_the_resource_is_the_users_own_version(stage: Stage) -> None:
    """The plan file lies in the repository that its sandbox is mounted over."""
    stage.script("""
        shell("echo 'raise SystemExit(9)' > agent.py")
        say(type="done")
    """)
    plan = stage.agents.work / "plan.yaml"
    plan.write_text(plan.read_text().replace("path: app", "path: ."))
    for verb in (("plan", "run", "plan.yaml"), ("plan", "rollback", "acted", "last", "--yes")):
        stage.agents.run(*verb).expect(0)
    stage.agents.run("plan", "resume", "acted").expect(0)


# preflight


@pytest.mark.parametrize(
    ("actor", "problem"),
    [
        ("{command: [no-such-program]}", "the actor: no such command: no-such-program"),
        ("{command: [./agent.py]}", "the actor: not executable: ./agent.py"),
        ("{command: [./nothing]}", "the actor: no such command: ./nothing"),
        ("{python: 'nothing:f'}", "the actor: no module 'nothing' in "),
        ("{python: 'agent.deep:f'}", "the actor: no module 'agent.deep' in "),
        ("{kind: command}", "the actor: 'command' is missing"),
        ("{kind: command, argv: [a]}", "unknown key 'argv' in the actor"),
        ("{command: []}", "the actor: 'command' is empty"),
        ("{kind: python}", "the actor: 'python' is missing"),
    ],
)
def test_an_actor_that_is_not_there_is_refused_before_anything_exists(
    stage: Stage, actor: str, problem: str
) -> None:
    stage.script("", actor=actor)
    found = stage.agents.run("plan", "use", "plan.yaml", "--json").expect(2)
    assert any(problem in text for text in found.data["error"]["problems"])
    assert stage.agents.run("plan", "list", "--json").data["plans"] == []


def test_steps_beside_an_actor_that_asks_for_its_own_are_refused(stage: Stage) -> None:
    stage.script("", "steps: [{run: ls}]")
    found = stage.agents.run("plan", "use", "plan.yaml").expect(2)
    assert "'steps' do not go with an actor of kind 'command'" in found.stderr


def test_a_plan_of_an_actor_needs_confinement_if_that_is_required(stage: Stage) -> None:
    stage.script("")
    env = {"PATH": str(stage.agents.work), "CLEVERAGENTS_SANDBOX_CONFINE": "bwrap"}
    (stage.agents.work / "python3").symlink_to("/usr/bin/true")
    found = stage.agents.run("plan", "use", "plan.yaml", env=env).expect(4)
    assert "cannot be confined" in found.stderr


# callables


def test_a_callable_yields_what_it_asks_for_and_is_sent_the_results(stage: Stage) -> None:
    stage.script("", actor="{python: 'pack.mod:make.steps'}")
    (stage.agents.work / "pack").mkdir()
    (stage.agents.work / "pack/__init__.py").write_text("")
    (stage.agents.work / "pack/mod.py").write_text(
        textwrap.dedent("""
        class make:
            @staticmethod
            def steps(start):
                print("this goes to stderr and harms nobody")
                assert (yield {"type": "decision", "question": "q", "chosen": "c"}) is None
                bad = yield {"type": "step", "run": "exit 3"}
                assert bad["ok"] is False
                good = yield {"type": "step", "run": ["echo", bad["error"]]}
                assert good["output"] == "exit code 3\\n"
                yield {"type": "state", "state": start["state"]}
        """)
    )
    done = stage.agents.run("plan", "run", "plan.yaml", "--json").expect(0)
    assert [step["id"] for step in done.data["steps"]] == ["s2"]
    assert not list(stage.agents.work.rglob("__pycache__"))


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        ("return [{'type': 'step', 'run': 'touch b'}, {'type': 'done'}]", {"s1": "complete"}),
        ("return None", {}),
    ],
)
def test_a_callable_may_return_a_list_or_nothing(
    stage: Stage, body: str, steps: dict[str, str]
) -> None:
    stage.script("", actor="{python: 'mod:f'}")
    (stage.agents.work / "mod.py").write_text(f"def f(start):\n    {body}\n")
    stage.agents.run("plan", "run", "plan.yaml").expect(0)
    assert stage.steps() == steps


def test_a_callable_that_raises_ends_the_plan_with_its_words(stage: Stage) -> None:
    stage.script("", actor="{python: 'mod:f'}")
    (stage.agents.work / "mod.py").write_text("def f(start):\n    raise ValueError('no idea')\n")
    found = stage.agents.run("plan", "run", "plan.yaml", "--json").expect(5)
    assert found.data["error"]["message"].endswith("exit code 1: ValueError: no idea")


# what it is told when it starts anew


def test_after_a_rollback_the_actor_gets_the_state_and_the_steps_of_that_group(
    stage: Stage,
) -> None:
    stage.run(
        NOTE_START
        + """
n = start["state"] or 0
while n < 3:
    n += 1
    say(type="state", state=n)
    shell("echo %d >> count" % n, checkpoint="round-%d" % n)
say(type="done")
"""
    ).expect(0)
    assert (stage.sandbox / "count").read_text() == "1\n2\n3\n"
    stage.agents.run("plan", "rollback", "acted", "round-1", "--yes").expect(0)
    assert (stage.sandbox / "count").read_text() == "1\n"
    dry = stage.agents.run("plan", "resume", "acted", "--dry-run").expect(0)
    assert "what the actor asks for" in dry.stdout
    stage.resume().expect(0)
    assert (stage.sandbox / "count").read_text() == "1\n2\n3\n"
    first, second = stage.heard()
    assert (first["state"], first["done"]) == (None, [])
    assert second["state"] == 1
    assert [(item["id"], item["ok"], item["on"]) for item in second["done"]] == [
        ("s1", True, "app"),
        ("s2", True, "app"),
    ]
    assert second["done"][1]["with"] == {"command": "echo 1 >> count"}
    assert stage.steps() == dict.fromkeys(("s1", "s2", "s5", "s6", "s7"), "complete")


def test_undo_hands_back_the_state_as_well(stage: Stage) -> None:
    body = (
        NOTE_START
        + """
say(type="state", state=len(start["done"]))
say(type="done")
"""
    )
    stage.run(body).expect(0)
    stage.agents.run("plan", "rollback", "acted", "last", "--yes").expect(0)
    stage.resume().expect(0)
    assert query(store_of(stage.agents), "SELECT actor_state FROM plans") == [("1",)]
    stage.agents.run("plan", "undo", "acted").expect(0)
    assert query(store_of(stage.agents), "SELECT actor_state FROM plans") == [("0",)]


def intervene(agents: Agents, text: str) -> None:
    """What a correction leaves: a decision of the user's, in force."""
    with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as ws:
        plan = ws.find("acted").plan
        said = Decision(
            decision_id=new_id(),
            plan_id=plan.plan_id,
            kind=DecisionKind.USER_INTERVENTION,
            question="correct",
            chosen=text,
            created_at=ws.ctx.now(),
        )
        with working_on(ws.ctx.store, plan.plan_id, "test", ws.ctx.now) as leased:
            leased.commit(decisions=(said,), view_changed=True)


def test_guidance_in_force_reaches_the_actor_oldest_first(stage: Stage) -> None:
    stage.run(NOTE_START + "sys.exit(1 if not start['guidance'] else say(type='done'))").expect(5)
    intervene(stage.agents, "be brief")
    intervene(stage.agents, "in German")
    stage.resume().expect(0)
    assert [one["guidance"] for one in stage.heard()] == [[], ["be brief", "in German"]]


def test_guidance_reaches_the_tools_of_a_list_of_steps(stage: Stage) -> None:
    (stage.agents.work / "plan.yaml").write_text(
        "name: acted\nresources: {app: {kind: fs-directory, path: app}}\n"
        "steps: [{id: x, run: 'printf %s \"$AGENTS_GUIDANCE\" > said; test -s said'}]\n"
    )
    stage.agents.run("plan", "run", "plan.yaml").expect(5)
    intervene(stage.agents, "be brief")
    intervene(stage.agents, "in German")
    stage.resume().expect(0)
    assert (stage.sandbox / "said").read_text() == "be brief\nin German"


def test_a_correction_rolls_the_decision_back_and_tells_the_actor_why(stage: Stage) -> None:
    """State and files as they were at the decision; the other decision's step stays done."""
    stage.run(
        NOTE_START
        + """
names = [item["with"]["path"] for item in start["done"] if item["tool"] == "file.write"]
for n, name in enumerate(("one", "two", "three"), start=1):
    if name not in names:
        say(type="decision", question=name, chosen=str(start["guidance"]))
        write(name, name)
        say(type="state", state=n)
say(type="done")
"""
    ).expect(0)
    two = next(d for d in stage.tree() if d["question"] == "two")
    argv = ("plan", "correct", two["decision_id"], "--mode", "revert", "--guidance", "be brief")
    stage.agents.run(*argv, "--yes").expect(0)
    first, second = stage.heard()
    assert (first["guidance"], second["guidance"]) == ([], ["be brief"])
    assert [item["id"] for item in second["done"]] == ["s1", "s2", "s4"]
    assert second["state"] == 1
    assert stage.steps() == dict.fromkeys(("s1", "s2", "s4", "s5", "s6"), "complete")
    assert {"one", "two", "three"} <= set(os.listdir(stage.sandbox))
    again = next(d for d in stage.tree() if d["question"] == "two")
    assert again["chosen"] == "['be brief']"


def extra_file(stage: Stage) -> tuple[str, ...]:
    (stage.agents.work / "extra.yaml").write_text("name: extra\nsteps: [{run: touch extra}]\n")
    decision = stage.tree()[0]["decision_id"]
    argv = ("plan", "correct", decision, "--mode", "append", "--guidance", "more")
    return (*argv, "--plan-file", "extra.yaml", "--yes")


def test_what_is_appended_to_a_complete_plan_runs_without_the_actor(stage: Stage) -> None:
    stage.run(NOTE_START + "shell('exit 3')\nshell('touch b')\nsay(type='done')").expect(0)
    stage.agents.run(*extra_file(stage)).expect(0)
    assert len(stage.heard()) == 1
    assert sorted(os.listdir(stage.sandbox)) == ["a.txt", "b", "extra", "heard"]


def test_what_is_appended_to_an_errored_plan_comes_before_the_actor(stage: Stage) -> None:
    stage.run(NOTE_START + "say(type='done') if start['guidance'] else sys.exit(1)").expect(5)
    stage.agents.run(*extra_file(stage)).expect(0)
    _, second = stage.heard()
    assert second["guidance"] == ["more"]
    assert [item["tool"] for item in second["done"]] == ["shell", "subplan"]
    assert stage.agents.run("plan", "status", "acted", "--json").data["state"] == "complete"


# child plans


def test_an_actor_asks_for_child_plans(stage: Stage) -> None:
    (stage.agents.work / "child.yaml").write_text("name: child\nsteps: [{run: touch from-file}]\n")
    stage.run(
        """
        say(type="decision", question="split", chosen="two")
        say(type="subplan", file="child.yaml", id="filed")
        assert hear() == {"type": "result", "step": "filed", "ok": True, "output": "",
                          "error": None, "undone": False}
        say(type="subplan", steps=[{"tool": "mark"}, {"id": "x", "run": ["touch", "x"]}])
        assert hear()["ok"]
        say(type="subplan", steps=[{"run": "touch half; exit 3"}], id="bad")
        bad = hear()
        assert not bad["ok"] and "exit code 3" in bad["error"], bad
        shell("ls")
        say(type="done")
        """,
        "tools: {mark: {run: touch marked}}",
    ).expect(0)
    assert sorted(os.listdir(stage.sandbox)) == ["a.txt", "from-file", "marked", "x"]
    (split,) = stage.tree()
    assert split["steps"] == ["filed", "s1", "s2"]
    plans = stage.agents.run("plan", "list", "--json").data["plans"]
    states = {plan["name"]: plan["state"] for plan in plans}
    assert states == {
        "acted": "complete",
        "child": "complete",
        "acted/s1": "complete",
        "acted/bad": "cancelled",
    }


def test_a_child_plan_may_have_an_actor_of_its_own(stage: Stage) -> None:
    stage.script("write('b', start['plan']['name'])\nsay(type='done')")
    (stage.agents.work / "child.yaml").write_text(
        "name: child\nactor: {command: [python3, agent.py]}\n"
    )
    plan = stage.agents.work / "plan.yaml"
    text = plan.read_text().replace("actor: {command: [python3, agent.py]}", "")
    plan.write_text(text + "steps: [{id: c, subplan: {file: child.yaml}}]\n")
    stage.agents.run("plan", "run", "plan.yaml").expect(0)
    assert (stage.sandbox / "b").read_text() == "child"
    (stage.agents.work / "child.yaml").write_text("name: child\nactor: {command: [nothing]}\n")
    refused = stage.agents.run("plan", "use", "plan.yaml").expect(2)
    assert "step 'c': the actor: no such command: nothing" in refused.stderr


# reversion


def test_an_actor_may_ask_to_begin_anew_three_times(stage: Stage) -> None:
    body = """
        tries = len(start["guidance"])
        write("try", str(tries))
        say(type="state", state="forgotten")
        if tries < %d:
            assert start["state"] is None and start["done"] == [], start
            say(type="revert", reason="reason %%d" %% tries)
            hear()
        say(type="done")
    """
    done = stage.run(body % 3).expect(0)
    assert done.data["state"] == "complete"
    assert (stage.sandbox / "try").read_text() == "3"
    tree = stage.tree()
    reasons = [(d["question"], d["chosen"]) for d in tree if not d["steps"]]
    assert reasons == [("begin anew", f"reason {n}") for n in range(3)]
    assert [d["steps"] for d in tree if d["steps"]] == [["s4"]]
    kinds = query(store_of(stage.agents), "SELECT kind, state FROM decisions ORDER BY decision_id")
    assert kinds.count(("reversion", "active")) == 3
    assert kinds.count(("step", "superseded")) == 3


def test_the_fourth_reversion_is_an_error(stage: Stage) -> None:
    message = stage.fails("write('b', 'b')\nsay(type='revert', reason='again')\nhear()")
    assert message == "the actor asks to revert for the 4th time: again"
    assert (stage.sandbox / "b").exists()


def test_nothing_can_be_reverted_without_checkpoints(stage: Stage) -> None:
    message = stage.fails(
        "say(type='revert', reason='x')\nhear()", "policy: {rollback_enabled: false}"
    )
    assert message == "the actor asks to revert, and rollback_enabled is false"


EFFECTS = """
tools:
  send: {run: "echo sent >> $AGENTS_PLAN_DIR/out", side_effects: [mail], %s}
policy: {confine: off}
"""


def test_a_reversion_compensates_what_left_the_sandbox(stage: Stage) -> None:
    stage.run(
        """
        if not start["guidance"]:
            say(type="step", tool="send")
            hear()
            say(type="revert", reason="not yet")
            hear()
        say(type="done")
        """,
        EFFECTS % 'compensate: "echo taken back >> $AGENTS_PLAN_DIR/out"',
    ).expect(0)
    assert (stage.agents.work / "out").read_text() == "sent\ntaken back\n"


def test_an_actor_cannot_accept_a_loss(stage: Stage) -> None:
    message = stage.fails(
        "say(type='step', tool='send')\nhear()\nsay(type='revert', reason='x')\nhear()",
        EFFECTS % "idempotent: false",
    )
    assert message.startswith("the actor asks to revert what cannot be undone: step 's1', send")
    assert stage.steps() == {"s1": "complete"}


def test_a_step_that_would_need_an_impossible_checkpoint_is_refused(stage: Stage) -> None:
    message = stage.fails(
        "say(type='step', tool='odd')\nhear()", "tools: {odd: {run: ls, checkpointable: false}}"
    )
    assert message.startswith("the actor, line 1: step 's1': checkpoints are required")


def test_the_command_says_that_the_actor_begins_anew(stage: Stage) -> None:
    stage.script("""
        if not start["guidance"]:
            write("b", "b")
            say(type="revert", reason="too clever")
            hear()
        say(type="done")
    """)
    told = stage.agents.run("plan", "run", "plan.yaml").expect(0).stderr
    assert "< the actor starts over: too clever\n  rolled back 1 change\n" in told


# deaths of our own process


def test_killed_in_the_middle_the_actor_is_told_what_is_done_and_its_state(stage: Stage) -> None:
    marker = stage.agents.work / "go"
    stage.script(
        NOTE_START
        + f"""
say(type="decision", question="q", chosen="c")
say(type="state", state={{"round": len(start["done"])}})
write("b", "b")
say(type="decision", question="wait", chosen="long")
shell("touch residue; test -e {marker} || sleep {NAP}")
say(type="done")
"""
    )
    agents = stage.agents
    argv = [command(), "plan", "run", "plan.yaml"]
    with subprocess.Popen(argv, cwd=agents.work, env=agents.env) as process:
        wait_until(lambda: running_step(agents) == "s3", "the third step")
        wait_until(lambda: sleeping(NAP), "its tool")
        os.kill(process.pid, signal.SIGKILL)
    marker.touch()
    resumed = stage.resume().expect(0)
    assert not sleeping(NAP), "without a namespace the next command ends what was left"
    assert resumed.data["state"] == "complete"
    _, second = stage.heard()
    assert [item["id"] for item in second["done"]] == ["s1", "s2"]
    assert second["state"] == {"round": 0}
    assert second["guidance"] == []
    waits = [d["state"] for d in stage.tree("--show-superseded") if d["question"] == "wait"]
    assert waits == ["superseded", "active"]


def test_ctrl_c_while_the_actor_thinks_leaves_a_plan_to_resume(stage: Stage) -> None:
    stage.script(f"""
        if not start["done"]:
            write("b", "b")
            os.execvp("sleep", ["sleep", "{NAP}"])
        say(type="done")
    """)
    agents = stage.agents
    argv = [command(), "plan", "run", "plan.yaml"]
    with subprocess.Popen(argv, cwd=agents.work, env=agents.env, stderr=-1) as process:
        wait_until(lambda: sleeping(NAP), "the actor")
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 130
    assert not sleeping(NAP)
    assert stage.agents.run("plan", "status", "acted", "--json").data["state"] == "errored"
    stage.resume().expect(0)
    assert (stage.sandbox / "b").exists()


# the protocol by itself


def test_the_process_of_a_callable_speaks_lines_and_prints_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text(
        "def f(start):\n    print('aside')\n"
        "    result = yield {'type': 'step', 'run': start['state']}\n"
        "    yield {'type': 'state', 'state': result['output']}\n"
        "def g(start):\n    return [{'type': 'step', 'run': 'ls'}, {'type': 'done'}]\n"
    )

    def spoken(target: str, *lines: object) -> tuple[list[object], str, int]:
        done = subprocess.run(
            [sys.executable, pyactor.__file__, target],
            cwd=tmp_path,
            input="".join(json.dumps(line) + "\n" for line in lines),
            capture_output=True,
            text=True,
            check=False,
        )
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr, done.returncode

    step = {"type": "step", "run": "ls"}
    start, result = {"type": "start", "state": "ls"}, {"type": "result", "output": "x"}
    kept, done = {"type": "state", "state": "x"}, {"type": "done"}
    assert spoken("mod:f", start, result) == ([step, kept, done], "aside\n", 0)
    assert spoken("mod:g", start, result) == ([step, done], "", 0)
    assert spoken("mod:g", start) == ([step], "the executor is gone\n", 1)


class _Script:
    def __init__(self, *lines: bytes) -> None:
        self.lines = list(lines)
        self.sent: list[bytes] = []

    def send(self, line: bytes) -> None:
        self.sent.append(line)

    def receive(self) -> bytes:
        return self.lines.pop(0)


def test_a_wrong_line_is_shown_shortened_and_printable() -> None:
    actor = LineActor(_Script(b'{"type": "done"}', b"\x1b[31m" + b"x" * 500))
    assert msgspec.to_builtins(actor.ask()) == {"type": "done"}
    with pytest.raises(ActorFailed) as found:
        actor.ask()
    assert found.value.message.startswith("the actor, line 2: JSON is malformed")
    assert found.value.message.endswith("\\x1b[31m" + "x" * 115 + "...")
