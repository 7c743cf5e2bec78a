"""LangGraph over a plan: the graph's checkpoints and the plan's groups are one."""

import asyncio
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

import pytest

from cleveragents.errors import NotFound
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import open_workspace
from tests.harness import Agents

pytest.importorskip("langchain", reason="pip install 'cleveragents[langgraph]'")

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from cleveragents.integrations.langgraph import PlanMiddleware, PlanSaver

EXAMPLE = Path(__file__).parents[1] / "examples/frameworks/langgraph_agent.py"
CONFIG: RunnableConfig = {"configurable": {"thread_id": "T"}}


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> "Scripted":
        return self


def calls(texts: list[str]) -> AIMessage:
    """One call for each; the file is named by the first letter."""
    made = [
        {
            "id": f"{text}-{uuid.uuid4().hex}",
            "name": "write",
            "args": {"name": text[0], "text": text},
        }
        for text in texts
    ]
    return AIMessage("", tool_calls=made)


class Desk:
    """A folder and a database in a plan, and an agent with a tool that writes to both."""

    def __init__(self, agents: Agents, plan: PlanHandle) -> None:
        self.agents, self.plan = agents, plan
        plan.here()
        self.app = Path(plan.sandboxes["app"])
        self.db = plan.sandboxes["db"]
        self.saver = PlanSaver(plan, InMemorySaver())

    def write(self, name: str, text: str) -> str:
        """Write a file and a row."""
        (self.app / name).write_text(text)
        with closing(sqlite3.connect(self.db)) as db, db:
            db.execute("INSERT INTO notes VALUES (?)", (text,))
        if text == "bad":
            raise RuntimeError("no such luck")
        return f"wrote {text}"

    def agent(self, *turns: list[str] | str) -> Any:
        made = [AIMessage(turn) if isinstance(turn, str) else calls(turn) for turn in turns]
        middleware = [PlanMiddleware(self.saver)]
        model = Scripted(messages=iter(made))
        return create_agent(model, [self.write], middleware=middleware, checkpointer=self.saver)

    def seen(self) -> tuple[dict[str, str], list[str]]:
        with closing(sqlite3.connect(self.db)) as db:
            rows = sorted(text for (text,) in db.execute("SELECT text FROM notes"))
        return {path.name: path.read_text() for path in self.app.iterdir()}, rows

    def at(self, agent: Any, messages: int) -> RunnableConfig:
        """The newest checkpoint of the graph with so many messages."""
        history = agent.get_state_history(CONFIG)
        return next(s for s in history if len(s.values.get("messages", [])) == messages).config


@pytest.fixture
def desk(agents: Agents) -> Iterator[Desk]:
    (agents.work / "app").mkdir()
    with closing(sqlite3.connect(agents.work / "app.db")) as db, db:
        db.execute("CREATE TABLE notes (text TEXT)")
    with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as ws:
        plan = ws.plan("notes", resources={"app": "app", "db": "app.db"}, folder=agents.work)
        desk = Desk(agents, plan)
        yield desk
        desk.saver.close()


def ask(agent: Any, text: str) -> None:
    agent.invoke({"messages": [("user", text)]}, CONFIG)


def test_the_saver_passes_the_conformance_kit(desk: Desk) -> None:
    @checkpointer_test(name="PlanSaver")
    async def saver() -> Any:
        with PlanSaver(desk.plan) as made:
            yield made

    report = asyncio.run(validate(saver))
    assert report.passed_all_base(), report


def test_time_travel_restores_files_and_databases(desk: Desk) -> None:
    agent = desk.agent(["a1"], ["a2", "b2"], "done", ["c3"], "done")
    ask(agent, "go")
    assert desk.seen() == ({"a": "a2", "b": "b2"}, ["a1", "a2", "b2"])
    steps = desk.agents.run("plan", "status", "notes", "--json").data["progress"]
    assert [step["status"] for step in steps] == ["complete"] * 3
    out = agent.invoke(None, desk.at(agent, 3))
    assert desk.seen() == ({"a": "a1", "c": "c3"}, ["a1", "c3"])
    assert [m.type for m in out["messages"]][2:] == ["tool", "ai", "tool", "ai"]
    (root,) = desk.agents.run("plan", "tree", "notes", "--json").data["tree"]
    assert [d["question"] for d in root["children"]] == ["go"]


def test_looking_at_the_past_changes_nothing(desk: Desk) -> None:
    agent = desk.agent(["a1"], "done")
    ask(agent, "go")
    before = desk.seen()
    for state in agent.get_state_history(CONFIG):
        agent.get_state(state.config)
    assert desk.seen() == before
    assert desk.saver.group_of({"configurable": {"thread_id": "unknown"}}) == ""
    with pytest.raises(NotFound):
        desk.saver.travel({"configurable": {"thread_id": "unknown"}})


def test_a_correction_by_update_state_starts_from_the_files_of_its_parent(desk: Desk) -> None:
    agent = desk.agent(["a1"], ["a2"], "done", "as you like")
    ask(agent, "go")
    fork = agent.update_state(desk.at(agent, 3), {"messages": [("user", "not twice")]})
    assert desk.seen()[0] == {"a": "a2"}
    out = agent.invoke(None, fork)
    assert [m.content for m in out["messages"]][-2:] == ["not twice", "as you like"]
    assert desk.seen() == ({"a": "a1"}, ["a1"])


def test_rolled_back_from_outside_the_graph_continues_there(desk: Desk) -> None:
    agent = desk.agent(["a1"], "done", ["a2"], "done", "and again")
    ask(agent, "first")
    ask(agent, "second")
    desk.agents.run("plan", "undo", "notes").expect(0)
    assert desk.seen() == ({"a": "a1"}, ["a1"])
    at = desk.saver.config()
    assert [m.content for m in agent.get_state(at).values["messages"]][-1] == "done"
    agent.update_state(at, {"messages": [("user", "third")]}, as_node="__start__")
    assert desk.seen() == ({"a": "a1"}, ["a1"])


def test_before_anything_the_plan_stands_at_no_checkpoint_of_a_graph(desk: Desk) -> None:
    with pytest.raises(NotFound):
        desk.saver.config()


def test_a_tool_that_fails_is_a_step_that_failed(desk: Desk) -> None:
    agent = desk.agent(["bad"], "done")
    with pytest.raises(RuntimeError, match="no such luck"):
        ask(agent, "go")
    (call,) = desk.plan.tool_calls()
    assert (str(call.state), call.error) == ("failed", "RuntimeError: no such luck")


def test_an_asynchronous_agent_is_followed_as_well(desk: Desk) -> None:
    async def run() -> None:
        agent = desk.agent(["a1"], ["a2"], "done", "again")
        await agent.ainvoke({"messages": [{"role": "user", "content": "go"}]}, CONFIG)
        assert desk.seen()[0] == {"a": "a2"}
        history = [state async for state in agent.aget_state_history(CONFIG)]
        earlier = next(s for s in history if len(s.values.get("messages", [])) == 3)
        await agent.ainvoke(None, earlier.config)
        assert desk.seen() == ({"a": "a1"}, ["a1"])
        await desk.saver.adelete_thread("T")
        assert await desk.saver.aget_tuple(CONFIG) is None

    asyncio.run(run())


class Count(TypedDict):
    number: int


def test_nodes_of_ones_own_are_steps_and_run_again_from_the_same_files(desk: Desk) -> None:
    def add(state: Count, config: RunnableConfig) -> Count:
        with desk.saver.step("add", {"number": state["number"]}, config):
            log = desk.app / "log"
            log.write_text((log.read_text() if log.exists() else "") + "x")
        return {"number": state["number"] + 1}

    graph = StateGraph(Count)
    graph.add_node("add", add)
    graph.add_edge(START, "add")
    graph.add_edge("add", END)
    made = graph.compile(checkpointer=desk.saver)
    made.invoke({"number": 0}, CONFIG)
    assert desk.seen()[0] == {"log": "x"}
    before = next(s for s in made.get_state_history(CONFIG) if s.next == ("add",))
    made.invoke(None, before.config)
    assert desk.seen()[0] == {"log": "x"}
    made.invoke({"number": 5}, CONFIG)
    assert desk.seen()[0] == {"log": "xx"}
    desk.saver.travel(before.config)
    assert desk.seen()[0] == {}


def test_the_example_runs(agents: Agents) -> None:
    (agents.work / "app").mkdir()
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "app"],
        cwd=agents.work,
        env=agents.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "then: two\nnow: one 4 messages\n"
