"""What a capture knew, kept between processes. A cache: lost or doubtful, it is simply not used."""

import os

import msgspec
from blake3 import blake3

from cleveragents.content import fsio
from cleveragents.content.trees import Tree

_VERSION = 1


class Known(msgspec.Struct, frozen=True):
    """A tree that was captured, and what stat said of its directories then."""

    tree: Tree
    stats: dict[bytes, bytes]
    """Directory -> its stat data, as `walker` gives it; a directory that is missing is unknown."""
    taken_ns: int
    """When the stat data was read; stamps not clearly older than this prove nothing."""

    def differs_much(self, older: dict[bytes, bytes], outlived: int) -> bool:
        """Whether looking again where older stat data differs would cost more than keeping this.

        `outlived`: so many directories more would be looked at again without need.
        """
        differing = sum(older.get(path) != blob for path, blob in self.stats.items())
        gone = len(older.keys() - self.stats.keys())
        return (differing + gone + outlived) * 100 >= len(self.stats)


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    version: int
    root: str
    known: Known


def save_known(path: str, root: str, known: Known) -> None:
    data = msgspec.msgpack.encode(_Kept(_VERSION, fsio.identity(root), known))
    fsio.make_private_dir(os.path.dirname(path))
    temporary = f"{path}.{os.getpid()}"
    fsio.unlink_if_there(temporary)
    fd = fsio.create(temporary, 0o600)
    try:
        fsio.write_all(fd, blake3(data).digest() + data)
    finally:
        os.close(fd)
    os.rename(temporary, path)


def load_known(path: str, root: str) -> Known | None:
    """What was kept for this very directory; None if there is nothing to rely on."""
    try:
        with open(path, "rb") as found:
            digest, data = found.read(32), found.read()
        identity = fsio.identity(root)
    except OSError:
        return None
    if blake3(data).digest() != digest:
        return None
    try:
        kept = msgspec.msgpack.decode(data, type=_Kept)
    except msgspec.MsgspecError:
        return None
    return kept.known if (kept.version, kept.root) == (_VERSION, identity) else None
