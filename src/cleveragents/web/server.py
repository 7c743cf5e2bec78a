"""Serve the page on loopback until Ctrl-C."""

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from cleveragents.errors import NotAllowed
from cleveragents.model.settings import Settings
from cleveragents.web.app import create_app
from cleveragents.web.commands import Commands
from cleveragents.web.guard import ENTER, Keys

LOOPBACK = "127.0.0.1"


def serve(
    settings: Settings, overrides: dict[str, str], port: int, ready: Callable[[str], None]
) -> list[str]:
    """`ready` is told the address with its one-time token; returns the commands that still run."""
    listening = _bound(port)
    number = listening.getsockname()[1]
    keys = Keys()
    app = create_app(settings, keys, number, overrides)
    # Nobody is to read that pages were still open.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        lifespan="off",
    )
    server = uvicorn.Server(config)
    with listening, suppress(KeyboardInterrupt):  # which is how one ends it
        listening.listen(128)
        ready(f"http://{LOOPBACK}:{number}{ENTER}?token={keys.token}")
        server.run(sockets=[listening])
    commands: Commands = app.state.commands
    return [job.shown for job in commands.running()]


def _bound(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((LOOPBACK, port))
    except OSError as error:
        made.close()
        raise NotAllowed(f"port {port} cannot be used: {error.strerror}", "agents web") from None
    return made


def open_browser(address: str) -> None:
    """Beside the server, which has to answer it."""
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
