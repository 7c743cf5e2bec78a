"""Commands that serve until ended: an agent (MCP), or a browser."""

import sys
from importlib.util import find_spec

import click

from cleveragents.cli.common import Options, command, require_web
from cleveragents.cli.render import Reply
from cleveragents.errors import UsageError
from cleveragents.workspace import settings_here


@command("mcp", context=False)
@click.option("--plan", default="", help="Serve this plan or session; default: the newest here.")
def mcp(options: Options, plan: str) -> Reply:
    """Serve checkpoints and rollback to an agent, over standard input and output.

    For any client of the Model Context Protocol; see docs/mcp.md for what to put into its settings.
    """
    if find_spec("mcp") is None:
        raise UsageError("agents mcp needs the package mcp", "pip install 'cleveragents[mcp]'")
    from cleveragents.integrations.mcp.server import server

    try:
        server(plan=plan).run("stdio")
    except* BrokenPipeError:
        pass  # the agent has gone
    return Reply(data={}, on_stderr=True)


@command("web", context=False)
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Listen on this port; default: a free one.",
)
@click.option("--no-browser", is_flag=True, help="Print the address only.")
def web(options: Options, port: int, no_browser: bool) -> Reply:
    """Show plans in a browser: what they did, how they run; roll back, correct, apply.

    On this machine only. The first line printed is the address, which works in one browser.
    """
    require_web("agents web")
    from cleveragents.web.server import open_browser, serve

    def ready(address: str) -> None:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        if not options.quiet:
            sys.stderr.write("Ctrl-C ends the page; plans that run continue\n")
        if not no_browser:
            open_browser(address)

    left = serve(settings_here(overrides=options.settings), options.settings, port, ready)
    messages = tuple(f"still running: {command}" for command in left)
    return Reply(data={"running": left}, messages=messages, on_stderr=True)
