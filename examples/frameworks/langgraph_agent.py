"""A LangChain agent whose graph, files and database go back together.

Replace the scripted model by yours: `create_agent("anthropic:claude-sonnet-4-5", ...)`.
"""

import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from cleveragents.integrations.langgraph import PlanMiddleware, PlanSaver
from cleveragents.workspace import open_workspace


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **kwargs):
        return self


def call(number: int, text: str) -> AIMessage:
    args = {"name": "a.txt", "text": text}
    return AIMessage("", tool_calls=[{"id": f"t{number}", "name": "write", "args": args}])


def main(folder: str) -> None:
    with open_workspace() as ws:
        plan = ws.plan("notes", resources={"app": folder})
        plan.here()
        app = Path(plan.sandboxes["app"])

        def write(name: str, text: str) -> str:
            """Write a file."""
            (app / name).write_text(text)
            return "written"

        model = Scripted(messages=iter([call(1, "one"), call(2, "two"), "done", "done again"]))
        saver = PlanSaver(plan)
        agent = create_agent(model, [write], middleware=[PlanMiddleware(saver)], checkpointer=saver)
        config = {"configurable": {"thread_id": "T"}}
        agent.invoke({"messages": [("user", "write twice")]}, config)
        print("then:", (app / "a.txt").read_text())
        history = list(agent.get_state_history(config))
        earlier = next(state for state in history if len(state.values["messages"]) == 3)
        result = agent.invoke(None, earlier.config)
        print("now:", (app / "a.txt").read_text(), len(result["messages"]), "messages")
        saver.close()


if __name__ == "__main__":
    main(sys.argv[1])
