"""The numbers of a rollback count what they are called."""

import pytest

from tests.harness import Agents
from tests.rig import Shop


@pytest.fixture
def shop(agents: Agents) -> Shop:
    return Shop(agents, users=())


def test_files_are_files_and_the_rest_is_told_apart(shop: Shop) -> None:
    work = "mkdir -p a/b; echo 1 > a/b/c; ln -s c a/b/link; chmod 600 base.txt; git add a"
    shop.ran(f'- {{id: one, run: "{work}"}}')
    data = shop.ok("plan", "rollback", "plan", "first", "--dry-run")
    summary = data["rollback_summary"]
    names = [item["file"] for item in data["changes_reverted"]]
    seen = [name for name in names if not name.startswith(".git/") and name != ".git"]
    assert sorted(seen) == ["a", "a/b", "a/b/c", "a/b/link", "base.txt"]
    assert summary["files_reverted"] == 3
    assert summary["directories_reverted"] == 2
    assert summary["git_internals_reverted"] == len(names) - len(seen) > 0
    shown = shop.agents.run("plan", "rollback", "plan", "first", "--yes").expect(0).stdout
    assert "3 files, 2 directories" in shown
    assert "in .git reverted" in shown
    assert ".git/index" not in shown


def test_one_is_one(shop: Shop) -> None:
    shop.ran('- {id: one, run: "echo 1 > one"}')
    shown = shop.agents.run("plan", "rollback", "plan", "first", "--yes").expect(0).stdout
    assert "1 file reverted" in shown


def test_calls_that_were_undone_are_not_counted_again(shop: Shop) -> None:
    def after_the_first() -> tuple[int, int]:
        impact = shop.ok("plan", "rollback", "plan", "first", "--dry-run")["impact"]
        return impact["decisions_after_cp"], impact["tool_calls_after_cp"]

    shop.ran('- {id: one, run: "echo 1 > one"}\n- {id: two, run: "echo 2 > two"}')
    assert after_the_first() == (2, 2)
    done = shop.ok("plan", "rollback", "plan", "first", "--yes")
    assert done["impact"]["tool_calls_after_cp"] == 2
    assert after_the_first() == (0, 0)
    shop.ok("plan", "resume", "plan")
    assert after_the_first() == (2, 2)
    shop.ok("plan", "undo", "plan")
    shop.ok("plan", "redo", "plan")
    assert after_the_first() == (2, 2)
