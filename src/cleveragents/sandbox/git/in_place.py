"""`in_place` of a repository: content that git already has is borrowed from it.

All of `.git` but the objects is captured. The objects stay git's: a ref of ours, on a commit whose
ancestors are all commits that a checkpoint saw, protects them from gc.
"""

import os
from typing import Any

import msgspec

from cleveragents import codec
from cleveragents.content import fsio, trees
from cleveragents.content.copy.census import census
from cleveragents.content.packs import Batch
from cleveragents.content.scope import Scope
from cleveragents.errors import SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.sandbox.git import command
from cleveragents.sandbox.git.kept_objects import KeptObjects
from cleveragents.sandbox.git.worktree import GitWorktree
from cleveragents.sandbox.in_place import DirectoryInPlace
from cleveragents.sandbox.protocol import Making
from cleveragents.sandbox.tree import tree_of

GITS_OWN = (
    b".git/objects",
    b".git/worktrees",
    b".git/lfs",
    b".git/annex",
    b".git/refs/cleveragents",
    b".git/logs/refs/cleveragents",
)
"""Kept by git itself (a ref of ours keeps the commits), another work tree's, or ours."""
REFS = (b".git/HEAD", b".git/refs", b".git/packed-refs", b".git/reftable")
_WHO = {
    f"GIT_{role}_{what}": text
    for role in ("AUTHOR", "COMMITTER")
    for what, text in (
        ("NAME", "cleveragents"),
        ("EMAIL", "cleveragents@localhost"),
        ("DATE", "@1000000000 +0000"),
    )
}


class GitInPlace(DirectoryInPlace, GitWorktree):
    own: tuple[bytes, ...] = ()
    _tips_are_kept = False
    """Whether this process has looked once."""
    _are_objects_lost: bool | None = None
    """None before anybody has looked."""

    @property
    def repository(self) -> command.Repository:
        """The repository at the start of the plan; it may be gone by now."""
        noted = self.place.origin.get("repository")
        return super().repository if noted is None else codec.convert(noted, command.Repository)

    @property
    def unpacked(self) -> command.Repository | None:
        """Our copy of the objects, if the user's repository has lost them."""
        if self._are_objects_lost is None:
            self._are_objects_lost = not self._is_ref_intact() and self._objects.is_needed()
        return self._objects.repository if self._are_objects_lost else super().unpacked

    @property
    def _objects(self) -> KeptObjects:
        return KeptObjects(self.place.ours, self.repository)

    @property
    def _has_own_objects(self) -> bool:
        """A linked work tree's objects lie elsewhere, and survive the loss of its own files."""
        common = self.repository.common_dir
        return os.path.dirname(common) == os.path.realpath(self.place.root)

    def _is_ref_intact(self) -> bool:
        """Whether our ref is where we put it; if not, git has to be asked."""
        common = self.repository.common_dir
        if not self._has_own_objects:
            return True
        try:
            with open(f"{common}/{self.ref}", encoding="ascii") as ref:
                is_ours = ref.read().strip() == self._objects.tip
        except OSError:
            return False
        return is_ours and all(os.path.exists(f"{common}/{name}") for name in ("HEAD", "objects"))

    def create(self, making: Making) -> dict[str, Any]:
        fsio.make_private_dir(self.place.ours)
        commit, branch = self.repository.head()
        if commit is not None:
            self.repository.pin(self.ref, commit)
            if self._has_own_objects:
                self._objects.keep(commit)
        return {
            "path": self.place.resource.path,
            "base": commit,
            "branch": branch,
            "repository": msgspec.to_builtins(self.repository),
            "borrowed": {},
            "not_covered": self._not_covered(making.cover_limit),
            "modules": self._modules(),
        }

    def _elsewhere(self) -> tuple[bytes, ...]:
        modules: list[str] | None = self.place.origin.get("modules")
        if modules is None:  # made by an older version, which left out all submodules
            modules = self._modules()
        return (*GITS_OWN, *(os.fsencode(path) for path in modules))

    def _modules(self) -> list[str]:
        """The object folders of the submodules there are now; later ones are covered."""
        top, found = f"{self.place.root}/.git/modules", list[str]()
        for folder, folders, _ in os.walk(top):
            if "objects" in folders and "refs" in folders:
                found.append(os.path.relpath(f"{folder}/objects", self.place.root))
                folders[:] = [name for name in folders if name == "modules"]
        return sorted(found)

    def _not_covered(self, limit: int) -> dict[str, int]:
        """Ignored files and folders above the limit, with their sizes."""
        shown = self.repository.git(
            "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"
        )
        sizes = {path.rstrip(b"/"): self._size(path) for path in shown.split(b"\0") if path}
        beyond: dict[str, int] = {}
        covered = 0
        for path, size in sorted(sizes.items(), key=lambda item: item[1]):
            covered += size
            if covered > limit:
                beyond[os.fsdecode(path)] = size
        return beyond

    def _size(self, path: bytes) -> int:
        where = os.fsdecode(path)
        try:
            if path.endswith(b"/"):
                return census(f"{self.place.root}/{where}", Scope()).size
            return os.lstat(f"{self.place.root}/{where}").st_size
        except (OSError, SandboxError):
            return 0

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        self._recheck_objects()
        state = super().capture(batch, previous, strict)
        if self._refs(previous) != self._refs(state) or not self._are_tips_kept(previous):
            batch.before_seal.append(self._keep_tips)
        return state

    def _recheck_objects(self) -> None:
        """Ask again whether the repository that content is borrowed from still has it."""
        before, self._are_objects_lost = self._are_objects_lost, None
        if before != bool(self.unpacked):
            self.blobs.close()

    def _are_tips_kept(self, previous: SandboxCheckpoint | None) -> bool:
        """Whether this process or the one before has done it, and our ref is still there."""
        loose = f"{self.repository.common_dir}/{self.ref}"
        return self._tips_are_kept or (previous is not None and os.path.isfile(loose))

    def _refs(self, state: SandboxCheckpoint | None) -> list[str]:
        if state is None:
            return []
        tree = tree_of(state)
        found = [trees.find(self.manifests, tree, path) for path in REFS]
        return [f"{e.described}:{e.key.hex()}" if e else "" for e in found]

    def _keep_tips(self) -> None:
        """Make every commit that a ref names now an ancestor of our ref's commit."""
        if not os.path.isfile(f"{self.repository.git_dir}/HEAD"):
            return  # the agent removed the repository
        git = self.repository.git
        listed = git("for-each-ref", "--format=%(objectname) %(refname)").splitlines()
        names = [line.split(b" ", 1) for line in listed]
        tips = {name.decode() for name, ref in names if not ref.startswith(b"refs/cleveragents/")}
        commit, _ = self.repository.head()
        stashed = git("log", "-g", "--format=%H", "refs/stash", "--", accept=(0, 128))
        tips |= {commit or "", *stashed.decode().split()} - {""}
        mine = next((name.decode() for name, ref in names if ref.decode() == self.ref), None)
        known = [f"^{mine}"] if mine else []
        asked = "\n".join([*sorted(tips), *known]) + "\n"
        new = git("rev-list", "--no-walk=unsorted", "--stdin", stdin=asked.encode())
        missing = new.decode().split()
        self._tips_are_kept = True
        if not missing:
            self._keep_objects(mine)
            return
        empty = git("hash-object", "-t", "tree", "-w", "--stdin", stdin=b"").decode().strip()
        parents = [word for tip in [*([mine] if mine else []), *missing] for word in ("-p", tip)]
        made = git("commit-tree", empty, *parents, "-m", "kept by cleveragents", extra=_WHO)
        self.repository.pin(self.ref, made.decode().strip())
        self._keep_objects(made.decode().strip())

    def _keep_objects(self, tip: str | None) -> None:
        if tip is not None and self._has_own_objects:
            self._objects.keep(tip)

    def _restore_objects(self) -> None:
        if self._objects.put_back():
            self.repository.pin(self.ref, self._objects.tip)

    def switch(self, staged: dict[str, Any], staging: str) -> None:
        super().switch(staged, staging)
        self._tips_are_kept = False
        if os.path.isfile(f"{self.repository.git_dir}/HEAD") and not self._is_ref_intact():
            self._restore_objects()
        self._recheck_objects()
