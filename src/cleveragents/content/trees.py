"""A directory tree as values: one manifest per directory, shared where nothing changed.

`state` is a Merkle hash over name, type, mode and content; the manifest's key also covers mtimes,
which are put back but do not make two states differ.
"""

import stat
from binascii import crc32
from collections.abc import Callable, Collection, Iterator
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
PIECED = b"\xc1"
"""A manifest that begins with this byte, which MessagePack never does, lists its pieces."""
WHOLE = 24
"""Entries up to which a directory has a manifest in one piece."""
LARGE = 1000
"""Entries from which on pieces are of 32 on average; else of 8: the list of them has a cost too."""
LONGEST = 64
"""Entries of the longest piece."""


class Listing(dict[bytes, Entry]):
    """Name -> entry of one directory."""

    pieces: tuple[bytes, ...] = ()
    """Keys of the pieces that its manifest is made of, if it is."""


Loader = Callable[[bytes], Listing]
"""From the key of a manifest to what it says."""


def manifest(entries: list[Entry]) -> bytes:
    return _encoder.encode(entries)


def python_pieces(manifest: bytes) -> list[bytes]:
    """The twin of `_walk.pieces`."""
    entries = _decoder.decode(manifest)
    mask = 7 if len(entries) < LARGE else 31
    parts: list[list[Entry]] = [[]]
    for entry in entries:
        parts[-1].append(entry)
        if crc32(entry.name) & mask == 0 or len(parts[-1]) == LONGEST:
            parts.append([])
    return [_encoder.encode(part) for part in parts if part]


def python_state_text(manifest: bytes) -> bytes:
    """What the state of a directory is the hash of; the twin of `_walk.state_text`."""
    parts: list[bytes] = []
    for entry in _decoder.decode(manifest):
        content = entry.state if entry.kind is EntryKind.DIRECTORY else entry.key
        head = b"%s%o %d %d " % (entry.kind.encode(), entry.mode, len(entry.name), len(content))
        parts += (head, entry.name, content)
    return b"".join(parts)


try:
    from cleveragents.content import _walk
except ImportError:
    _walk = None

state_text: Callable[[bytes], bytes] = _walk.state_text if _walk else python_state_text
pieces: Callable[[bytes], list[bytes]] = _walk.pieces if _walk else python_pieces
"""A manifest in parts, so that one changed entry does not bring all of a large directory anew.

Where a part ends depends on names alone: what happens in one does not move the others.
"""


def store_directory(entries: Listing, batch: Batch, there: Collection[bytes] = frozenset()) -> Tree:
    """Put the manifest of a directory into the batch; entries in any order.

    `there`: pieces that the store is known to have.
    """
    data = manifest([entries[name] for name in sorted(entries)])
    state = blake3(state_text(data)).digest()
    if len(entries) <= WHOLE:
        entries.pieces = ()
        return Tree(batch.put(TREE, data), state)
    parts = {key_of(TREE, part): part for part in pieces(data)}
    entries.pieces = tuple(parts)
    for key, part in parts.items():
        if key not in there:
            batch.put_keyed(key, part)
    return Tree(batch.put(TREE, PIECED + b"".join([key[1:] for key in parts])), state)


_NOTHING = manifest([])
EMPTY = Tree(key_of(TREE, _NOTHING), blake3(state_text(_NOTHING)).digest())
"""A directory with nothing in it: known without asking the store."""


def reading(read: Reader, ahead: Callable[[list[bytes]], Reader] | None = None) -> Loader:
    """Manifests as they come out of the store; `ahead` looks many keys up in one go."""

    def load(key: bytes) -> Listing:
        if key == EMPTY.key:
            return Listing()
        data = read(key)
        if data[:1] != PIECED:
            return Listing((entry.name, entry) for entry in _decoded(key, data))
        keys = [TREE + data[at : at + 32] for at in range(1, len(data), 32)]
        get = ahead(keys) if ahead else read
        found = Listing((entry.name, entry) for one in keys for entry in _decoded(one, get(one)))
        found.pieces = tuple(keys)
        return found

    return load


def _decoded(key: bytes, data: bytes) -> list[Entry]:
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ContentDamaged(f"manifest {show_key(key)} cannot be read: {error}") from error


class Manifests:
    """A loader that remembers: what is read for one capture is needed again for the next."""

    LIMIT = 60_000
    """Entries that are kept; about 20 MB."""

    def __init__(self, read: Reader, ahead: Callable[[list[bytes]], Reader] | None = None) -> None:
        self._load = reading(read, ahead)
        self._known: dict[bytes, Listing] = {}
        self._count = 0

    def __call__(self, key: bytes) -> Listing:
        found = self._known.pop(key, None)
        if found is None:
            found = self._load(key)
            self._count += len(found) + 1
        self._known[key] = found
        return found

    def put(self, key: bytes, entries: Listing) -> None:
        """Remember what was just made; nobody may change it any more."""
        if key not in self._known:
            self._known[key] = entries
            self._count += len(entries) + 1
            while self._count > self.LIMIT and len(self._known) > 1:
                oldest = next(iter(self._known))
                self._count -= len(self._known.pop(oldest)) + 1


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


def diff(load: Loader, before: Tree, after: Tree) -> Iterator[Difference]:
    """Paths that differ, parents before what is below them; equal directories are not opened."""
    todo: list[Difference | tuple[bytes, Tree, Tree]] = [(b"", before, after)]
    while todo:
        item = todo.pop()
        if isinstance(item, Difference):
            yield item
            continue
        prefix, one, other = item
        if one.state == other.state:
            continue
        old, new = load(one.key), load(other.key)
        for name in sorted(_unequal(old, new), reverse=True):
            left, right = old.get(name), new.get(name)
            todo.append((prefix + name + b"/", _tree(left), _tree(right)))
            if not _only_below(left, right):
                todo.append(Difference(prefix + name, left, right))


def diff_entries(load: Loader, before: Entry | None, after: Entry | None) -> Iterator[Difference]:
    """The same for what is below two entries."""
    return diff(load, _tree(before), _tree(after))


def _unequal(old: Listing, new: Listing) -> list[bytes]:
    # Manifests of one capture after the other share the entries that stayed.
    names = [
        name
        for name, entry in old.items()
        if (other := new.get(name)) is not entry and not entry.same_state(other)
    ]
    return names + [name for name in new if name not in old]


def _only_below(left: Entry | None, right: Entry | None) -> bool:
    """Both are directories with the same mode: the difference lies below."""
    if left is None or right is None or left.mode != right.mode:
        return False
    return left.kind is right.kind is EntryKind.DIRECTORY


def _tree(entry: Entry | None) -> Tree:
    if entry is None or entry.kind is not EntryKind.DIRECTORY:
        return EMPTY
    return Tree(entry.key, entry.state)


def walk(load: Loader, tree: Tree) -> Iterator[tuple[bytes, Entry]]:
    """Every path below, parents first."""
    todo = [(b"", tree.key)]
    while todo:
        prefix, key = todo.pop()
        for name, entry in sorted(load(key).items()):
            yield prefix + name, entry
            if entry.kind is EntryKind.DIRECTORY:
                todo.append((prefix + name + b"/", entry.key))


def find(load: Loader, tree: Tree, path: bytes) -> Entry | None:
    """The entry at a path, or None."""
    *parents, name = path.split(b"/")
    for part in parents:
        below = load(tree.key).get(part)
        if below is None or below.kind is not EntryKind.DIRECTORY:
            return None
        tree = Tree(below.key, below.state)
    return load(tree.key).get(name)


def keys_in(load: Loader, key: bytes, seen: set[bytes]) -> Iterator[bytes]:
    """Every key a manifest needs, itself included; what was already `seen` is passed over."""
    todo = [] if key in seen else [key]
    seen.update(todo)
    while todo:
        folder = todo.pop()
        yield folder
        listing = load(folder)
        yield from (piece for piece in listing.pieces if piece not in seen)
        seen.update(listing.pieces)
        for entry in listing.values():
            if entry.kind not in (EntryKind.FILE, EntryKind.DIRECTORY) or entry.key in seen:
                continue
            seen.add(entry.key)
            if entry.kind is EntryKind.DIRECTORY:
                todo.append(entry.key)
            else:
                yield entry.key
