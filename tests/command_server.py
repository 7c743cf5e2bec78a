"""Runs the command in forks of a process that has imported it and done nothing else.

Each run is a process of its own, with its own directory, environment and streams, as if it had
been started anew; what is saved is the start of an interpreter. Requests come over a socket, each
with its descriptors: the request itself, the three streams, and where the answer goes.
"""

import contextlib
import functools
import gc
import importlib
import itertools
import json
import os
import selectors
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path

from cleveragents.cli import entry
from cleveragents.content import fsio

FRAMEWORKS = tuple(
    f"cleveragents.{name}"
    for name in (
        "__main__",
        "actors.model_",
        "integrations.claude_agent_sdk",
        "integrations.langgraph",
        "integrations.mcp",
        "integrations.openai_agents",
        "integrations.pydantic_ai",
        "store.migrations",
        "testing",
        "web",
    )
)


def serve(requests: socket.socket) -> None:
    children: dict[int, socket.socket] = {}
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    waiting = selectors.DefaultSelector()
    waiting.register(requests, selectors.EVENT_READ)
    waiting.register(woken, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in waiting.select()}
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            tell_who_ended(children)
        if requests in ready:
            data, fds, _, _ = socket.recv_fds(requests, 1, 5)
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                waiting.close()
                become(fds)
            answer = socket.socket(fileno=fds.pop())
            for fd in fds:
                os.close(fd)
            answer.send(b"%d\n" % pid)
            children[pid] = answer


def tell_who_ended(children: dict[int, socket.socket]) -> None:
    for pid, answer in tuple(children.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(OSError), answer:
                answer.send(b"%d\n" % os.waitstatus_to_exitcode(status))
            del children[pid]


def die_at(number: int, points: int) -> Callable[[str], None]:
    """At the fault point of that number, if there is one; writes down how many were reached."""
    numbers = itertools.count(1)  # threads pass points too, and each has one of its own

    def count(name: str) -> None:
        passed = next(numbers)
        os.pwrite(points, b"%d" % passed, 0)
        if passed == number:
            os.write(2, f"killed at point {passed}: {name}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    return count


def become(fds: list[int]) -> None:
    """In the child: what the installed script does, where and as it was asked for."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with open(fds[0]) as request:
            given = json.load(request)
        for number in range(3):
            os.dup2(fds[1 + number], number)
        os.closerange(3, max(fds) + 1)
        os.environ.clear()
        os.environ.update(given["env"])
        os.chdir(given["cwd"])
        sys.argv = given["argv"]
        if given["points"]:
            fsio.arm(die_at(given["kill_at"], os.open(given["points"], os.O_WRONLY)))
        elif at := given["env"].get("CLEVERAGENTS_TEST_KILL_AT"):
            fsio.arm(int(at))
        entry.program()
    except SystemExit as stop:  # threads are left that an interpreter would wait for
        status = stop.code if isinstance(stop.code, int) else 1
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
    finally:
        if (error := sys.exc_info()[1]) is not None:
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@functools.cache
def import_commands() -> None:
    """All that commands need, once: then no fork has to; frameworks would make each fork slow."""
    import cleveragents

    (top,) = cleveragents.__path__
    for file in Path(top).rglob("*.py"):
        name = ".".join(("cleveragents", *file.relative_to(top).with_suffix("").parts))
        if not name.startswith(FRAMEWORKS) and file.name != "__init__.py":
            importlib.import_module(name)


def write_down_coverage() -> None:
    """What the imports covered, once: else each fork would write it into a file of its own, and
    look through the package for files that nobody imported.
    """
    coverage = sys.modules.get("coverage")
    if coverage is not None and (measured := coverage.Coverage.current()) is not None:
        measured.get_data()
        measured._post_save_work = lambda: None


def main() -> None:
    sys.path[0] = sysconfig.get_path("scripts")
    import_commands()
    write_down_coverage()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
