"""A Pydantic-AI agent whose messages and files go back together.

Replace the scripted model by yours: `Agent("anthropic:claude-sonnet-4-5", ...)`.
"""

import sys
from pathlib import Path

from pydantic_ai import Agent
from scripted import pydantic_model

from cleveragents.integrations.pydantic_ai import PlanCapability
from cleveragents.workspace import open_workspace


def main(folder: str) -> None:
    with open_workspace() as ws:
        plan = ws.plan("notes", resources={"app": folder})
        plan.here()
        app = Path(plan.sandboxes["app"])
        follow = PlanCapability(plan)
        model = pydantic_model(["one"], "first is done", ["two"], "second is done", "again")
        agent = Agent(model, capabilities=[follow])

        @agent.tool_plain
        def write(name: str, text: str) -> str:
            """Write a file."""
            (app / name).write_text(text)
            return "written"

        first = agent.run_sync("write one")
        agent.run_sync("write two", message_history=first.all_messages())
        print("then:", (app / "a.txt").read_text(), len(follow.messages()), "messages")
        plan.undo()
        print("now:", (app / "a.txt").read_text(), len(follow.messages()), "messages")
        print(agent.run_sync("once more", message_history=follow.messages()).output)
        follow.close()


if __name__ == "__main__":
    main(sys.argv[1])
