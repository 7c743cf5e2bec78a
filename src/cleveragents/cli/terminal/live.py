"""One line for each running step, redrawn while it runs; one line stays when it ends.

Nothing runs in the background: code that waits for a tool calls `idle`, and copying and capturing
report every file.
"""

import sys
import time
from typing import Any

from cleveragents.cli.terminal import cells
from cleveragents.cli.terminal.blocks import safe_cell, safe_item
from cleveragents.cli.terminal.progress import Progress, count_of
from cleveragents.model.units import show_bytes, show_duration

PAUSE = 0.1
"""Seconds between two looks."""
MOMENT = 0.5
"""Seconds that copying or capturing may take before it is shown."""
TAIL = 2000
ROOM = 3
"""Columns left free: the terminal writes ^C behind a line, and two lines would not be erased."""
NAME = 16
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
Key = tuple[str, ...]
"""Ids of the steps down to this one, which is one of a child plan if there are several."""


class Running:
    """A running step."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.name: str = data["id"]
        self.count: str = count_of(data)
        self.since: float = time.monotonic()
        self.printed: str = ""

    def hear(self, text: str) -> None:
        self.printed = (self.printed + text)[-TAIL:]

    @property
    def tail(self) -> str:
        """The last line with text; a tool may overwrite it repeatedly."""
        lines = self.printed.replace("\r", "\n").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    @property
    def clock(self) -> str:
        return show_duration(time.monotonic() - self.since)


class Bar:
    """The progress of a copy or a capture."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.since: float = time.monotonic()
        self.done = self.total = 0


class LiveProgress(Progress):
    def __init__(self) -> None:
        super().__init__()
        self._running: dict[Key, Running] = {}
        self._bar: Bar | None = None
        self._lines: list[str] = []
        """The lines on the screen, to be redrawn."""
        self._drawn = 0.0
        fancy = cells.can_show(SPINNER + "✓✗→█░…", sys.stderr)
        self._marks = ("✓", "✗", "→", "█", "░") if fancy else ("+", "x", ">", "#", ".")
        self._spinner = SPINNER if fancy else "|/-\\"

    def idle(self) -> None:
        with self._lock:
            self._draw()

    def end(self) -> None:
        with self._lock:
            self._running.clear()
            self._bar = None
            self._draw(at_once=True)

    def _on_event(self, event: str, data: dict[str, Any]) -> None:
        key: Key = (*data.get("within", ()), data.get("id", ""))
        if event in ("total", "copying", "copied", "capturing"):
            self._fill(event, data)
            return
        self._bar = None
        if event == "step":
            self._running[key] = Running(data)
        elif event == "output":
            if key in self._running:
                self._running[key].hear(data["text"])
            self._draw()
            return
        elif event in ("done", "failed"):
            self._ended(key, event, data)
        else:
            super()._on_event(event, data)
        self._draw(at_once=True)

    def _fill(self, event: str, data: dict[str, Any]) -> None:
        """Update a bar; pieces of a large file count before the file."""
        title = f"{'capturing' if event == 'capturing' else 'copying'} {data['resource']}"
        if self._bar is None or self._bar.title != title:
            self._bar = Bar(title)
            self._pieces = 0
        bar = self._bar
        if event == "total":
            bar.total = data["bytes"]
        elif event == "copying":
            self._pieces += data["bytes"]
        elif event == "capturing":
            bar.done, bar.total = data["bytes"], data["of"]
        else:
            bar.done, self._pieces = bar.done + data["bytes"], 0
        self._draw()

    def _ended(self, key: Key, event: str, data: dict[str, Any]) -> None:
        step = self._running.pop(key, None)
        if event == "failed":
            self._running = {k: one for k, one in self._running.items() if k[: len(key)] != key}
        if step is None or (len(key) > 1 and event == "done"):
            return
        good, bad, inside, *_ = self._marks
        mark, style = (good, "green") if event == "done" else (bad, "red")
        name = f" {inside} ".join(key) if len(key) > 1 else step.name
        line = f"{step.count:>5} {cells.padded(safe_cell(name), NAME)}  "
        # The reason is shown once, when the command ends; of children only the first.
        why = f"  {safe_cell(data['error'])}" if len(key) > 1 else ""
        self._keep(
            f"{cells.styled(mark, style, sys.stderr)} {line}"
            f"{cells.styled(step.clock, 'dim', sys.stderr)}{why}"
        )

    def _say(self, line: str, style: str = "") -> None:
        self._keep(cells.styled(safe_item(line), style, sys.stderr))

    def _keep(self, line: str) -> None:
        """Print a permanent line above the live ones."""
        self._write(self._erased() + line + "\n" + "\n".join(self._lines))

    def _erased(self) -> str:
        if not self._lines:
            return ""
        up = f"\x1b[{len(self._lines) - 1}A" if len(self._lines) > 1 else ""
        return f"\r{up}\x1b[J"

    def _draw(self, at_once: bool = False) -> None:
        now = time.monotonic()
        if not at_once and now - self._drawn < PAUSE:
            return
        self._drawn = now
        lines = self._now(cells.columns_of(sys.stderr) - ROOM)
        if lines != self._lines:
            erased, self._lines = self._erased(), lines
            self._write(erased + "\n".join(lines))

    def _now(self, columns: int) -> list[str]:
        # A step with a running child plan is shown by the child's own step.
        inner = [
            key
            for key in self._running
            if not any(other[: len(key)] == key != other for other in self._running)
        ]
        begun = list(self._running)
        inner.sort(key=lambda key: begun.index(key[:1]) if key[:1] in self._running else 0)
        lines = [self._step_line(key, columns) for key in inner]
        bar = self._bar
        if bar is not None and time.monotonic() - bar.since > MOMENT:
            lines.append(cells.fitted(self._bar_line(bar), columns))
        return lines

    def _step_line(self, key: Key, columns: int) -> str:
        step, first = self._running[key], self._running.get(key[:1])
        spin = self._spinner[int(time.monotonic() / PAUSE) % len(self._spinner)]
        name = safe_cell(step.name)
        if len(key) > 1 and first is not None:
            outer = cells.padded(safe_cell(first.name), NAME)
            name = f"{outer} {self._marks[2]} {step.count} {name}"
        count = first.count if first is not None else ""
        line = f"{spin} {count:>5} {cells.padded(name, NAME)}  {step.clock}"
        line = cells.fitted(line, columns)
        tail = cells.fitted(safe_cell(step.tail), columns - cells.width(line) - 2)
        return f"{line}  {cells.styled(tail, 'dim', sys.stderr)}" if tail else line

    def _bar_line(self, bar: Bar) -> str:
        done, clock = bar.done + self._pieces, show_duration(time.monotonic() - bar.since)
        title = safe_cell(bar.title)
        if not bar.total:
            return f"  {title}  {show_bytes(done)}  {clock}"
        part = min(1.0, done / bar.total)
        drawn = self._marks[3] * round(part * 20)
        drawn += self._marks[4] * (20 - len(drawn))
        return f"  {title}  {drawn}  {show_bytes(done)} of {show_bytes(bar.total)}  {clock}"
