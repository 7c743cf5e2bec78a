"""A plan's checkpoints as commits and as patches, judged by git itself."""

import base64
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Agents, command
from tests.scratch import Snapshot, git, make_repository, query, snapshot, without

PLAN = r"""
name: story
resources: {app: {kind: git-checkout, path: app}}
steps:
  - id: edit
    decision: {question: how to greet, chosen: loudly, rationale: "diff is read\nFrom here"}
    run: "sed -i s/hello/HELLO/ greet.txt && printf 'new\n' > new.txt && mkdir empty"
  - id: swap
    decision: {question: what is conf, chosen: a folder}
    run: |
      rm conf && mkdir conf && printf 'x\r\ny\r\n' > conf/win.txt && chmod +x run.sh
      ln -s greet.txt link && printf '\000\377' > blob.bin && printf o > "$(printf 'caf\351')"
  - id: back
    decision: {question: keep new.txt, chosen: "no"}
    run: "rm new.txt && printf 'ignored' > some.log && printf q > 'sp ace \"q\".txt'"
"""


def make_app(agents: Agents) -> Path:
    app = agents.work / "app"
    app.mkdir()
    (app / "greet.txt").write_text("hello\nworld\n")
    (app / "conf").write_text("a file\n")
    (app / "run.sh").write_text("#!/bin/sh\n")
    (app / ".gitignore").write_text("*.log\n")
    make_repository(agents, app)
    return app


def run_plan(agents: Agents, text: str = PLAN, rc: int = 0) -> dict[str, Any]:
    (agents.work / "plan.yaml").write_text(text)
    return agents.run("plan", "run", "plan.yaml", "--json").expect(rc).data


def checked_out(agents: Agents, app: Path, commit: str, to: Path) -> Snapshot:
    """What a commit holds, written by git."""
    git(agents, app, "worktree", "add", "-q", "--detach", str(to), commit)
    return without(snapshot(to), b".git")


def visible(tree: Snapshot) -> Snapshot:
    """What git can hold of a tree: no empty folders, no ignored files, one mode bit."""
    kept = {
        p: s for p, s in tree.items() if not p.endswith(b".log") and p.split(b"/")[0] != b".git"
    }
    folders = {os.path.dirname(p) for p, s in kept.items() if s[0] != "dir"}
    return {
        p: ("dir", 0, b"") if s[0] == "dir" else (s[0], s[1] & 0o100, s[2])
        for p, s in kept.items()
        if s[0] != "dir" or p in folders
    }


def test_every_group_that_changed_something_is_a_commit_and_the_users_tree_is_untouched(
    agents: Agents,
) -> None:
    app = make_app(agents)
    (app / "mine.txt").write_text("not committed\n")
    ran = run_plan(agents)
    before = snapshot(app)
    done = agents.run("plan", "export", "story", "--branch", "work/agents", "--json").expect(0).data
    groups = list(dict.fromkeys(c["group"] for c in ran["checkpoints"]))
    made = [c["group_id"] for c in done["commits"]]
    assert made == [group for group in groups if group in made]
    assert all(c["files"] for c in done["commits"])
    log = git(agents, app, "log", "--reverse", "--format=%H", f"main..{done['branch']}").split()
    assert log == [c["commit"] for c in done["commits"]]
    assert git(agents, app, "rev-parse", f"{log[0]}^") == git(agents, app, "rev-parse", "main")
    subjects = git(agents, app, "log", "--reverse", "--format=%s", f"main..{done['tip']}")
    assert subjects.splitlines() == [c["subject"] for c in done["commits"]]
    assert "how to greet: loudly" in subjects
    git(agents, app, "fsck", "--strict", "--no-dangling")
    ours = (b".git/objects", b".git/refs/heads/work", b".git/logs/refs/heads/work")
    after = {p: s for p, s in snapshot(app).items() if not p.startswith(ours)}
    assert after == {p: s for p, s in before.items() if not p.startswith(ours)}
    tip = checked_out(agents, app, done["tip"], agents.work / "tip")
    sandbox = snapshot(Path(ran["sandboxes"]["app"]))
    wanted = visible(sandbox)
    del wanted[b"mine.txt"]  # the user's own work is nobody else's commit
    assert visible(tip) == wanted


def test_each_commit_holds_what_its_checkpoint_held(agents: Agents) -> None:
    app = make_app(agents)
    run_plan(agents)
    commits = (
        agents.run("plan", "export", "last", "--branch", "x", "--json").expect(0).data["commits"]
    )
    [edited] = [c for c in commits if c["subject"].startswith("how to") and c["files"]]
    tree = checked_out(agents, app, edited["commit"], agents.work / "then")
    agents.run("plan", "rollback", "last", edited["group_id"], "--yes").expect(0)
    status = agents.run("plan", "status", "last", "--json").data
    assert visible(tree) == visible(snapshot(Path(status["sandboxes"]["app"])))
    again = agents.run("plan", "export", "last", "--branch", "y", "--json").expect(0).data
    kept = [c["commit"] for c in commits]
    assert [c["commit"] for c in again["commits"]] == kept[: kept.index(edited["commit"]) + 1]


def test_an_existing_branch_is_replaced_only_by_force_and_never_one_checked_out(
    agents: Agents,
) -> None:
    app = make_app(agents)
    run_plan(agents)
    git(agents, app, "branch", "taken")
    old = git(agents, app, "rev-parse", "taken")
    refused = agents.run("plan", "export", "last", "--branch", "taken", "--json").expect(4)
    assert "already exists" in refused.data["error"]["message"]
    assert git(agents, app, "rev-parse", "taken") == old
    done = agents.run("plan", "export", "last", "--branch", "taken", "--force", "--json").expect(0)
    assert git(agents, app, "rev-parse", "taken") == done.data["tip"] != old
    here = agents.run("plan", "export", "last", "--branch", "main", "--force", "--json").expect(4)
    assert "checked out" in here.data["error"]["message"]
    git(agents, app, "worktree", "add", "-q", str(agents.work / "other"), "taken")
    there = agents.run("plan", "export", "last", "--branch", "taken", "--force", "--json").expect(4)
    assert str(agents.work / "other") in there.data["error"]["message"]


@pytest.mark.parametrize("name", ["-x", "a..b", "HEAD", "a b", "x.lock"])
def test_a_name_that_git_would_not_take_is_refused(agents: Agents, name: str) -> None:
    make_app(agents)
    run_plan(agents)
    agents.run("plan", "export", "last", f"--branch={name}").expect(2)


def test_a_branch_that_stands_in_the_way_is_named(agents: Agents) -> None:
    app = make_app(agents)
    run_plan(agents)
    git(agents, app, "branch", "agents")
    refused = agents.run("plan", "export", "last", "--branch", "agents/x", "--json").expect(4)
    assert "agents/x cannot be written" in refused.data["error"]["message"]


def test_what_failed_or_was_rolled_back_is_not_exported(agents: Agents) -> None:
    app = make_app(agents)
    run_plan(
        agents,
        """
name: crooked
resources: {app: {kind: git-checkout, path: app}}
steps:
  - {id: one, run: "echo one > one.txt", checkpoint: milestone}
  - {id: two, run: 'echo two > two.txt; test -e "$AGENTS_PLAN_DIR/ok"'}
""",
        rc=5,
    )
    (agents.work / "ok").touch()
    agents.run("plan", "resume", "last").expect(0)
    agents.run("plan", "rollback", "last", "milestone", "--yes").expect(0)
    agents.run("plan", "resume", "last").expect(0)
    done = agents.run("plan", "export", "last", "--branch", "x", "--json").expect(0).data
    types = [c["type"] for c in done["commits"]]
    assert "on_error" not in types
    assert "pre_rollback" not in types
    assert [c["subject"] for c in done["commits"] if c["files"]] == ["one: shell", "two: shell"]
    assert "two.txt" in git(agents, app, "ls-tree", "--name-only", done["tip"]).splitlines()


CORRECTED = """
name: story
resources: {app: {kind: git-checkout, path: app}}
steps:
  - {id: one, run: "echo one $AGENTS_GUIDANCE > one.txt"}
  - {id: two, run: "mkdir two; echo two > two/two.txt; rm old.txt"}
  - {id: three, run: "echo three > three.txt"}
"""


def test_after_a_correction_each_commit_has_its_own_work_and_none_is_empty(agents: Agents) -> None:
    app = make_app(agents)
    (app / "old.txt").write_text("old")
    git(agents, app, "add", "-A")
    git(agents, app, "commit", "-q", "-m", "old")
    run_plan(agents, CORRECTED)
    [root] = agents.run("plan", "tree", "story", "--json").data["tree"]
    first = next(d["decision_id"] for d in root["children"] if d["question"] == "one")
    agents.run("plan", "correct", first, "--guidance", "anew", "--yes").expect(0)
    done = agents.run("plan", "export", "story", "--branch", "x", "--json").expect(0).data
    found: dict[str, set[str]] = {}
    for item in done["commits"]:
        shown = git(agents, app, "show", "--format=", "--name-only", item["commit"])
        found[item["subject"]] = set(shown.splitlines())
    assert found == {
        "two: shell": {"two/two.txt", "old.txt"},
        "three: shell": {"three.txt"},
        "one: shell": {"one.txt"},
    }
    sandbox = agents.run("plan", "status", "story", "--json").data["sandboxes"]["app"]
    tip = checked_out(agents, app, done["tip"], agents.work / "tip")
    assert visible(tip) == visible(snapshot(Path(sandbox)))
    patches = agents.run("plan", "export", "story", "--patch", "--json").expect(0).data["patches"]
    assert patches[0]["subject"] == "two: shell"
    assert {p["subject"] for p in patches} == set(found)


def test_a_plan_that_changed_nothing_has_nothing_to_export(agents: Agents) -> None:
    app = make_app(agents)
    run_plan(
        agents,
        "name: idle\nresources: {app: {kind: git-checkout, path: app}}\nsteps: [{run: 'true'}]\n",
    )
    error = agents.run("plan", "export", "idle", "--branch", "x", "--json").expect(4).data["error"]
    assert "changed nothing" in error["message"]
    assert git(agents, app, "branch", "--list", "x") == ""


def test_an_applied_plan_can_still_be_exported(agents: Agents) -> None:
    app = make_app(agents)
    run_plan(agents)
    agents.run("plan", "apply", "last", "--yes").expect(0)
    done = agents.run("plan", "export", "last", "--branch", "x", "--json").expect(0).data
    assert git(agents, app, "rev-parse", f"{done['tip']}^{{tree}}") == git(
        agents, app, "rev-parse", "main^{tree}"
    )
    git(agents, app, "fsck", "--strict", "--no-dangling")


def test_what_git_would_convert_or_the_user_changed_is_refused_as_commits(agents: Agents) -> None:
    app = make_app(agents)
    (app / ".gitattributes").write_text("*.txt text\n")
    make_repository(agents, app)
    run_plan(agents)
    refused = agents.run("plan", "export", "last", "--branch", "x", "--json").expect(4)
    assert "conf/win.txt has line endings" in refused.data["error"]["message"]
    assert "--patch" in refused.data["error"]["hint"]
    assert git(agents, app, "branch", "--list", "x") == ""
    (app / ".gitattributes").unlink()
    (app / "greet.txt").write_text("hello\nworld\nmine\n")
    run_plan(agents)
    refused = agents.run("plan", "export", "last", "--branch", "x", "--json").expect(4)
    assert "greet.txt has uncommitted changes" in refused.data["error"]["message"]


def test_patches_are_taken_by_git_am_byte_for_byte(agents: Agents) -> None:
    app = make_app(agents)
    ran = run_plan(agents)
    done = agents.run("plan", "export", "story", "--patch", "out", "--json").expect(0).data
    paths = [str(agents.work / item["path"]) for item in done["patches"]]
    assert [Path(path).name[:5] for path in paths] == ["0001-", "0002-", "0003-"]
    git(agents, app, "am", "-q", *paths)
    subjects = git(agents, app, "log", "-3", "--reverse", "--format=%s").splitlines()
    assert subjects == [item["subject"] for item in done["patches"]]
    assert visible(snapshot(app)) == visible(snapshot(Path(ran["sandboxes"]["app"])))
    refused = agents.run("plan", "export", "story", "--patch", "out").expect(4)
    assert "already exists" in refused.stderr
    agents.run("plan", "export", "story", "--patch", "out", "--force").expect(0)


def test_patches_of_a_directory_are_taken_by_git_apply(agents: Agents) -> None:
    app = agents.work / "app"
    app.mkdir()
    for name, text in {"greet.txt": "hello\n", "conf": "a file\n", "run.sh": "#!/bin/sh\n"}.items():
        (app / name).write_text(text)
    ran = run_plan(agents, PLAN.replace("git-checkout", "fs-directory"))
    argv = [command(), "plan", "export", "last", "--patch", "-"]
    out = subprocess.run(argv, cwd=agents.work, env=agents.env, stdout=-1, check=True).stdout
    files = agents.run("plan", "export", "last", "--patch", "out", "--json").expect(0).data
    paths = [agents.work / item["path"] for item in files["patches"]]
    assert b"".join(path.read_bytes() for path in paths) == out
    for path in paths:
        git(agents, app, "apply", str(path))
    wanted = snapshot(Path(ran["sandboxes"]["app"]))
    assert {p: s for p, s in snapshot(app).items() if s[0] != "dir"} == {
        p: s for p, s in wanted.items() if s[0] != "dir"
    }
    shown = agents.run("plan", "export", "last", "--patch", "--json").expect(0).data["patches"]
    texts = [
        base64.b64decode(item["patch_b64"]) if "patch_b64" in item else item["patch"].encode()
        for item in shown
    ]
    assert b"".join(texts) == out
    refused = agents.run("plan", "export", "last", "--branch", "x", "--json").expect(4)
    assert "repositories only" in refused.data["error"]["message"]


def test_with_several_resources_one_says_which(agents: Agents) -> None:
    make_app(agents)
    other = agents.work / "other"
    make_repository(agents, other)
    (agents.work / "data").mkdir()
    query(agents.work / "app.db", "CREATE TABLE t (x)")
    run_plan(
        agents,
        """
name: many
resources:
  app: {kind: git-checkout, path: app}
  other: {kind: git-checkout, path: other}
  data: {kind: fs-directory, path: data}
  db: {kind: sqlite, path: app.db}
steps:
  - {id: a, on: app, run: "echo a > a"}
  - {id: b, on: other, run: "echo b > b"}
  - {id: c, on: data, run: "echo c > c"}
  - {id: d, on: db, tool: sql, with: {script: "INSERT INTO t VALUES (1)"}}
""",
    )
    agents.run("plan", "export", "many", "--branch", "x").expect(2)
    done = agents.run("plan", "export", "many", "--branch", "x", "--on", "other", "--json").expect(
        0
    )
    assert git(agents, other, "ls-tree", "--name-only", "x") == "b"
    assert done.data["resource"] == "other"
    agents.run("plan", "export", "many", "--patch").expect(2)
    agents.run("plan", "export", "many", "--patch", "out").expect(0)
    found = sorted(
        str(p.relative_to(agents.work / "out")) for p in (agents.work / "out").glob("*/*")
    )
    assert found == [
        f"{n}/0001-{s}-shell.patch" for n, s in (("app", "a"), ("data", "c"), ("other", "b"))
    ]
    assert (
        "no resource"
        in agents.run("plan", "export", "many", "--patch", "--on", "no").expect(3).stderr
    )
    agents.run("plan", "export", "many", "--patch", "--on", "db").expect(4)
    agents.run("plan", "export", "many", "--branch", "y", "--on", "db").expect(4)


def test_how_has_to_be_said_and_there_has_to_be_something(agents: Agents) -> None:
    make_app(agents)
    (agents.work / "plan.yaml").write_text(PLAN)
    agents.run("plan", "use", "plan.yaml").expect(0)
    agents.run("plan", "export", "last").expect(2)
    agents.run("plan", "export", "last", "--branch", "x", "--patch", "out").expect(2)
    refused = agents.run("plan", "export", "last", "--patch", "out").expect(4)
    assert "no checkpoints" in refused.stderr or "no resource" in refused.stderr


def test_a_repository_without_a_commit_is_exported_as_patches_only(agents: Agents) -> None:
    app = agents.work / "app"
    app.mkdir()
    git(agents, app, "init", "-q")
    run_plan(
        agents,
        "name: first\nresources: {app: {kind: git-checkout, path: app}}\n"
        "steps: [{id: a, run: 'echo a > a'}]\n",
    )
    refused = agents.run("plan", "export", "last", "--branch", "x", "--json").expect(4)
    assert "no commit" in refused.data["error"]["message"]
    agents.run("plan", "export", "last", "--patch", "out").expect(0)


def test_a_base_commit_that_is_gone_is_named(agents: Agents) -> None:
    app = make_app(agents)
    ran = run_plan(agents)
    agents.run("plan", "apply", "last", "--yes", "--as", "changes").expect(0)
    git(agents, app, "update-ref", "-d", f"refs/cleveragents/{ran['plan_id']}")
    git(agents, app, "checkout", "-q", "--orphan", "anew")
    git(agents, app, "commit", "-q", "-m", "anew")
    git(agents, app, "branch", "-D", "main")
    git(agents, app, "reflog", "expire", "--expire=now", "--all")
    git(agents, app, "gc", "-q", "--prune=now")
    refused = agents.run("plan", "export", "last", "--branch", "x", "--json").expect(4)
    assert "base commit" in refused.data["error"]["message"]
