"""`plan diff` for people: through a pager while it is made, in colours, never cut."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.in_process import Yard, cli
from tests.pseudo_terminal import PseudoTerminal, shown
from tests.screens import build

LONG = "a" * 150


@pytest.fixture
def shop(agents: Agents) -> Agents:
    build(agents)
    agents.run("plan", "run", "plan.yaml").expect(5)
    agents.env.pop("NO_COLOR")
    return agents


def test_it_goes_through_the_pager_of_the_user(shop: Agents) -> None:
    pager = "sed 's/^/paged: /'"
    text = shown(shop, "plan", "diff", "last", columns=80, PAGER=pager, NO_COLOR="1")
    assert text.startswith("paged: # resource app\npaged: diff --git a/api.py b/api.py\n")
    for way in (("--no-pager",), ("--format", "plain")):
        told = shown(shop, "plan", "diff", "last", *way, columns=80, PAGER=pager, NO_COLOR="1")
        assert "paged" not in told
        assert "diff --git a/api.py b/api.py" in told
    for none in ("cat", "", "no-such-pager -x"):
        told = shown(shop, "plan", "diff", "last", columns=80, PAGER=none, NO_COLOR="1")
        assert "paged" not in told
        assert "diff --git a/api.py b/api.py" in told


def test_who_leaves_the_pager_is_not_kept(shop: Agents) -> None:
    with PseudoTerminal(shop, "plan", "diff", "last", PAGER="head -n 1", NO_COLOR="1") as terminal:
        assert terminal.ended() == 0
    assert terminal.screen.text.splitlines()[0] == "# resource app"


def test_colours_are_for_terminals_that_want_them(shop: Agents) -> None:
    with PseudoTerminal(shop, "plan", "diff", "last", "--no-pager") as terminal:
        terminal.ended()
    assert "\x1b[32m+import people\x1b[0m" in terminal.raw
    assert "\x1b[31m-import users\x1b[0m" in terminal.raw
    assert "\x1b[1m--- a/api.py\x1b[0m" in terminal.raw
    assert "\x1b" not in shop.run("plan", "diff", "last").stdout
    with PseudoTerminal(shop, "plan", "diff", "last", "--no-pager", NO_COLOR="1") as terminal:
        terminal.ended()
    assert "\x1b" not in terminal.raw


def test_rows_of_a_database_are_shown_and_resources_can_be_chosen(shop: Agents) -> None:
    told = shop.run("plan", "diff", "last", "--on", "db").expect(0).stdout
    assert told.splitlines()[3:] == [
        "Binary files a/shop.db and b/shop.db differ",
        "  table people, was users: changed, definition too, new: active, 3 -> 4 rows",
        "  ~ id=2  active: 0",
        "  + id=4  name='Barbara'  active=1",
        "1 file changed, 0 insertions, 0 deletions",
    ]
    back = shop.run("plan", "diff", "last", "--on", "db", "--from", "last", "--to", "first").stdout
    assert "  - id=4  name='Barbara'  active=1" in back
    same = shop.run("plan", "diff", "last", "--on", "db", "--to", "schema").stdout
    assert "changed, definition too, new: active, 3 rows\n" in same
    assert "did you mean 'db'?" in shop.run("plan", "diff", "last", "--on", "dd").expect(3).stderr
    only = shop.run("plan", "diff", "last", "--name-only", "--on", "docs").expect(0).stdout
    assert only == "docs: contents.md\ndocs: guide.md\ndocs: reference.md\n"
    assert shop.run("plan", "diff", "last", "-q").expect(0).stdout == ""


def test_a_long_line_is_one_line(yard: Yard) -> None:
    (yard.app / "long.txt").write_text(f"{LONG}\n")
    plan = yard.plan(
        "name: long\nresources: {app: {kind: fs-directory, path: app}}\n"
        "steps: [{id: a, run: 'echo x >> long.txt; mv old.txt new.txt'}]"
    )
    cli("plan", "run", plan, "-q")
    told = cli("plan", "diff", "long", "--format", "rich").stdout
    assert f" {LONG}\n+x\n" in told
    stat = cli("plan", "diff", "long", "--stat").stdout
    assert "app: old.txt => new.txt  renamed  0  0" in stat


def test_a_reader_that_has_gone_is_no_error(shop: Agents, tmp_path: Path) -> None:
    from tests.harness import command

    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [command(), "plan", "diff", "last"],
        cwd=shop.work, env=shop.env, stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 141
    assert "error" not in done.stderr
