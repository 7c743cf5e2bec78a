"""A git repository that has only an address: a sandbox of it, applied by a push with lease."""

import fcntl
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from cleveragents.content import fsio
from cleveragents.errors import SandboxError
from cleveragents.sandbox.git.address import Address
from cleveragents.sandbox.git.transport import Remote
from tests.harness import Agents
from tests.in_process import Arm, Yard, cli
from tests.pgserver import Shop
from tests.remotes import LOGIN, Origin, git, redirected, served
from tests.scratch import wait_until

PLAN = """\
name: far
resources:
  code: {kind: git-remote, url: "FAR", branch: main}
steps:
  - {id: edit, on: code, run: "sed -i s/^1$/one/ kept.txt; echo new > new.txt; rm second.txt"}
"""


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(tmp_path / "far")


def written(yard: Yard, url: str, text: str = PLAN) -> str:
    return yard.plan(text.replace("FAR", url))


def run(yard: Yard, origin: Origin) -> None:
    done = cli("plan", "run", written(yard, origin.url), "--json")
    assert done.data["state"] == "complete"


def dies_at(name: str, *argv: str) -> None:
    """The command in a process that is killed at the fault point of that name."""
    assert killed(lambda at: os.kill(os.getpid(), signal.SIGKILL) if at == name else None, *argv)


def killed(fault: Callable[[str], None] | int, *argv: str) -> bool:
    """Whether the command died of it, in a process of its own."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            fsio.arm(fault)
            cli(*argv)
            status = 0
        finally:
            os._exit(status)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def status() -> str:
    return cli("plan", "status", "far", "--json").data["state"]


def require_applied_once(origin: Origin, *since: str) -> None:
    """As one commit of the plan's on what was there, below what came `since`."""
    assert origin.log() == [*since, "far", "second", "base"]
    assert origin.show("kept.txt").splitlines()[0] == "one"
    assert origin.show("new.txt") == "new"
    assert "second.txt" not in git(origin.path, "ls-tree", "--name-only", "main").split()
    assert status() == "applied"


def test_work_becomes_one_commit_on_the_branch(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    box = Path(cli("plan", "status", "far", "--json").data["sandboxes"]["code"])
    assert sorted(os.listdir(box)) == [".git", "kept.txt", "new.txt", "sub"]
    assert git(box, "log", "--format=%s").splitlines() == ["second"], "the commit, not its history"
    assert git(box, "status", "--porcelain").split() == ["M", "kept.txt", "D", "second.txt", "??",
                                                         "new.txt"]  # fmt: skip
    before = origin.tip()
    assert cli("plan", "apply", "far", "--dry-run", "--json").data["dry_run"]
    assert origin.tip() == before
    [done] = cli("plan", "apply", "far", "--yes", "--json").data["applied"]
    assert (done["mode"], done["files"], done["commit"]) == ("commit", 3, origin.tip())
    require_applied_once(origin)
    assert "Agents-Plan: " in git(origin.path, "log", "-1", "--format=%B")
    assert not list(box.parent.parent.iterdir()), "nothing of it is left beside the store"
    assert "kept.txt" in cli("plan", "diff", "far").stdout, "read from the store"
    cli("gc")
    cli("check")
    again = cli("plan", "apply", "far", "--yes", "--json")
    assert again.data["applied"][0]["commit"] == origin.tip()
    assert not again.json["messages"]
    cli("plan", "delete", "far", "--yes")
    store = box.parents[2]
    assert not list((store / "cache").iterdir()) + list((store / "sandboxes").iterdir())


def test_without_a_name_it_is_the_branch_that_head_names(yard: Yard, origin: Origin) -> None:
    git(origin.path, "branch", "-m", "main", "trunk")
    plan = written(yard, origin.url, PLAN.replace(", branch: main", ""))
    cli("plan", "run", plan)
    cli("plan", "apply", "far", "--yes")
    assert origin.log("trunk")[0] == "far"


def test_a_rollback_and_a_new_way_are_what_is_applied(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    cli("plan", "rollback", "far", "first", "--yes")
    box = Path(cli("plan", "status", "far", "--json").data["sandboxes"]["code"])
    assert (box / "second.txt").read_text() == "second\n"
    assert git(box, "status", "--porcelain") == ""
    (box / "by-hand.txt").write_text("mine\n")
    cli("plan", "resume", "far")
    cli("plan", "apply", "far", "--yes")
    require_applied_once(origin)
    assert origin.show("by-hand.txt") == "mine"


def test_what_somebody_pushed_meanwhile_is_merged(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    theirs = origin.commit("theirs", {"kept.txt": "1\n2\n3\n4\n5\n6\nseven\n", "own.txt": "own\n"})
    [done] = cli("plan", "apply", "far", "--yes", "--json").data["applied"]
    assert origin.log() == ["far", "theirs", "second", "base"]
    assert git(origin.path, "rev-parse", "main^") == theirs
    assert origin.show("kept.txt").split() == ["one", "2", "3", "4", "5", "6", "seven"]
    assert origin.show("own.txt") == "own"
    assert done["files"] == 3


def test_a_branch_that_was_written_anew_is_merged_with_too(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    tree = git(origin.path, "rev-parse", "main^{tree}")
    anew = git(origin.path, "commit-tree", tree, "-m", "all in one")
    git(origin.path, "update-ref", "refs/heads/main", anew)
    origin.commit("theirs", {"own.txt": "own\n"})
    cli("plan", "apply", "far", "--yes")
    assert origin.log() == ["far", "theirs", "all in one"]
    assert origin.show("kept.txt").splitlines()[0] == "one"
    assert not cli("plan", "apply", "far", "--yes", "--json").json["messages"]


def test_what_somebody_pushed_already_is_not_pushed_again(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    (origin.other / "second.txt").unlink()
    git(origin.other, "commit", "-qam", "gone")
    git(origin.other, "push", "-q", origin.url, "HEAD:main")
    tip = origin.commit("same", {"kept.txt": "one\n2\n3\n4\n5\n6\n7\n", "new.txt": "new\n"})
    [done] = cli("plan", "apply", "far", "--yes", "--json").data["applied"]
    assert (done["files"], done["commit"]) == (0, None)
    assert origin.tip() == tip
    assert status() == "applied"


@pytest.mark.parametrize(
    "theirs",
    [
        {"kept.txt": "uno\n2\n3\n4\n5\n6\n7\n"},
        {"second.txt": "changed\n"},
        {"new.txt": "another\n"},
        {"new.txt/inner": "a folder\n"},
        {"kept.txt": "\0binary\n"},
    ],
)
def test_what_both_changed_is_refused(yard: Yard, origin: Origin, theirs: dict[str, str]) -> None:
    run(yard, origin)
    tip = origin.commit("theirs", theirs)
    said = cli("plan", "apply", "far", "--yes", "--json", expect=4).data["error"]
    assert f"code:{next(iter(theirs)).split('/')[0]}" in said["message"]
    assert origin.tip() == tip
    assert status() == "constrained"


def test_who_is_faster_keeps_the_branch_and_apply_again_merges(
    yard: Yard, origin: Origin, arm: Arm
) -> None:
    run(yard, origin)
    before = origin.tip()
    arm(lambda at: at == "push" and origin.commit("faster", {"own.txt": "own\n"}) and None)
    said = cli("plan", "apply", "far", "--yes", "--json", expect=4).data["error"]
    arm(None)
    assert said["message"].endswith("was moved while the plan was being applied")
    assert "apply again, which merges" in said["hint"]
    assert git(origin.path, "rev-parse", "main^") == before
    assert origin.log()[0] == "faster"
    cli("plan", "apply", "far", "--yes")
    assert origin.log() == ["far", "faster", "second", "base"]
    assert origin.show("own.txt") == "own"


# killed


@pytest.mark.parametrize("at", ["push", "pushed"])
def test_killed_around_the_push_it_is_applied_once(yard: Yard, origin: Origin, at: str) -> None:
    run(yard, origin)
    dies_at(at, "plan", "apply", "far", "--yes")
    assert (origin.log()[0] == "far") == (at == "pushed")
    said = cli("plan", "list", "--json").json["messages"]
    assert any("an interrupted apply was finished" in text for text in said)
    require_applied_once(origin)
    cli("plan", "apply", "far", "--yes")
    require_applied_once(origin)


def test_killed_anywhere_in_an_apply_it_is_applied_once(yard: Yard, tmp_path: Path) -> None:
    """`CLEVERAGENTS_TEST_FULL=1`: at every fault point, and not at every third."""
    stride = 1 if os.environ.get("CLEVERAGENTS_TEST_FULL") == "1" else 3
    number, died = 0, True
    while died:
        number += stride
        origin = Origin(tmp_path / f"far{number}")
        run(yard, origin)
        died = killed(number, "plan", "apply", "far", "--yes")
        cli("plan", "list")
        cli("plan", "apply", "far", "--yes")
        require_applied_once(origin)
        cli("plan", "delete", "far", "--yes")
    assert number > stride


def test_a_push_before_the_death_is_recognised_below_the_commits_of_others(
    yard: Yard, origin: Origin
) -> None:
    run(yard, origin)
    dies_at("pushed", "plan", "apply", "far", "--yes")
    origin.commit("later", {"later.txt": "later\n"})
    origin.commit("last", {"last.txt": "last\n"})
    cli("plan", "list")
    require_applied_once(origin, "last", "later")
    assert not cli("plan", "apply", "far", "--yes", "--json").json["messages"]
    require_applied_once(origin, "last", "later")


def test_killed_before_the_push_and_overtaken_it_is_undone(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    dies_at("push", "plan", "apply", "far", "--yes")
    origin.commit("faster", {"own.txt": "own\n"})
    cli("plan", "list")
    assert origin.log() == ["faster", "second", "base"]
    assert status() == "errored"
    cli("plan", "apply", "far", "--yes")
    assert origin.log() == ["far", "faster", "second", "base"]


def test_with_the_remote_away_after_a_death_nothing_is_decided(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    dies_at("pushed", "plan", "apply", "far", "--yes")
    away = origin.path.rename(origin.path.with_name("away"))
    said = cli("plan", "list", "--json").json["messages"]
    assert any("an interrupted apply is pending" in text for text in said)
    away.rename(origin.path)
    cli("plan", "list")
    require_applied_once(origin)


def test_a_git_that_outlives_us_is_waited_for(yard: Yard, origin: Origin, arm: Arm) -> None:
    """The server answers late: whoever recovers asks only when that push has ended."""
    gate, begun = yard.top / "gate", yard.top / "begun"
    origin.hook("pre-receive", f"touch {begun}; while ! test -e {gate}; do sleep 0.05; done")
    run(yard, origin)
    child = os.fork()
    if child == 0:
        try:
            cli("plan", "apply", "far", "--yes")
        finally:
            os._exit(1)
    wait_until(begun.exists, "the push is there")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    arm(lambda at: gate.touch() if at == "wait" else None)
    cli("plan", "list")
    assert gate.exists()
    require_applied_once(origin)


# another way to apply, and back


def test_as_a_branch_of_its_own(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    before = origin.tip()
    origin.commit("theirs", {"kept.txt": "uno\n"})
    cli("plan", "apply", "far", "--as", "branch", "--yes")
    assert origin.log("agents/far") == ["far", "second", "base"]
    assert git(origin.path, "rev-parse", "agents/far^") == before
    assert origin.log()[0] == "theirs"
    assert "was applied as a branch" in str(cli("plan", "revert-applied", "far", expect=4))


def test_a_branch_that_is_there_is_left_alone(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    git(origin.path, "branch", "agents/far", "main~1")
    refs = origin.refs()
    said = cli("plan", "apply", "far", "--as", "branch", "--yes", "--json", expect=4)
    assert "has a branch agents/far already" in said.data["error"]["message"]
    assert origin.refs() == refs


def test_it_takes_no_plain_changes(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    said = cli("plan", "apply", "far", "--as", "changes", "--yes", "--json", expect=4)
    assert "takes commits only" in said.data["error"]["message"]
    cli("plan", "apply", "far", "--yes")
    require_applied_once(origin)


def test_an_applied_plan_is_reverted_by_a_commit(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    cli("plan", "apply", "far", "--yes")
    origin.commit("later", {"later.txt": "later\n"})
    cli("plan", "revert-applied", "far")
    cli("plan", "apply", "revert-far", "--yes")
    assert origin.log() == ['Revert "far"', "later", "far", "second", "base"]
    assert origin.show("kept.txt").splitlines()[0] == "1"
    assert origin.show("second.txt") == "second"
    assert origin.show("later.txt") == "later"


def test_what_is_lost_of_an_applied_plan_is_told(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    cli("plan", "apply", "far", "--yes")
    git(origin.path, "update-ref", "refs/heads/main", "main~1")
    said = cli("plan", "apply", "far", "--yes", "--json").json["messages"]
    assert any("branch main of file://" in text and "has no commit" in text for text in said)


def test_what_the_remote_refuses_is_said(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    origin.hook("pre-receive", r"printf 'not on a \033[31mFriday' >&2; exit 1")
    before = origin.tip()
    said = cli("plan", "apply", "far", "--yes", "--json", expect=4).data["error"]
    assert "remote: not on a" in said["message"]
    assert "\033" not in said["message"]
    assert "no target was changed" in said["hint"]
    assert origin.tip() == before


def test_commits_for_export_are_made_in_checkouts_only(yard: Yard, origin: Origin) -> None:
    run(yard, origin)
    said = cli("plan", "export", "far", "--branch", "mine", "--json", expect=4).data["error"]
    assert "--patch" in said["hint"]
    cli("plan", "export", "far", "--patch", "patches")
    assert list((yard.top / "patches").rglob("*.patch"))


def test_what_git_would_convert_is_not_committed(yard: Yard, origin: Origin) -> None:
    origin.commit("rules", {".gitattributes": "*.bin filter=lfs\n*.txt text\n"})
    plan = PLAN.replace("echo new > new.txt", "echo new > new.bin")
    cli("plan", "run", written(yard, origin.url, plan))
    said = cli("plan", "apply", "far", "--yes", "--json", expect=4).data["error"]
    assert said["message"] == "new.bin goes through a git filter"
    assert "--patch" in said["hint"]


# with other resources


def test_child_plans_work_on_it(yard: Yard, origin: Origin) -> None:
    text = PLAN.partition("steps:")[0] + (
        "steps:\n  - {id: both, subplan: {steps: [{id: in, run: 'echo new > new.txt'}]}}\n"
    )
    cli("plan", "run", written(yard, origin.url, text))
    cli("plan", "apply", "far", "--yes")
    assert origin.show("new.txt") == "new"


def test_a_directory_is_put_back_when_the_lease_is_refused(
    yard: Yard, origin: Origin, arm: Arm
) -> None:
    text = PLAN.replace("steps:\n", "  app: {kind: fs-directory, path: app}\nsteps:\n") + (
        "  - {id: files, on: app, run: 'echo changed > old.txt'}\n"
    )
    cli("plan", "run", written(yard, origin.url, text))
    arm(lambda at: at == "push" and origin.commit("faster", {"own.txt": "own\n"}) and None)
    cli("plan", "apply", "far", "--yes", expect=4)
    arm(None)
    assert (yard.app / "old.txt").read_text() == "old\n"
    cli("plan", "apply", "far", "--yes")
    assert (yard.app / "old.txt").read_text() == "changed\n"
    assert origin.log()[0] == "far"


WITH_DATABASE = PLAN.replace(
    "steps:\n",
    "  db: {kind: postgres, url: $DATABASE_URL, strategy: STRATEGY}\nsteps:\n"
    "  - {id: row, on: db, tool: sql, with: {script: INSERT INTO users (name) VALUES ('eve')}}\n",
)


@pytest.mark.parametrize("strategy", ["snapshot", "transaction_rollback"])
@pytest.mark.parametrize("at", ["push", "pushed"])
def test_a_database_and_a_remote_become_real_together(
    yard: Yard, origin: Origin, shop: Shop, monkeypatch: pytest.MonkeyPatch, at: str, strategy: str
) -> None:
    monkeypatch.setenv("DATABASE_URL", shop.full_url)
    text = WITH_DATABASE.replace("STRATEGY", strategy)
    cli("plan", "run", written(yard, origin.url, text))
    assert shop.users() == ["ada", "bob"]
    dies_at(at, "plan", "apply", "far", "--yes")
    overtaken = at == "push"
    if overtaken:
        origin.commit("faster", {"own.txt": "own\n"})
    cli("plan", "list")
    assert shop.users() == ["ada", "bob", *([] if overtaken else ["eve"])]
    assert origin.log()[0] == ("faster" if overtaken else "far")
    cli("plan", "apply", "far", "--yes")
    assert shop.users() == ["ada", "bob", "eve"]
    assert origin.log().count("far") == 1


# what is asked before anything starts


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("url: 'file:///no/such/place'", "git ls-remote file:///no/such/place: fatal: "),
        ("url: 'FAR', branch: none", "has no branch none"),
        ("url: 'FAR', branch: a..b", "'a..b' is not a valid branch name"),
        ("url: /srv/code.git", "not the address of a git repository"),
        ("url: 'ext::sh -c touch% x'", "not the address of a git repository"),
        ("url: 'https://me:word@h/x'", "the URL contains a password"),
        ("url: 'FAR', path: app", "a git-remote has a 'url', not a 'path'"),
        ("url: 'FAR', carry: all", "only what is committed can be carried"),
        ("url: 'FAR', strategy: in_place", "unknown strategy 'in_place'"),
        ("branch: main", "'url' is missing"),
    ],
)
def test_what_is_wrong_is_said_first(yard: Yard, origin: Origin, keys: str, said: str) -> None:
    text = PLAN.replace('url: "FAR", branch: main', keys)
    error = cli("plan", "run", written(yard, origin.url, text), "--json", expect=2).data["error"]
    assert said in error["message"]
    assert "word" not in error["message"].replace("password", "")
    assert not cli("plan", "list", "--json").data["plans"]


def test_only_a_remote_has_a_branch(yard: Yard) -> None:
    text = PLAN.replace('git-remote, url: "FAR"', "fs-directory, path: app")
    assert "a fs-directory has no 'branch'" in str(cli("plan", "run", yard.plan(text), expect=2))


def test_an_empty_remote_is_refused(yard: Yard, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "empty.git")
    text = PLAN.replace(", branch: main", "")
    said = cli("plan", "run", written(yard, f"file://{tmp_path}/empty.git", text), expect=2)
    assert "has no branch" in said.stderr


def test_two_remotes_in_one_plan_are_refused(yard: Yard, origin: Origin, tmp_path: Path) -> None:
    other = Origin(tmp_path / "other")
    second = f'  more: {{kind: git-remote, url: "{other.url}"}}\nsteps:\n'
    said = cli("plan", "run", written(yard, origin.url, PLAN.replace("steps:\n", second)), expect=2)
    assert "'code', 'more': pushes to two repositories are not all or nothing" in said.stderr


# how it is reached


def test_over_http_with_a_password_that_is_kept_nowhere(
    yard: Yard, origin: Origin, private_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(origin) as url:
        monkeypatch.setenv("CODE_URL", url.replace("://", f"://{LOGIN}@"))
        talking = PLAN.replace('"sed', '"env; sed')
        told = str(cli("plan", "run", written(yard, "$CODE_URL", talking)))
        told += cli("plan", "output", "far").stdout
        theirs = origin.commit("theirs", {"own.txt": "own\n"})
        told += str(cli("plan", "apply", "far", "--yes"))
        assert git(origin.path, "rev-parse", "main^") == theirs
        assert origin.log() == ["far", "theirs", "second", "base"]
        monkeypatch.setenv("CODE_URL", url.replace("://", "://robot:wr0ng-w0rd@"))
        refused = cli("plan", "run", written(yard, "$CODE_URL"), expect=2)
        assert "Authentication failed" in refused.stderr
        assert url in refused.stderr
        told += str(refused)
    assert origin.leaked == []
    kept = [path for path in private_process.rglob("*") if path.is_file()]
    for secret in (LOGIN.partition(":")[2], "wr0ng-w0rd"):
        assert secret not in told
        assert not [path for path in kept if secret.encode() in path.read_bytes()]


def test_a_password_is_for_its_own_server_alone(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redirected("/origin.git") as (url, said):
        monkeypatch.setenv("CODE_URL", url.replace("://", f"://{LOGIN}@"))
        refused = cli("plan", "run", written(yard, "$CODE_URL"), expect=2)
    assert "could not read Username" in refused.stderr
    assert said == []


def test_the_users_own_credential_helper_is_asked_and_no_hook_of_theirs_is_run(
    yard: Yard, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, _, password = LOGIN.partition(":")
    hooks, config = yard.top / "hooks", yard.top / "gitconfig"
    hooks.mkdir()
    for name in ("pre-push", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {yard.top}/hooked\n")
        (hooks / name).chmod(0o755)
    config.write_text(
        f"[core]\n\thooksPath = {hooks}\n[push]\n\tgpgSign = true\n[credential]\n"
        f'\thelper = "!f() {{ echo username={user}; echo password={password}; }}; f"\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    with served(origin) as url:
        cli("plan", "run", written(yard, url))
        cli("plan", "apply", "far", "--yes")
    assert origin.log()[0] == "far"
    assert not (yard.top / "hooked").exists()


def test_over_ssh_with_the_command_that_the_user_has_set(
    yard: Yard, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last word is what the server is to run; it is run here."""
    ssh = yard.top / "ssh"
    script = '#!/bin/sh\nfor last; do :; done\necho "$@" >> LOG\nexec sh -c "$last"\n'
    ssh.write_text(script.replace("LOG", f"{yard.top}/ssh.log"))
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    cli("plan", "run", written(yard, f"ssh://me@build.example{origin.path}"))
    cli("plan", "apply", "far", "--yes")
    require_applied_once(origin)
    assert "me@build.example" in (yard.top / "ssh.log").read_text()


def test_who_does_not_answer_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"git://127.0.0.1:{silent.getsockname()[1]}/x.git"
        with pytest.raises(SandboxError, match=r"x\.git does not answer"):
            Remote(Address(url, "main").stored).tip("refs/heads/main", seconds=0.3)


def test_a_copy_that_another_git_uses_is_not_waited_for_without_end(
    origin: Origin, tmp_path: Path
) -> None:
    address = Address(origin.url, "main").stored
    with open(tmp_path / "in-use", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SandboxError, match="started earlier still talks to file://"):
            Remote(address, str(tmp_path)).tip("refs/heads/main", seconds=0.1)
    assert Remote(address, str(tmp_path)).tip("refs/heads/main") == origin.tip()


def test_without_git_that_is_said(
    yard: Yard, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(yard.top))
    said = cli("plan", "run", written(yard, origin.url), expect=2).stderr
    assert "git is not installed (install git 2.36 or newer)" in said


def test_git_in_the_sandbox_finds_the_commit_although_the_store_is_hidden(
    agents: Agents, origin: Origin
) -> None:
    plan = PLAN.replace('"sed -i', '"git log --format=%s > log.txt; git show HEAD:kept.txt; sed -i')
    (agents.work / "plan.yaml").write_text(plan.replace("FAR", origin.url))
    agents.run("plan", "run", "plan.yaml").expect(0)
    agents.run("plan", "apply", "far", "--yes").expect(0)
    assert origin.show("log.txt") == "second"
