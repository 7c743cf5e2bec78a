"""`agents hook`: called by agents at their events.

`event` and `sidecar` are for programs: they never exit with an error, because an agent takes that
as a reason not to run its tool.
"""

import os
import sys

import click

from cleveragents.errors import AgentsError
from cleveragents.workspace import settings_here


@click.command("event")
@click.argument("agent")
@click.argument("name", required=False, default="")
def event(agent: str, name: str) -> int:
    """Note one event of an agent's session, given on standard input, without a sidecar."""
    from cleveragents.integrations.client import agent_process, begins
    from cleveragents.integrations.hook import Hooked, answer_of, observing, payload_in
    from cleveragents.integrations.sidecar import handle_alone

    closed, error, data = False, "", sys.stdin.buffer.read()
    try:
        settings = settings_here()
        closed = settings.fail_closed and begins(name, data)
        hooked = Hooked(agent, name, payload_in(data))
        with observing(settings) as observer:
            answer, error = handle_alone(observer, hooked, agent_process(os.getpid()))
        sys.stdout.write(answer_of(hooked, answer))
    except AgentsError as failed:
        error = failed.message
    if error:
        sys.stderr.write(f"cleveragents: {error}\n")
    return 2 if error and closed else 0


@click.command("sidecar")
@click.argument("name")
def sidecar(name: str) -> int:
    """Answer the events of one session on a socket, until its agent is gone."""
    from cleveragents.integrations.hook import folder_of, observing
    from cleveragents.integrations.sidecar import Sidecar

    settings = settings_here()
    os.chdir("/")  # do not keep a folder in use that somebody may want to remove
    made = Sidecar(folder_of(settings), name, lambda: observing(settings), settings.hook_budget)
    if made.listen():
        made.serve()
    return 0
