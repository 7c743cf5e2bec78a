"""Keyed fingerprints, where a compiler was there: `_fingerprint.c` tells what they are worth.

Without it they have no use: in Python they would take longer than the hash that they save.
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
    """Fingerprints under the key that grows from a seed nobody else knows."""

    def __init__(self, seed: bytes) -> None:
        assert _compiled is not None
        self._compiled = _compiled
        self._key = blake3(seed).digest(length=_compiled.KEY)

    def of(self, content: memoryview | bytes) -> bytes:
        """Of at most 256 KiB."""
        return self._compiled.fingerprint(content, self._key)

    def of_file(self, fd: int, first: int, count: int) -> bytes:
        """Of so many pieces of 256 KiB, one behind the other; an OSError if they are not there."""
        return self._compiled.fingerprints(fd, first, count, self._key)
