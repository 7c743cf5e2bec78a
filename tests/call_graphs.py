"""Which rooms a command goes through on its way to the bytes: watched while it runs, then drawn.

The bytes are where files change (`content/fsio.py`), where the store commits
(`store/database.py`) and where a tool is started (`tools/process.py`). Each time one of them is
called, the way there is the rooms of the functions that are being executed, from the command down.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import cleveragents

PACKAGE = f"{Path(cleveragents.__file__).parent}/"
BYTES = ("content/fsio.py", "store/database.py", "tools/process.py")
PLAN = """
name: p
resources: {app: {kind: fs-directory, path: app}}
steps:
  - {id: one, tool: file.write, with: {path: b.txt, content: "b"}}
  - {id: two, run: "echo c > c.txt"}
"""
COMMANDS = {
    "plan run": ["plan.yaml"],
    "plan rollback": ["p", "first", "--yes"],
    "plan resume": ["p"],
    "plan correct": ["DECISION", "--mode", "revert", "--guidance", "again", "--yes"],
    "plan apply": ["p", "--yes"],
}
"""In this order, on one plan. That it is resumed in between is not drawn: it is a run."""
DRAWN = ("plan run", "plan rollback", "plan correct", "plan apply")

Way = tuple[str, ...]


def room_of(code: CodeType) -> str:
    file = code.co_filename
    if not file.startswith(PACKAGE):
        return ""
    return file.removeprefix(PACKAGE).split("/")[0].removesuffix(".py")


def frames_above(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def way_to(frame: FrameType) -> Way:
    """The rooms from the command to here, each once for as long as it is not left."""
    rooms = [room for one in frames_above(frame) if (room := room_of(one.f_code))]
    kept = [room for n, room in enumerate(rooms) if n == 0 or rooms[n - 1] != room]
    return tuple(reversed(kept))


def watched(argv: list[str]) -> list[Way]:
    """Run a command in this process; the ways on which it came to the bytes."""
    from cleveragents.cli.main import root

    found: dict[Way, None] = {}

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and _is_bytes(frame.f_code) and not _is_import(frame):
            found[way_to(frame)] = None

    sys.setprofile(look)
    try:
        root.main(argv, prog_name="agents", standalone_mode=False)
    finally:
        sys.setprofile(None)
    return sorted(found)


def _is_bytes(code: CodeType) -> bool:
    return code.co_filename.removeprefix(PACKAGE) in BYTES


def _is_import(frame: FrameType) -> bool:
    """What a module does while it is imported is no step of the way."""
    ours = (one.f_code for one in frames_above(frame) if room_of(one.f_code))
    return any(code.co_name == "<module>" for code in ours)


def decision_of(step: str) -> str:
    with cleveragents.open_workspace() as workspace:
        decisions = workspace.ctx.store.plans.decisions(workspace.find("p").plan_id)
    return next(d.decision_id for d in reversed(decisions) if d.step_id == step)


def all_ways() -> dict[str, list[Way]]:
    """Command -> ways, in the current directory, with the store of the environment."""
    Path("app").mkdir()
    Path("app/a.txt").write_text("a\n")
    Path("plan.yaml").write_text(PLAN)
    ways: dict[str, list[Way]] = {}
    for command, given in COMMANDS.items():
        rest = [decision_of("two") if word == "DECISION" else word for word in given]
        ways[command] = watched([*command.split(), *rest])
    return {command: ways[command] for command in DRAWN}


def main() -> None:
    # What commands print is not what is asked for.
    answer = os.dup(1)
    os.dup2(2, 1)
    text = json.dumps(all_ways())
    os.write(answer, text.encode())


if __name__ == "__main__":
    main()
