"""What is seen while steps run: in a terminal, without one, and by another process."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cleveragents.cli.terminal import cells, live
from cleveragents.cli.terminal.live import LiveProgress
from cleveragents.cli.terminal.progress import Kept, Progress
from cleveragents.content.capture import watch
from cleveragents.context import Talk
from cleveragents.execution import listening
from cleveragents.execution.listening import Listener
from cleveragents.lease import working_on
from cleveragents.model.tool import CallState, ToolCall
from cleveragents.workspace import Workspace, open_workspace
from tests.harness import Agents
from tests.in_process import Yard, box, cli
from tests.pseudo_terminal import PseudoTerminal, Screen
from tests.scratch import wait_until

STEP = {"id": "build", "tool": "shell", "number": 2, "of": 12}
INNER = {"id": "page", "tool": "shell", "number": 1, "of": 1, "plan": "p/docs", "within": ("docs",)}


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:
        return self._encoding

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        screen = Screen()
        screen.feed(self.getvalue().replace("\n", "\r\n"))
        return screen.text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    for module in (live, watch, listening):
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Terminal]:
    """Makes standard error one; in the test itself, because pytest puts its own there before."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")

    def terminal(encoding: str = "utf-8") -> Terminal:
        found = Terminal(encoding)
        monkeypatch.setattr(sys, "stderr", found)
        return found

    return terminal


def test_a_running_step_is_one_line_with_number_clock_and_the_last_it_printed(
    make: Callable[..., Terminal], clock: list[float]
) -> None:
    terminal, progress = make(), LiveProgress()
    progress.tell("step", STEP)
    progress.tell("output", {"id": "build", "text": "compiling a\ncompiling b\r 50 %"})
    clock[0] += 75
    progress.idle()
    assert terminal.shown == "⠋  2/12 build             1m 15s  50 %\n"
    progress.tell("done", {"id": "build"})
    assert terminal.shown == "✓  2/12 build             1m 15s\n"


def test_lines_are_cut_to_the_width_and_remarks_stay_above(
    make: Callable[..., Terminal], clock: list[float]
) -> None:
    terminal, progress = make(), LiveProgress()
    progress.tell("step", STEP)
    progress.tell("warning", {"message": "look out"})
    progress.tell("output", {"id": "build", "text": "\x1b[2Jlong " + "漢" * 40})
    clock[0] += 1
    progress.idle()
    first, second = terminal.shown.splitlines()
    assert first == "warning: look out"
    assert second.endswith("…")
    assert "\\x1b[2Jlong 漢" in second
    assert cells.width(second) <= 59


def test_child_plans_side_by_side_have_a_line_each(
    make: Callable[..., Terminal], clock: list[float]
) -> None:
    terminal, progress = make(), LiveProgress()
    for number, name in ((3, "docs"), (4, "site")):
        progress.tell("step", {"id": name, "tool": "subplan", "number": number, "of": 12})
    progress.tell("step", INNER)
    progress.tell("step", {**INNER, "id": "menu", "within": ("site",)})
    progress.tell("output", {"id": "menu", "text": "5 entries\n", "within": ("site",)})
    clock[0] += 2
    progress.idle()
    assert terminal.shown.splitlines() == [
        "⠋  3/12 docs             → 1/1 page  2.0s",
        "⠋  4/12 site             → 1/1 menu  2.0s  5 entries",
    ]
    progress.tell("done", INNER)
    progress.tell("failed", {**INNER, "id": "menu", "within": ("site",), "error": "exit code 1"})
    progress.tell("failed", {"id": "site", "error": "child plan X: exit code 1"})
    progress.tell("done", {"id": "docs"})
    progress.end()
    assert terminal.shown.splitlines() == [
        "✗   1/1 site → menu       2.0s  exit code 1",
        "✗  4/12 site              2.0s",
        "✓  3/12 docs              2.0s",
    ]


def test_copying_and_capturing_show_a_bar_if_they_take_longer_than_a_moment(
    make: Callable[..., Terminal], clock: list[float]
) -> None:
    terminal, progress = make(), LiveProgress()
    progress.tell("total", {"resource": "app", "bytes": 4_000_000})
    progress.tell("copied", {"resource": "app", "bytes": 1_000_000})
    assert terminal.shown == "\n"
    clock[0] += 1
    progress.tell("copying", {"resource": "app", "bytes": 1_000_000})
    bar = "██████████░░░░░░░░░░"
    assert terminal.shown == f"  copying app  {bar}  2 MB of 4 MB  1.0s\n"
    progress.tell("made", {})
    assert terminal.shown == "\n"
    progress.tell("copied", {"resource": "db", "bytes": 5_000})
    clock[0] += 1
    progress.tell("copied", {"resource": "db", "bytes": 5_000})
    assert terminal.shown == "  copying db  10 KB  1.0s\n"
    progress.tell("capturing", {"resource": "app", "bytes": 0, "of": 10})
    clock[0] += 1
    progress.tell("capturing", {"resource": "app", "bytes": 10, "of": 10})
    assert terminal.shown == f"  capturing app  {'█' * 20}  10 B of 10 B  1.0s\n"
    progress.end()
    assert terminal.shown == "\n"


def test_a_terminal_that_knows_no_signs_gets_ascii(
    make: Callable[..., Terminal], clock: list[float]
) -> None:
    terminal, progress = make("ascii"), LiveProgress()
    progress.tell("step", {"id": "a", "tool": "shell", "number": 1})
    progress.tell("done", {"id": "a"})
    assert terminal.getvalue().isascii()
    assert terminal.shown == "+     1 a                 0.0s\n"


def test_without_a_terminal_there_are_plain_lines_and_with_stream_all_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress(stream=True)
    progress.tell("step", STEP)
    progress.tell("output", {"id": "build", "text": "one\ntw"})
    progress.tell("output", {"id": "build", "text": "o\nthree"})
    progress.tell("output", {"id": "page", "text": "inner\n", "within": ("docs",)})
    progress.tell("retry", {"id": "build", "error": "exit code 1"})
    progress.idle()
    progress.tell("failed", {**STEP, "error": "exit code 1"})
    progress.tell("output", {"id": "x", "text": "rest"})
    progress.end()
    assert capsys.readouterr().err.splitlines() == [
        "> 2/12 build (shell)",
        "one",
        "two",
        "three",
        "docs: inner",
        "  build: exit code 1; trying again",
        "x 2/12 build",
        "rest",
    ]


def test_where_nothing_is_shown_warnings_are_kept_and_output_can_still_be_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    warnings: list[str] = []
    kept = Kept(warnings, stream=True)
    kept.tell("step", STEP)
    kept.tell("warning", {"message": "look out"})
    kept.tell("output", {"id": "build", "text": "said\n"})
    assert (warnings, capsys.readouterr().err) == (["look out"], "said\n")


PRINTING = "steps: [{id: a, on: app, run: 'echo said; echo more >&2'}]"


@pytest.mark.parametrize("way", [(), ("--json",)])
def test_stream_passes_on_what_steps_print(yard: Yard, way: tuple[str, ...]) -> None:
    head = "name: yard\nresources: {app: {kind: fs-directory, path: app}}\n"
    file = yard.plan(head + PRINTING)
    assert "said" not in cli("plan", "run", file, *way).stderr
    assert "said\nmore\n" in cli("plan", "run", file, "--stream", *way).stderr


def test_what_a_tool_prints_is_told_as_it_runs_and_never_a_secret(
    yard: Yard, clock: list[float]
) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    talk = Talk(tell=lambda event, data: told.append((event, data)))
    with open_workspace(talk=talk) as ws:
        plan = yard.use(ws, PRINTING)
        with working_on(ws.ctx.store, plan.plan_id, "test", ws.ctx.now) as leased:
            call = ToolCall(
                call_id="C",
                plan_id=plan.plan_id,
                step_id="a",
                attempt=1,
                tool="shell",
                inputs={},
                state=CallState.RUNNING,
                started_at=ws.ctx.now(),
            )
            listener = Listener(ws.ctx, leased, call, ("pa55",))
            listener.hear("grüße\nwith pa".encode())
            listener.idle()
            assert [data["text"] for _, data in told] == ["grüße\n"]
            assert kept_output(ws, plan.plan_id) == []
            listener.hear(b"55\n")
            clock[0] += 1.1
            listener.idle()
            assert kept_output(ws, plan.plan_id) == ["grüße\nwith ***\n"]
            listener.hear(b"x" * 5000)
            listener.idle()
            listener.hear(b"end")
            listener.end()
    assert "".join(data["text"] for _, data in told) == f"grüße\nwith ***\n{'x' * 5000}end"


def kept_output(ws: Workspace, plan_id: str) -> list[str]:
    return [call.output for call in ws.ctx.store.calls.of_plan(plan_id)]


def test_a_capture_asks_how_much_there_is_only_if_it_takes_long(
    tmp_path: Path, clock: list[float]
) -> None:
    told: list[tuple[int, int]] = []
    reading = watch.Reading(lambda done, of: told.append((done, of)))
    (tmp_path / "new").mkdir()
    for name, size in (("a", 10), ("new/b", 20)):
        (tmp_path / name).write_bytes(bytes(size))
    reading.total = lambda: watch.size_at(str(tmp_path), {b"": {b"a", b"new", b"gone"}})
    reading(10)
    assert told == []
    clock[0] += 1
    reading(10)
    reading(10)
    clock[0] += 1
    reading(15)
    assert told == [(20, 30), (45, 45)]


def test_a_step_that_captures_for_long_tells_how_far_it_is(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MOMENT", 0)
    monkeypatch.setattr(watch, "PAUSE", 0)
    told: list[dict[str, Any]] = []

    def tell(event: str, data: dict[str, Any]) -> None:
        if event == "capturing" and data["bytes"] >= 3_000_000:
            told.append(data)

    with open_workspace(talk=Talk(tell=tell)) as ws:
        write = "head -c 3000000 /dev/urandom > "
        plan = yard.use(
            ws, f"steps: [{{id: a, run: '{write} big'}}, {{id: b, run: '{write} big'}}]"
        )
        plan.execute()
        assert told[0]["resource"] == "app"
        assert 3_000_000 <= told[0]["bytes"] <= told[0]["of"] < 3_100_000
        told.clear()
    with open_workspace(talk=Talk(tell=tell)) as ws:
        again = ws.find(plan.plan_id)
        (box(again) / "other").write_bytes(bytes(3_000_000))
        again.checkpoint()
        assert 3_000_000 <= told[-1]["bytes"] <= told[-1]["of"] < 6_100_000


WAITING = """\
name: waits
resources: {app: {kind: fs-directory, path: app}}
steps:
  - {id: one, run: "echo first > one.txt"}
  - {id: two, run: "echo halfwayDOTS; while :; do sleep 0.05; done"}
  - {id: three, run: "true"}
"""


LONG = f"halfway{'.' * 200}\n"


def test_ctrl_c_says_what_is_kept_and_how_to_continue(agents: Agents) -> None:
    (agents.work / "app").mkdir()
    (agents.work / "plan.yaml").write_text(WAITING.replace("DOTS", "." * 200))
    with PseudoTerminal(agents, "plan", "run", "plan.yaml") as terminal:
        terminal.read_until(lambda text: "halfway" in text)
        running = agents.run("plan", "status", "waits", "--json").expect(0).data
        assert running["state"] == "processing"
        wait_until(lambda: _last_call(agents)["output"], "the output of the step at work")
        call = _last_call(agents)
        assert (call["state"], call["output"]) == ("running", LONG)
        assert call["duration_ms"] >= 0
        full = max(map(len, terminal.screen.text.splitlines()))
        assert full <= 78, "a ^C behind it would begin a line that is not taken away again"
        terminal.type("\x03")
        assert terminal.ended() == 130
    shown = terminal.screen.text
    assert "✓   1/3 one" in shown
    assert "2/3 two" not in shown
    kept = "interrupted in step two, which resume runs again; 1 of 3 steps done and kept"
    assert f"error: {kept}\nhint: agents plan resume " in shown
    assert _last_call(agents)["state"] == "interrupted"
    assert _last_call(agents)["output"] == LONG


def _last_call(agents: Agents) -> dict[str, Any]:
    return agents.run("plan", "output", "waits", "two", "--json").expect(0).data["calls"][-1]
