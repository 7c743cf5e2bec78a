"""Fingerprints of an image's chunks, to find changes that a program made behind our back.

The whole file is read, but only changed chunks are hashed. Fingerprints belong to an image, not a
file, so they are valid whatever happened to the file.
"""

import os

import msgspec

from cleveragents.content.background import Background
from cleveragents.content.native import fingerprint
from cleveragents.content.native.fingerprint import SIZE, Keyed

WORTH = 64
"""Fewer chunks than that are hashed as quickly."""


class Prints(msgspec.Struct, frozen=True):
    """The fingerprints of an image in the store."""

    root: bytes
    seed: bytes
    values: bytes


class Printing:
    """Makes the fingerprints of a new image from those of the one before."""

    def __init__(self, chunks: int, before: Prints | None = None, root: bytes = b"") -> None:
        """`before` is used if it belongs to the image `root`."""
        self._wanted = fingerprint.ACCELERATED and chunks >= WORTH
        is_same = self._wanted and before is not None and before.root == root
        self.before: Prints | None = before if is_same else None
        self._seed = self.before.seed if self.before else os.urandom(32)
        self._keyed = Keyed(self._seed) if self._wanted else None
        known = self.before.values if self.before else b""
        self._values = [known[at * SIZE : (at + 1) * SIZE] for at in range(chunks)]

    def of(self, content: memoryview | bytes) -> bytes:
        """The fingerprint of a chunk; none where they do not pay."""
        return self._keyed.of(content) if self._keyed else b""

    def put(self, chunk: int, value: bytes) -> None:
        self._values[chunk] = value

    def differing(self, fd: int, whole: int) -> list[int] | None:
        """Which of the first `whole` chunks differ; None if that is unknown."""
        keyed = self._keyed
        if keyed is None or self.before is None:
            return None
        half = -(-whole // 2)
        try:
            second = Background(lambda: keyed.of_file(fd, half, whole - half))
            values = keyed.of_file(fd, 0, half) + second.wait()
        except OSError:
            return None
        known = self._values
        return [at for at in range(whole) if values[at * SIZE : (at + 1) * SIZE] != known[at]]

    def end(self, root: bytes) -> Prints | None:
        """The finished fingerprints; None if some chunks lack one."""
        known = self._wanted and all(self._values)
        return Prints(root, self._seed, b"".join(self._values)) if known else None
