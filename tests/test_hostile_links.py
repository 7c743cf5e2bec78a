"""Links where a sandbox is made, shown or put back: none is followed."""

import os
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.scratch import git, make_repository, snapshot

LOCAL = ("-c", "protocol.file.allow=always")


def run(agents: Agents, work: str = "echo more > new") -> str:
    (agents.work / "plan.yaml").write_text(
        "name: links\nresources: {app: {kind: git-checkout, path: app}}\n"
        f"steps:\n  - id: work\n    run: |\n      {work}\n"
    )
    return agents.run("plan", "run", "plan.yaml", "--json").expect(0).data["plan_id"]


@pytest.fixture
def library(agents: Agents) -> Path:
    folder = agents.work / "library"
    folder.mkdir()
    (folder / "lib.txt").write_text("lib\n")
    make_repository(agents, folder)
    return folder


def with_submodule(agents: Agents, name: str, library: Path, at: str) -> Path:
    folder = agents.work / name
    folder.mkdir()
    (folder / "own").write_text("own\n")
    make_repository(agents, folder)
    git(agents, folder, *LOCAL, "submodule", "add", "-q", str(library), at)
    git(agents, folder, "commit", "-q", "-m", "with a submodule")
    return folder


@pytest.mark.parametrize("linked", ["libs/lib", "libs"])
def test_a_submodule_that_is_a_link_leaves_the_other_checkout_alone(
    agents: Agents, library: Path, linked: str
) -> None:
    """Somebody links another checkout in to work on both: its `.git` file stays theirs."""
    other = with_submodule(agents, "other", library, "deep/down/libs/lib")
    app = with_submodule(agents, "app", library, "libs/lib")
    os.rename(app / linked, agents.work / "aside")
    (app / linked).symlink_to(other / "deep/down" / linked)
    before, file = snapshot(other), (other / "deep/down/libs/lib/.git").stat()
    run(agents)
    assert snapshot(other) == before
    assert (other / "deep/down/libs/lib/.git").stat() == file
    sandbox = Path(agents.run("plan", "status", "last", "--json").data["sandboxes"]["app"])
    assert (sandbox / linked).is_symlink()


def test_a_patch_of_a_link_that_became_a_folder_moves_nothing(agents: Agents) -> None:
    """One side has the link, the other a file below a folder of that name, with CRLF."""
    outside = agents.work / "outside"
    outside.mkdir()
    (outside / "letter").write_bytes(b"dear\r\nreader\r\n")
    app = agents.work / "app"
    app.mkdir()
    (app / "sub").symlink_to(outside)
    make_repository(agents, app)
    run(agents, r"rm sub && mkdir sub && printf 'x\r\n' > sub/letter")
    agents.run("plan", "export", "last", "--patch", str(agents.work / "patches")).expect(0)
    agents.run("plan", "diff", "last").expect(0)
    assert (outside / "letter").read_bytes() == b"dear\r\nreader\r\n"


def test_an_inner_resource_below_a_link_is_refused_and_nothing_is_made_there(
    agents: Agents,
) -> None:
    """While the sandbox of the outer one is made, a link to the inner one's sandbox is put in."""
    outside = agents.work / "outside"
    (outside / "data").mkdir(parents=True)
    app = agents.work / "app"
    (app / "inner/data").mkdir(parents=True)
    (app / "own").write_text("own\n")
    make_repository(agents, app)
    (agents.work / "plan.yaml").write_text(
        "name: links\nresources:\n"
        "  app: {kind: fs-directory, path: app}\n"
        "  data: {kind: fs-directory, path: app/inner/data}\n"
        "steps:\n  - {id: work, on: app, run: rm -rf inner && ln -s "
        f"{outside} inner}}\n"
    )
    ran = agents.run("plan", "run", "plan.yaml").expect(5)
    assert "inner/data is no longer the link" in ran.stderr
    agents.run("plan", "rollback", "last", "first", "--yes").expect(0)
    assert [path.name for path in outside.rglob("*")] == ["data"]


def test_a_remote_with_a_hostile_name_gives_the_sandbox_no_settings(agents: Agents) -> None:
    app = agents.work / "app"
    app.mkdir()
    (app / "own").write_text("own\n")
    make_repository(agents, app)
    ran = agents.work / "ran"
    name = f'x"] url = y\\n [core] fsmonitor = touch {ran} #'
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    with open(app / ".git/config", "a") as config:
        config.write(f'[remote "{escaped}"]\n\turl = "https://example.invalid/\\"] #"\n')
        config.write('[remote "plain"]\n\turl = "a\\\\b;c"\n')
    run(agents, "git status && echo more > new")
    sandbox = Path(agents.run("plan", "status", "last", "--json").data["sandboxes"]["app"])
    shown = git(agents, sandbox, "config", "--local", "--list", "-z").split("\0")
    keys = [item.partition("\n")[0] for item in shown]
    assert not [key for key in keys if key.startswith("core.") and "fsmonitor" in key]
    assert f'remote.{name}.url\nhttps://example.invalid/"] #' in shown
    assert "remote.plain.url\na\\b;c" in shown
    assert not ran.exists()
