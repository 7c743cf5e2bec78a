"""The last capture, kept between processes. A cache: lost or doubtful, it is not used.

A file of records, each with its length and hash: first the full state, then changes from one
process to the next. A change names the record it builds on, so of two processes that started from
the same record only the first is believed.
"""

import os
import struct
from collections.abc import Collection, Iterable, Iterator

import msgspec
from blake3 import blake3

from cleveragents import codec
from cleveragents.content import fsio
from cleveragents.content.entry import (
    Tree,
)

RACY_NS = 2_000_000_000
"""A file touched this shortly before it was read may change again within the same time stamp."""
_VERSION = 4
_LENGTH = struct.Struct("<Q")
_DIGEST = 32
Record = tuple[bytes, memoryview]
"""Hash and payload."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Known(msgspec.Struct, frozen=True):
    """A captured tree, and the stat data of its directories then."""

    tree: Tree
    stats: dict[bytes, bytes]
    """Directory -> its stat data, as `walker` gives it; a directory that is missing is unknown."""
    taken_ns: int
    """When the stat data was read."""

    @property
    def young_from(self) -> int:
        """Stamps from here on prove nothing."""
        return self.taken_ns - RACY_NS

    def forget(self, touched: Iterable[bytes], exchanged: Collection[bytes]) -> None:
        """Forget touched directories, and exchanged ones with all below them."""
        for path in touched:
            self.stats.pop(path, None)
        if exchanged:
            for path in [path for path in self.stats if _is_in(path, exchanged)]:
                del self.stats[path]


def proves_from(moment: int) -> int:
    """When a stamp from that moment will be old enough to trust."""
    return moment + RACY_NS


def _is_in(path: bytes, folders: Collection[bytes]) -> bool:
    while path and path not in folders:
        path = path.rpartition(b"/")[0]
    return path in folders


class _Whole(msgspec.Struct, frozen=True, array_like=True):
    version: int
    root: str
    known: Known


class _Change(msgspec.Struct, frozen=True, array_like=True):
    onto: bytes
    """The hash of the record before."""
    tree: Tree
    taken_ns: int
    stats: dict[bytes, bytes]
    gone: list[bytes]

    def made_to(self, known: Known) -> Known:
        known.stats.update(self.stats)
        for path in self.gone:
            known.stats.pop(path, None)
        return Known(self.tree, known.stats, self.taken_ns)


class StatCache:
    """The file for one root."""

    def __init__(self, path: str, root: str) -> None:
        self._path = path
        self._root = root
        self._kept: Known | None = None
        """What the file says, if it can be added to; its stat data is nobody else's to change."""
        self._last = b""
        self._whole = self._size = 0
        """Bytes of the first record, and of all."""

    def load(self) -> Known | None:
        """The saved state of this very directory; None if it cannot be trusted."""
        try:
            with open(self._path, "rb") as found:
                data = found.read()
            records = list(_records(data))
            known = self._read(records)
        except (OSError, msgspec.MsgspecError):
            return None
        if known is not None and sum(map(_size, records)) == len(data):
            self._kept = Known(known.tree, dict(known.stats), known.taken_ns)
            self._whole, self._size = _size(records[0]), len(data)
        return known

    def _read(self, records: list[Record]) -> Known | None:
        if not records:
            return None
        whole = codec.from_msgpack(records[0][1], _Whole)
        if (whole.version, whole.root) != (_VERSION, self._place()):
            return None
        known, self._last = whole.known, records[0][0]
        for digest, payload in records[1:]:
            change = codec.from_msgpack(payload, _Change)
            if change.onto == self._last:
                known = change.made_to(known)
                self._last = digest
        return known

    def _place(self) -> str:
        """This directory and its mount: after a power cut stat data may outlive lost bytes."""
        return f"{fsio.identity(self._root)} {fsio.mount_id(self._root)}"

    def keep(self, known: Known) -> None:
        """Save for the next process: the change, or everything if there are many changes."""
        if self._kept is None:
            self._keep_all(known)
            return
        old, new = self._kept.stats, known.stats
        change = _Change(
            self._last,
            known.tree,
            known.taken_ns,
            {path: blob for path, blob in new.items() if old.get(path) != blob},
            list(old.keys() - new.keys()),
        )
        data = msgspec.msgpack.encode(change)
        if self._size + len(data) > 2 * self._whole:
            self._keep_all(known)
        elif known.tree != self._kept.tree or known.taken_ns != self._kept.taken_ns:
            self._append(data)

    def _keep_all(self, known: Known) -> None:
        data = msgspec.msgpack.encode(_Whole(_VERSION, self._place(), known))
        fsio.make_private_dir(os.path.dirname(self._path))
        temporary = f"{self._path}.{os.getpid()}"
        fsio.unlink_if_there(temporary)
        fd = fsio.create(temporary, 0o600)
        try:
            fsio.write_all(fd, _record(data))
        finally:
            os.close(fd)
        os.rename(temporary, self._path)

    def _append(self, data: bytes) -> None:
        try:
            fd = os.open(self._path, _APPEND)
        except FileNotFoundError:
            return
        try:
            fsio.write_all(fd, _record(data))
        finally:
            os.close(fd)


def _size(record: Record) -> int:
    return _LENGTH.size + _DIGEST + len(record[1])


def _record(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + blake3(payload).digest() + payload


def _records(data: bytes) -> Iterator[Record]:
    """The records, up to the first torn one."""
    at, view = 0, memoryview(data)
    while at + _LENGTH.size + _DIGEST <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        digest = data[at : at + _DIGEST]
        at += _DIGEST + length
        payload = view[at - length : at]
        if blake3(payload).digest() != digest:
            return
        yield digest, payload
