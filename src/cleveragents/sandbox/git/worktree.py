"""`git_worktree`: a work tree with a git directory of its own that borrows the user's objects.

Until apply we keep one ref in the user's repository, which protects the base commit from gc. git is
never run in the sandbox: a tool may have made it hostile.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from cleveragents import codec
from cleveragents.content import descent, fsio, tree_diff, trees
from cleveragents.content.background import Background
from cleveragents.content.entry import (
    Entry,
    EntryKind,
    Tree,
)
from cleveragents.content.files import Base, stamp, write_content
from cleveragents.content.keys import (
    GIT,
)
from cleveragents.content.packs import (
    Batch,
)
from cleveragents.content.tree_diff import (
    Difference,
)
from cleveragents.errors import SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Carry, Change
from cleveragents.sandbox.git import command
from cleveragents.sandbox.git.apply import GitTarget
from cleveragents.sandbox.git.base_pack import GitAnywhere, portable
from cleveragents.sandbox.git.blobs import BaseTree, Blobs
from cleveragents.sandbox.protocol import Making, Place, source_scope
from cleveragents.sandbox.tree import tree_of

if TYPE_CHECKING:
    from cleveragents.content.copy.census import Known
    from cleveragents.content.copy.copying import Copier


class _Source(NamedTuple):
    """What a sandbox is being made from."""

    commit: str | None
    branch: str | None
    listing: Background[tuple[dict[bytes, Base], list[bytes]]]


class GitWorktree(GitTarget, GitAnywhere):
    strategy = "git_worktree"
    own: tuple[bytes, ...] = (b".git",)

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._base: BaseTree | None = None
        self._blobs: Blobs | None = None
        self._repository: command.Repository | None = None
        self._source: _Source | None = None
        self._keep_ref = False
        self._kept: set[bytes] = set()
        """Borrowed content that need not be asked for beforehand: it was once copied."""

    @property
    def repository(self) -> command.Repository:
        if self._repository is None:
            noted = self.place.origin.get("repository")
            if noted is not None and os.path.isdir(noted["git_dir"]):
                self._repository = codec.convert(noted, command.Repository)
            else:
                self._repository = command.locate(self.place.resource.path)
        return self._repository

    @property
    def ref(self) -> str:
        return f"{command.REFS}{self.place.plan_id}"

    def base(self) -> BaseTree:
        if self._base is None:
            base = None if self._is_gone else self.place.origin["base"]
            self._base = BaseTree(lambda: self.unpacked or self.repository, base, self.blobs)
        return self._base

    def read(self, key: bytes) -> bytes:
        """From the store, or borrowed from the user's repository."""
        if key[:1] != GIT or self.place.packs.has(key):
            return self.place.packs.get(key)
        return self.blobs.get(key)

    def reading(self, keys: list[bytes]) -> Callable[[bytes], bytes]:
        read, missing = self.place.packs.reading(keys)
        borrowed = {key for key in missing if key[:1] == GIT}
        for key in borrowed:
            self.blobs.ask(key)
        self.blobs.begin()
        return lambda key: self.blobs.get(key) if key in borrowed else read(key)

    @property
    def blobs(self) -> Blobs:
        if self._blobs is None:
            self._blobs = Blobs(lambda: self.unpacked or self.repository)
        return self._blobs

    def create(self, making: Making) -> dict[str, Any]:
        from cleveragents.sandbox.git.private import borrow_modules, borrowed

        commit, branch = self.repository.head()
        with Background(lambda: self.repository.listing(commit)) as listing:
            self._source = _Source(commit, branch, listing)
            try:
                made = super().create(making)
            except SandboxError:
                listing.wait()  # git refuses these names too, with a worse message
                raise
            _, modules = listing.wait()
        if commit is not None:
            self.repository.pin(self.ref, commit)
        borrow_modules(self.repository, self.place.root, f"{self.place.root}/.git", modules)
        self._source = None
        noted = msgspec.to_builtins(self.repository)
        own = {"repository": noted, "borrowed": borrowed(self.place.root)}
        if making.is_portable:
            own |= portable(self.repository, commit, own["borrowed"], making.batch)
        return {**made, "base": commit, "branch": branch, **own}

    def _copy(self, making: Making) -> None:
        from cleveragents.sandbox.git.private import borrow

        assert self._source is not None
        commit, branch, _ = self._source
        private = f"{self.place.root}/.git"
        with Background(lambda: borrow(self.repository, private, commit, branch)):
            self._copy_carried(making)

    def _known_before(self) -> "Known":
        """The commit needs no question; only files beyond it are counted."""
        assert self._source is not None
        base, _ = self._source.listing.wait()
        carry = self.place.resource.carry
        tracked = self._tracked_paths() if carry is Carry.TRACKED else set[bytes]()

        def known(path: bytes) -> int | None:
            if carry is Carry.COMMITTED or (carry is Carry.TRACKED and path not in tracked):
                return -1
            return base[path][1] if path in base else None

        return known

    def _tracked_paths(self) -> set[bytes]:
        return set(self.repository.git("ls-files", "-z").split(b"\0")) - {b""}

    def _copy_carried(self, making: Making) -> None:
        carry = self.place.resource.carry
        if carry is Carry.ALL:
            super()._copy(making)
        elif carry is Carry.TRACKED:
            wanted = self._tracked_paths()
            folders = {folder for path in wanted for folder in _folders(path)}
            self._copy_wanted(making, lambda path, is_dir: path in (folders if is_dir else wanted))
        else:
            self._write_commit()

    def _copier(self, making: Making, wanted: Callable[[bytes, bool], bool]) -> "Copier":
        from cleveragents.content.copy.copying import Copier

        return Copier(
            source_scope(self.place, *self.own),
            wanted,
            lambda size: making.progress(self.name, size),
            base=self._blob_of_base,
            sha1=self.repository.object_format == "sha1",
            piece=lambda size: making.piece(self.name, size),
        )

    def _blob_of_base(self, path: bytes) -> Base | None:
        assert self._source is not None
        return self._source.listing.wait()[0].get(path)

    def _write_commit(self) -> None:
        """Write the base commit's bytes, without filters."""
        assert self._source is not None
        commit = self._source.commit
        scope = source_scope(self.place, *self.own)
        found = self.repository.entries(commit) if commit else {}
        blobs = Blobs(lambda: self.repository)
        try:
            with fsio.directory(self.place.root) as root:
                for path, (mode, name) in found.items():
                    if mode != b"160000" and not scope.leaves_out(path):
                        key = GIT + bytes.fromhex(name.decode())
                        self._write_blob(root, path, mode, key, blobs)
        finally:
            blobs.close()

    def _write_blob(self, root: int, path: bytes, mode: bytes, key: bytes, blobs: Blobs) -> None:
        folder, _, name = path.rpartition(b"/")
        fd = descent.make_below(root, folder)
        try:
            if mode == b"120000":
                fsio.link(fd, name, blobs.get(key), path)
                return
            permissions = 0o755 if mode == b"100755" else 0o644
            write_content(blobs.get, key, fd, name, permissions, durable=False)
            # It was read back and compared.
            self.seed[path] = stamp(os.lstat(name, dir_fd=fd)), key
        finally:
            os.close(fd)

    def expect(self, differences: Iterable[Difference]) -> None:
        for item in differences:
            if item.after is not None and _is_borrowed(item.after):
                self.base().know(item.path, item.after.key, item.after.size)

    def about(self) -> dict[str, Any]:
        return {"base_commit": self.place.origin["base"]}

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        if previous is not None and self._is_gone:
            from cleveragents.sandbox.git.borrowed import borrowed_entries

            # The base commit is gone; use what the last capture found.
            for path, entry in borrowed_entries([previous.root], self.place.packs):
                self.base().know(path, entry.key, entry.size)
        elif previous is not None and self.engine.walks:
            self.blobs.start()
        return super().capture(batch, previous, strict)

    def keep_old(self, previous: SandboxCheckpoint, now: Tree, batch: Batch) -> None:
        wanted = {e.key for e in self._replaced_entries(tree_of(previous), now) if _is_borrowed(e)}
        there = self.place.packs.index.present(wanted) if wanted else set[bytes]()
        for key, data in self.blobs.get_many([key for key in wanted if key not in there]):
            batch.put_missing(key, data)
        self._kept |= wanted

    def fetch_old(self, gone: Entry) -> None:
        if _is_borrowed(gone) and gone.key not in self._kept and not self._is_gone:
            self.blobs.ask(gone.key)

    def begin_fetching(self) -> None:
        self.blobs.begin()

    def _replaced_entries(self, before: Tree, now: Tree) -> Iterator[Entry]:
        """Entries of a tree that the next one replaced; the capture may have noted them already."""
        seen = self.engine.replaced
        if seen is None or seen[0] != before:
            yield from _before(tree_diff.diff(self.manifests, before, now))
            return
        for gone, instead in seen[1]:
            yield gone
            if gone.kind is EntryKind.DIRECTORY:
                yield from _before(tree_diff.diff_entries(self.manifests, gone, instead))

    def follow(self) -> None:
        self.base().load()
        super().follow()

    def ignored(self, changes: tuple[Change, ...], state: SandboxCheckpoint) -> frozenset[bytes]:
        """Paths in the private git directory, and new paths that the ignore rules match."""
        private = {c.path for c in changes if c.path.split(b"/")[0] == b".git"}
        asked = [c for c in changes if c.path not in private and not self._tracked(c)]
        if not asked:
            return frozenset(private)
        import tempfile

        with tempfile.TemporaryDirectory(prefix="cleveragents-") as scratch:
            os.mkdir(f"{scratch}/rules")
            self._write_ignore_rules(asked, state, f"{scratch}/rules")
            command.run("init", "-q", "--bare", "--template=", f"{scratch}/git")
            # "./" keeps names that look like pathspec magic from being read as such.
            lines = [b"./" + c.path + (b"/" if _is_directory(c) else b"") for c in asked]
            excludes = self._user_rules(f"{scratch}/excludes")
            found = command.run(
                f"--git-dir={scratch}/git",
                f"--work-tree={scratch}/rules",
                "-c",
                f"core.excludesFile={excludes}",
                "check-ignore",
                "--no-index",
                "--stdin",
                "-z",
                cwd=f"{scratch}/rules",
                stdin=b"\0".join(lines),
                accept=(0, 1),
            )
        return frozenset(private | {path[2:].rstrip(b"/") for path in found.split(b"\0") if path})

    def _tracked(self, change: Change) -> bool:
        """Whether the base commit has the path: known if it was borrowed, else git is asked."""
        with suppress(SandboxError):
            if f":{GIT.decode()}" in change.before + change.after:
                return True
            return bool((self._is_there() or self.unpacked) and self.base().get(change.path))
        return False

    def _user_rules(self, target: str) -> str:
        """Write the user's own rules, global and of the repository, to one file."""
        top, paths = self.place.resource.path, list[str]()
        if os.path.exists(f"{top}/.git"):
            paths = command.user_config(top, "--path", "--get", "core.excludesFile")
            paths.append(f"{self.repository.common_dir}/info/exclude")
        with open(target, "wb") as rules:
            for path in paths:
                if os.path.isfile(path):
                    with open(path, "rb") as found:
                        rules.write(found.read() + b"\n")
        return target

    def _write_ignore_rules(
        self, changes: list[Change], state: SandboxCheckpoint, scratch: str
    ) -> None:
        """Write out the .gitignore files above the paths, and nothing else of the sandbox."""
        folders = {folder for c in changes for folder in (b"", *_folders(c.path))}
        for folder in folders:
            path = folder + b"/.gitignore" if folder else b".gitignore"
            entry = trees.find(self.manifests, tree_of(state), path)
            if entry is None or entry.kind is not EntryKind.FILE:
                continue
            with fsio.directory(scratch) as root:
                fd = descent.make_below(root, folder)
            try:
                write_content(self.read, entry.key, fd, b".gitignore", 0o600, durable=False)
            finally:
                os.close(fd)

    def keep_borrowed(self, roots: list[bytes], batch: Batch) -> None:
        """Leave the ref on the base commit, so that unchanged content need not be copied.

        Where that fails, the repository moved or not ours to write, the content is copied.
        """
        base: str | None = self.place.origin.get("base")
        self._keep_ref = bool(roots) and base is not None and self._pinned(base)
        if roots and base is not None and not self._keep_ref:
            from cleveragents.sandbox.git.borrowed import copy_borrowed

            copy_borrowed(roots, self.place.root, self.place.packs, self.blobs.get, batch)

    def _pinned(self, base: str) -> bool:
        try:
            if not self._is_there() or not self.repository.has_commit(base):
                return False
            # A child plan has no ref of its own as long as its parent's sandbox is there.
            self.repository.pin(self.ref, base)
        except SandboxError:
            return False
        return True

    @property
    def _is_gone(self) -> bool:
        """Whether the repository was moved or removed, and there is no substitute."""
        noted = None if self.unpacked else self.place.origin.get("repository")
        return noted is not None and not os.path.isdir(noted["git_dir"]) and not self._is_there()

    def _is_there(self) -> bool:
        return os.path.exists(f"{self.place.resource.path}/.git")

    def remove(self) -> None:
        super().remove()
        # Half made, it may have no ref yet; an existing one may hold another resource's base.
        if self._keep_ref or not self.place.origin:
            return
        if self._is_there():
            self.repository.pin(self.ref, None)
            try:
                os.rmdir(f"{self.repository.common_dir}/refs/cleveragents")
            except OSError:
                return

    def close(self) -> None:
        super().close()
        if self._blobs is not None:
            self._blobs.close()
            self._blobs = None
        if self._base is not None:
            self._base.close()
            self._base = None


def _is_borrowed(entry: Entry) -> bool:
    return entry.kind is EntryKind.FILE and entry.key[:1] == GIT


def _before(found: Iterator[Difference]) -> Iterator[Entry]:
    return (item.before for item in found if item.before is not None)


def _folders(path: bytes) -> list[bytes]:
    """The folders above a path, outermost first."""
    parts = path.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(1, len(parts))]


def _is_directory(change: Change) -> bool:
    return (change.after or change.before).startswith("d:")
