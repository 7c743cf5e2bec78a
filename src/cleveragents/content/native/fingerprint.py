"""Keyed fingerprints, where compiled: `_fingerprint.c` says how strong they are.

There is no Python twin: it would be slower than the hash that it saves.
"""

from blake3 import blake3

from cleveragents.content.native.compiled import FORM

try:
    from cleveragents.content.native import _fingerprint as _compiled
except ImportError:
    _compiled = None

if _compiled is not None and getattr(_compiled, "FORM", 0) != FORM:
    _compiled = None

ACCELERATED = _compiled is not None
SIZE = 16


class Keyed:
    """Fingerprints under a key derived from a secret seed."""

    def __init__(self, seed: bytes) -> None:
        assert _compiled is not None
        self._compiled = _compiled
        self._key = blake3(seed).digest(length=_compiled.KEY)

    def of(self, content: memoryview | bytes) -> bytes:
        """The fingerprint of at most 256 KiB."""
        return self._compiled.fingerprint(content, self._key)

    def of_file(self, fd: int, first: int, count: int) -> bytes:
        """The fingerprints of consecutive pieces of 256 KiB; OSError if the file is shorter."""
        return self._compiled.fingerprints(fd, first, count, self._key)
