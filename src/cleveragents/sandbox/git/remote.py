"""`clone` of a remote git repository: fetched, worked on, pushed with a lease.

Beside the sandbox lies a shallow copy of the branch's newest commit, on every machine that works on
the plan; it is removed with the sandbox. The commit is made there, and the push is the switch.
Whether a push happened is asked of the remote, so any machine can find out.
"""

from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from cleveragents.content import removal
from cleveragents.content.packs import Batch
from cleveragents.errors import ApplyRefused, SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.plan_spec import PlanSpec, ResourceSpec
from cleveragents.model.resource import show_path
from cleveragents.sandbox.control import control_files_of
from cleveragents.sandbox.git import command
from cleveragents.sandbox.git.base_pack import AT, PACK
from cleveragents.sandbox.git.chain import Writer
from cleveragents.sandbox.git.committable import short
from cleveragents.sandbox.git.signing import signing
from cleveragents.sandbox.git.three_way import MergedTree, merge_trees
from cleveragents.sandbox.git.transport import HEADS, TIP, Remote
from cleveragents.sandbox.git.worktree import GitWorktree
from cleveragents.sandbox.protocol import Applied, ApplyOptions, Making, Proposal
from cleveragents.sandbox.traits import Traits


def problems_of(spec: PlanSpec, remotes: Sequence[ResourceSpec]) -> list[str]:
    """Whether each answers and has its branch, and whether they can be applied together."""
    found = [item for item in remotes if item.url]
    texts = [f"resource {item.name!r}: {text}" for item in found for text in _problem(item.url)]
    if len(found) > 1:
        names = ", ".join(repr(item.name) for item in found)
        texts.append(
            f"resources {names}: pushes to two repositories are not all or nothing"
            " (write a plan for each)"
        )
    return texts


def _problem(stored: str) -> list[str]:
    remote = Remote(stored)
    try:
        remote.require_tip(remote.head())
    except SandboxError as error:
        return [f"{error.message} ({error.hint})" if error.hint else error.message]
    return []


class GitRemote(GitWorktree):
    strategy = "clone"
    traits: Traits = Traits(
        is_directory=True, is_repository=True, has_address=True, problems=problems_of
    )

    @property
    def repository(self) -> command.Repository:
        """This machine's copy of the base commit."""
        found = self.unpacked or self._repository
        assert found is not None, "it was fetched, or is in the store"
        return found

    @property
    def remote(self) -> Remote:
        return Remote(self.place.resource.path, self.repository.git_dir)

    def create(self, making: Making) -> dict[str, Any]:
        folder, asked = self.base_folder, Remote(self.place.resource.path)
        ref = asked.head()
        form = "sha1" if len(asked.require_tip(ref)) == 40 else "sha256"
        removal.remove_tree(folder)
        command.run("init", "-q", "--bare", "--template=", f"--object-format={form}", folder)
        command.run(f"--git-dir={folder}", "symbolic-ref", "HEAD", ref)
        self._repository = command.Repository(folder, folder, folder, form)
        self.remote.fetch(ref, ref, "--depth=1")
        # The store always gets the base: the remote may drop it.
        made = super().create(msgspec.structs.replace(making, is_portable=True))
        return {**made, AT: folder}

    def _require_within_limit(self, making: Making) -> None:
        """Only the commit is carried, and that needs no question."""

    def _copy_carried(self, making: Making) -> None:
        self._write_commit()

    def _is_there(self) -> bool:
        return False

    def keep_borrowed(self, roots: list[bytes], batch: Batch) -> None:
        if PACK not in self.place.origin:
            super().keep_borrowed(roots, batch)

    def attributes_of(self, names: bytes, asked: tuple[str, ...]) -> bytes:
        """Attributes from the base commit's own files: there is no work tree."""
        with TemporaryDirectory(prefix="cleveragents-") as scratch:
            extra = {"GIT_INDEX_FILE": f"{scratch}/index"}
            self.repository.git("read-tree", self.place.origin["base"], extra=extra)
            words = ("check-attr", "--cached", "-z", "--stdin", *asked)
            return self.repository.git(*words, stdin=names, extra=extra)

    # apply

    def compare(
        self,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> Proposal:
        if options.mode == "changes":
            raise ApplyRefused(
                f"resource {self.name!r} is on a server, which takes commits only",
                "agents plan apply PLAN --as commit",
            )
        mode, base = options.mode or "commit", self.place.origin["base"]
        wanted, left_out = self.visible(origin, result, options.ignored)
        proposal = Proposal(
            resource=self.name,
            mode=mode,
            files=(),
            ignored_count=left_out,
            control_files=control_files_of(wanted),
            notes=self.not_applied(origin, result),
        )
        if not wanted:
            return proposal
        parent = base if mode == "branch" else self._fetched_tip()
        made = self._merged_onto(parent, origin, result, options.ignored)
        if made.conflicts:
            paths = tuple(show_path(item.path) for item in wanted)
            return msgspec.structs.replace(proposal, files=paths, conflicts=made.conflicts)
        listed = self.repository.git("diff-tree", "-r", "-z", "--name-only", parent, made.tree)
        return msgspec.structs.replace(
            proposal,
            files=tuple(show_path(path) for path in listed.split(b"\0") if path),
            merged=made.merged,
            work={"tree": made.tree, "parent": parent},
        )

    def _fetched_tip(self) -> str:
        """Fetch the branch's newest commit and return it."""
        ref, remote = self.place.origin["branch"], self.remote
        tip = remote.require_tip(ref)
        if self.repository.has_commit(tip):
            return tip
        remote.fetch(ref, TIP, "--depth=1")
        return self._ref(TIP) or tip

    def _merged_onto(
        self, parent: str, origin: SandboxCheckpoint, result: SandboxCheckpoint, ignored: bool
    ) -> MergedTree:
        base = self.place.origin["base"]
        with TemporaryDirectory(prefix="cleveragents-") as scratch:
            writer = Writer(self, origin, base, scratch, ignored)
            writer.go_to(result)
            work = writer.tree()
            if parent == base:
                return MergedTree(work)
            trees = (base, parent, work)
            return merge_trees(self.repository, trees, self.name, f"{scratch}/merge")

    def stage_apply(self, proposal: Proposal, options: ApplyOptions) -> dict[str, Any]:
        if not proposal.files:
            return {"files": 0, "mode": proposal.mode}
        is_branch, parent = proposal.mode == "branch", proposal.work["parent"]
        ref = f"{HEADS}{options.branch}" if is_branch else self.place.origin["branch"]
        if is_branch and self.remote.tip(ref) is not None:
            raise ApplyRefused(
                f"{self.remote.url} has a branch {options.branch} already",
                "delete or rename it, then apply again",
            )
        tree, sign = proposal.work["tree"], signing(self.repository.top)
        return {
            "files": len(proposal.files),
            "mode": proposal.mode,
            "ref": ref,
            "old": None if is_branch else parent,
            "commit": self.commit_tree(tree, parent, options.message, sign),
        }

    def switch_apply(self, staged: dict[str, Any]) -> None:
        if staged["files"] and not self.is_applied(staged):
            self.remote.push(staged["commit"], staged["ref"], staged["old"])

    def is_applied(self, staged: dict[str, Any]) -> bool:
        if not staged["files"]:
            return False
        tip = self.remote.tip(staged["ref"])
        if tip in (None, staged["old"]):
            return False
        return tip == staged["commit"] or self._holds(staged["ref"], staged["commit"])

    def _holds(self, ref: str, commit: str) -> bool:
        """Whether the branch has the commit in its history now."""
        # Refs tell the remote what is here: else it would send everything.
        self.repository.pin(self.ref, self.place.origin["base"])
        self.remote.fetch(ref, TIP)
        return self.repository.is_before(commit, self._ref(TIP) or "")

    def undo_apply(self, staged: dict[str, Any]) -> None:
        """Undo the push unless somebody has pushed on top of it."""
        if not self.is_applied(staged):
            return
        ref, commit = staged["ref"], staged["commit"]
        if self.remote.tip(ref) != commit:
            raise ApplyRefused(
                f"branch {short(ref)} of {self.remote.url} has commits on top of {commit[:12]}",
                "it stays; git revert undoes it",
            )
        self.remote.push(staged["old"], ref, commit)

    def discard_apply(self, staging: str) -> None:
        """Nothing to remove: everything lies in our copy."""

    def finish_apply(self, staged: dict[str, Any]) -> None:
        """Nothing to remove, as above."""

    def applied(self, staged: dict[str, Any]) -> Applied:
        commit = staged.get("commit")
        return Applied(
            resource=self.name, files=staged["files"], mode=staged["mode"], commit=commit
        )

    def lost(
        self,
        applied: Applied,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> list[str]:
        is_branch = applied.mode == "branch"
        ref = f"{HEADS}{options.branch}" if is_branch else self.place.origin["branch"]
        commit = applied.commit or ""
        tip = self.remote.tip(ref)
        if tip == commit or (tip is not None and self._holds(ref, commit)):
            return []
        return [f"branch {short(ref)} of {self.remote.url} has no commit {commit}"]
