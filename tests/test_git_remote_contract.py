"""The contract of sandboxes, kept by `git-remote`; `git ls-tree` of the remote is the judge."""

import hashlib
import os
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cleveragents.content.packs import Packs
from cleveragents.errors import ApplyRefused
from cleveragents.model.ids import new_id
from cleveragents.model.resource import Carry, Resource
from cleveragents.sandbox.git.address import Address
from cleveragents.sandbox.protocol import Place
from cleveragents.sandbox.registry import open_sandbox
from cleveragents.store import open_store
from cleveragents.testing import Bench, Change, SandboxContract
from tests.remotes import git
from tests.test_sandbox_contract import FEW, TREE_CHANGES, make_repository, make_tree

CHANGES = {*FEW, "mode", "new empty directory", "file becomes pipe"} - {"nested repository"}
"""Also some that no commit holds."""


class RemoteBench(Bench):
    """`source` is the bare repository."""

    def __init__(self, folder: Path, source: Path, store: Any, packs: Packs) -> None:
        resource = Resource(
            resource_id=new_id(),
            plan_id=new_id(),
            name="app",
            kind="git-remote",
            path=Address(f"file://{source}", "main").stored,
            strategy="clone",
            carry=Carry.COMMITTED,
        )
        self.folder, self.store, self.packs = folder, store, packs
        self.source = source
        root = str(folder / "sandbox" / "app")
        self.place = Place(
            plan_id=resource.plan_id,
            resource=resource,
            root=root,
            path=root,
            packs=packs,
            cache=str(folder / "cache" / "app"),
        )
        self.sandbox = open_sandbox(self.place)
        self._staged = 0

    def close(self) -> None:
        self.sandbox.close()


class TestCloneOfARemote(SandboxContract):
    kind, strategy = "git-remote", "clone"
    private = (b".git",)

    def make_source(self, folder: Path) -> Path:
        make_tree(folder / "work")
        make_repository(folder / "work")
        git(folder / "work", "add", "-f", "big.bin")
        git(folder / "work", "commit", "-qm", "the large one too")
        git(folder, "clone", "-q", "--bare", "work", "origin.git")
        return folder / "origin.git"

    @pytest.fixture
    def new_bench(self, tmp_path: Path) -> Generator[Callable[[], Bench]]:
        with ExitStack() as opened:

            def make() -> Bench:
                folder = tmp_path / str(len(list(tmp_path.iterdir())))
                (folder / "users").mkdir(parents=True)
                store = open_store(str(folder / "store"))
                opened.callback(store.close)
                (folder / "content").mkdir()
                packs = Packs(str(folder / "content"), store.objects)
                opened.callback(packs.close)
                bench = RemoteBench(folder, self.make_source(folder / "users"), store, packs)
                opened.callback(bench.close)
                return bench

            yield make

    def seen_of_target(self, source: Path) -> object:
        listed = os.fsencode(git(source, "ls-tree", "-r", "-z", "main"))
        lines = [line.split(b"\t", 1) for line in listed.split(b"\0") if line]
        return {path: (about.split()[0], about.split()[2].decode()) for about, path in lines}

    def seen_of_result(self, path: Path) -> object:
        """Files and links as git has them; it has nothing else."""
        found: dict[bytes, tuple[bytes, str]] = {}
        for folder, names, files in os.walk(os.fsencode(path)):
            names[:] = [name for name in names if os.path.join(folder, name) != _git_of(path)]
            links = [name for name in names if os.path.islink(os.path.join(folder, name))]
            for name in (*files, *links):
                where = os.path.join(folder, name)
                if (about := _as_in_git(where)) is not None:
                    found[os.path.relpath(where, os.fsencode(path))] = about
        return found

    def changes(self) -> dict[str, Change]:
        return {name: do for name, do in TREE_CHANGES.items() if name in CHANGES}

    def all_changes(self, path: Path) -> None:
        names = ("content", "a few bytes of a large file", "new tree", "deleted tree")
        for name in (*names, "renamed directory", "target of a link", "file becomes directory"):
            TREE_CHANGES[name](path)

    def test_undo_never_takes_away_what_somebody_else_pushed(self, made: Bench) -> None:
        origin = made.capture()
        (made.path / "readme.txt").write_text("changed\n")
        staged = made.stage_apply(origin, made.capture(origin))
        made.sandbox.switch_apply(staged)
        tree = git(made.source, "rev-parse", "main^{tree}")
        later = git(made.source, "commit-tree", tree, "-p", "main", "-m", "later")
        git(made.source, "update-ref", "refs/heads/main", later)
        with pytest.raises(ApplyRefused, match=f"has commits on top of {staged['commit'][:12]}"):
            made.sandbox.undo_apply(staged)
        assert git(made.source, "rev-parse", "main") == later

    def test_a_branch_that_was_made_is_deleted_again(self, made: Bench) -> None:
        origin = made.capture()
        (made.path / "readme.txt").write_text("changed\n")
        options = made.options(mode="branch")
        proposal = made.propose(origin, made.capture(origin), options)
        refs = git(made.source, "for-each-ref")
        staged = made.sandbox.stage_apply(proposal, options)
        made.sandbox.switch_apply(staged)
        assert git(made.source, "rev-parse", "agents/test") == staged["commit"]
        made.sandbox.undo_apply(staged)
        made.sandbox.undo_apply(staged)
        assert git(made.source, "for-each-ref") == refs

    def test_a_push_that_is_not_answered_may_have_happened(self, made: Bench) -> None:
        """The server moves the branch and then fails: the remote is asked, and it counts."""
        origin = made.capture()
        (made.path / "readme.txt").write_text("changed\n")
        staged = made.stage_apply(origin, made.capture(origin))
        hook = made.source / "hooks" / "post-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\nkill -9 $PPID\n")
        hook.chmod(0o755)
        made.sandbox.switch_apply(staged)
        assert git(made.source, "rev-parse", "main") == staged["commit"]


def _git_of(path: Path) -> bytes:
    return os.fsencode(path / ".git")


def _as_in_git(where: bytes) -> tuple[bytes, str] | None:
    if os.path.islink(where):
        mode, data = b"120000", os.readlink(where)
    elif os.path.isfile(where):
        mode = b"100755" if os.stat(where).st_mode & 0o100 else b"100644"
        with open(where, "rb") as file:
            data = file.read()
    else:
        return None
    return mode, hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
