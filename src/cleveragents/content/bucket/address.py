"""One bucket, or a shared folder: objects that are written once and never changed.

`obstore` is imported when the first object is asked for, not before.
"""

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cleveragents.content.bucket.cipher import Cipher
from cleveragents.errors import BucketRefused, BucketUnreachable, ConfigError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

CONNECT, ANSWER = timedelta(seconds=5), timedelta(seconds=60)
NOT_INSTALLED = "pip install 'cleveragents[bucket]'"


class Bucket:
    """Objects below one address; an object's name is the hash of its content."""

    def __init__(self, url: str, cipher: Cipher | None = None) -> None:
        self.url = url
        self._cipher = cipher
        self._opened: ObjectStore | None = None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the encryption key; empty without encryption."""
        return self._cipher.fingerprint if self._cipher else ""

    def put_new(self, name: str, data: bytes) -> None:
        """Write an object; an existing one of that name has the same content."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        sealed = self._cipher.seal(data, name) if self._cipher else data
        with _TranslatedErrors(self.url, "written"):
            try:
                obstore.put(self._store(), name, sealed, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return

    def get(self, name: str) -> bytes:
        """An object's content; the caller checks its hash."""
        import obstore

        with _TranslatedErrors(self.url, "read"):
            data = bytes(obstore.get(self._store(), name).bytes())
        return Cipher.opened(self._cipher, data, name)

    def names(self, below: str = "") -> list[str]:
        import obstore

        with _TranslatedErrors(self.url, "listed"):
            pages: Any = obstore.list(self._store(), f"{below}/" if below else None)  # pyright: ignore[reportUnknownMemberType]
            return [one["path"] for page in pages for one in page]

    def folders(self, below: str) -> list[str]:
        """The names of folders there."""
        import obstore

        with _TranslatedErrors(self.url, "listed"):
            listed: Any = obstore.list_with_delimiter(self._store(), f"{below}/")  # pyright: ignore[reportUnknownMemberType]
        found: list[str] = listed["common_prefixes"]
        return [path.rstrip("/").rpartition("/")[2] for path in found]

    def delete(self, names: Iterable[str]) -> None:
        import obstore

        wanted = list(names)
        with _TranslatedErrors(self.url, "changed"):
            if wanted:
                obstore.delete(self._store(), wanted)

    def probe(self) -> None:
        """Refuse a bucket that overwrites existing objects: two machines could lose work."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        name = f"probe-{os.urandom(8).hex()}"
        with _TranslatedErrors(self.url, "written"):
            store = self._store()
            obstore.put(store, name, b"first", mode="create", use_multipart=False)
            try:
                obstore.put(store, name, b"second", mode="create", use_multipart=False)
                refused = False
            except AlreadyExistsError:
                refused = True
            kept = bytes(obstore.get(store, name).bytes())
            obstore.delete(store, [name])
        if not refused or kept != b"first":
            raise BucketRefused(
                f"{self.url} overwrites an object although it was told not to (If-None-Match)",
                "use a bucket that honours conditional puts; agents doctor tries it again",
            )

    def _store(self) -> "ObjectStore":
        if self._opened is None:
            self._opened = _open(self.url)
        return self._opened


def _open(url: str) -> "ObjectStore":
    try:
        from obstore.store import from_url
    except ImportError:
        raise ConfigError(f"{url} needs the extra `bucket`", NOT_INSTALLED) from None
    if url.startswith("file://"):
        os.makedirs(url.removeprefix("file://"), mode=0o700, exist_ok=True)
        return from_url(url)
    # Without TLS only if the user's own endpoint says so.
    plain = os.environ.get("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", ""))
    options: ClientConfig = {"connect_timeout": CONNECT, "timeout": ANSWER}
    if plain.startswith("http://"):
        options["allow_http"] = True
    # We retry ourselves, and report it meanwhile.
    return from_url(url, client_options=options, retry_config={"max_retries": 2})


class _TranslatedErrors:
    """Turns the library's errors into ours."""

    def __init__(self, url: str, what: str) -> None:
        self._url = url
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        from obstore.exceptions import BaseError

        if isinstance(error, FileNotFoundError):
            raise BucketUnreachable(f"an object is missing in {self._url}", MISSING) from error
        if isinstance(error, BaseError | OSError):
            said = str(error).partition("\n")[0]
            raise BucketUnreachable(
                f"{self._url} cannot be {self._what}: {said}", "agents doctor tries it again"
            ) from error


MISSING = "somebody deleted it, or this is not the bucket of this store"
