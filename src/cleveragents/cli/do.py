"""`agents do GOAL`: a language model works towards it, as a plan over the current directory."""

from typing import Any

import click
import msgspec

from cleveragents.cli.common import Options, command
from cleveragents.cli.options import stream_option
from cleveragents.cli.plan.run import plan_reply
from cleveragents.cli.render import Reply, Text
from cleveragents.workspace import Workspace


@command("do")
@click.argument("goal")
@click.option("--model", help="PROVIDER:NAME; default: the setting actors.model.")
@click.option(
    "--on", "path", default=".", type=click.Path(), help="Sandbox this repository or directory."
)
@click.option("--name", help="Name the plan; default: the first words of the goal.")
@click.option(
    "--max-steps", type=click.IntRange(1), help="Stop after this many steps; default: 50."
)
@click.option(
    "--max-tokens", type=click.IntRange(1), help="Stop after this many tokens; default: 500000."
)
@stream_option
def do(
    ws: Workspace,
    options: Options,
    goal: str,
    model: str | None,
    path: str,
    name: str | None,
    max_steps: int | None,
    max_tokens: int | None,
) -> Reply:
    """Have a language model work towards a goal in a sandbox of the current directory.

    The key of the provider is read from your environment (ANTHROPIC_API_KEY, OPENAI_API_KEY, ...)
    and stored nowhere. Nothing of yours changes until you apply the plan.
    """
    budget = {"max_steps": max_steps, "max_tokens": max_tokens}
    plan = ws.do(goal, path, model=model, name=name, **budget)
    reply = plan_reply(ws, plan)
    state: dict[str, Any] = plan.actor_state or {}
    answer: str = state.get("said", "")
    blocks = (Text(answer), *reply.blocks) if answer else reply.blocks
    return msgspec.structs.replace(reply, data={**reply.data, "answer": answer}, blocks=blocks)
