"""The child process of a `python` actor: calls it with the start message, sends what it yields.

Started as a file, not as a module of the package, so that nothing of ours is imported. A generator
is sent the result of each step it yielded; what it prints goes to stderr, for stdout is the line
to the executor. An exception ends it as it ends any program: traceback, exit code 1.
"""

import json
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from operator import attrgetter
from typing import Any

ANSWERED = ("step", "subplan")


def main(target: str) -> None:
    sys.path[:0] = [os.getcwd()]
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, _, names = target.partition(":")
    asked = attrgetter(names)(import_module(module))(json.loads(sys.stdin.readline()))
    last = ""
    for proposal in proposals(asked if asked is not None else ()):
        last = proposal.get("type", "")
        lines.write(json.dumps(proposal) + "\n")
        lines.flush()
    if last != "done":
        lines.write('{"type": "done"}\n')
        lines.flush()


def proposals(asked: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """What it yields; a generator gets the result of a step back from its `yield`."""
    send = getattr(asked, "send", None)
    if send is None:
        for proposal in asked:
            yield proposal
            result_of(proposal)
        return
    result = None
    while True:
        try:
            proposal = send(result)
        except StopIteration:
            return
        yield proposal
        result = result_of(proposal)


def result_of(proposal: dict[str, Any]) -> dict[str, Any] | None:
    if proposal.get("type") not in ANSWERED:
        return None
    line = sys.stdin.readline()
    if not line:
        sys.exit("the executor is gone")
    return json.loads(line)


if __name__ == "__main__":
    main(sys.argv[1])
