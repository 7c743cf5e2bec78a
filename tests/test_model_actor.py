"""An actor on a language model: a real process against a scripted provider on loopback."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Agents, Outcome
from tests.schemas import wrong_with
from tests.scripted_provider import ScriptedProvider, Turn, scripted

pytest.importorskip("pydantic_ai", reason="pip install 'cleveragents[model]'")

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from cleveragents.actors import model
from cleveragents.actors.model_loop import BudgetSpent, Loop
from cleveragents.actors.model_talk import LARGEST_STATE, LEFT_OUT, LONGEST_OUTPUT
from cleveragents.model.plan_spec import ActorSpec

KEY = "sk-test-0123456789abcdef"
PLAN = """
name: told
resources:
  app: {kind: fs-directory, path: app}
  db: {kind: sqlite, path: app.db}
tools:
  greet: {run: [echo, hello], read_only: true, description: say hello}
actor: {model: "anthropic:scripted", goal: "SCRIPT:edit please"}
"""


def write(path: str, content: str) -> tuple[str, dict[str, Any]]:
    return "file_write", {"on": "app", "path": path, "content": content}


DECIDE = (
    "decide",
    {"question": "which name", "chosen": "b", "alternatives": ["c"], "confidence": 0.7},
)
EDIT: list[Turn] = [
    [DECIDE, write("b.txt", "one\n")],
    [
        write("c.txt", "x\n"),
        ("shell", {"on": "app", "command": "cat a.txt b.txt c.txt; rm a.txt"}),
        ("sql", {"on": "db", "script": "INSERT INTO notes VALUES ('first')"}),
    ],
    [("greet", {"on": "app", "args": ["you"]})],
    "all done",
]
ADVICE = "Correction by the person you work for: "


class Stage:
    """A folder and a database, and a plan whose actor is a model that answers from a script."""

    def __init__(self, agents: Agents, provider: ScriptedProvider) -> None:
        self.agents, self.provider = agents, provider
        self.app = agents.work / "app"
        self.app.mkdir()
        (self.app / "a.txt").write_text("a\n")
        with sqlite3.connect(agents.work / "app.db") as db:
            db.execute("CREATE TABLE notes (text TEXT)")
        db.close()
        (agents.work / "plan.yaml").write_text(PLAN)

    def run(self, *argv: str, **options: Any) -> Outcome:
        env = self.provider.environment(KEY) | options.pop("env", {})
        return self.agents.run(*argv, "--json", env=env, **options)

    def files(self) -> dict[str, str]:
        found = self.run("plan", "status", "told").expect(0).data["sandboxes"]
        return {path.name: path.read_text() for path in Path(found["app"]).iterdir()}

    def notes(self) -> list[str]:
        found = self.run("plan", "status", "told").expect(0).data["sandboxes"]
        with sqlite3.connect(found["db"]) as db:
            rows = [text for (text,) in db.execute("SELECT text FROM notes")]
        db.close()
        return rows

    def group_after(self, step_index: int) -> str:
        rows = self.run("plan", "checkpoints", "told").expect(0).data["checkpoints"]
        return next(
            row["group_id"]
            for row in rows
            if row["type"] == "after_tool_execute" and row["step_index"] == step_index
        )


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with scripted({"edit": [*EDIT], "other": [[write("d.txt", "d\n")], "as you like"]}) as found:
        yield found


@pytest.fixture
def stage(agents: Agents, provider: ScriptedProvider) -> Stage:
    return Stage(agents, provider)


TO_C = [
    ("user", "SCRIPT:edit please"),
    ("assistant", "decide"),
    ("assistant", "file_write"),
    ("tool", "recorded"),
    ("tool", "wrote b.txt (4 bytes)\n"),
    ("assistant", "file_write"),
    ("tool", "wrote c.txt (2 bytes)\n"),
]


def test_a_model_works_with_the_plans_tools_and_its_key_is_kept_nowhere(stage: Stage) -> None:
    done = stage.run("plan", "run", "plan.yaml").expect(0)
    assert done.data["state"] == "complete"
    assert [step["tool"] for step in done.data["steps"]] == [
        "file.write",
        "file.write",
        "shell",
        "sql",
        "greet",
    ]
    assert stage.files() == {"b.txt": "one\n", "c.txt": "x\n"}
    assert (stage.app / "a.txt").exists()
    assert stage.notes() == ["first"]
    assert stage.provider.seen[-1][-1] == ("tool", "hello you\n")
    (root,) = stage.run("plan", "tree", "told").expect(0).data["tree"]
    assert root["chosen"] == "what anthropic:scripted decides"
    first, second, third = root["children"]
    assert (first["question"], first["steps"]) == ("which name", ["s1"])
    assert second["steps"] == ["s2", "s3", "s4"]
    assert third["chosen"] == "greet app"
    told = stage.run("plan", "explain", first["decision_id"]).expect(0).data
    assert (told["alternatives"], told["confidence"]) == (["c"], 0.7)
    assert set(stage.provider.keys) == {KEY}
    said = [done, stage.run("plan", "status", "told"), stage.run("plan", "log", "told")]
    assert not [each for each in said if KEY in each.stdout + each.stderr]
    assert_stored_nowhere(stage, KEY)


def assert_stored_nowhere(stage: Stage, text: str) -> None:
    places = [Path(stage.agents.env["CLEVERAGENTS_HOME"]), Path(stage.agents.env["HOME"])]
    found = [path for top in places for path in top.rglob("*") if path.is_file()]
    assert any(path.name == "store.db" for path in found)
    assert [path for path in found if text.encode() in path.read_bytes()] == []


def test_rolled_back_inside_a_turn_the_conversation_continues_there(stage: Stage) -> None:
    stage.run("plan", "run", "plan.yaml").expect(0)
    stage.run("plan", "rollback", "told", stage.group_after(1), "--yes").expect(0)
    assert stage.files() == {"a.txt": "a\n", "b.txt": "one\n", "c.txt": "x\n"}
    assert stage.notes() == []
    before = len(stage.provider.seen)
    stage.provider.scripts["edit"][2:] = ["enough"]
    stage.run("plan", "resume", "told").expect(0)
    assert stage.provider.seen[before:] == [TO_C]
    stage.run("plan", "undo", "told").expect(0)
    stage.run("plan", "undo", "told").expect(0)
    assert stage.files() == {"b.txt": "one\n", "c.txt": "x\n"}
    assert stage.notes() == ["first"]


def test_a_correction_reaches_the_model_at_the_decision_and_nothing_after_it(stage: Stage) -> None:
    stage.run("plan", "run", "plan.yaml").expect(0)
    (root,) = stage.run("plan", "tree", "told").expect(0).data["tree"]
    before = len(stage.provider.seen)
    second = root["children"][1]["decision_id"]
    guidance = "SCRIPT:other, and leave a.txt alone"
    how = ("--mode", "revert", "--guidance", guidance, "--cascade", "--yes")
    stage.run("plan", "correct", second, *how).expect(0)
    assert stage.files() == {"a.txt": "a\n", "b.txt": "one\n", "d.txt": "d\n"}
    assert stage.notes() == []
    asked = stage.provider.seen[before]
    assert asked == [*TO_C[:5], ("user", f"{ADVICE}{guidance}")]


def test_do_makes_a_plan_of_a_goal(stage: Stage, provider: ScriptedProvider) -> None:
    provider.scripts["solo"] = [[("file_write", {"path": "b", "content": ""})], "it is there"]
    env = {"CLEVERAGENTS_ACTORS_MODEL": "openai:scripted"}
    done = stage.run("do", "SCRIPT:solo, make b!", "--on", "app", env=env).expect(0)
    assert not wrong_with(done.json, is_closed=True)
    assert (done.data["answer"], done.data["name"]) == ("it is there", "script-solo-make-b")
    stage.agents.run("plan", "apply", "last", "--yes").expect(0)
    assert (stage.app / "b").exists()


def test_a_spent_budget_stops_the_plan_and_resume_has_a_new_one(stage: Stage) -> None:
    stopped = stage.run("do", "SCRIPT:edit", "--model", "openai-chat:x", "--max-steps", "1")
    # Of one resource nothing says `on`; that the script does is the model's mistake.
    error = stopped.expect(5).data["error"]
    assert "the budget of 1 steps is used up" in error["message"], error
    assert "plan resume" in error["hint"]


def test_what_the_provider_says_is_shown_without_the_key(stage: Stage) -> None:
    stage.provider.refuse_with = "incorrect key {key}"
    failed = stage.run("plan", "run", "plan.yaml").expect(5)
    assert "incorrect key ***" in failed.data["error"]["message"], failed
    assert KEY not in failed.stdout + failed.stderr
    assert_stored_nowhere(stage, KEY)


def test_what_cannot_be_asked_is_said_before_anything_starts(stage: Stage) -> None:
    def told(*argv: str, env: Mapping[str, str] = {}) -> dict[str, Any]:
        return stage.run(*argv, env=env).expect(2).data["error"]

    assert told("do", "x")["message"] == "no model is named"
    assert "config set actors.model" in told("do", "x")["hint"]
    assert told("do", "x", "--model", "gpt")["message"] == "not a model: 'gpt'"
    assert told("do", " ", "--model", "a:b")["message"] == "the goal is empty"
    env = {"CLEVERAGENTS_ACTORS_MODEL": "gpt"}
    assert (
        "'provider:name'" in stage.run("plan", "list", env=env).expect(2).data["error"]["message"]
    )
    file = stage.agents.work / "plan.yaml"
    for actor, said in (
        ('{model: "a:b"}', "'goal' is missing"),
        ("{model: gpt, goal: x}", "'model' has to be 'provider:name'"),
        ('{model: "a:b", goal: x, max_steps: 0}', "'max_steps' has to be 1 or more"),
        ("{goal: x}", "'goal' does not go with an actor of kind 'steps'"),
        ('{model: "a:b", goal: x, python: "m:f"}', "does not go with an actor of kind"),
    ):
        file.write_text(PLAN[: PLAN.index("actor:")] + f"actor: {actor}\n")
        assert said in str(told("plan", "run", "plan.yaml")), actor


def test_without_the_extra_the_line_to_type_is_named() -> None:
    """In a Python that finds no pydantic_ai: the whole check, before a plan is stored."""
    code = (
        "import sys; sys.modules['pydantic_ai'] = None\n"
        "from importlib import util; util.find_spec = lambda name: None\n"
        "from cleveragents.actors import model\n"
        "from cleveragents.model.plan_spec import ActorSpec\n"
        "print(model.problem_with(ActorSpec(), '.'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'cleveragents[model]'" in done.stdout


def test_only_the_providers_own_variables_reach_the_actor() -> None:
    environ = {
        "OPENAI_API_KEY": "sk-aaaaaaaa",
        "OPENAI_BASE_URL": "http://x",
        "ANTHROPIC_API_KEY": "b",
        "GEMINI_API_KEY": "c",
        "GITHUB_TOKEN": "d",
        "https_proxy": "http://me:pass@proxy",
        "HOME": "/h",
    }

    def names(of: str) -> set[str]:
        return set(model.variables_of(ActorSpec(model=of), environ))

    assert names("openai:x") == {"OPENAI_API_KEY", "OPENAI_BASE_URL", "https_proxy"}
    assert names("openai-responses:x") == names("openai:x")
    assert names("anthropic:x") == {"ANTHROPIC_API_KEY", "https_proxy"}
    assert names("google:x") == {"GEMINI_API_KEY", "https_proxy"}
    assert set(model.secrets_of(environ)) == {"sk-aaaaaaaa", "http://me:pass@proxy"}


# the loop, with a model in this process


class Bench:
    """The loop against a function for a model and a dict for an executor."""

    def __init__(self, *turns: Turn, resources: int = 1) -> None:
        self.turns, self.said, self.seen = list(turns), list[dict[str, Any]](), list[Any]()
        tools = {
            "file.write": {"description": "", "with": {"path": {"type": "path", "required": True}}},
            "own": {"description": "mine", "with": None},
        }
        names = {f"r{n}": "fs-directory" for n in range(resources)}
        self.plan = {"resources": names, "tools": tools, "goal": "do it"}
        self.results: list[dict[str, Any]] = []

    def ask(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.seen.append((messages, info))
        turn = self.turns.pop(0)
        if isinstance(turn, str):
            return ModelResponse([TextPart(turn)])
        calls = [ToolCallPart(name, given, f"c{n}") for n, (name, given) in enumerate(turn)]
        return ModelResponse([TextPart("so"), *calls])

    def hear(self) -> dict[str, Any]:
        number = sum(each["type"] == "step" for each in self.said)
        default = {"step": f"s{number}", "ok": True, "output": "fine", "undone": False}
        return default | (self.results.pop(0) if self.results else {})

    def run(self, state: Any = None, steps: int = 9, tokens: int = 10**9, **start: Any) -> None:
        loop = Loop(FunctionModel(self.ask), self.said.append, self.hear, steps, tokens)
        full = {"plan": self.plan, "state": json.loads(json.dumps(state)), "guidance": []}
        loop.run({**full, "done": [], **start})

    def state(self, number: int = -1) -> dict[str, Any]:
        return [each["state"] for each in self.said if each["type"] == "state"][number]

    def prompt(self, number: int = -1) -> str:
        """All texts of a request."""
        return "\n".join(
            str(getattr(part, "content", ""))
            for message in self.seen[number][0]
            for part in message.parts
        )


def test_mistakes_of_the_model_are_told_to_it() -> None:
    broken: Any = ("own", "{not json")
    bench = Bench(
        [("nothing", {}), broken, ("decide", {"question": 1}), ("file_write", {"path": None})],
        "ok",
    )
    bench.results = [{"step": "", "ok": False, "error": "input 'path' is missing", "output": ""}]
    bench.run()
    assert [each["type"] for each in bench.said].count("step") == 1
    told = bench.prompt()
    assert "there is no tool 'nothing'" in told
    assert "the arguments of own are not a JSON object" in told
    assert "a decision has a question" in told
    assert "failed: input 'path' is missing" in told
    assert bench.state()["steps"] == []


def test_tools_are_offered_under_names_that_providers_allow() -> None:
    bench = Bench("ok", resources=2)
    bench.plan["tools"] |= {"file_write": {"description": "", "with": {}}}
    bench.run()
    offered = {tool.name: tool.parameters_json_schema for tool in bench.seen[0][1].function_tools}
    assert set(offered) == {"decide", "file_write", "own", "file_write_"}
    assert offered["file_write"]["properties"]["on"]["enum"] == ["r0", "r1"]
    assert offered["file_write"]["required"] == ["path", "on"]
    assert offered["own"]["additionalProperties"] is True


def test_a_step_that_is_done_is_the_answer_to_the_open_call() -> None:
    bench = Bench([("file_write", {"path": "a"}), ("own", {})], "ok")
    bench.run()
    state = bench.state(1)  # as it was kept before the first call
    long = "x" * (LONGEST_OUTPUT + 1)
    done = {"id": "s1", "tool": "file.write", "on": "r0", "with": {"path": "a"}, "ok": True}
    other = {**done, "id": "s9", "with": {"path": "kept"}}
    again = Bench("ok")
    again.run(state, done=[{**done, "output": long}, {**other, "output": ""}], guidance=["soft"])
    assert f"{LONGEST_OUTPUT:,} characters" in again.prompt()
    assert long[1:] in again.prompt()
    assert long not in again.prompt()
    assert f"{ADVICE}soft" in again.prompt()
    assert '"path": "kept"' in again.prompt()
    assert again.state()["steps"] == ["s1", "s9"]
    calls = [p for m in again.seen[0][0] for p in m.parts if isinstance(p, ToolCallPart)]
    assert [call.tool_name for call in calls] == ["file_write"]
    unlike = Bench("ok")
    unlike.run(state, done=[{**other, "output": ""}])
    assert [m.kind for m in unlike.seen[0][0]] == ["request"]


def test_after_its_answer_the_model_is_asked_to_continue() -> None:
    bench = Bench("first answer")
    bench.run()
    assert bench.state()["said"] == "first answer"
    again = Bench("second answer")
    again.run(bench.state())
    assert again.prompt().endswith("first answer\nContinue.")
    assert again.state()["said"] == "second answer"


def test_a_long_conversation_stays_within_what_is_kept() -> None:
    count = 60
    turns: list[Turn] = [[("own", {"n": n, "text": "y" * 9_000})] for n in range(count)]
    bench = Bench(*turns, "ok")
    bench.results = [{"output": "z" * 9_000} for _ in range(count)]
    bench.run(steps=count)
    sizes = [len(json.dumps(each)) for each in bench.said if each["type"] == "state"]
    assert max(sizes) < LARGEST_STATE + 10_000
    assert LEFT_OUT in bench.prompt()
    assert bench.prompt().startswith("You work towards a goal")
    huge = Bench([("own", {"text": "y" * 300_000})], "ok")
    huge.run()
    assert max(len(json.dumps(each)) for each in huge.said if each["type"] == "state") < 256 << 10


def test_whole_turns_go_when_nothing_else_can() -> None:
    count = 160
    turns: list[Turn] = [[("own", {"text": "y" * 390, "more": "y" * 390})] for n in range(count)]
    bench = Bench(*turns, "ok")
    bench.results = [{"output": "z" * 390} for _ in range(count)]
    bench.run(steps=count)
    messages = bench.state()["messages"]
    assert len(messages) < 2 * count
    assert [m["kind"] for m in messages[:3]] == ["request", "response", "request"]


def test_the_budget_of_tokens_is_counted() -> None:
    bench = Bench(*[[("own", {})]] * 5, "ok")
    with pytest.raises(BudgetSpent, match="the budget of 1 tokens is used up"):
        bench.run(tokens=1)
    assert [each["type"] for each in bench.said].count("step") == 1
