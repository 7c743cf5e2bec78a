"""States of a sandbox as a chain of ordinary commits in the user's repository.

Only objects and one ref are written; HEAD, index and work tree stay. Until the ref exists nothing
is reachable, so git itself collects what an export that died leaves behind.
"""

import os
import tempfile
from collections.abc import Iterable

import msgspec

from cleveragents.content import fsio
from cleveragents.content.entry import (
    Entry,
    EntryKind,
)
from cleveragents.content.files import write_content
from cleveragents.content.tree_diff import (
    Difference,
)
from cleveragents.errors import NotAllowed, SandboxError, UsageError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.sandbox.git import command
from cleveragents.sandbox.git.apply import GitTarget
from cleveragents.sandbox.git.index import committed_mode, nothing, trusts
from cleveragents.sandbox.git.signing import signing
from cleveragents.sandbox.protocol import Sandbox

OBJECTS = (EntryKind.FILE, EntryKind.LINK)
INSTEAD = "agents plan export PLAN --patch DIR has it as patches"


class Link(msgspec.Struct, frozen=True):
    """One commit to write: a state, when it was taken, and its message."""

    state: SandboxCheckpoint
    date: str
    message: str


class Chain(msgspec.Struct, frozen=True):
    base: str
    commits: tuple[str | None, ...]
    """For each link; None: it changes nothing, and there is no commit for it."""
    files: tuple[int, ...]
    """How many paths each commit changes."""


def repositories(sandboxes: Iterable[Sandbox]) -> list[GitTarget]:
    """The sandboxes whose resource is a repository that takes commits."""
    found = [one for one in sandboxes if isinstance(one, GitTarget)]
    return [one for one in found if not one.traits.has_address]


def require_branch(repository: command.Repository, name: str, force: bool) -> str:
    """The ref of a branch to write; an existing one only if forced."""
    ref = f"refs/heads/{name}"
    if name.startswith("-") or name == "HEAD" or not _is_valid(repository, ref):
        raise UsageError(f"{name!r} is not a valid branch name", "git check-ref-format --help")
    shown = repository.git("for-each-ref", "--format=%(objectname) %(worktreepath)", ref)
    listed = [line for line in shown.decode("utf-8", "replace").splitlines() if line]
    if not listed:
        return ref
    where = listed[0].partition(" ")[2]
    if where or repository.head()[1] == ref:
        raise NotAllowed(
            f"branch {name} is checked out in {where or repository.top}", "choose another name"
        )
    if not force:
        raise NotAllowed(f"branch {name} already exists", "choose another name, or --force")
    return ref


def _is_valid(repository: command.Repository, ref: str) -> bool:
    shown = repository.git("check-ref-format", "--normalize", ref, accept=(0, 1))
    return shown.decode("utf-8", "surrogateescape").rstrip("\n") == ref


def write_chain(
    sandbox: GitTarget, origin: SandboxCheckpoint, links: Iterable[Link], branch: str, force: bool
) -> Chain:
    """Write each changed state as a commit on the one before, starting at the base commit."""
    repository, base = sandbox.repository, sandbox.place.origin["base"]
    ref = require_branch(repository, branch, force)
    if base is None:
        raise NotAllowed(f"resource {sandbox.name!r} has no commit to begin with", INSTEAD)
    _require_base(repository, base)
    before = repository.git("rev-parse", "--verify", "-q", ref, accept=(0, 1)).decode().strip()
    commits: list[str | None] = []
    files: list[int] = []
    tip = base
    with tempfile.TemporaryDirectory(prefix="cleveragents-") as scratch:
        writer = Writer(sandbox, origin, base, scratch)
        for link in links:
            files.append(writer.go_to(link.state))
            if files[-1]:
                tip = writer.commit(tip, link)
            commits.append(tip if files[-1] else None)
    if tip == base:
        raise NotAllowed(
            f"the plan changed nothing in {sandbox.name!r}: there is no commit to make"
        )
    for commit in dict.fromkeys(commits):
        if commit is not None:
            repository.sync_objects(commit)
    _publish(repository, ref, tip, before)
    repository.sync_ref(ref)
    return Chain(base, tuple(commits), tuple(files))


def _require_base(repository: command.Repository, base: str) -> None:
    try:
        repository.git("rev-parse", "--verify", "-q", f"{base}^{{commit}}")
    except SandboxError:
        raise NotAllowed(f"the base commit {base} is not in the repository", INSTEAD) from None


def _publish(repository: command.Repository, ref: str, tip: str, before: str) -> None:
    zero = "0" * len(tip)
    try:
        repository.git("update-ref", "-m", "agents plan export", ref, tip, before or zero)
    except SandboxError as error:
        name = ref.removeprefix("refs/heads/")
        raise NotAllowed(f"branch {name} cannot be written: {error.message}") from error


class Writer:
    """An index of our own that moves from state to state."""

    def __init__(
        self,
        sandbox: GitTarget,
        origin: SandboxCheckpoint,
        base: str,
        scratch: str,
        ignored: bool = False,
    ) -> None:
        self._sandbox = sandbox
        self._origin = origin
        self._ignored = ignored
        self._repository = sandbox.repository
        self._scratch = scratch
        self._extra = {"GIT_INDEX_FILE": f"{scratch}/index"}
        self._blobs: dict[tuple[EntryKind, bytes], bytes] = {}
        self._sign = signing(self._repository.top)
        self._base = self._repository.entries(base)
        self._links = trusts(self._repository, "symlinks")
        self._here: dict[bytes, bytes] = {}
        """Path -> its line in the index, where that is not the base commit's."""
        self._repository.git("read-tree", base, extra=self._extra)

    def go_to(self, state: SandboxCheckpoint) -> int:
        """Bring the index to a state; returns how many paths changed."""
        work, _ = self._sandbox.visible(self._origin, state, self._ignored)
        self._sandbox.require_own_work(work, INSTEAD)
        wanted = {item.path: item for item in work if _counts(item)}
        entries = [_object(item.after) for item in wanted.values()]
        self._store([entry for entry in entries if entry is not None])
        there = {path: self._line(path, item) for path, item in wanted.items()}
        moved = [
            there.get(path) or self._base_line(path)
            for path in sorted(self._here.keys() | there.keys())
            if there.get(path, self._base_line(path)) != self._here.get(path, self._base_line(path))
        ]
        # Removals first: a file may become a folder.
        moved.sort(key=lambda line: not line.startswith(b"0 "))
        text = b"".join(line + b"\0" for line in moved)
        self._repository.git("update-index", "-z", "--index-info", stdin=text, extra=self._extra)
        self._here = there
        return len(moved)

    def _store(self, entries: list[Entry]) -> None:
        """Write the blobs that are still missing, in one go."""
        new = {(e.kind, e.key): e for e in entries if (e.kind, e.key) not in self._blobs}
        names = [f"{self._scratch}/{number}" for number in range(len(new))]
        with fsio.directory(self._scratch) as fd:
            for path, entry in zip(names, new.values(), strict=True):
                if entry.kind is EntryKind.LINK:
                    fsio.write_new(path, entry.key)
                else:
                    name = os.fsencode(os.path.basename(path))
                    write_content(self._sandbox.read, entry.key, fd, name, 0o600, durable=False)
        made = self._repository.git(
            "hash-object",
            "-w",
            "--no-filters",
            "--stdin-paths",
            stdin="".join(f"{path}\n" for path in names).encode(),
        )
        self._blobs |= dict(zip(new, made.split(), strict=True))
        for path in names:
            os.unlink(path)

    def _line(self, path: bytes, item: Difference | None) -> bytes:
        """As `update-index --index-info` takes it."""
        entry = _object(item.after) if item is not None else None
        if item is None or entry is None:
            return nothing(self._repository, path)
        known = self._base.get(path, (None, b""))[0]
        mode = committed_mode(item.before, entry, known, self._links)
        return mode + b" " + self._blobs[entry.kind, entry.key] + b"\t" + path

    def _base_line(self, path: bytes) -> bytes:
        if path not in self._base:
            return self._line(path, None)
        return b" ".join(self._base[path]) + b"\t" + path

    def tree(self) -> str:
        """The index as a tree object."""
        return self._repository.git("write-tree", extra=self._extra).decode().strip()

    def commit(self, parent: str, link: Link) -> str:
        dates = {"GIT_AUTHOR_DATE": link.date, "GIT_COMMITTER_DATE": link.date}
        return self._sandbox.commit_tree(self.tree(), parent, link.message, self._sign, dates)


def _object(entry: Entry | None) -> Entry | None:
    return entry if entry is not None and entry.kind in OBJECTS else None


def _counts(item: Difference) -> bool:
    """Whether git stores it: it does not store directories, pipes and devices."""
    return any(_object(entry) is not None for entry in (item.before, item.after))
