"""ULIDs: 48 bits of milliseconds, 80 bits of chance, in 26 letters.

Ids are names, never order: a clock may step back. Order is what the store numbers (`seq`).
"""

import os
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LENGTH = 26


def new_id() -> str:
    return encode(time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10)))


def encode(value: int) -> str:
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def is_id(text: str) -> bool:
    return len(text) == _LENGTH and all(letter in _ALPHABET for letter in text)
