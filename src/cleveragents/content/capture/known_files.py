"""Files whose content is known from copying them, as long as the store has it."""

from cleveragents.content.files import Stamp
from cleveragents.content.keys import (
    BLOB,
    CHUNKS,
    GIT,
)
from cleveragents.content.packs import (
    Batch,
    Packs,
)
from cleveragents.errors import ContentDamaged

KnownFiles = dict[bytes, tuple[Stamp, bytes]]
"""Path -> stamp and key of a file whose content is known without reading it."""


def without_collected(known_files: KnownFiles, packs: Packs) -> KnownFiles:
    """Drop the files whose content was collected: those have to be read again."""
    stored = {key for _, key in known_files.values() if key[:1] != GIT}
    if not stored:
        return known_files
    there = packs.index.present(stored)
    large = {key: _parts(key, packs) for key in there if key[:1] == CHUNKS}
    pieces = packs.index.present({part for parts in large.values() for part in parts})
    whole = {key for key in there if pieces.issuperset(large.get(key, ()))}
    if whole == stored:
        return known_files
    return {
        path: (stamp, key)
        for path, (stamp, key) in known_files.items()
        if key[:1] == GIT or key in whole
    }


def rely_on_file(key: bytes, batch: Batch, packs: Packs) -> bool:
    """Make the commit fail if any part is collected before it; False if one is gone already."""
    try:
        parts = [] if key[:1] == GIT else _parts(key, packs)
    except ContentDamaged:
        return False
    for part in parts:
        batch.rely_on(part)
    return True


def _parts(key: bytes, packs: Packs) -> list[bytes]:
    """A key, and the keys of a large file's chunks."""
    digests = packs.get(key) if key[:1] == CHUNKS else b""
    return [key, *(BLOB + digests[start : start + 32] for start in range(0, len(digests), 32))]
