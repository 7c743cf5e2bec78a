"""Repositories as they are found in the wild, from the command line to the applied result."""

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cleveragents.errors import SandboxError
from cleveragents.sandbox.git import command as sandbox_git
from cleveragents.sandbox.git.blobs import Blobs
from tests.harness import Agents, command
from tests.scratch import git, make_repository, snapshot, without

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 12\n"


def plan(agents: Agents, run: str, *options: str) -> str:
    """A plan of one step, run to its end; its id."""
    text = (
        "name: edge\nresources: {app: {kind: git-checkout, path: app}}\n"
        f"steps:\n  - id: work\n    run: |\n      {run}\n"
    )
    (agents.work / "plan.yaml").write_text(text)
    return agents.run("plan", "run", "plan.yaml", "--json", *options).expect(0).data["plan_id"]


def apply(agents: Agents, *options: str) -> dict[str, Any]:
    done = agents.run("plan", "apply", "last", "--yes", "--json", *options).expect(0).data
    return done["applied"][0]


def repository(agents: Agents, **files: str) -> Path:
    app = agents.work / "app"
    app.mkdir()
    for name, text in files.items():
        (app / name.replace("__", ".")).write_text(text)
    make_repository(agents, app)
    return app


def sandbox(agents: Agents) -> Path:
    return Path(agents.run("plan", "status", "last", "--json").data["sandboxes"]["app"])


def fsck(agents: Agents, app: Path) -> None:
    git(agents, app, "fsck", "--strict", "--no-dangling")


# submodules and repositories inside


@pytest.fixture
def with_submodule(agents: Agents) -> Path:
    library = agents.work / "library"
    library.mkdir()
    (library / "lib.txt").write_text("lib\n")
    make_repository(agents, library)
    app = repository(agents, own="own\n")
    local = ("-c", "protocol.file.allow=always")
    git(agents, app, *local, "submodule", "add", "-q", str(library), "lib")
    git(agents, app, "commit", "-q", "-m", "with a submodule")
    return app


def test_beside_a_submodule_work_is_committed_and_the_submodule_stays(
    agents: Agents, with_submodule: Path
) -> None:
    pinned = git(agents, with_submodule, "ls-tree", "HEAD", "lib")
    plan(agents, "git status && test -f lib/lib.txt && echo more >> own")
    assert apply(agents)["mode"] == "commit"
    assert git(agents, with_submodule, "ls-tree", "HEAD", "lib") == pinned
    assert git(agents, with_submodule, "status", "--porcelain") == ""
    fsck(agents, with_submodule)


def test_work_inside_a_submodule_is_applied_as_changes_and_never_committed_outside(
    agents: Agents, with_submodule: Path
) -> None:
    plan(agents, "echo more >> lib/lib.txt")
    refused = agents.run("plan", "apply", "last", "--yes", "--as", "commit", "--json").expect(4)
    assert "lib/lib.txt is in a submodule" in refused.data["error"]["message"]
    refused = agents.run("plan", "apply", "last", "--yes", "--as", "branch", "--json").expect(4)
    assert "submodule" in refused.data["error"]["message"]
    assert apply(agents)["mode"] == "changes"
    assert git(agents, with_submodule / "lib", "diff", "--stat")
    fsck(agents, with_submodule)


@pytest.mark.parametrize("confine", ["auto", "off"])
def test_git_in_a_submodule_of_the_sandbox_works_on_the_sandbox(
    agents: Agents, with_submodule: Path, confine: str
) -> None:
    """Also where the submodule's `.git` names the user's own by its whole path."""
    modules = with_submodule / ".git/modules/lib"
    (with_submodule / "lib/.git").write_text(f"gitdir: {modules}\n")
    before = snapshot(modules)
    plan(
        agents,
        "git -C lib log --oneline && git submodule status && echo x > own && echo y > lib/lib.txt"
        " && git -C lib -c user.name=a -c user.email=a@b commit -qam inside && git status",
        "--set",
        f"sandbox.confine={confine}",
    )
    assert snapshot(modules) == before
    assert apply(agents)["mode"] == "changes"
    assert snapshot(modules) == before
    assert (with_submodule / "lib/lib.txt").read_text() == "y\n"
    assert (with_submodule / "lib/.git").read_text() == f"gitdir: {modules}\n"


def test_a_repository_inside_is_carried_as_bytes(agents: Agents) -> None:
    app = repository(agents, own="own\n", __gitignore="vendor/\n")
    vendor = app / "vendor"
    vendor.mkdir()
    (vendor / "v.txt").write_text("v\n")
    make_repository(agents, vendor)
    before = snapshot(vendor)
    plan(agents, "git -C vendor log -1 && git -C vendor commit -q --allow-empty -m x; echo y > own")
    agents.run("plan", "rollback", "last", "first", "--yes").expect(0)
    assert without(snapshot(sandbox(agents) / "vendor"), b"") == before
    agents.run("plan", "resume", "last").expect(0)
    assert apply(agents)["mode"] == "commit"
    assert snapshot(vendor) == before, "ignored: not applied"


def test_a_repository_that_a_plan_makes_inside_is_no_part_of_a_commit(agents: Agents) -> None:
    app = repository(agents, own="own\n")
    plan(agents, "git init -q new && echo n > new/n && echo more >> own")
    refused = agents.run("plan", "apply", "last", "--yes", "--as", "commit", "--json").expect(4)
    assert "repository inside this one" in refused.data["error"]["message"]
    assert apply(agents)["mode"] == "changes"
    assert (app / "new/.git/HEAD").is_file()
    fsck(agents, app)


# what git converts


def test_lfs_pointers_are_bytes_and_changed_ones_are_left_to_the_users_git(agents: Agents) -> None:
    app = repository(agents, __gitattributes="*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (app / "big.bin").write_text(LFS.format("a" * 64))
    git(agents, app, "-c", "filter.lfs.process=", "-c", "filter.lfs.clean=cat", "add", "-A")
    git(agents, app, "commit", "-q", "-m", "lfs")
    plan(agents, "echo text > other.txt; grep -q git-lfs big.bin")
    assert apply(agents)["mode"] == "commit"
    plan(agents, "printf content > big.bin")
    refused = agents.run("plan", "apply", "last", "--yes", "--as", "commit", "--json").expect(4)
    assert "big.bin goes through a git filter" in refused.data["error"]["message"]
    refused = agents.run("plan", "apply", "last", "--yes", "--as", "branch", "--json").expect(4)
    assert "filter" in refused.data["error"]["message"]
    assert apply(agents)["mode"] == "changes"
    assert (app / "big.bin").read_text() == "content"


def test_crlf_of_a_checkout_comes_back_byte_for_byte(agents: Agents) -> None:
    app = repository(agents, text="a\nb\n", __gitattributes="* text=auto\n")
    git(agents, app, "config", "core.autocrlf", "true")
    (app / "text").unlink()
    git(agents, app, "checkout", "text")
    assert (app / "text").read_bytes() == b"a\r\nb\r\n"
    plan(agents, "printf 'c\\r\\n' >> text; echo new > new")
    assert (sandbox(agents) / "text").read_bytes() == b"a\r\nb\r\nc\r\n"
    assert apply(agents)["mode"] == "changes"
    assert (app / "text").read_bytes() == b"a\r\nb\r\nc\r\n"
    assert "+c" in git(agents, app, "diff", "text")
    plan(agents, "echo again >> new")
    agents.run("plan", "diff", "last").expect(0)


# where HEAD is, and what is checked out


def test_a_sparse_checkout_keeps_what_it_leaves_out(agents: Agents) -> None:
    app = repository(agents, top="top\n")
    for name in ("in", "out"):
        (app / name).mkdir()
        (app / name / "file").write_text(f"{name}\n")
    git(agents, app, "add", "-A")
    git(agents, app, "commit", "-q", "-m", "folders")
    git(agents, app, "sparse-checkout", "set", "in")
    assert not (app / "out").exists()
    plan(agents, "echo more >> in/file")
    assert apply(agents)["mode"] == "commit"
    assert git(agents, app, "show", "HEAD:out/file") == "out"
    assert git(agents, app, "show", "--stat", "--format=", "HEAD").split()[0] == "in/file"
    assert git(agents, app, "status", "--porcelain") == ""
    assert not (app / "out").exists()


def test_an_unborn_head_gets_its_first_commit(agents: Agents) -> None:
    app = agents.work / "app"
    app.mkdir()
    git(agents, app, "init", "-q", "-b", "trunk")
    plan(agents, "git status && echo first > file")
    assert apply(agents)["mode"] == "commit"
    assert git(agents, app, "log", "--format=%D %s", "trunk").startswith("HEAD -> trunk edge")
    assert git(agents, app, "status", "--porcelain") == ""
    fsck(agents, app)


def test_a_detached_head_gets_changes_and_can_get_a_branch(agents: Agents) -> None:
    app = repository(agents, own="own\n")
    git(agents, app, "checkout", "-q", "--detach")
    plan(agents, "echo more >> own")
    refused = agents.run("plan", "apply", "last", "--yes", "--as", "commit", "--json").expect(4)
    assert "detached HEAD" in refused.data["error"]["message"]
    assert apply(agents, "--as", "branch")["mode"] == "branch"
    assert git(agents, app, "show", "agents/edge:own") == "own\nmore"
    plan(agents, "echo other >> own")
    assert apply(agents)["mode"] == "changes"


def test_the_users_own_tree_may_be_a_linked_worktree(agents: Agents) -> None:
    main = agents.work / "main"
    main.mkdir()
    (main / "own").write_text("own\n")
    make_repository(agents, main)
    git(agents, main, "worktree", "add", "-q", "-b", "side", "../app")
    app = agents.work / "app"
    git(agents, main, "config", "user.email", "me@example.invalid")
    git(agents, main, "config", "user.name", "Me")
    before = snapshot(main / ".git/worktrees/app")
    plan(agents, "git log -1 && echo more >> own && git commit -qam in-the-sandbox")
    assert snapshot(main / ".git/worktrees/app") == before
    assert apply(agents)["mode"] == "commit"
    assert git(agents, app, "log", "-1", "--format=%D") == "HEAD -> side"
    assert git(agents, app, "status", "--porcelain") == ""
    assert git(agents, main, "status", "--porcelain") == ""
    assert (main / "own").read_text() == "own\n"
    fsck(agents, main)
    agents.run("plan", "delete", "last").expect(0)
    assert not list((main / ".git").glob("refs/cleveragents/*"))


def test_a_git_directory_may_be_reached_by_a_link(agents: Agents) -> None:
    app = repository(agents, a="1")
    elsewhere = agents.work / "elsewhere"
    (app / ".git").rename(elsewhere)
    (app / ".git").symlink_to(elsewhere)
    plan(agents, "echo 2 > a; echo b > b")
    assert apply(agents)["mode"] == "commit"
    assert git(agents, app, "status", "--porcelain") == ""
    assert (app / "b").read_text() == "b\n"
    fsck(agents, app)
    assert (app / ".git").is_symlink()


def test_names_in_any_bytes_are_committed_as_they_are(agents: Agents) -> None:
    app = repository(agents, own="own\n")
    plan(
        agents,
        r"""printf 1 > "$(printf 'caf\351')"; printf 2 > "$(printf 'two\nlines')"; printf 3 > ' a'
      printf 4 > '"q"'; printf 5 > ':(top)x'; mkdir 日本 && echo 6 > 日本/f""",
    )
    assert apply(agents)["mode"] == "commit"
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "-z", "--name-only", "HEAD"],
        cwd=app, env=agents.env, capture_output=True, check=True,
    ).stdout.split(b"\0")  # fmt: skip
    wanted = {b"caf\xe9", b"two\nlines", b" a", b'"q"', b":(top)x", "日本/f".encode()}
    assert wanted <= set(listed)
    assert git(agents, app, "status", "--porcelain") == ""


# carry


def test_above_the_carry_limit_it_asks_and_without_a_terminal_refuses(agents: Agents) -> None:
    app = repository(agents, own="own\n", __gitignore="node_modules/\n")
    (app / "node_modules").mkdir()
    for number in range(30):
        (app / "node_modules" / str(number)).write_text("x" * 1000)
    (agents.work / "plan.yaml").write_text(
        "name: big\nresources: {app: {kind: git-checkout, path: app}}\n"
        "steps: [{id: a, run: 'echo a > a'}]\n"
    )
    many = ("--set", "sandbox.carry-limit-files=20")
    refused = agents.run("plan", "run", "plan.yaml", "--json", *many).expect(4).data["error"]
    assert refused["type"] == "CarryLimit"
    assert "node_modules" in refused["message"]
    assert "exclude: [node_modules" in refused["hint"]
    large = ("--set", "sandbox.carry-limit=10kB")
    agents.run("plan", "run", "plan.yaml", "--json", *large).expect(4)
    agents.run("plan", "execute", "last").expect(0)


# a repository that would like to run something


def hostile(agents: Agents) -> tuple[Path, Path]:
    """A repository that names a program wherever git lets it, and the folder those write to."""
    app, marks = repository(agents, own="own\n", other="o\n"), agents.work / "marks"
    marks.mkdir()
    program = agents.work / "evil.sh"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {marks}/ran\ncat\n')
    program.chmod(0o755)
    for key, value in {
        "core.fsmonitor": program,
        "core.hooksPath": agents.work / "hooks",
        "core.sshCommand": program,
        "core.editor": program,
        "core.pager": program,
        "diff.external": program,
        "diff.evil.textconv": program,
        "diff.evil.command": program,
        "merge.evil.driver": program,
        "filter.evil.clean": program,
        "filter.evil.smudge": program,
        "filter.evil.process": program,
        "filter.evil.required": "true",
        "alias.commit-tree": f"!{program}",
        "alias.status": f"!{program}",
        "gpg.program": program,
        "gpg.ssh.program": program,
        "gpg.ssh.defaultKeyCommand": program,
        "gpg.format": "ssh",
        "credential.helper": f"!{program}",
        "uploadpack.packObjectsHook": program,
        "core.alternateRefsCommand": program,
        "log.showSignature": "true",
    }.items():
        git(agents, app, "config", key, str(value))
    hooks = agents.work / "hooks"
    hooks.mkdir()
    for folder in (hooks, app / ".git/hooks"):
        folder.mkdir(exist_ok=True)
        for name in (
            "pre-commit", "commit-msg", "prepare-commit-msg", "post-commit", "post-checkout",
            "reference-transaction", "post-index-change", "fsmonitor-watchman", "pre-auto-gc",
        ):  # fmt: skip
            shutil.copy(program, folder / name)
    (app / ".git/info").mkdir(exist_ok=True)
    (app / ".git/info/attributes").write_text("evil* filter=evil diff=evil merge=evil\n")
    return app, marks


def test_a_hostile_repository_executes_nothing(agents: Agents) -> None:
    app, marks = hostile(agents)
    plan(agents, "echo more >> own; echo e > evil.txt")
    for argv in (
        ("plan", "status", "last"),
        ("plan", "diff", "last"),
        ("plan", "apply", "last", "--dry-run"),
        ("plan", "rollback", "last", "first", "--yes"),
        ("plan", "resume", "last"),
        ("plan", "export", "last", "--patch", "out"),
        ("doctor",),
    ):
        agents.run(*argv).expect(0)
    (app / "own").write_text("first\nown\n")
    agents.run("plan", "apply", "last", "--yes", "--as", "changes").expect(0)
    (app / "evil.txt").unlink()
    for name in ("own", "other"):
        (app / name).write_text({"own": "own\n", "other": "o\n"}[name])
    plan(agents, "echo more >> own")
    agents.run("plan", "export", "last", "--branch", "x").expect(0)
    assert apply(agents)["mode"] == "commit"
    agents.run("plan", "revert-applied", "last").expect(0)
    agents.run("plan", "apply", "last", "--yes", "--as", "branch").expect(0)
    agents.run("plan", "delete", "last", "--yes").expect(0)
    assert not (marks / "ran").exists(), (marks / "ran").read_text()


def test_the_trap_itself_works(agents: Agents) -> None:
    app, marks = hostile(agents)
    subprocess.run(["git", "add", "-A"], cwd=app, env=agents.env, check=False, capture_output=True)
    assert (marks / "ran").exists()


def test_a_repository_cannot_name_the_program_that_signs(agents: Agents) -> None:
    app, marks = hostile(agents)
    git(agents, app, "config", "commit.gpgsign", "true")
    git(agents, app, "config", "user.signingkey", "key::nothing")
    plan(agents, "echo more >> own")
    before = git(agents, app, "rev-parse", "main")
    refused = agents.run("plan", "apply", "last", "--yes", "--json")
    assert refused.rc in (4, 5), refused
    assert not (marks / "ran").exists(), (marks / "ran").read_text()
    assert git(agents, app, "rev-parse", "main") == before
    assert (app / "own").read_text() == "own\n"


# the user's own ways: hooks, signatures, messages


def write_hook(app: Path, name: str, text: str) -> None:
    hook = app / ".git/hooks" / name
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n{text}\n")
    hook.chmod(0o755)


def test_hooks_run_only_if_asked_and_see_what_they_always_see(agents: Agents) -> None:
    app, marks = repository(agents, own="own\n"), agents.work / "marks"
    marks.mkdir()
    write_hook(
        app, "pre-commit", f"git diff --cached --name-only > {marks}/pre; cat own >> {marks}/pre"
    )
    write_hook(app, "commit-msg", f'echo "Reviewed-by: hook" >> "$1"; touch {marks}/msg')
    write_hook(app, "post-commit", f"git log -1 --format=%s > {marks}/post; exit 1")
    plan(agents, "echo more >> own")
    apply(agents)
    assert list(marks.iterdir()) == []
    plan(agents, "echo again >> own")
    apply(agents, "--hooks")
    assert (marks / "pre").read_text() == "own\nown\nmore\nagain\n"
    assert (marks / "post").read_text() == "edge\n"
    assert "Reviewed-by: hook" in git(agents, app, "log", "-1", "--format=%B")
    (marks / "msg").unlink()
    agents.run("config", "set", "apply.run-hooks", "true").expect(0)
    plan(agents, "echo third >> own")
    apply(agents)
    assert (marks / "msg").exists()
    assert git(agents, app, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (
            "pre-commit",
            "echo too long >&2; exit 1",
            "hook pre-commit rejected the commit: too long",
        ),
        ("commit-msg", "exit 3", "hook commit-msg rejected the commit: exit code 3"),
        ("pre-commit", "echo formatted > own", "hook pre-commit changed"),
        ("pre-commit", "git rm -q --cached own", "hook pre-commit changed"),
    ],
)
def test_a_hook_that_rejects_leaves_everything_as_it_was(
    agents: Agents, name: str, text: str, why: str
) -> None:
    app = repository(agents, own="own\n")
    write_hook(app, name, text)
    head = git(agents, app, "rev-parse", "HEAD")
    plan(agents, "echo more >> own; echo n > new")
    refused = agents.run("plan", "apply", "last", "--yes", "--hooks", "--json").expect(4).data
    assert why in refused["error"]["message"]
    assert git(agents, app, "rev-parse", "HEAD") == head
    assert not (app / "new").exists()
    assert git(agents, app, "diff", "--cached", "--name-only") == ""
    if "formatted" not in text:
        assert git(agents, app, "status", "--porcelain") == ""
    write_hook(app, name, "exit 0")
    (app / "own").write_text("own\n")
    assert apply(agents, "--hooks")["mode"] == "commit"


def test_a_project_cannot_turn_hooks_on(agents: Agents) -> None:
    (agents.work / ".cleveragents.toml").write_text("[apply]\nrun-hooks = true\n")
    assert "run-hooks" in agents.run("plan", "list").expect(2).stderr
    (agents.work / ".cleveragents.toml").unlink()
    agents.run("config", "set", "apply.run-hooks", "maybe").expect(2)


def test_commits_are_signed_where_the_users_are(agents: Agents) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    app, key = repository(agents, own="own\n"), agents.work / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    signers, config = agents.work / "signers", agents.work / "gitconfig"
    public = key.with_suffix(".pub").read_text().split()
    signers.write_text(f"test@example.invalid {public[0]} {public[1]}\n")
    config.write_text(
        f"[commit]\n\tgpgsign = true\n[gpg]\n\tformat = ssh\n[user]\n\tsigningkey = {key}\n"
        f'\temail = test@example.invalid\n\tname = Test\n[gpg "ssh"]\n'
        f"\tallowedSignersFile = {signers}\n"
    )
    agents.env["GIT_CONFIG_GLOBAL"] = str(config)
    plan(agents, "echo more >> own")
    agents.run("plan", "export", "last", "--branch", "x").expect(0)
    apply(agents)
    for ref in ("HEAD", "x"):  # the export has one commit: no other group changed anything
        git(agents, app, "verify-commit", ref)
    key.unlink()
    plan(agents, "echo again >> own")
    head = git(agents, app, "rev-parse", "HEAD")
    agents.run("plan", "apply", "last", "--yes").expect(5)
    assert git(agents, app, "rev-parse", "HEAD") == head
    assert git(agents, app, "status", "--porcelain") == ""
    config.write_text("")
    assert apply(agents)["mode"] == "commit"


def test_the_message_has_the_plan_and_its_decisions_as_trailers(agents: Agents) -> None:
    app = repository(agents, own="own\n")
    (agents.work / "plan.yaml").write_text(
        "name: t\nresources: {app: {kind: git-checkout, path: app}}\n"
        'apply: {message: "Subject\\n\\nBody: with a colon"}\n'
        "steps:\n  - {id: a, run: 'echo a > a', decision: {question: \"why\\nnot\", chosen: so}}\n"
    )
    ran = agents.run("plan", "run", "plan.yaml", "--json").expect(0).data
    apply(agents)
    trailers = git(agents, app, "log", "-1", "--format=%(trailers:unfold)").splitlines()
    assert trailers == [f"Agents-Plan: {ran['plan_id']}", "Agents-Decision: why not: so"]
    assert git(agents, app, "log", "-1", "--format=%s") == "Subject"


def test_control_files_are_shown_before_it_asks(agents: Agents) -> None:
    repository(agents, own="own\n")
    plan(
        agents,
        "mkdir -p .github/workflows .git/hooks && echo x > .github/workflows/ci.yml && "
        "echo x > AGENTS.md && echo x > .git/hooks/pre-commit",
    )
    asked = agents.run("plan", "apply", "last").expect(4)
    assert ".github/workflows/ci.yml, AGENTS.md" in asked.stderr
    assert not os.path.exists(agents.work / "app/.git/hooks/pre-commit")
    apply(agents)
    assert not os.path.exists(agents.work / "app/.git/hooks/pre-commit")


def test_a_checkpoint_is_made_where_children_are_not_waited_for(agents: Agents) -> None:
    """Some programs start others with SIGCHLD ignored; the kernel then takes git's end itself."""
    repository(agents, a="1\n")
    plan(agents, "echo 2 > a")
    (sandbox(agents) / "a").write_text("3\n")
    words = "plan checkpoint create last"
    done = subprocess.run(
        ["/bin/bash", "-c", f"trap '' CHLD; exec {command()} {words}"],
        cwd=agents.work,
        env=agents.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "checkpoint " in done.stdout


def test_a_checkpoint_without_git_says_what_is_missing(agents: Agents, tmp_path: Path) -> None:
    repository(agents, a="1\n")
    plan(agents, "echo 2 > a")
    done = agents.run("plan", "checkpoint", "create", "last", env={"PATH": str(tmp_path)})
    assert done.rc != 0
    assert "git is not installed" in done.stderr
    assert "internal" not in done.stderr
    assert "Traceback" not in done.stderr


def children(word: str) -> list[int]:
    """Processes of ours with that word in their command line."""
    own = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    words = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in own}
    return [pid for pid, argv in words.items() if word.encode() in argv]


def test_a_git_that_dies_is_not_taken_for_a_commit_that_is_gone(agents: Agents) -> None:
    repository(agents, a="1\n")
    top = agents.work / "app"
    found = sandbox_git.locate(str(top))
    key = b"g" + bytes.fromhex(git(agents, top, "rev-parse", "HEAD:a"))
    blobs = Blobs(lambda: found)
    assert blobs.get(key) == b"1\n"
    [reader] = children("cat-file")
    os.kill(reader, signal.SIGKILL)
    with pytest.raises(SandboxError, match="git cannot read the base commit"):
        blobs.get(key)
    blobs.close()
    assert blobs.get(key) == b"1\n"
    blobs.close()


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_repository_that_was_moved_away_is_said_to_be_missing(
    agents: Agents, options: tuple[str, ...]
) -> None:
    app = repository(agents, file="first\n")
    plan(agents, "echo second > file")
    app.rename(agents.work / "moved")
    told = agents.run("plan", "apply", "last", "--yes", *options).expect(5).stderr
    assert f"error: the repository {app} is missing\n" in told
    assert "hint: move it back there, then run it again\n" in told
    (agents.work / "moved").rename(app)
    agents.run("plan", "apply", "last", "--yes").expect(0)
    assert (app / "file").read_text() == "second\n"
