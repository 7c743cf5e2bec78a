"""An agent of the OpenAI Agents SDK whose session and files go back together.

Replace the scripted model by yours: `Agent(name="writer", model="gpt-5", tools=[write])`.
"""

import asyncio
import sys
from pathlib import Path

from agents import Agent, Runner, SQLiteSession, function_tool, set_tracing_disabled
from scripted import openai_model

from cleveragents.integrations.openai_agents import PlanSession
from cleveragents.workspace import open_workspace


async def main(folder: str) -> None:
    set_tracing_disabled(True)
    with open_workspace() as ws:
        plan = ws.plan("notes", resources={"app": folder})
        plan.here()
        app = Path(plan.sandboxes["app"])

        @function_tool
        def write(name: str, text: str) -> str:
            """Write a file."""
            (app / name).write_text(text)
            return "written"

        model = openai_model(["one"], "first is done", ["two"], "second is done", "again")
        agent = Agent(name="writer", model=model, tools=[write])
        session = PlanSession(plan, SQLiteSession("S"))
        await Runner.run(agent, "write one", session=session, hooks=session.hooks)
        await Runner.run(agent, "write two", session=session, hooks=session.hooks)
        print("then:", (app / "a.txt").read_text(), len(await session.get_items()), "items")
        plan.undo()
        print("now:", (app / "a.txt").read_text(), len(await session.get_items()), "items")
        result = await Runner.run(agent, "once more", session=session, hooks=session.hooks)
        print(result.final_output, "after", model.seen[-1])
        session.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
