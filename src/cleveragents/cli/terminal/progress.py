"""Progress of steps: a line for each, or all of their output."""

import sys
import threading
import time
from contextlib import suppress
from typing import Any

from cleveragents.cli.terminal.blocks import safe, safe_item
from cleveragents.model.units import plural, show_bytes


class Progress:
    """Permanent lines on standard error; with `stream` also the steps' output."""

    def __init__(self, stream: bool = False) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        """Child plans run side by side, each in a thread."""
        self._copied: dict[str, tuple[int, int]] = {}
        self._totals: dict[str, int] = {}
        self._pieces = 0
        self._shown = time.monotonic()
        self._open = ""
        """Whose output ended in the middle of a line."""

    def tell(self, event: str, data: dict[str, Any]) -> None:
        with self._lock:
            self._on_event(event, data)

    def idle(self) -> None:
        """Called repeatedly while a tool runs."""

    def end(self) -> None:
        """End the progress."""
        with self._lock:
            self._end_line()

    def _on_event(self, event: str, data: dict[str, Any]) -> None:
        if event in ("copying", "copied"):
            self._copy(data["resource"], data["bytes"], event == "copied")
        elif event == "total":
            self._totals[data["resource"]] = data["bytes"]
        elif event == "output" and self._stream:
            self._print(data)
        elif event == "step":
            self._say(f"> {numbered(data)} ({data['tool']})")
        elif event == "failed":
            # The reason is shown once, when the command ends; of children only the first.
            why = f": {data['error']}" if data.get("within") else ""
            self._say(f"x {numbered(data)}{why}")
        else:
            self._remark(event, data)

    def _remark(self, event: str, data: dict[str, Any]) -> None:
        if event == "retry":
            self._say(f"  {which(data)}: {data['error']}; trying again")
        elif event == "rolled_back" and data["changes"]:
            self._say(f"  rolled back {plural(len(data['changes']), 'change')}")
        elif event == "compensate":
            self._say(f"> compensate {data['id']} ({data['tool']})")
        elif event == "reverted":
            self._say(f"< the actor starts over: {data['reason']}")
        elif event == "validate":
            self._say(f"> validate: {data['run']}")
        elif event == "uploading":
            self._say("  waiting for the bucket")
        elif event == "remark":
            self._say(f"  {data['message']}")
        elif event == "warning":
            self._say(f"warning: {data['message']}", "yellow")

    def _copy(self, resource: str, added: int, is_whole: bool) -> None:
        """Count pieces of a large file as they come, then the file instead of its pieces."""
        files, size = self._copied.get(resource, (0, 0))
        if is_whole:
            files, size = files + 1, size + added
            self._copied[resource] = files, size
            self._pieces = 0
        else:
            self._pieces += added
        if time.monotonic() - self._shown > 1:
            self._shown = time.monotonic()
            self._tell_copied(resource, files, size + self._pieces)

    def _tell_copied(self, resource: str, files: int, size: int) -> None:
        total = self._totals.get(resource)
        whole = f" of {show_bytes(total)}" if total else " so far"
        self._say(f"  copying {resource}: {plural(files, 'file')}, {show_bytes(size)}{whole}")

    def _print(self, data: dict[str, Any]) -> None:
        """Print output as it comes; lines of child plans are prefixed."""
        whose = "".join(f"{step}: " for step in data.get("within", ()))
        if self._open not in ("", whose + data["id"]):
            self._end_line()
        for line in data["text"].splitlines(keepends=True):
            self._write((whose if not self._open else "") + safe(line))
            self._open = "" if line.endswith("\n") else whose + data["id"]

    def _end_line(self) -> None:
        if self._open:
            self._open = ""
            self._write("\n")

    def _say(self, line: str, style: str = "") -> None:
        from cleveragents.cli.terminal.cells import styled

        self._end_line()
        self._write(styled(safe_item(line), style, sys.stderr) + "\n")

    def _write(self, text: str) -> None:
        with suppress(BrokenPipeError):  # nobody reads it any more; the plan continues
            sys.stderr.write(text)
            sys.stderr.flush()


def which(data: dict[str, Any]) -> str:
    """The step, and the child plan it belongs to."""
    return f"{data['plan']}: {data['id']}" if "plan" in data else data["id"]


def numbered(data: dict[str, Any]) -> str:
    """The same with its number: `child: 3/12 step`."""
    number = f"{count_of(data)} " if "number" in data else ""
    return f"{data['plan']}: {number}{data['id']}" if "plan" in data else f"{number}{data['id']}"


def count_of(data: dict[str, Any]) -> str:
    return f"{data['number']}/{data['of']}" if "of" in data else str(data["number"])


class Kept(Progress):
    """Shows nothing; keeps warnings for the envelope's messages."""

    def __init__(self, warnings: list[str], stream: bool = False) -> None:
        super().__init__(stream)
        self._warnings = warnings

    def _on_event(self, event: str, data: dict[str, Any]) -> None:
        if event == "warning":
            self._warnings.append(data["message"])
        elif event == "output" and self._stream:
            self._print(data)
