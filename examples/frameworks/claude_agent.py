"""A session of the Claude Agent SDK whose conversation and files go back together."""

import asyncio
import sys

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

from cleveragents.integrations.claude_agent_sdk import ClaudePlan
from cleveragents.workspace import open_workspace


async def main(folder: str, *prompts: str) -> None:
    with open_workspace() as ws:
        plan = ws.plan("notes", resources={"app": folder})
        plan.here()
        claude = ClaudePlan(plan)

        async def ask(prompt: str) -> None:
            options = ClaudeAgentOptions(
                cwd=plan.sandboxes["app"],
                permission_mode="bypassPermissions",
                setting_sources=[],
                hooks=claude.hooks,
                **claude.resume(),
            )
            async for message in claude.follow(query(prompt=prompt, options=options)):
                if isinstance(message, ResultMessage):
                    print(prompt, "->", message.result)

        await ask(prompts[0])
        await ask(prompts[1])
        plan.undo()
        await ask(prompts[2])
        claude.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
