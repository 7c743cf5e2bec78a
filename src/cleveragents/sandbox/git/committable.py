"""Whether a plan's work can be committed to the user's repository as it is now."""

import os
from collections.abc import Iterable

from cleveragents.content.entry import (
    Entry,
    EntryKind,
)
from cleveragents.content.files import content_blocks
from cleveragents.content.keys import (
    GIT,
)
from cleveragents.content.tree_diff import (
    Difference,
)
from cleveragents.errors import ApplyRefused
from cleveragents.model.resource import show_path
from cleveragents.sandbox import merge
from cleveragents.sandbox.git import command
from cleveragents.sandbox.git import index as git_index
from cleveragents.sandbox.tree import TreeSandbox

_CONVERSIONS = ("filter", "ident", "working-tree-encoding")
_EOL = ("text", "eol", "crlf")


class Committable(TreeSandbox):
    """The checks before a commit of ours: it must take in nothing of the user's own work."""

    @property
    def repository(self) -> command.Repository:
        raise NotImplementedError

    def require_unlocked(self) -> None:
        lock = f"{self.repository.git_dir}/index.lock"
        if os.path.exists(lock):
            raise ApplyRefused(
                f"another git command is running: {lock} exists",
                "wait for it; if none is running, remove that file",
            )

    def require_same_branch(self) -> None:
        _, branch = self.repository.head()
        made_from = self.place.origin["branch"]
        if branch != made_from:
            raise ApplyRefused(
                f"resource {self.name!r} was on {short(made_from)} and is on {short(branch)} now",
                "check that branch out, or agents plan apply PLAN --as branch",
            )

    def against_commit(self, work: merge.Work, whole: bool) -> str | None:
        """Why these changes cannot be a commit; None if they can.

        Unasked, only a target that is clean as a `whole` gets a commit.
        """
        tip, branch = self.repository.head()
        middle = git_index.unfinished_operation(self.repository)
        if branch is None or middle:
            state = f"is in the middle of a {middle}" if middle else "has a detached HEAD"
            return f"resource {self.name!r} {state}"
        return (
            self._uncommittable(work.differences, tip)
            or self._staged_by_user(work.differences, tip, whole)
            # before what compares bytes: to git a converted file is as it was committed
            or self._converted(work.differences)
            or self._own_changes(work.differences, tip)
            or (self._uncommitted(tip) if whole else None)
        )

    def _staged_by_user(
        self, differences: Iterable[Difference], tip: str | None, whole: bool
    ) -> str | None:
        """A path whose staged version would get into the commit; with `whole`, any staged path."""
        staged = git_index.staged_paths(self.repository, tip)
        path = git_index.staged_conflict(staged, differences)
        if path is None and whole:
            path = next((path for path in staged if not self._left_out(path)), None)
        return staged_by_you(path) if path is not None else None

    def _own_changes(self, differences: Iterable[Difference], tip: str | None) -> str | None:
        """A path that the user changed and did not commit."""
        tracked = self.repository.entries(tip) if tip else {}
        modes, links = (git_index.trusts(self.repository, w) for w in ("fileMode", "symlinks"))
        paths = {item.path for item in differences}
        for item in differences:
            top = self.place.resource.path
            if problem := git_index.own_change(top, item, paths, tracked, modes, links):
                return problem
        return None

    def _uncommitted(self, tip: str | None) -> str | None:
        """A tracked file with uncommitted changes, found without running the user's filters."""
        index = f"{self.repository.git_dir}/index"
        if tip is None or not os.path.exists(index):
            return None
        import shutil

        top = self.repository.top
        with git_index.own_git_dir(self.repository, tip) as here:
            shutil.copyfile(index, f"{here[0].partition('=')[2]}/index")
            command.run(*here, "update-index", "-q", "--refresh", cwd=top, accept=(0, 1))
            found = command.run(*here, "diff-index", "--name-only", "-z", tip, cwd=top)
        outside = [path for path in found.split(b"\0") if path and not self._left_out(path)]
        return f"{show_path(outside[0])} has uncommitted changes of your own" if outside else None

    def _left_out(self, path: bytes) -> bool:
        from cleveragents.sandbox.protocol import source_scope

        return source_scope(self.place, *self.own).leaves_out(path)

    def _converted(self, differences: Iterable[Difference]) -> str | None:
        """A path whose bytes git would convert on commit; we commit bytes unconverted."""
        wanted = [i for i in differences if i.after and i.after.kind is EntryKind.FILE]
        if not wanted:
            return None
        names = b"\0".join(item.path for item in wanted)
        fields = self.attributes_of(names, (*_CONVERSIONS, *_EOL)).split(b"\0")
        set_for: dict[bytes, set[str]] = {}
        for path, attribute, value in zip(fields[0::3], fields[1::3], fields[2::3], strict=False):
            if value not in (b"unspecified", b"unset"):
                set_for.setdefault(path, set()).add(attribute.decode())
        autocrlf = command.user_config(self.repository.top, "--get", "core.autocrlf")
        for item in wanted:
            attributes = set_for.get(item.path, set())
            if attributes & set(_CONVERSIONS):
                return f"{show_path(item.path)} goes through a git filter"
            if (attributes & set(_EOL) or autocrlf not in ([], ["false"])) and self._has_crlf(
                item.after
            ):
                return f"{show_path(item.path)} has line endings that git converts"
        return None

    def attributes_of(self, names: bytes, asked: tuple[str, ...]) -> bytes:
        """Attributes of these paths, as `check-attr -z` prints them."""
        return self.repository.git("check-attr", "-z", "--stdin", *asked, stdin=names)

    def _has_crlf(self, entry: Entry | None) -> bool:
        assert entry is not None
        return any(b"\r\n" in block for block in content_blocks(self.read, entry.key))

    def require_own_work(self, work: Iterable[Difference], hint: str) -> None:
        """Refuse what cannot be committed on the base: the user's changes, what git converts."""
        work = list(work)
        if problem := self._uncommittable(work, self.place.origin["base"]) or self._converted(work):
            raise ApplyRefused(problem, hint)
        for item in work:
            old = item.before
            if old is not None and old.kind is EntryKind.FILE and old.key[:1] != GIT:
                raise ApplyRefused(
                    f"{show_path(item.path)} has uncommitted changes of your own", hint
                )

    def _uncommittable(self, differences: Iterable[Difference], tip: str | None) -> str | None:
        """A path that no commit of this repository can hold."""
        modules = self.repository.submodules(tip)
        for item in differences:
            parts = item.path.split(b"/")
            above = {b"/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
            if above & modules:
                return f"{show_path(item.path)} is in a submodule, which has commits of its own"
            if b".git" in parts:
                return f"{show_path(item.path)} is in a repository inside this one"
        return None


def staged_by_you(path: bytes) -> str:
    return f"{show_path(path)} has staged changes of your own"


def short(ref: str | None) -> str:
    return ref.removeprefix("refs/heads/") if ref else "a detached HEAD"
