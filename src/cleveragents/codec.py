"""JSON, MessagePack and plain values to typed ones: the only place where a type is first used.

msgspec works out what it needs to know of a type at the type's first use, and other threads see
that half done: two threads that begin with the same type crashed the interpreter. So it happens
here, under one lock; a type that is ready costs one look into a set.
"""

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_ready: set[Any] = set()
_lock = threading.Lock()


def make_ready(kind: Any) -> None:
    """Have msgspec work out a type and all it refers to."""
    with _lock:
        msgspec.json.Decoder(kind)
        _ready.add(kind)


def convert(value: Any, kind: type[T], *, strict: bool = True) -> T:
    """A typed value from plain ones."""
    if kind not in _ready:
        make_ready(kind)
    return msgspec.convert(value, kind, strict=strict)


def from_json(data: bytes | str, kind: type[T]) -> T:
    if kind not in _ready:
        make_ready(kind)
    return msgspec.json.decode(data, type=kind)


def from_msgpack(data: bytes | memoryview, kind: type[T]) -> T:
    if kind not in _ready:
        make_ready(kind)
    return msgspec.msgpack.decode(data, type=kind)
