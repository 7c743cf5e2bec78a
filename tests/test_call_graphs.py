"""From the command to the bytes every room is entered once, as docs/design.md draws it.

`python -m tests.test_call_graphs` draws it anew.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.call_graphs import DRAWN, Way
from tests.harness import private_environment
from tests.test_imports import DESIGN, RANK

START, END = "<!-- call graphs -->\n", "\n<!-- end of call graphs -->"
BACK = {
    ("sandbox", "content", "sandbox", "content"): "`content` stages files, and the kind dresses"
    " each one (owner, attributes) before it is moved: only the kind knows the target",
    ("lease", "store", "checkpoints", "sandbox"): "whoever takes a plan tells the manager, which"
    " forgets sandboxes that another process may have changed meanwhile",
}
"""Ways that come back to a room, by a function that was handed down, and why."""


def recorded(folder: Path) -> dict[str, list[Way]]:
    """What the four commands do, in a process of their own."""
    project = Path(__file__).parents[1]
    environment = private_environment(folder) | {"PYTHONPATH": str(project)}
    work = folder / "work"
    work.mkdir()
    run = [sys.executable, "-m", "tests.call_graphs"]
    done = subprocess.run(
        run, cwd=work, env=environment, stdout=subprocess.PIPE, check=True, timeout=600
    )
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    return {name: [tuple(way) for way in ways] for name, ways in found.items()}


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Way]]:
    return recorded(tmp_path_factory.mktemp("graphs"))


def without_back(way: Way) -> Way:
    """The way down, as if what was handed down had been called from above."""
    for known in BACK:
        for n in range(len(way)):
            if way[n : n + len(known)] == known:
                return (*way[:n], *known[-2:], *way[n + len(known) :])
    return way


def is_straight(way: Way) -> bool:
    """Down the list of rooms, none of them twice."""
    ranks = [RANK[room] for room in way]
    return ranks == sorted(ranks) and len(set(way)) == len(way)


@pytest.mark.parametrize("command", DRAWN)
def test_every_room_is_entered_once_on_the_way_down(
    ways: dict[str, list[Way]], command: str
) -> None:
    assert [way for way in ways[command] if not is_straight(without_back(way))] == []
    assert {way[-1] for way in ways[command]} >= {"content", "store"}


def test_the_design_draws_them_as_they_are(ways: dict[str, list[Way]]) -> None:
    text = DESIGN.read_text()
    shown = text[text.index(START) + len(START) : text.index(END)]
    assert shown == drawn(ways), "python -m tests.test_call_graphs draws them anew"


def test_the_rule_itself() -> None:
    assert is_straight(("cli", "workspace", "store"))
    assert not is_straight(("cli", "store", "checkpoints"))
    assert not is_straight(("cli", "history", "content", "history"))
    handed_down = ("apply", "sandbox", "content", "sandbox", "content")
    assert not is_straight(handed_down)
    assert without_back(handed_down) == ("apply", "sandbox", "content")


def drawn(ways: dict[str, list[Way]]) -> str:
    return "\n\n".join(f"`agents {name}`:\n\n{_graph(ways[name])}" for name in DRAWN)


def _graph(ways: list[Way]) -> str:
    edges = {
        edge for way in ways for edge in zip(without_back(way), without_back(way)[1:], strict=False)
    }
    below: dict[str, list[str]] = {}
    for above, room in sorted(edges, key=lambda edge: (RANK[edge[0]], RANK[edge[1]], edge)):
        below.setdefault(above, []).append(room)
    lines = [f"    {above} --> {' & '.join(rooms)}" for above, rooms in below.items()]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        new = drawn(recorded(Path(scratch)))
    old = DESIGN.read_text()
    first, last = old.index(START) + len(START), old.index(END)
    DESIGN.write_text(old[:first] + new + old[last:])
