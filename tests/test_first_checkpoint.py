"""The first checkpoint of a git sandbox: what was hashed while it was copied is not read again,
and the state is the one that a capture finds which reads every byte.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cleveragents.content import files, trees
from cleveragents.content.copy import copying
from cleveragents.content.entry import EntryKind
from cleveragents.content.keys import (
    git_key,
)
from cleveragents.content.scope import Scope
from cleveragents.sandbox.tree import TreeSandbox, tree_of
from cleveragents.workspace import open_workspace
from tests.harness import IDENTITY

PLAN = """
name: seeded
resources: {{work: {{kind: git-checkout, path: repo, carry: {carry}}}}}
steps: [{{id: nothing, run: "true"}}]
"""


class Repo:
    def __init__(self, top: Path) -> None:
        self.top = top
        self.root = top / "repo"
        self.root.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.top), **IDENTITY}
        done = subprocess.run(
            ["git", *words], cwd=self.root, env=env, check=True, capture_output=True, text=True
        )
        return done.stdout

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        where = self.root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(data)
        where.chmod(mode)

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", "base")

    def state(self, carry: str = "all") -> tuple[dict[bytes, str], dict[str, str]]:
        """The state of every path in the first checkpoint, and the kind of its key."""
        (self.top / "plan.yaml").write_text(PLAN.format(carry=carry))
        with open_workspace(str(self.top / "store")) as ws:
            plan = ws.run(str(self.top / "plan.yaml"))
            first = plan.checkpoints()[0]
            sandbox = ws.ctx.manager.sandboxes(plan.plan_id).named("work")
            assert isinstance(sandbox, TreeSandbox)
            found = dict(trees.walk(sandbox.manifests, tree_of(first.snapshot)))
            keys = {
                os.fsdecode(path): entry.key[:1].decode()
                for path, entry in found.items()
                if entry.kind is EntryKind.FILE and not path.startswith(b".git/")
            }
            state = {
                path: entry.described
                for path, entry in found.items()
                if path.split(b"/")[0] != b".git"
            }
            plan.delete(force=True)
        shutil.rmtree(self.top / "store")
        return state, keys


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    monkeypatch.setenv("CLEVERAGENTS_SANDBOX_CONFINE", "off")
    return Repo(tmp_path)


def settings_of(repo: Repo, kind: str) -> None:
    if kind == "autocrlf":
        repo.git("config", "core.autocrlf", "true")
    elif kind == "filter":
        repo.git("config", "filter.rot.clean", "tr a-z n-za-m")
        repo.git("config", "filter.rot.smudge", "tr a-z n-za-m")
        repo.write(".gitattributes", b"*.rot filter=rot\n")
    elif kind == "ident":
        repo.write(".gitattributes", b"*.id ident\n")
    elif kind == "text":
        repo.write(".gitattributes", b"* text=auto eol=crlf\n")


@pytest.mark.parametrize("kind", ["plain", "autocrlf", "filter", "ident", "text"])
@pytest.mark.parametrize("carry", ["all", "tracked"])
def test_seeded_and_read_are_the_same_state(
    repo: Repo, kind: str, carry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_of(repo, kind)
    repo.write("plain.txt", b"as committed\n")
    repo.write("crlf.txt", b"one\r\ntwo\r\n")
    repo.write("secret.rot", b"abcdefgh\n")
    repo.write("named.id", b"$Id$ and text\n")
    repo.write("sub/run.sh", b"#!/bin/sh\n", 0o755)
    repo.write("sub/mode.txt", b"mode\n")
    repo.write("edited.txt", b"before\n")
    repo.write("same-size.txt", b"12345\n")
    repo.write("staged.txt", b"not yet\n")
    repo.write("empty", b"")
    repo.commit()
    for path in ("crlf.txt", "secret.rot", "named.id"):
        (repo.root / path).unlink()
    repo.git("checkout", "--", "crlf.txt", "secret.rot", "named.id")
    repo.write("edited.txt", b"after, and longer\n")
    repo.write("same-size.txt", b"54321\n")
    repo.write("staged.txt", b"is staged\n")
    repo.git("add", "staged.txt")
    (repo.root / "sub/mode.txt").chmod(0o600)
    repo.write("carried.txt", b"untracked\n")
    seeded, keys = repo.state(carry)
    assert keys["plain.txt"] == "g"
    assert keys["edited.txt"] == keys["same-size.txt"] == keys["staged.txt"] == "b"
    if kind == "filter":
        assert keys["secret.rot"] == "b"
    with monkeypatch.context() as patch:
        unseed(patch)
        read, again = repo.state(carry)
    assert (seeded, keys) == (read, again)


def unseed(patch: pytest.MonkeyPatch) -> None:
    """Nothing is known from copying: the capture reads every byte."""
    patch.setattr(TreeSandbox, "inherit", lambda _self, _made: None)


def test_what_was_hashed_while_it_was_copied_is_not_read_again(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.write("a.txt", b"a\n")
    repo.write("sub/b.txt", b"b\n")
    repo.commit()
    repo.write("carried.txt", b"c\n")
    read: list[bytes] = []
    monkeypatch.setattr("cleveragents.content.capture.updating.look", noting(read))
    _, keys = repo.state()
    assert keys["a.txt"] == keys["sub/b.txt"] == "g"
    assert b"carried.txt" in read
    assert not {b"a.txt", b"b.txt"} & set(read)
    read.clear()
    repo.state("committed")
    assert not {b"a.txt", b"b.txt"} & set(read)


def noting(read: list[bytes]) -> Callable[..., Any]:
    def look(fd: int, name: bytes, limit: int) -> files.Seen | None:
        found = files.look(fd, name, limit)
        if found and found[7] is not None:
            read.append(name)
        return found

    return look


@pytest.mark.parametrize("same_time", [False, True])
def test_an_edit_between_copying_and_the_first_checkpoint_is_seen(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, same_time: bool
) -> None:
    """Of the same size, at once, and with its mtime put back."""
    repo.write("a.txt", b"12345\n")
    repo.commit()
    inherit = TreeSandbox.inherit

    def edited(self: TreeSandbox, made: TreeSandbox) -> None:
        inherit(self, made)
        where = os.path.join(self.place.root, "a.txt")
        before = os.stat(where)
        # The kernel's clock has ticked since the copy was made.
        while True:
            with open(where, "r+b") as file:
                file.write(b"54321\n")
            if same_time:
                os.utime(where, ns=(before.st_atime_ns, before.st_mtime_ns))
            if os.stat(where).st_ctime_ns != before.st_ctime_ns:
                break

    monkeypatch.setattr(TreeSandbox, "inherit", edited)
    _, keys = repo.state()
    assert keys["a.txt"] == "b"


def test_a_file_that_grows_while_it_is_copied_is_not_taken_for_the_blob(tmp_path: Path) -> None:
    source, target = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    target.mkdir()
    first = b"first\n" * 100_000  # so large that it is copied by pieces
    (source / "f").write_bytes(first)

    def growing(path: bytes) -> tuple[bytes, int]:
        with (source / "f").open("ab") as file:
            file.write(b"more\n")
        return git_key(first), len(first)

    copier = copying.Copier(Scope(), lambda _path, _dir: True, lambda _size: None, growing)
    copier.copy(str(source), str(target))
    assert copier.known == {}
    assert (target / "f").read_bytes() == first + b"more\n"
