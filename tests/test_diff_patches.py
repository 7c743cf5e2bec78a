"""The patch that `plan diff` shows is one that git would have written."""

import subprocess
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.rig import Shop
from tests.scratch import git

CHANGES = "echo new > new; rm .gitignore; sed -i s/7/seven/ base.txt; echo x > bä"


@pytest.fixture
def shop(agents: Agents) -> Shop:
    return Shop(agents, users=())


def headers(patch: str) -> list[str]:
    return [line for line in patch.splitlines() if line.startswith(("diff ", "--- ", "+++ "))]


def test_headers_are_those_of_git(shop: Shop, tmp_path: Path) -> None:
    shop.ran(f'- {{id: one, run: "{CHANGES}"}}')
    patch = shop.ok("plan", "diff", "plan")["patch"]
    shown = headers(patch)
    assert "diff --git a/new b/new" in shown
    assert "diff --git a/.gitignore b/.gitignore" in shown
    assert 'diff --git "a/b\\303\\244" "b/b\\303\\244"' in shown
    assert shown[shown.index("diff --git a/new b/new") + 1 :][:2] == ["--- /dev/null", "+++ b/new"]
    (tmp_path / "patch").write_text(patch)
    git(shop.agents, shop.app, "apply", "--index", str(tmp_path / "patch"))
    expected = git(shop.agents, shop.app, "diff", "--cached", "--no-renames")
    assert headers(expected) == shown


def test_a_file_that_talks_like_a_patch_is_left_as_it_is(shop: Shop) -> None:
    shop.ran("- {id: one, run: \"echo 'diff --git b/x b/x' > new\"}")
    assert "+diff --git b/x b/x" in shop.ok("plan", "diff", "plan")["patch"]


def test_several_resources_are_named(shop: Shop, tmp_path: Path) -> None:
    shop.ran("""
        - {id: one, on: app, run: "echo 1 > same"}
        - {id: two, on: docs, run: "echo 2 > same"}
    """)
    patch = shop.ok("plan", "diff", "plan")["patch"]
    named = [line for line in patch.splitlines() if line.startswith("# resource")]
    assert named == ["# resource app", "# resource docs"]
    first = patch.index("# resource docs")
    (tmp_path / "patch").write_text(patch[:first])
    subprocess.run(["git", "apply", str(tmp_path / "patch")], cwd=shop.app, check=True)
    assert (shop.app / "same").read_text() == "1\n"


def test_one_resource_needs_no_name(shop: Shop) -> None:
    shop.ran('- {id: one, run: "echo 1 > same"}')
    assert shop.ok("plan", "diff", "plan")["patch"].startswith("diff --git a/same b/same\n")
