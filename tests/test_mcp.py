"""`agents mcp` as the official client sees it: over standard input and output, and in process."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cleveragents.integrations.events import OWN_TOOLS, Prompt, Quiet, StepBegins
from cleveragents.integrations.observer import Observer
from cleveragents.integrations.session import session_plan
from cleveragents.model.conversation import Anchor
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import open_workspace
from tests.harness import PATIENCE, Agents, command

pytest.importorskip("mcp", reason="pip install 'cleveragents[mcp]'")

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import ElicitResult

from cleveragents.integrations.mcp.server import server

TOOLS = {
    "checkpoint_create",
    "checkpoint_list",
    "checkpoint_diff",
    "plan_status",
    "plan_rollback",
    "plan_undo",
    "record_decision",
}


class Desk:
    """A plan of a program over one folder, and a client of the server."""

    def __init__(self, agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
        self.agents = agents
        self.home = agents.env["CLEVERAGENTS_HOME"]
        self.app = agents.work / "app"
        self.app.mkdir()
        (self.app / "a.txt").write_text("a\n")
        monkeypatch.chdir(self.app)
        with open_workspace(self.home) as ws:
            plan = ws.plan("notes", resources={"app": "."})
            for name in ("one", "two"):
                with plan.step("write", {"name": name}):
                    (Path(plan.sandboxes["app"]) / name).write_text(name)
            self.sandbox = Path(plan.sandboxes["app"])

    def names(self) -> list[str]:
        return sorted(path.name for path in self.sandbox.iterdir())

    def talk(self, body: Callable[[Client], Awaitable[None]], **options: Any) -> None:
        """With the server in this process."""

        async def run() -> None:
            async with Client(server(self.home), **options) as client:
                await body(client)

        asyncio.run(run())


@pytest.fixture
def desk(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(agents, monkeypatch)


async def call(client: Client, tool: str, /, **given: Any) -> Any:
    result = await client.call_tool(tool, given)
    text = "\n".join(getattr(part, "text", "") for part in result.content)
    if result.is_error:
        raise LookupError(text)
    # A client without structured output reads the same from the text.
    assert json.loads(text) == result.structured_content
    return result.structured_content


def test_the_official_client_rolls_back_over_standard_input_and_output(desk: Desk) -> None:
    async def body(client: Client) -> None:
        listed = (await client.list_tools()).tools
        assert {tool.name for tool in listed} == TOOLS
        hints = {tool.name: tool.annotations for tool in listed}
        assert hints["plan_status"].read_only_hint
        assert hints["plan_rollback"].destructive_hint
        assert hints["checkpoint_create"].destructive_hint is False
        assert all(tool.output_schema for tool in listed)
        status = await call(client, "plan_status")
        assert (status["name"], [s["tool"] for s in status["steps"]]) == ("notes", ["write"] * 2)
        made = await call(client, "checkpoint_create", label="good")
        groups = (await call(client, "checkpoint_list", limit=3))["checkpoints"]
        assert groups[-1]["label"] == "good"
        assert groups[-1]["id"] == made["id"]
        one = next(group for group in groups if group["step"] == "s1")
        seen = await call(client, "checkpoint_diff", start=one["id"])
        assert seen["paths"] == ["two"]
        would = await call(client, "plan_rollback", checkpoint=one["id"])
        assert not would["done"]
        assert would["command"][:3] == ["agents", "plan", "rollback"]
        assert desk.names() == ["a.txt", "one", "two"]
        wrong = await call(client, "plan_rollback", checkpoint=one["id"], confirm="last")
        assert not wrong["done"]
        done = await call(client, "plan_rollback", checkpoint=one["id"], confirm=one["id"])
        assert done["done"]
        assert done["paths"] == ["removed: app: two"]
        assert desk.names() == ["a.txt", "one"]
        assert (await call(client, "plan_undo"))["done"]
        assert desk.names() == ["a.txt", "one", "two"]
        plans = await client.read_resource("plans://all")
        assert json.loads(plans.contents[0].text)[0]["name"] == "notes"
        diff = await client.read_resource("plan://notes/diff")
        assert "+++ b/two" in diff.contents[0].text
        one_plan = await client.read_resource("plan://notes")
        assert json.loads(one_plan.contents[0].text)["name"] == "notes"

    async def run() -> None:
        started = StdioServerParameters(
            command=command(), args=["mcp"], env=desk.agents.env, cwd=desk.app
        )
        async with Client(started) as client:
            await body(client)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_decision_has_its_alternatives_and_a_group(desk: Desk) -> None:
    async def body(client: Client) -> None:
        made = await call(
            client,
            "record_decision",
            question="which store",
            chosen="sqlite",
            alternatives=["json"],
            confidence=0.8,
        )
        told = desk.agents.run("plan", "explain", made["decision_id"], "--json").expect(0).data
        assert (told["chosen"], told["alternatives"], told["confidence"]) == (
            "sqlite",
            ["json"],
            0.8,
        )
        groups = (await call(client, "checkpoint_list"))["checkpoints"]
        assert (groups[-1]["id"], groups[-1]["question"]) == (made["checkpoint"], "which store")
        with pytest.raises(LookupError, match="confidence"):
            await call(client, "record_decision", question="q", chosen="c", confidence=7)

    desk.talk(body)


@pytest.mark.parametrize(("agrees", "mode"), [(True, "auto"), (False, "auto"), (True, "legacy")])
def test_a_client_that_can_ask_its_person_does(desk: Desk, agrees: bool, mode: str) -> None:
    asked: list[str] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"restore": agrees})

    async def body(client: Client) -> None:
        first = (await call(client, "checkpoint_list"))["checkpoints"][0]["id"]
        done = await call(client, "plan_rollback", checkpoint=first, confirm=first)
        assert done["done"] is agrees
        assert len(asked) == 1
        assert desk.names() == (["a.txt"] if agrees else ["a.txt", "one", "two"])
        if not agrees:
            with pytest.raises(LookupError, match="the person declined"):
                await call(client, "plan_undo")

    desk.talk(body, elicitation_callback=answer, mode=mode)


def test_what_goes_wrong_is_told_with_the_hint(desk: Desk) -> None:
    async def body(client: Client) -> None:
        with pytest.raises(LookupError, match=r"no plan 'note', did you mean 'notes'\?.*hint:"):
            await call(client, "plan_status", plan="note")

    desk.talk(body)


class Watched:
    """A session of an agent over the same folder, of which we hear as of any other."""

    def __init__(self, desk: Desk, pid: int) -> None:
        self.anchor = Anchor(agent="claude-code", session_id="S1")
        self.where = str(desk.app)
        self.pid = pid

    def tell(self, observer: Observer, event: Any) -> None:
        observer.handle(event, pid=self.pid)

    def prompt(self, observer: Observer) -> None:
        self.tell(observer, Prompt(anchor=self.anchor, cwd=self.where, text="write b"))


def watched_plan(desk: Desk, ws: Any, body: Callable[[Observer, Watched], None]) -> PlanHandle:
    import os

    observer = Observer(ws.ctx, lambda ctx, anchor, cwd: session_plan(ctx, anchor, cwd, None, {}))
    body(observer, Watched(desk, os.getpid()))
    observer.close()
    return ws.find("S1")


def test_inside_its_own_turn_an_agent_is_given_the_command(desk: Desk) -> None:
    def begin(observer: Observer, session: Watched) -> None:
        session.prompt(observer)
        own = {"anchor": session.anchor, "cwd": session.where, "inputs": {}}
        session.tell(observer, StepBegins(call="c1", tool="mcp__agents__plan_rollback", **own))

    with open_workspace(desk.home) as ws:
        plan = watched_plan(desk, ws, begin)
        first = plan.group("first").group_id

        async def body(client: Client) -> None:
            told = await call(client, "plan_rollback", plan="S1", checkpoint=first, confirm=first)
            assert not told["done"]
            assert "your memory of it cannot be rewound" in told["say"]
            assert told["command"] == ["agents", "plan", "rollback", plan.plan_id, first, "--yes"]
            with pytest.raises(LookupError, match=f"agents plan undo {plan.plan_id}"):
                await call(client, "plan_undo", plan="S1")
            made = await call(client, "record_decision", plan="S1", question="q", chosen="c")
            assert made["plan_id"] == plan.plan_id
            assert (await call(client, "checkpoint_create", plan="S1", label="mine"))["here"]

        desk.talk(body)
        assert plan.tool_calls() == []

        def end(observer: Observer, session: Watched) -> None:
            session.tell(observer, Quiet(anchor=session.anchor, said="done"))

        watched_plan(desk, ws, end)

        async def after(client: Client) -> None:
            done = await call(client, "plan_rollback", plan="S1", checkpoint=first, confirm=first)
            assert done["done"]

        desk.talk(after)


@pytest.mark.parametrize(
    "name",
    ["plan_status", "mcp__agents__plan_status", "mcp__agentsplan_undo", "agents_checkpoint_diff"],
)
def test_our_own_tools_are_known_under_the_names_agents_give_them(name: str) -> None:
    assert OWN_TOOLS.fullmatch(name)


@pytest.mark.parametrize("name", ["Write", "explan_status", "plan_status_more", "mcp__x__create"])
def test_other_tools_are_not_ours(name: str) -> None:
    assert not OWN_TOOLS.fullmatch(name)


def test_without_the_extra_the_line_to_type_is_named(desk: Desk) -> None:
    hidden = desk.agents.work / "sitecustomize.py"
    hidden.write_text(
        "from importlib import util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'mcp' else find(name, *more)\n"
    )
    env = {"PYTHONPATH": str(hidden.parent)}
    failed = desk.agents.run("mcp", "--json", env=env).expect(2)
    assert failed.data["error"]["hint"] == "pip install 'cleveragents[mcp]'"


def test_nothing_else_imports_the_protocol() -> None:
    import subprocess

    code = (
        "import sys, cleveragents.cli.main, cleveragents.workspace, cleveragents.cli.serve\n"
        "print([name for name in ('mcp', 'pydantic', 'anyio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
