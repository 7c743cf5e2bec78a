"""A directory tree as values: one manifest per directory, shared where nothing changed.

`state` is a Merkle hash over name, type, mode, content and attributes; the manifest's key also
covers mtimes, which are put back but do not make two states differ.
"""

import stat
from binascii import crc32
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum

import msgspec
from blake3 import blake3

from cleveragents import codec
from cleveragents.content.native.compiled import walk as _walk
from cleveragents.content.packs import TREE, Batch, key_of, show_key
from cleveragents.content.safe_names import is_name, require_name
from cleveragents.errors import ContentDamaged, UnsafeName
from cleveragents.model.resource import Action, show_path


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


HASH = 32
"""Bytes of the state of a directory."""


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
    """Directory: Merkle hash of what is below. Behind it the extended attributes, if it has any."""

    @property
    def xattrs(self) -> bytes:
        """As `attributes.packed` makes them."""
        return self.state[HASH:] if self.kind is EntryKind.DIRECTORY else self.state

    @property
    def tree(self) -> "Tree":
        """What is below a directory."""
        return Tree(self.key, self.state[:HASH])

    def same_state(self, other: "Entry | None") -> bool:
        if other is None or self.kind is not other.kind or self.mode != other.mode:
            return False
        if self.kind is EntryKind.DIRECTORY:
            return self.state == other.state
        return self.key == other.key and self.state == other.state

    @property
    def described(self) -> str:
        """The state of this one name as text, for records of what was written."""
        what = show_key(self.key) if self.kind is EntryKind.FILE else self.key.hex()
        more = f":x{blake3(self.xattrs).hexdigest()[:16]}" if self.xattrs else ""
        return f"{self.kind}:{self.mode:o}:{'' if self.kind is EntryKind.DIRECTORY else what}{more}"


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


def manifest(entries: list[Entry]) -> bytes:
    return _encoder.encode(entries)


def python_pieces(manifest: bytes, before: bytes) -> list[bytes | int]:
    """The twin of `_walk.pieces`."""
    old = {part: number for number, part in enumerate(_cut(before))}
    return [old.get(part, part) for part in _cut(manifest)]


def _cut(manifest: bytes) -> list[bytes]:
    entries = _decoder.decode(manifest)
    mask = 7 if len(entries) < LARGE else 31
    parts: list[list[Entry]] = [[]]
    for entry in entries:
        parts[-1].append(entry)
        if crc32(entry.name) & mask == 0 or len(parts[-1]) == LONGEST:
            parts.append([])
    return [_encoder.encode(part) for part in parts if part]


def python_picked(manifest: bytes, names: list[bytes]) -> bytes:
    """The twin of `_walk.picked`."""
    wanted = set(names)
    return _encoder.encode([item for item in _decoder.decode(manifest) if item.name in wanted])


def python_changed(manifest: bytes, changes: list[tuple[bytes, bytes]]) -> bytes:
    """The twin of `_walk.changed`."""
    entries = {entry.name: entry for entry in _decoder.decode(manifest)}
    for name, entry in changes:
        entries.pop(name, None)
        if entry:
            entries[name] = codec.from_msgpack(entry, Entry)
    return _encoder.encode([entries[name] for name in sorted(entries)])


def python_unequal(before: bytes, after: bytes) -> list[bytes]:
    """The twin of `_walk.unequal`."""
    old, new = ({item.name: item for item in _decoder.decode(data)} for data in (before, after))
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def python_unsafe(manifest: bytes) -> bytes | None:
    """The twin of `_walk.unsafe`."""
    last = b""
    for entry in _decoder.decode(manifest):
        if not is_name(entry.name) or entry.name <= last:
            return entry.name
        last = entry.name
    return None


def python_state_text(manifest: bytes) -> bytes:
    """What the state of a directory is the hash of; the twin of `_walk.state_text`."""
    parts: list[bytes] = []
    for entry in _decoder.decode(manifest):
        content = entry.state if entry.kind is EntryKind.DIRECTORY else entry.key
        head = b"%s%o %d %d " % (entry.kind.encode(), entry.mode, len(entry.name), len(content))
        parts += (head, entry.name, content)
        if entry.state and entry.kind is not EntryKind.DIRECTORY:
            parts.append(b"x%d %s" % (len(entry.state), entry.state))
    return b"".join(parts)


state_text: Callable[[bytes], bytes] = _walk.state_text if _walk else python_state_text
pieces: Callable[[bytes, bytes], list[bytes | int]] = _walk.pieces if _walk else python_pieces
"""A manifest in parts, so that one changed entry does not bring all of a large directory anew.

Where a part ends depends on names alone: what happens in one does not move the others. Of a part
that the manifest before had as well comes only its number there.
"""
picked: Callable[[bytes, list[bytes]], bytes] = _walk.picked if _walk else python_picked
"""A manifest of the entries of these names, which are sorted."""
changed: Callable[[bytes, list[tuple[bytes, bytes]]], bytes] = (
    _walk.changed if _walk else python_changed
)
"""A manifest with other entries: name, and what it has now or nothing; sorted."""
unequal: Callable[[bytes, bytes], list[bytes]] = _walk.unequal if _walk else python_unequal
"""Names whose entries are not the same in two manifests."""
unsafe: Callable[[bytes], bytes | None] = getattr(_walk, "unsafe", python_unsafe)
"""The first name that leads elsewhere, is there twice or out of order; None if all are fine."""

_NOTHING = manifest([])


class Listing:
    """What one directory holds. It stays a manifest, of which only what is asked for is read."""

    __slots__ = ("data", "pieces")

    def __init__(self, data: bytes = _NOTHING, pieces: tuple[bytes, ...] = ()) -> None:
        self.data = data
        self.pieces = pieces
        """Keys of the pieces that it is stored in, if it is."""

    @staticmethod
    def of(entries: Iterable[Entry]) -> "Listing":
        return Listing(manifest(sorted(entries, key=lambda entry: entry.name)))

    def __len__(self) -> int:
        head = self.data[: _head_of(self.data)]
        return int.from_bytes(head[1:]) if head[1:] else head[0] & 15

    def all(self) -> dict[bytes, Entry]:
        """Name -> entry, sorted by name."""
        return _by_name(self.data)

    def some(self, names: Collection[bytes]) -> dict[bytes, Entry]:
        """The same of those of the names that are there."""
        return _by_name(picked(self.data, sorted(names)))

    def get(self, name: bytes) -> Entry | None:
        return self.some((name,)).get(name)

    def changed(self, entries: Mapping[bytes, Entry | None]) -> "Listing":
        """With these instead; None for nothing."""
        new = [
            (name, b"" if entry is None else _encoder.encode(entry))
            for name, entry in sorted(entries.items())
        ]
        return Listing(changed(self.data, new))


def _head_of(data: bytes) -> int:
    """How many bytes of a MessagePack array say how long it is."""
    return {0xDC: 3, 0xDD: 5}.get(data[0], 1)


def _by_name(data: bytes) -> dict[bytes, Entry]:
    try:
        return {entry.name: entry for entry in _decoder.decode(data)}
    except (ValueError, msgspec.MsgspecError) as error:
        raise ContentDamaged(f"a manifest cannot be read: {error}") from error


Loader = Callable[[bytes], Listing]
"""From the key of a manifest to what it says."""


def store_directory(listing: Listing, batch: Batch, before: Listing | None = None) -> Tree:
    """Put the manifest of a directory into the batch.

    `before`: what the store is known to have of this directory; cut as `pieces` cuts it.
    """
    data = listing.data
    state = blake3(state_text(data)).digest()
    if len(listing) <= WHOLE:
        return Tree(batch.put(TREE, data), state)
    old = before if before is not None and before.pieces else Listing()
    keys = [
        old.pieces[part] if isinstance(part, int) else batch.put(TREE, part)
        for part in pieces(data, old.data)
    ]
    listing.pieces = tuple(keys)
    return Tree(batch.put(TREE, PIECED + b"".join([key[1:] for key in keys])), state)


EMPTY = Tree(key_of(TREE, _NOTHING), blake3(state_text(_NOTHING)).digest())
"""A directory with nothing in it: known without asking the store."""


def reading(read: Reader, ahead: Callable[[list[bytes]], Reader] | None = None) -> Loader:
    """Manifests as they come out of the store; `ahead` looks many keys up in one go."""

    def load(key: bytes) -> Listing:
        if key == EMPTY.key:
            return Listing()
        data = read(key)
        if data[:1] != PIECED:
            return _listing(key, data, ())
        keys = [TREE + data[at : at + 32] for at in range(1, len(data), 32)]
        get = ahead(keys) if ahead else read
        parts = [get(one) for one in keys]
        if not all(parts):
            raise ContentDamaged(f"manifest {show_key(key)} cannot be read: a piece is empty")
        return _listing(key, _joined(parts), tuple(keys))

    return load


def _listing(key: bytes, data: bytes, keys: tuple[bytes, ...]) -> Listing:
    require_safe(key, data)
    return Listing(data, keys)


def require_safe(key: bytes, data: bytes) -> None:
    """Refuse what is no manifest, or has names that would be used outside of their directory."""
    if data[:1] == PIECED:
        return
    try:
        name = unsafe(data)
    except (ValueError, msgspec.MsgspecError) as error:
        raise ContentDamaged(f"manifest {show_key(key)} cannot be read: {error}") from error
    if name is not None:
        require_name(name, f"manifest {show_key(key)}")
        raise UnsafeName(f"manifest {show_key(key)} has {show_path(name)!r} twice or out of order")


def _joined(parts: list[bytes]) -> bytes:
    """One manifest of the entries of several, of which there are more than 15."""
    count = sum([len(Listing(part)) for part in parts])
    head = b"\xdc" + count.to_bytes(2) if count < 1 << 16 else b"\xdd" + count.to_bytes(4)
    return head + b"".join([part[_head_of(part) :] for part in parts])


class Manifests:
    """A loader that remembers: what is read for one capture is needed again for the next."""

    LIMIT = 20 << 20
    """Bytes of manifests that are kept."""

    def __init__(self, read: Reader, ahead: Callable[[list[bytes]], Reader] | None = None) -> None:
        self._load = reading(read, ahead)
        self._known: OrderedDict[bytes, Listing] = OrderedDict()
        self._size = 0

    def __call__(self, key: bytes) -> Listing:
        found = self._known.get(key)
        if found is None:
            found = self._load(key)
            self.put(key, found)
        else:
            self._known.move_to_end(key)
        return found

    def put(self, key: bytes, listing: Listing) -> None:
        """Remember what was just made."""
        if key in self._known:
            return
        self._known[key] = listing
        self._size += _weight(listing)
        while self._size > self.LIMIT and len(self._known) > 1:
            self._size -= _weight(self._known.popitem(last=False)[1])


def _weight(listing: Listing) -> int:
    """What it takes in memory, about: keys are long, too."""
    return len(listing.data) + 80 * len(listing.pieces) + 300


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


def diff(
    load: Loader, before: Tree, after: Tree, touched: list[Difference] | None = None
) -> Iterator[Difference]:
    """Paths that differ, parents before what is below them; equal directories are not opened.

    Those of which only the mtime differs are put into `touched`.
    """
    todo: list[Difference | tuple[bytes, Tree, Tree]] = [(b"", before, after)]
    while todo:
        item = todo.pop()
        if isinstance(item, Difference):
            yield item
            continue
        prefix, one, other = item
        if one.state == other.state and (touched is None or one.key == other.key):
            continue
        for name, left, right in reversed(_unequal(load(one.key), load(other.key))):
            same = left is not None and left.same_state(right)
            if same and touched is None:
                continue
            todo.append((prefix + name + b"/", _tree(left), _tree(right)))
            if same and touched is not None and not _is_directory(left):
                touched.append(Difference(prefix + name, left, right))
            elif not same and not _only_below(left, right):
                todo.append(Difference(prefix + name, left, right))


def diff_entries(load: Loader, before: Entry | None, after: Entry | None) -> Iterator[Difference]:
    """The same for what is below two entries."""
    return diff(load, _tree(before), _tree(after))


def _unequal(old: Listing, new: Listing) -> list[tuple[bytes, Entry | None, Entry | None]]:
    """Names at which two directories do not say the same, sorted."""
    names = unequal(old.data, new.data)
    before, after = old.some(names), new.some(names)
    return [(name, before.get(name), after.get(name)) for name in names]


def _is_directory(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is EntryKind.DIRECTORY


def _only_below(left: Entry | None, right: Entry | None) -> bool:
    """Both are directories with the same mode: the difference lies below."""
    if left is None or right is None or left.mode != right.mode:
        return False
    return left.kind is right.kind is EntryKind.DIRECTORY and left.xattrs == right.xattrs


def _tree(entry: Entry | None) -> Tree:
    if entry is None or entry.kind is not EntryKind.DIRECTORY:
        return EMPTY
    return entry.tree


def walk(load: Loader, tree: Tree) -> Iterator[tuple[bytes, Entry]]:
    """Every path below, parents first."""
    todo = [(b"", tree.key)]
    while todo:
        prefix, key = todo.pop()
        for name, entry in load(key).all().items():
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
        tree = below.tree
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
        for entry in listing.all().values():
            if entry.kind not in (EntryKind.FILE, EntryKind.DIRECTORY) or entry.key in seen:
                continue
            seen.add(entry.key)
            if entry.kind is EntryKind.DIRECTORY:
                todo.append(entry.key)
            else:
                yield entry.key
