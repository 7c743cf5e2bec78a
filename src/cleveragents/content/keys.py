"""Names of content: one letter for the kind, then a hash."""

import functools
from collections.abc import Callable

from blake3 import blake3

BLOB, CHUNKS, TREE, GIT = b"b", b"c", b"t", b"g"


def key_of(kind: bytes, data: bytes | memoryview) -> bytes:
    return kind + blake3(data).digest()


def git_key(data: bytes | memoryview, algorithm: str = "sha1") -> bytes:
    """The key of a git blob: the object id git itself would give these bytes."""
    if algorithm == "sha1" and (name := _compiled_name()):
        return GIT + name(data)
    import hashlib

    make = hashlib.sha1 if algorithm == "sha1" else hashlib.sha256
    return GIT + make(b"blob %d\0" % len(data) + data, usedforsecurity=False).digest()


@functools.cache
def _compiled_name() -> Callable[[bytes | memoryview], bytes] | None:
    """Hash with CPU instructions: importing `hashlib` takes longer than hashing 5 MB."""
    from cleveragents.content.native.compiled import copy

    return copy.blob_name if copy is not None and copy.KNOWS_SHA else None


def git_algorithm(key: bytes) -> str:
    """The hash algorithm of a git key, by its length."""
    return "sha1" if len(key) == 21 else "sha256"


def matches(key: bytes, data: bytes | memoryview) -> bool:
    if key[:1] == GIT:
        return git_key(data, git_algorithm(key)) == key
    return key_of(key[:1], data) == key


def show_key(key: bytes) -> str:
    return key[:1].decode("ascii") + key[1:].hex()


def shown_key(text: str) -> bytes:
    """The key that `show_key` made this of."""
    return text[:1].encode("ascii") + bytes.fromhex(text[1:])
