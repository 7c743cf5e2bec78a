"""Objects encrypted before they leave the machine: AES-256-GCM, bound to the object's name."""

import base64
import binascii
import os
import subprocess
from typing import TYPE_CHECKING

from blake3 import blake3

from cleveragents.errors import ConfigError, ContentDamaged

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEALED = b"CASEAL\x00\x01"
NONCE, KEY = 12, 32
HOW = "a key is 32 bytes in base64: openssl rand -base64 32"


class Cipher:
    def __init__(self, key: bytes) -> None:
        self._aead = _aead(key)
        self.fingerprint: str = blake3(
            key, derive_key_context="cleveragents content key"
        ).hexdigest(8)
        """Tells keys apart and says nothing about them."""

    def seal(self, data: bytes, name: str) -> bytes:
        nonce = os.urandom(NONCE)
        return SEALED + nonce + self._aead.encrypt(nonce, data, name.encode())

    def _open(self, data: bytes, name: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        start = len(SEALED) + NONCE
        nonce = data[len(SEALED) : start]
        try:
            return self._aead.decrypt(nonce, data[start:], name.encode())
        except (InvalidTag, ValueError):
            raise ContentDamaged(
                f"segment {name} cannot be decrypted with this key, or was changed",
                "agents config list shows where the key comes from (content.key-from)",
            ) from None

    @staticmethod
    def opened(cipher: "Cipher | None", data: bytes, name: str) -> bytes:
        """Decrypt what was sealed; other data is returned as is."""
        if not data.startswith(SEALED):
            return data
        if cipher is None:
            raise ConfigError(
                f"segment {name} is encrypted and no key is given",
                "agents config set content.key-from env:NAME, or command:COMMAND",
            )
        return cipher._open(data, name)


def _aead(key: bytes) -> "AESGCM":
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigError(
            "content.key-from needs the extra `bucket`", "pip install 'cleveragents[bucket]'"
        ) from None
    return AESGCM(key)


def cipher_from(source: str) -> Cipher | None:
    """The cipher with the key from `env:NAME` or `command:COMMAND`; None without one."""
    if not source:
        return None
    how, _, what = source.partition(":")
    text = os.environ.get(what, "") if how == "env" else _printed(what)
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY:
        raise ConfigError(f"content.key-from: {source} gives no key", HOW)
    return Cipher(key)


def _printed(command: str) -> str:
    import shlex

    try:
        done = subprocess.run(
            shlex.split(command), stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise ConfigError(f"content.key-from: {command}: {error.strerror}", HOW) from None
    if done.returncode:
        raise ConfigError(f"content.key-from: {command} ended with {done.returncode}", HOW)
    return done.stdout.decode(errors="replace")
