"""Whole screens of one realistic plan, at 80 and 120 columns, compared with those kept here.

`python -m tests.test_screens` writes what is shown now; look at the difference before you keep it.
They are compared to the column; ids and the folder have stand-ins of the same width. Only of a plan
that runs, whose clocks are as wide as the machine is slow, the widths are made the same first.
"""

import re
import sys
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.pseudo_terminal import PseudoTerminal, shown
from tests.screens import build, exact, live, place, settle

KEPT = Path(__file__).parent / "golden_screens"
WIDTHS = (80, 120)
COMMANDS = {
    "status": ("plan", "status", "rename-users"),
    "checkpoints": ("plan", "checkpoints", "rename-users"),
    "tree": ("plan", "tree", "rename-users"),
    "log": ("plan", "log", "rename-users"),
    "diff": ("plan", "diff", "rename-users", "--no-pager"),
    "diff-stat": ("plan", "diff", "rename-users", "--stat"),
    "rollback": ("plan", "rollback", "rename-users", "schema done", "--dry-run"),
}
WAIT = 'touch begun; while [ ! -e "$AGENTS_PLAN_DIR/go" ]; do sleep 0.02; done; rm begun'
RUNNING = ("guide: 4 places", "1/1 rewrite-reference")


def run(agents: Agents, columns: int) -> dict[str, str]:
    """The plan run in a terminal, seen while both child plans work and at its end."""
    file = build(agents, WAIT)
    with PseudoTerminal(agents, "plan", "run", file, columns=columns) as terminal:
        terminal.read_until(lambda text: all(part in text for part in RUNNING))
        found = {"running": terminal.screen.text}
        (agents.work / "go").touch()
        assert terminal.ended() == 5
    return {**found, "run": terminal.screen.text}


def screens(columns: int) -> dict[str, str]:
    with place() as root:
        agents = Agents(root)
        found = {name: live(text, agents) for name, text in run(agents, columns).items()}
        settle(agents)
        for name, argv in COMMANDS.items():
            found[name] = exact(shown(agents, *argv, columns=columns), agents)
    return found


@pytest.mark.parametrize("columns", WIDTHS)
def test_people_see_what_is_kept_here(columns: int) -> None:
    found = screens(columns)
    kept = {name: (KEPT / f"{name}-{columns}.txt").read_text() for name in found}
    assert found == kept


def test_nothing_that_one_wants_to_copy_is_cut_at_80_columns() -> None:
    for name in (*COMMANDS, "run"):
        lines = (KEPT / f"{name}-80.txt").read_text().splitlines()
        cut = [line for line in lines if "…" in line]
        # Only what a checkpoint is about may be, and that can be had from `checkpoint show`.
        assert not cut or name == "checkpoints", cut


@pytest.mark.parametrize("columns", WIDTHS)
def test_columns_stand_below_their_titles(columns: int) -> None:
    for name, title in (("checkpoints", "group "), ("status", "step ")):
        lines = (KEPT / f"{name}-{columns}.txt").read_text().splitlines()
        top = next(n for n, line in enumerate(lines) if line.lstrip().startswith(title))
        starts = [found.start() for found in re.finditer(r"\S+", lines[top])]
        for line in lines[top + 1 : top + 12]:
            cells = {found.start() for found in re.finditer(r"(?:^|(?<=  ))\S", line)}
            assert cells <= {0, *starts}, line


if __name__ == "__main__":
    KEPT.mkdir(exist_ok=True)
    for width in map(int, sys.argv[1:] or map(str, WIDTHS)):
        for title, text in screens(width).items():
            (KEPT / f"{title}-{width}.txt").write_text(text)
