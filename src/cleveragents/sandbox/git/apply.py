"""Apply to a git repository: as a commit on its branch, as plain changes, or as a new branch."""

import os
from typing import Any

import msgspec

from cleveragents import codec
from cleveragents.content import fsio
from cleveragents.content.entry import (
    EntryKind,
)
from cleveragents.content.files import hash_file_as
from cleveragents.content.packs import (
    Batch,
)
from cleveragents.content.restore.operation import Op
from cleveragents.errors import ApplyRefused, SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import show_path
from cleveragents.sandbox import merge
from cleveragents.sandbox.control import control_files_of
from cleveragents.sandbox.git import command
from cleveragents.sandbox.git import index as git_index
from cleveragents.sandbox.git.committable import Committable, short, staged_by_you
from cleveragents.sandbox.git.hooks import message_after_hooks, run_hook
from cleveragents.sandbox.git.signing import Signing, signing
from cleveragents.sandbox.protocol import Applied, ApplyOptions, Proposal
from cleveragents.sandbox.traits import Traits


class GitTarget(Committable):
    """The apply half of `git_worktree`."""

    traits: Traits = Traits(is_directory=True, is_repository=True, require=command.locate)

    def compare(
        self,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> Proposal:
        if options.mode == "branch":
            return self._compare_branch(origin, result, options)
        self.require_same_branch()
        self.require_unlocked()
        proposal = super().compare(origin, result, options, batch)
        if options.mode == "changes" or proposal.conflicts:
            return proposal
        work = codec.convert(proposal.work, merge.Work)
        problem = self.against_commit(work, whole=options.mode is None)
        if problem is None:
            return msgspec.structs.replace(proposal, mode="commit")
        if options.mode == "commit":
            raise ApplyRefused(problem, "agents plan apply PLAN --as changes")
        return proposal

    def _compare_branch(
        self, origin: SandboxCheckpoint, result: SandboxCheckpoint, options: ApplyOptions
    ) -> Proposal:
        base = self.place.origin["base"]
        if base is None:
            raise ApplyRefused(f"resource {self.name!r} has no commit to branch from")
        wanted, left_out = self.visible(origin, result, options.ignored)
        self.require_own_work(wanted, "agents plan apply PLAN --as changes")
        return Proposal(
            resource=self.name,
            mode="branch",
            files=tuple(show_path(item.path) for item in wanted),
            ignored_count=left_out,
            control_files=control_files_of(wanted),
            notes=self.not_applied(origin, result),
            work=msgspec.to_builtins(merge.Work(wanted)),
        )

    def lost(
        self,
        applied: Applied,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> list[str]:
        if applied.commit is None:
            return super().lost(applied, origin, result, options, batch)
        held = self.repository.holds(applied.commit)
        return [] if held else [f"no branch has commit {applied.commit}"]

    def stage_apply(self, proposal: Proposal, options: ApplyOptions) -> dict[str, Any]:
        if proposal.mode == "changes":
            return super().stage_apply(proposal, options)
        work = codec.convert(proposal.work, merge.Work)
        staging = merge.staging_beside(self.place.resource.path, os.path.basename(options.staging))
        ops, notes = self._stage_target(work, staging)
        tip, branch = self.repository.head()
        parent = self.place.origin["base"] if proposal.mode == "branch" else tip
        target = f"refs/heads/{options.branch}" if proposal.mode == "branch" else branch
        hooks = options.hooks and proposal.mode == "commit"
        message = message_after_hooks(self.repository, options.message, staging, hooks)
        lines = self._index_lines(ops, staging, parent)
        commit = self._commit(lines, staging, parent, message)
        if proposal.mode == "branch":
            self._require_free(target or "", commit)
        is_commit = proposal.mode == "commit"
        return {
            "staging": staging,
            "ops": msgspec.to_builtins(ops) if is_commit else [],
            "index": lines.hex() if is_commit else "",
            "old_index": self._old_index(work, tip).hex() if is_commit else "",
            "notes": notes if is_commit else [],
            "flags": git_index.flags(self.repository, (op.path for op in ops)) if is_commit else {},
            "files": len(proposal.files),
            "directories": sum(item.is_directory for item in work.differences),
            "mode": proposal.mode,
            "ref": target,
            "old": parent if proposal.mode == "commit" else None,
            "commit": commit,
            "hooks": hooks,
        }

    def _require_free(self, ref: str, commit: str | None) -> None:
        found = self._ref(ref)
        if found not in (None, commit):
            raise ApplyRefused(
                f"branch {short(ref)} already exists", "delete or rename it, then apply again"
            )

    def _ref(self, ref: str) -> str | None:
        found = self.repository.git("rev-parse", "--verify", "-q", ref, accept=(0, 1))
        return found.decode().strip() or None

    def _index_lines(self, ops: tuple[Op, ...], staging: str, parent: str | None) -> bytes:
        """The changed paths in the new commit, in the format of `update-index --index-info`."""
        tracked = self.repository.entries(parent) if parent else {}
        links = git_index.trusts(self.repository, "symlinks")
        staged: list[tuple[Op, bytes, str]] = []
        lines: list[bytes] = []
        for op in ops:
            if op.after is not None and op.after.kind in git_index.OBJECTS:
                known = tracked.get(op.path, (None, b""))[0]
                mode = git_index.committed_mode(op.before, op.after, known, links)
                staged.append((op, mode, self._staged_file(op, staging)))
            elif op.before is not None and op.before.kind in git_index.OBJECTS:
                lines.append(git_index.nothing(self.repository, op.path))
        paths = "".join(f"{path}\n" for _, _, path in staged).encode()
        names = self.repository.git(
            "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=paths
        ).split()
        for (op, mode, _), name in zip(staged, names, strict=True):
            lines.append(mode + b" " + name + b"\t" + op.path)
        return git_index.as_input(lines)

    def _staged_file(self, op: Op, staging: str) -> str:
        assert op.after is not None
        if op.after.kind is EntryKind.FILE:
            return f"{staging}/{op.new.decode()}"
        path = f"{staging}/text{op.number}"
        if not os.path.exists(path):
            fsio.write_new(path, op.after.key)
        return path

    def _old_index(self, work: merge.Work, tip: str | None) -> bytes:
        """The same paths as in the user's index now, for undo."""
        staged = git_index.staged_paths(self.repository, tip)
        if path := git_index.staged_conflict(staged, work.differences):
            raise ApplyRefused(staged_by_you(path), "agents plan apply PLAN --as changes")
        paths = (item.path for item in work.differences)
        return git_index.as_input(git_index.lines(self.repository, paths).values())

    def _commit(self, lines: bytes, staging: str, parent: str | None, message: str) -> str | None:
        with command.scratch_index(staging) as extra:
            if parent is not None:
                self.repository.git("read-tree", parent, extra=extra)
            self.repository.git("update-index", "-z", "--index-info", stdin=lines, extra=extra)
            tree = self.repository.git("write-tree", extra=extra).decode().strip()
        if parent is not None:
            had = self.repository.git("rev-parse", f"{parent}^{{tree}}").decode().strip()
            if had == tree:
                return None
        return self.commit_tree(tree, parent, message, signing(self.repository.top))

    def commit_tree(
        self,
        tree: str,
        parent: str | None,
        message: str,
        sign: Signing,
        dates: dict[str, str] | None = None,
    ) -> str:
        """A commit object by the user, signed if theirs are; nothing refers to it yet."""
        made = self.repository.git(
            *sign.config,
            "commit-tree",
            *sign.flag,
            tree,
            *(("-p", parent) if parent else ()),
            "-F",
            "-",
            stdin=message.encode("utf-8", "surrogateescape"),
            extra={**sign.environment, **self._identity(), **(dates or {})},
        )
        return made.decode().strip()

    def _identity(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, default in (("name", "cleveragents"), ("email", "cleveragents@localhost")):
            values = command.user_config(self.repository.top, "--get", f"user.{key}")
            for who in ("AUTHOR", "COMMITTER"):
                found[f"GIT_{who}_{key.upper()}"] = values[0] if values else default
        return found

    def switch_apply(self, staged: dict[str, Any]) -> None:
        if staged["mode"] == "changes":
            super().switch_apply(staged)
            return
        if staged["mode"] == "commit":
            self.require_same_branch()
            self._require_same_index(staged)
            super().switch_apply(staged)
            if staged["commit"]:
                self._update_index(bytes.fromhex(staged["index"]), staged)
                self._ask_hook(staged)
            elif staged["old"]:
                git_index.refresh(self.repository, staged["old"])
        if staged["commit"]:
            self.repository.sync_objects(staged["commit"])
            self._move_ref(staged["ref"], staged["commit"], staged["old"])
            # Also after a crash, with the ref already there: from here on nothing may be lost.
            self.repository.sync_ref(staged["ref"])

    def _update_index(self, lines: bytes, staged: dict[str, Any]) -> None:
        git_index.update(self.repository, lines, staged["commit"], staged.get("flags", {}))
        fsio.sync_dir(self.repository.git_dir)

    def _require_same_index(self, staged: dict[str, Any]) -> None:
        """Refuse if the user has staged something since the comparison."""
        old, new = _by_path(staged["old_index"]), _by_path(staged["index"])
        for path, line in git_index.lines(self.repository, old).items():
            known = (old[path], new.get(path, old[path]))
            if not any(git_index.same_line(line, one) for one in known):
                raise ApplyRefused(
                    f"{show_path(path)} was staged while it was being applied",
                    "no target was changed; fix the cause and apply again",
                )
        if middle := git_index.unfinished_operation(self.repository):
            raise ApplyRefused(
                f"resource {self.name!r} is in the middle of a {middle}",
                "finish or abort it, then apply again",
            )

    def _ask_hook(self, staged: dict[str, Any]) -> None:
        """Run `pre-commit` as git would: with files and index in place, before the commit."""
        if not staged["hooks"] or self._ref(staged["ref"]) == staged["commit"]:
            return
        ops = codec.convert(staged["ops"], tuple[Op, ...])
        paths = [op.path for op in ops]
        before = git_index.lines(self.repository, paths)
        run_hook(self.repository, "pre-commit")
        if git_index.lines(self.repository, paths) != before or self._rewritten(ops):
            raise ApplyRefused(
                "hook pre-commit changed what was to be committed",
                "make its changes a step of the plan, or agents plan apply PLAN --as changes",
            )

    def _rewritten(self, ops: tuple[Op, ...]) -> bool:
        """Whether a hook rewrote a file: the target no longer has what the plan made."""
        with fsio.directory(self.place.resource.path) as root:
            for op in ops:
                if op.after is not None and op.after.kind is EntryKind.FILE:
                    with fsio.parent_of(root, op.path) as (fd, name):
                        if hash_file_as(fd, name, op.after.key) != op.after.key:
                            return True
        return False

    def finish_apply(self, staged: dict[str, Any]) -> None:
        if staged.get("hooks") and staged["commit"] and os.path.isdir(staged["staging"]):
            run_hook(self.repository, "post-commit", may_fail=True)
        super().finish_apply(staged)

    def _move_ref(self, ref: str, new: str | None, old: str | None) -> None:
        if self._ref(ref) == new:
            return
        fsio.point("ref")
        zero = "0" * (40 if self.repository.object_format == "sha1" else 64)
        try:
            self.repository.git(
                "update-ref", "-m", "agents plan apply", ref, new or zero, old or zero
            )
        except SandboxError as error:
            if self._ref(ref) == new:
                return  # by another process that finishes the same apply
            raise ApplyRefused(
                f"branch {short(ref)} could not be moved: {error.message}", "run it again"
            ) from error

    def undo_apply(self, staged: dict[str, Any]) -> None:
        committed = staged["mode"] != "changes" and staged["commit"]
        if committed and self._ref(staged["ref"]) == staged["commit"]:
            self._move_ref(staged["ref"], staged["old"], staged["commit"])
        if committed:
            self.repository.sync_ref(staged["ref"])
        super().undo_apply(staged)
        if committed and staged["mode"] == "commit":
            self._restore_index(staged)

    def _restore_index(self, staged: dict[str, Any]) -> None:
        """Undo our entries; what somebody else has staged since stays."""
        old, new = _by_path(staged["old_index"]), _by_path(staged["index"])
        ours = [
            old[path]
            for path, line in git_index.lines(self.repository, old).items()
            if not git_index.same_line(line, old[path])
            and (staged["hooks"] or git_index.same_line(line, new.get(path, old[path])))
        ]
        if ours or staged["old"]:
            commit = {**staged, "commit": staged["old"]}
            self._update_index(git_index.as_input(ours), commit)

    def applied(self, staged: dict[str, Any]) -> Applied:
        done = super().applied(staged)
        return msgspec.structs.replace(done, commit=staged.get("commit"))


def _by_path(text: str) -> dict[bytes, bytes]:
    """Path -> its index lines; several if it is unmerged."""
    found: dict[bytes, bytes] = {}
    for line in bytes.fromhex(text).split(b"\0"):
        if line:
            path = line.split(b"\t", 1)[1]
            found[path] = found[path] + b"\0" + line if path in found else line
    return found
