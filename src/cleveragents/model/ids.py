"""ULIDs: 48 bits of milliseconds, 80 bits of chance, in 26 letters.

Ids are names, never order: a clock may step back. Order is what the store numbers
(`seq`). Within one process they still rise strictly, so that no two are equal.
"""

import os
import threading
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LENGTH = 26
_lock = threading.Lock()
_last = 0


def _forget() -> None:
    # A forked child must not continue its parent's series.
    global _last, _lock
    _last = 0
    # It may have been held by a thread that does not exist in the child.
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def new_id() -> str:
    global _last
    with _lock:
        fresh = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10))
        _last = fresh if fresh >> 80 > _last >> 80 else _last + 1
        return encode(_last)


def encode(value: int) -> str:
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def is_id(text: str) -> bool:
    return len(text) == _LENGTH and all(letter in _ALPHABET for letter in text)
