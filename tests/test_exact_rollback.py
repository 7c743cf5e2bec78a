"""A plan over a repository with everything a file system has, rolled back by another process."""

import base64
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.databases import store_of
from tests.harness import Agents, command
from tests.scratch import git, reverted, running_step, snapshot, wait_until, without

NEWLINE = b"two\nlines.txt"
CHINESE = "文件.txt".encode()
LATIN = b"caf\xe9.txt"  # not UTF-8

PLAN = r"""
name: everything
resources: {app: {kind: git-checkout, path: app}}
steps:
  - id: wait
    run: 'while [ ! -e "$AGENTS_PLAN_DIR/go" ]; do sleep 0.02; done'
  - id: edit
    run: |
      for f in tracked.txt modified.txt untracked.txt ignored.log two*lines.txt 文件.txt caf*.txt
      do printf 'edited\n' >> "$f"; done
  - id: delete
    run: "rm deep/down/leaf.txt link run.sh caf*.txt; rmdir empty"
  - id: rename
    run: "git mv tracked.txt moved.txt; mv two*lines.txt one-line.txt; mv deep/down deep/up"
  - {id: chmod, run: "chmod 644 secret; chmod 711 deep; chmod 600 文件.txt; chmod +x modified.txt"}
  - id: create
    run: |
      mkdir -p new/empty link && printf 1 > new/file && ln -s nowhere new/dangling
      printf x > "new/$(printf 'latin-\344')" && printf '\000\377' > new/binary
      printf now-a-file > empty && ln -s ../secret deep/secret
"""


def write(path: Path | bytes, content: str, mode: int = 0o644) -> None:
    with open(path, "w", encoding="utf-8") as target:
        target.write(content)
    os.chmod(path, mode)


def make_everything(agents: Agents, app: Path) -> None:
    """Tracked, modified, untracked, ignored, executable, link, empty, 0600 and odd names."""
    (app / "deep/down").mkdir(parents=True)
    write(app / "tracked.txt", "tracked\n")
    write(app / "modified.txt", "as committed\n")
    write(app / "run.sh", "#!/bin/sh\n", 0o755)
    write(app / "deep/down/leaf.txt", "leaf\r\nwith CRLF\r\n")
    write(app / ".gitignore", "*.log\n")
    git(agents, app, "init", "-q", "-b", "main")
    git(agents, app, "add", "-A")
    git(agents, app, "commit", "-q", "-m", "start")
    write(app / "modified.txt", "changed by the user\n")
    write(app / "untracked.txt", "untracked\n")
    write(app / "ignored.log", "ignored\n")
    write(app / "secret", "secret\n", 0o600)
    (app / "empty").mkdir()
    (app / "link").symlink_to("deep/down/leaf.txt")
    for name in (NEWLINE, CHINESE, LATIN):
        write(os.path.join(os.fsencode(app), name), "odd\n")


class Shown:
    """The story once, for all tests: the trees at each moment, and what the commands said."""

    def __init__(self, agents: Agents) -> None:
        self.agents = agents
        self.app = agents.work / "app"
        self.app.mkdir()
        make_everything(agents, self.app)
        (agents.work / "plan.yaml").write_text(PLAN, encoding="utf-8")
        self.user_before = snapshot(self.app)
        self.ran = self.run_and_look()
        self.plan = self.ran["plan_id"]
        self.worked = snapshot(self.sandbox)
        self.user_worked = snapshot(self.app)
        self.target = self.checkpoint_before("edit")
        self.rolled = agents.run("plan", "rollback", self.plan, self.target, "--yes", "--json")
        self.back = snapshot(self.sandbox)
        self.back_at = times(self.sandbox)

    def run_and_look(self) -> dict[str, Any]:
        """Run the plan; its first step waits until we have seen the sandbox as it was made."""
        agents = self.agents
        argv = [command(), "plan", "run", "plan.yaml", "--json"]
        with subprocess.Popen(argv, cwd=agents.work, env=agents.env, stdout=-1) as process:
            wait_until(lambda: running_step(agents) == "wait", "the first step")
            [(path,)] = store_of(agents.env).query(SANDBOX)
            self.sandbox = Path(path)
            self.made = snapshot(self.sandbox)
            self.made_at = times(self.sandbox)
            (agents.work / "go").touch()
            process.communicate(timeout=600)
        assert process.returncode == 0
        return agents.run("plan", "status", "everything", "--json").expect(0).data

    def checkpoint_before(self, step: str) -> str:
        """The checkpoint of the decision that a step hangs on."""
        index = [item["step"] for item in self.ran["progress"]].index(step)
        [found] = [
            row["id"]
            for row in self.ran["checkpoints"]
            if (row["type"], row["step_index"]) == ("on_decision", index)
        ]
        return found


SANDBOX = "SELECT path FROM sandboxes"


def times(root: Path) -> dict[bytes, int]:
    """When each file was last changed."""
    found = {path: os.lstat(os.path.join(os.fsencode(root), path)) for path in snapshot(root)}
    return {path: at.st_mtime_ns for path, at in found.items() if stat.S_ISREG(at.st_mode)}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return Shown(Agents(tmp_path_factory.mktemp("everything")))


def test_the_sandbox_is_made_of_all_the_user_had(shown: Shown) -> None:
    assert without(shown.made, b".git") == without(shown.user_before, b".git")
    assert {NEWLINE, CHINESE, LATIN, b"empty", b"link"} <= shown.made.keys()


def test_the_plan_edits_deletes_renames_chmods_and_creates(shown: Shown) -> None:
    """Else the other tests prove nothing."""
    done = reverted(shown.worked, shown.made)
    assert {"restored", "removed", "recreated"} == set(done.values())
    for path in (b"tracked.txt", b"one-line.txt", b"secret", b"deep", LATIN, b"new/latin-\xe4"):
        assert path in done, path
    assert b".git/index" in done  # `git mv`


def test_the_sandbox_is_byte_for_byte_what_it_was(shown: Shown) -> None:
    shown.rolled.expect(0)
    assert reverted(shown.back, shown.made) == {}
    assert shown.back_at == shown.made_at


def test_the_users_tree_and_repository_did_not_change_but_for_our_ref(shown: Shown) -> None:
    ref = os.fsencode(f".git/refs/cleveragents/{shown.plan}")
    head = os.fsencode(git(shown.agents, shown.app, "rev-parse", "HEAD"))
    ours = {os.path.dirname(ref): ("dir", 0o755, b""), ref: ("file", 0o644, head + b"\n")}
    for now in (shown.user_worked, snapshot(shown.app)):
        assert now == shown.user_before | ours


def test_changes_reverted_is_exactly_what_an_independent_walk_finds(shown: Shown) -> None:
    listed = shown.rolled.data["changes_reverted"]
    named = [raw_name(item) for item in listed]
    assert {item["resource"] for item in listed} == {"app"}
    assert dict(zip(named, (item["action"] for item in listed), strict=True)) == reverted(
        shown.worked, shown.back
    )
    assert len(named) == len(set(named))
    counted = shown.rolled.data["rollback_summary"]
    kinds = ("files_reverted", "directories_reverted", "git_internals_reverted")
    assert sum(counted[kind] for kind in kinds) == len(named)
    assert counted["git_internals_reverted"] == sum(n.split(b"/")[0] == b".git" for n in named)


def raw_name(item: dict[str, str]) -> bytes:
    if "file_b64" in item:
        return base64.b64decode(item["file_b64"])
    return item["file"].encode("utf-8")


def test_only_a_name_that_is_not_utf8_is_encoded(shown: Shown) -> None:
    listed = shown.rolled.data["changes_reverted"]
    encoded = {raw_name(item): item["file"] for item in listed if "file_b64" in item}
    assert encoded == {LATIN: r"caf\xe9.txt", b"new/latin-\xe4": r"new/latin-\xe4"}


def test_the_plan_waits_to_be_executed_again(shown: Shown) -> None:
    after = shown.rolled.data["post_rollback_state"]
    assert (after["phase"], after["state"]) == ("execute", "queued")
    status = shown.agents.run("plan", "status", shown.plan, "--json").expect(0).data
    assert (status["phase"], status["state"]) == ("execute", "queued")
    assert [item["status"] for item in status["progress"]] == ["complete"] + ["queued"] * 5
    assert status["last_checkpoint_id"] == shown.target


def test_later_decisions_are_superseded(shown: Shown) -> None:
    tree = shown.agents.run("plan", "tree", shown.plan, "--show-superseded", "--json").data["tree"]
    states = {item["question"]: item["state"] for item in tree[0]["children"]}
    kept, gone = ["wait", "edit"], ["delete", "rename", "chmod", "create"]
    assert states == dict.fromkeys(kept, "active") | dict.fromkeys(gone, "superseded")
    assert shown.rolled.data["impact"]["decisions_after_cp"] == len(gone)
    shown_now = shown.agents.run("plan", "tree", shown.plan, "--json").data["tree"]
    assert [item["question"] for item in shown_now[0]["children"]] == kept


@pytest.mark.parametrize(
    "swap",
    [
        pytest.param("rm -r folder && echo file > folder", id="a folder became a file"),
        pytest.param("rm -r folder && ln -s file folder", id="a folder became a link"),
        pytest.param("rm file && mkdir file && echo 1 > file/in", id="a file became a folder"),
    ],
)
def test_a_path_that_changed_its_kind_comes_back(agents: Agents, swap: str) -> None:
    app = agents.work / "app"
    (app / "folder").mkdir(parents=True)
    write(app / "folder/inside", "inside\n")
    write(app / "file", "file\n")
    agents.run("run", "--on", "app", "--name", "swap", "--", "sh", "-c", swap).expect(0)
    rolled = agents.run("plan", "rollback", "swap", "first", "--yes", "--json").expect(0).data
    [(path,)] = store_of(agents.env).query(SANDBOX)
    assert snapshot(Path(path)) == snapshot(app)
    assert rolled["rollback_summary"]["files_reverted"] == 2  # the path itself, and what was inside
