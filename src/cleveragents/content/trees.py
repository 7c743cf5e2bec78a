"""A directory tree as values: one manifest per directory, shared where nothing changed.

`state` is a Merkle hash over name, type, mode and content; the manifest's key also covers mtimes,
which are put back but do not make two states differ.
"""

import stat
from collections.abc import Callable, Iterator
from enum import StrEnum

import msgspec
from blake3 import blake3

from cleveragents.content.packs import TREE, Batch, key_of, show_key
from cleveragents.errors import ContentDamaged
from cleveragents.resource import Action


class EntryKind(StrEnum):
    FILE = "f"
    LINK = "l"
    DIRECTORY = "d"
    FIFO = "p"
    SOCKET = "s"
    CHARACTER = "c"
    BLOCK = "b"


SPECIAL = frozenset(
    {EntryKind.FIFO, EntryKind.SOCKET, EntryKind.CHARACTER, EntryKind.BLOCK},
)
_KINDS = {
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFLNK: EntryKind.LINK,
    stat.S_IFDIR: EntryKind.DIRECTORY,
    stat.S_IFIFO: EntryKind.FIFO,
    stat.S_IFSOCK: EntryKind.SOCKET,
    stat.S_IFCHR: EntryKind.CHARACTER,
    stat.S_IFBLK: EntryKind.BLOCK,
}


def kind_of(mode: int) -> EntryKind:
    return _KINDS[stat.S_IFMT(mode)]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One name in a directory."""

    name: bytes
    kind: EntryKind
    mode: int
    size: int = 0
    mtime_ns: int = 0
    key: bytes = b""
    """File: content key. Link: its text. Directory: key of its manifest. Device: its number."""
    state: bytes = b""
    """Directory: Merkle hash of what is below."""

    def same_state(self, other: "Entry | None") -> bool:
        if other is None or self.kind is not other.kind or self.mode != other.mode:
            return False
        if self.kind is EntryKind.DIRECTORY:
            return self.state == other.state
        return self.key == other.key

    @property
    def described(self) -> str:
        """The state of this one name as text, for records of what was written."""
        what = show_key(self.key) if self.kind is EntryKind.FILE else self.key.hex()
        return f"{self.kind}:{self.mode:o}:{'' if self.kind is EntryKind.DIRECTORY else what}"


class Tree(msgspec.Struct, frozen=True):
    """A directory: where its manifest lies and the hash of its state."""

    key: bytes
    state: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Entry])
Reader = Callable[[bytes], bytes]


def manifest(entries: list[Entry]) -> bytes:
    return _encoder.encode(entries)


def store_directory(entries: list[Entry], batch: Batch) -> Tree:
    """Put the manifest of a directory into the batch; entries in any order."""
    entries.sort(key=lambda entry: entry.name)
    return Tree(batch.put(TREE, manifest(entries)), directory_state(entries))


def directory_state(entries: list[Entry]) -> bytes:
    """Merkle hash of a directory's sorted entries."""
    parts: list[bytes] = []
    for entry in entries:
        content = entry.state if entry.kind is EntryKind.DIRECTORY else entry.key
        head = b"%s%o %d %d " % (entry.kind.encode(), entry.mode, len(entry.name), len(content))
        parts += (head, entry.name, content)
    return blake3(b"".join(parts)).digest()


def empty_tree_key() -> bytes:
    return key_of(TREE, manifest([]))


def load(read: Reader, key: bytes) -> dict[bytes, Entry]:
    """Name -> entry of one directory."""
    try:
        return {entry.name: entry for entry in _decoder.decode(read(key))}
    except msgspec.MsgspecError as error:
        raise ContentDamaged(f"manifest {show_key(key)} cannot be read: {error}") from error


class Difference(msgspec.Struct, frozen=True):
    """One path at which two trees differ; a directory counts itself, not what is below it."""

    path: bytes
    before: Entry | None
    after: Entry | None

    @property
    def action(self) -> Action:
        if self.before is None:
            return Action.ADDED
        return Action.REMOVED if self.after is None else Action.CHANGED


def diff(read: Reader, before: Tree, after: Tree, prefix: bytes = b"") -> Iterator[Difference]:
    """Paths that differ, parents before what is below them; equal directories are not opened."""
    if before.state == after.state:
        return
    old = load(read, before.key)
    new = load(read, after.key)
    for name in sorted(old.keys() | new.keys()):
        left, right = old.get(name), new.get(name)
        if left is not None and left.same_state(right):
            continue
        path = prefix + name
        if not _only_below(left, right):
            yield Difference(path, left, right)
        yield from diff(read, _tree(left), _tree(right), path + b"/")


def _only_below(left: Entry | None, right: Entry | None) -> bool:
    """Both are directories with the same mode: the difference lies below."""
    if left is None or right is None or left.mode != right.mode:
        return False
    return left.kind is right.kind is EntryKind.DIRECTORY


def _tree(entry: Entry | None) -> Tree:
    if entry is None or entry.kind is not EntryKind.DIRECTORY:
        return Tree(empty_tree_key(), directory_state([]))
    return Tree(entry.key, entry.state)


def reading(read: Reader) -> Reader:
    """A reader that knows the empty directory without asking the store."""
    empty = empty_tree_key()
    nothing = manifest([])
    return lambda key: nothing if key == empty else read(key)


def walk(read: Reader, tree: Tree, prefix: bytes = b"") -> Iterator[tuple[bytes, Entry]]:
    """Every path below, parents first."""
    for name, entry in sorted(load(read, tree.key).items()):
        path = prefix + name
        yield path, entry
        if entry.kind is EntryKind.DIRECTORY:
            yield from walk(read, Tree(entry.key, entry.state), path + b"/")


def find(read: Reader, tree: Tree, path: bytes) -> Entry | None:
    """The entry at a path, or None."""
    *parents, name = path.split(b"/")
    for part in parents:
        below = load(read, tree.key).get(part)
        if below is None or below.kind is not EntryKind.DIRECTORY:
            return None
        tree = Tree(below.key, below.state)
    return load(read, tree.key).get(name)


def keys_in(read: Reader, key: bytes, seen: set[bytes]) -> Iterator[bytes]:
    """Every key a manifest needs, itself included; directories already `seen` are passed over."""
    if key in seen:
        return
    seen.add(key)
    yield key
    for entry in load(read, key).values():
        if entry.kind is EntryKind.DIRECTORY:
            yield from keys_in(read, entry.key, seen)
        elif entry.kind is EntryKind.FILE and entry.key not in seen:
            seen.add(entry.key)
            yield entry.key
