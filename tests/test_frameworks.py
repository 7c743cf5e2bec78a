"""The OpenAI Agents SDK, Pydantic-AI and the Claude Agent SDK over a plan.

The examples run as they are; the rest is what they do not show: failures, parallel calls, a
rollback from outside and an undo of it.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cleveragents.errors import NotFound
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import open_workspace
from tests.agents.scripted_model import Call, Say, ScriptedModel
from tests.harness import Agents

EXAMPLES = Path(__file__).parents[1] / "examples/frameworks"


def run_example(agents: Agents, name: str, *argv: str, **env: str) -> str:
    (agents.work / "app").mkdir()
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "app", *argv],
        cwd=agents.work,
        env=agents.env | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The models of the examples."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import scripted

    return scripted


class Desk:
    """A folder in a plan, and a tool that writes to it and fails when told so."""

    def __init__(self, agents: Agents, plan: PlanHandle) -> None:
        self.agents, self.plan = agents, plan
        plan.here()
        self.app = Path(plan.sandboxes["app"])

    def write(self, name: str, text: str) -> str:
        """Write a file."""
        (self.app / name).write_text(text)
        if text == "bad":
            raise RuntimeError("no such luck")
        return f"wrote {text}"

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.app.iterdir()}

    def calls(self) -> list[tuple[str, str]]:
        return [(call.tool, str(call.state)) for call in self.plan.tool_calls()]

    def questions(self) -> list[str]:
        (root,) = self.agents.run("plan", "tree", "notes", "--json").expect(0).data["tree"]
        return [decision["question"] for decision in root["children"]]


@pytest.fixture
def desk(agents: Agents) -> Iterator[Desk]:
    (agents.work / "app").mkdir()
    with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as ws:
        yield Desk(agents, ws.plan("notes", resources={"app": "app"}, folder=agents.work))


class TestOpenAIAgents:
    agents_sdk = pytest.importorskip(
        "agents.run", reason="pip install 'cleveragents[openai-agents]'"
    )

    @contextmanager
    def session(self, desk: Desk) -> Iterator[Any]:
        from agents import SQLiteSession, set_tracing_disabled

        from cleveragents.integrations.openai_agents import PlanSession

        set_tracing_disabled(True)
        inner = SQLiteSession("S")
        made = PlanSession(desk.plan, inner)
        yield made
        made.close()
        inner.close()

    def agent(self, desk: Desk, model: Any, **options: Any) -> Any:
        from agents import Agent, function_tool

        return Agent(name="x", model=model, tools=[function_tool(desk.write, **options)])

    def test_the_example_runs(self, agents: Agents) -> None:
        assert run_example(agents, "openai_agent.py").splitlines() == [
            "then: two 8 items",
            "now: one 4 items",
            "again after ['user', 'function_call', 'function_call_output', 'message', 'user']",
        ]

    def test_a_rollback_from_outside_and_its_undo_take_the_session_along(
        self, desk: Desk, scripted: Any
    ) -> None:
        from agents import Runner

        async def body(session: Any) -> None:
            model = scripted.openai_model(["one", "two"], "done", ["three"], "done")
            agent = self.agent(desk, model)
            for text in ("go", "and on"):
                await Runner.run(agent, text, session=session, hooks=session.hooks)
            assert desk.calls() == [("write", "ok")] * 3
            assert desk.questions() == ["go", "and on"]
            assert len(await session.get_items()) == 10
            desk.agents.run("plan", "rollback", "notes", "first", "--yes").expect(0)
            assert desk.files() == {}
            desk.agents.run("plan", "undo", "notes").expect(0)
            assert len(await session.get_items()) == 10
            desk.agents.run("plan", "undo", "notes").expect(0)
            assert [item.get("role") for item in await session.get_items()][-1] == "assistant"
            assert len(await session.get_items()) == 6
            desk.agents.run("plan", "redo", "notes").expect(0)
            assert len(await session.get_items()) == 10
            assert desk.files() == {"a.txt": "three"}
            assert (await session.pop_item()) is not None
            await session.clear_session()

        with self.session(desk) as session:
            asyncio.run(body(session))

    def test_a_tool_that_ends_the_run_is_a_failed_step_and_nothing_stays_open(
        self, desk: Desk, scripted: Any
    ) -> None:
        from agents import Runner, UserError

        agent = self.agent(
            desk, scripted.openai_model(["bad"], "done"), failure_error_function=None
        )
        with self.session(desk) as session:
            parts = [{"type": "input_text", "text": "go"}]
            asked: Any = [{"role": "user", "content": parts}]
            with pytest.raises((RuntimeError, UserError), match="no such luck"):
                asyncio.run(Runner.run(agent, asked, session=session, hooks=session.hooks))
        assert desk.calls() == [("write", "failed")]
        assert desk.questions() == ["go"]
        desk.agents.run("plan", "rollback", "notes", "first", "--yes").expect(0)
        assert desk.files() == {}

    def test_inputs_that_are_no_object_are_kept_as_they_are(self) -> None:
        from cleveragents.integrations.openai_agents import hooks

        assert hooks.inputs_of('{"a": 1}') == {"a": 1}
        assert hooks.inputs_of("[1]") == {"input": [1]}
        assert hooks.inputs_of("text") == {"input": "text"}


class TestPydanticAI:
    pydantic_ai = pytest.importorskip("pydantic_ai", reason="pip install 'cleveragents[model]'")

    @contextmanager
    def agent(self, desk: Desk, model: Any) -> Iterator[tuple[Any, Any]]:
        from pydantic_ai import Agent

        from cleveragents.integrations.pydantic_ai import PlanCapability

        follow = PlanCapability(desk.plan)
        made = Agent(model, capabilities=[follow])
        made.tool_plain(desk.write)
        yield made, follow
        follow.close()

    def test_the_example_runs(self, agents: Agents) -> None:
        assert run_example(agents, "pydantic_agent.py").splitlines() == [
            "then: two 8 messages",
            "now: one 4 messages",
            "again",
        ]

    def test_a_point_inside_a_run_has_the_messages_up_to_it(
        self, desk: Desk, scripted: Any
    ) -> None:
        model = scripted.pydantic_model(["one"], ["two", "three"], "done")
        with self.agent(desk, model) as (agent, follow):
            asyncio.run(agent.run("go"))
            assert desk.calls() == [("write", "ok")] * 3
            assert desk.questions() == ["go"]
            desk.agents.run("plan", "rollback", "notes", "@{2 steps ago}", "--yes").expect(0)
            assert desk.files() == {"a.txt": "one"}
            kinds = [part.part_kind for message in follow.messages() for part in message.parts]
            assert kinds == ["user-prompt"]

    def test_a_tool_that_fails_is_a_failed_step(self, desk: Desk, scripted: Any) -> None:
        with self.agent(desk, scripted.pydantic_model(["bad"], "done")) as (agent, _):
            with pytest.raises(RuntimeError, match="no such luck"):
                asyncio.run(agent.run(["go"]))
            assert desk.calls() == [("write", "failed")]
            assert desk.questions() == ["input"]

    def test_a_conversation_that_is_too_long_is_said_to_be(self, desk: Desk, scripted: Any) -> None:
        with self.agent(desk, scripted.pydantic_model("done")) as (agent, follow):
            assert follow.messages() == []
            asyncio.run(agent.run("x" * 300_000))
            with pytest.raises(NotFound, match="too long to be kept"):
                follow.messages()


class TestClaudeAgentSDK:
    sdk = pytest.importorskip(
        "claude_agent_sdk", reason="pip install 'cleveragents[claude-agent-sdk]'"
    )

    def test_the_example_runs_and_the_model_forgets_what_was_undone(self, agents: Agents) -> None:
        def shell(text: str) -> Call:
            return Call("Bash", {"command": f"echo {text} > a.txt", "description": "write"})

        scripts: Any = {
            "one": [[shell("one")], [Say("first is done")]],
            "two": [[shell("two")], [Say("second is done")]],
            "three": [[Say("again")]],
        }
        with ScriptedModel(scripts) as model:
            said = run_example(
                agents,
                "claude_agent.py",
                *(f"SCRIPT:{name} go" for name in scripts),
                ANTHROPIC_BASE_URL=model.url,
                ANTHROPIC_API_KEY="sk-scripted",
                CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
                IS_SANDBOX="1",
            )
            last = model.with_tools()[-1]
        assert said.splitlines()[-1] == "SCRIPT:three go -> again"
        assert "first is done" in last.said
        assert "SCRIPT:two" not in last.said
        status = agents.run("plan", "status", "notes", "--json").expect(0).data
        assert [step["status"] for step in status["progress"]] == ["complete"]
        assert (Path(status["sandboxes"]["app"]) / "a.txt").read_text() == "one\n"

    def test_hooks_and_messages_become_steps_and_points(self, desk: Desk) -> None:
        from claude_agent_sdk import AssistantMessage, TextBlock, UserMessage

        from cleveragents.integrations.claude_agent_sdk import ClaudePlan

        claude = ClaudePlan(desk.plan)
        hook: Callable[..., Any] = claude.hooks["PreToolUse"][0].hooks[0]

        async def tell(event: str, key: str | None = None, **more: Any) -> None:
            assert (
                await hook({"hook_event_name": event, "session_id": "S", **more}, key, None) == {}
            )

        async def messages() -> AsyncIterator[Any]:
            await tell("UserPromptSubmit", prompt="go")
            for key, event in (("c1", "PostToolUse"), ("c2", "PostToolUseFailure")):
                await tell("PreToolUse", key, tool_name="Bash", tool_input={"command": "x"})
                desk.write("a", key)
                await tell(event, key, tool_response="ok", error="exit code 1")
                yield AssistantMessage(content=[TextBlock("so")], model="m", uuid=f"a-{key}")
                yield UserMessage(content="result", uuid=f"u-{key}")
            await tell("PreToolUse", "c3", tool_name="Read", tool_input={})

        async def run() -> None:
            assert claude.resume() == {}
            assert len([each async for each in claude.follow(messages())]) == 4

        asyncio.run(run())
        assert desk.questions() == ["go"]
        claude.close()
        assert desk.calls() == [("Bash", "ok"), ("Bash", "failed"), ("Read", "failed")]
        again = ClaudePlan(desk.plan)
        assert again.resume() == {
            "resume": "S",
            "resume_session_at": "u-c2",
            "fork_session": True,
        }
        again.close()


def test_importing_us_imports_none_of_them() -> None:
    code = (
        "import sys, cleveragents.workspace, cleveragents.cli.main, cleveragents.integrations\n"
        "names = ('langgraph', 'agents', 'pydantic_ai', 'claude_agent_sdk', 'mcp', 'pydantic')\n"
        "print([name for name in names if name in sys.modules])"
    )
    env = {**os.environ}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("adapter", "module", "extra"),
    [
        ("langgraph", "langchain", "langgraph"),
        ("openai_agents", "agents", "openai-agents"),
        ("pydantic_ai", "pydantic_ai", "model"),
        ("claude_agent_sdk", "claude_agent_sdk", "claude-agent-sdk"),
    ],
)
def test_an_adapter_without_its_framework_says_what_to_install(
    adapter: str, module: str, extra: str
) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; import cleveragents.integrations.{adapter}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"ModuleNotFoundError: no module named '{module}")
    assert said.endswith(f": pip install 'cleveragents[{extra}]'")
