"""A directory tree as values: one manifest per directory, shared where nothing changed.

`state` is a Merkle hash over name, type, mode, content and attributes; the manifest's key also
covers mtimes, which are put back but do not make two states differ.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec
from blake3 import blake3

from cleveragents.content.entry import (
    Entry,
    EntryKind,
    Tree,
)
from cleveragents.content.keys import (
    TREE,
    key_of,
    show_key,
)
from cleveragents.content.native.manifests import (
    DECODER,
    ENCODER,
    changed,
    manifest,
    picked,
    pieces,
    state_text,
    unsafe,
)
from cleveragents.content.packs import (
    Batch,
)
from cleveragents.content.safe_names import require_name
from cleveragents.errors import ContentDamaged, UnsafeName
from cleveragents.model.resource import show_path

Reader = Callable[[bytes], bytes]
PIECED = b"\xc1"
"""A manifest that begins with this byte, which MessagePack never does, lists its pieces."""
WHOLE = 24
"""Entries up to which a directory has a manifest in one piece."""


_NOTHING = manifest([])


class Listing:
    """The entries of one directory, kept as a manifest and decoded on demand."""

    __slots__ = ("data", "pieces")

    def __init__(self, data: bytes = _NOTHING, pieces: tuple[bytes, ...] = ()) -> None:
        self.data: bytes = data
        self.pieces: tuple[bytes, ...] = pieces
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
        """The same for those of the names that exist."""
        return _by_name(picked(self.data, sorted(names)))

    def get(self, name: bytes) -> Entry | None:
        return self.some((name,)).get(name)

    def changed(self, entries: Mapping[bytes, Entry | None]) -> "Listing":
        """A copy with these entries replaced; None removes one."""
        new = [
            (name, b"" if entry is None else ENCODER.encode(entry))
            for name, entry in sorted(entries.items())
        ]
        return Listing(changed(self.data, new))


def _head_of(data: bytes) -> int:
    """The length of a MessagePack array's header."""
    return {0xDC: 3, 0xDD: 5}.get(data[0], 1)


def _by_name(data: bytes) -> dict[bytes, Entry]:
    try:
        return {entry.name: entry for entry in DECODER.decode(data)}
    except (ValueError, msgspec.MsgspecError) as error:
        raise ContentDamaged(f"a manifest cannot be read: {error}") from error


Loader = Callable[[bytes], Listing]
"""From the key of a manifest to what it says."""


def store_directory(listing: Listing, batch: Batch, before: Listing | None = None) -> Tree:
    """Put the manifest of a directory into the batch.

    `before`: pieces of this directory that the store is known to have.
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
    """A loader of manifests from the store; `ahead` looks up many keys in one go."""

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
    """Refuse data that is no manifest or has names that leave their directory."""
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
    """Join the entries of several manifests, more than 15, into one."""
    count = sum([len(Listing(part)) for part in parts])
    head = b"\xdc" + count.to_bytes(2) if count < 1 << 16 else b"\xdd" + count.to_bytes(4)
    return head + b"".join([part[_head_of(part) :] for part in parts])


class Manifests:
    """A caching loader: what one capture reads, the next needs again."""

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
        """Cache a new listing."""
        if key in self._known:
            return
        self._known[key] = listing
        self._size += _weight(listing)
        while self._size > self.LIMIT and len(self._known) > 1:
            self._size -= _weight(self._known.popitem(last=False)[1])


def _weight(listing: Listing) -> int:
    """Approximate memory use, keys included."""
    return len(listing.data) + 80 * len(listing.pieces) + 300


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
    """Every key that a manifest needs, itself included, without those already `seen`."""
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
