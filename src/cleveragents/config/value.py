"""What a setting may be: one reader for each kind, the same for TOML, variables and flags."""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from cleveragents.errors import ConfigError
from cleveragents.model.settings import MODEL_NAME, Key, without_password
from cleveragents.model.triggers import nearest, parse_triggers
from cleveragents.model.units import parse_bytes, parse_duration

FLAG = "flag"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Given(msgspec.Struct, frozen=True):
    """What one layer says about one setting; relative paths in it start at `folder`."""

    key: Key
    raw: Any
    source: str
    folder: str

    @property
    def is_kept(self) -> bool:
        """Whether it stands in a file, and was not given for one command or shell."""
        return os.path.isabs(self.source)


def user_home(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")


def absolute(path: str, folder: str, environ: Mapping[str, str]) -> str:
    if path == "~" or path.startswith("~/"):
        path = user_home(environ) + path[1:]
    return os.path.abspath(os.path.join(folder, path))


def value_of(given: Given, environ: Mapping[str, str]) -> Any:
    """The setting's value, checked; text comes from a variable or flag, other types from TOML."""
    try:
        return _READERS[given.key.kind](given, environ)
    except ConfigError as error:
        raise ConfigError(f"{_shown_source(given)}: {error.message}", error.hint) from None
    except ValueError as error:
        raise ConfigError(f"{_shown_source(given)}: {error}", given.key.help) from None


def _shown_source(given: Given) -> str:
    return given.key.name if given.source == FLAG else f"{given.source}: {given.key.name}"


def _path(given: Given, environ: Mapping[str, str]) -> str:
    if not isinstance(given.raw, str):
        raise ValueError(f"has to be a path, not {given.raw!r}")
    return absolute(given.raw, given.folder, environ) if given.raw else ""


def _paths(given: Given, environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(absolute(path, given.folder, environ) for path in texts_of(given))


def texts_of(given: Given) -> tuple[str, ...]:
    """A list of texts, or one text with commas."""
    raw = given.raw.split(",") if isinstance(given.raw, str) else given.raw
    items = cast("list[Any]", raw) if isinstance(raw, list) else [raw]
    if not all(isinstance(item, str) for item in items):
        raise ValueError(f"has to be a list of texts, not {given.raw!r}")
    return tuple(item.strip() for item in items if item.strip())


def _triggers(given: Given, environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(str(trigger) for trigger in parse_triggers(texts_of(given)))


def _integer(given: Given, environ: Mapping[str, str]) -> int:
    raw = given.raw
    if isinstance(raw, str) and raw.strip().isascii() and raw.strip().isdigit():
        raw = int(raw[:30])
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise ValueError(f"has to be a whole number, not {raw!r}")
    if not given.key.minimum <= raw < 2**63:
        raise ValueError(f"has to be {given.key.minimum} or more, not {raw}")
    return raw


def _bytes(given: Given, environ: Mapping[str, str]) -> int:
    if isinstance(given.raw, bool) or not isinstance(given.raw, int | str):
        raise ValueError(f"has to be a size such as '2GB', not {given.raw!r}")
    return parse_bytes(given.raw)


def _duration(given: Given, environ: Mapping[str, str]) -> float:
    if isinstance(given.raw, bool) or not isinstance(given.raw, int | float | str):
        raise ValueError(f"has to be a time such as '30s', not {given.raw!r}")
    seconds = parse_duration(given.raw)
    if seconds < given.key.minimum:
        raise ValueError(f"has to be {given.key.minimum}s or more, not {given.raw!r}")
    return seconds


def _choice(given: Given, environ: Mapping[str, str]) -> str:
    choices = given.key.choices
    if given.raw not in choices:
        near = nearest(str(given.raw), choices)
        raise ValueError(f"unknown value {given.raw!r}{near or ', valid: ' + ', '.join(choices)}")
    return given.raw


def _flag(given: Given, environ: Mapping[str, str]) -> bool:
    words = {"true": True, "false": False}
    raw = words.get(given.raw.strip().lower()) if isinstance(given.raw, str) else given.raw
    if not isinstance(raw, bool):
        raise ValueError(f"has to be true or false, not {given.raw!r}")
    return raw


def _model(given: Given, environ: Mapping[str, str]) -> str:
    if not isinstance(given.raw, str) or (given.raw and not MODEL_NAME.fullmatch(given.raw)):
        raise ValueError(f"has to be 'provider:name', not {given.raw!r}")
    return given.raw


def _url(given: Given, environ: Mapping[str, str]) -> str:
    """Text that begins as one of the choices does; a trailing slash says nothing."""
    if not isinstance(given.raw, str):
        raise ValueError(f"has to be text, not {given.raw!r}")
    text = given.raw.strip().rstrip("/")
    if text and not any(text.startswith(head) and text != head for head in given.key.choices):
        # All behind the scheme may be a password, wherever that stands.
        scheme = _SCHEME.match(text)
        instead = f", not {scheme[0]}" if scheme else ""
        raise ValueError(f"has to begin with {', '.join(given.key.choices)}{instead}")
    if without_password(text) != text:
        _refuse_password(given)
    return text


def _refuse_password(given: Given) -> None:
    """A database's may come with the URL, from outside of files; a bucket's never does."""
    if given.key.field == "content_url":
        raise ConfigError(
            "the URL contains a password", "put it into variables such as AWS_SECRET_ACCESS_KEY"
        )
    if given.is_kept:
        raise ConfigError(
            "the URL contains a password, and settings are kept in a file",
            "put it into PGPASSWORD or ~/.pgpass, or give the URL in CLEVERAGENTS_STORE_URL",
        )


def _table(given: Given, environ: Mapping[str, str]) -> dict[str, str]:
    """Names with a path each; as one text `db=app.db,docs=../docs`."""
    raw = given.raw
    if isinstance(raw, str):
        pairs = [item.partition("=") for item in raw.split(",") if item.strip()]
        raw = {name.strip(): path.strip() for name, _, path in pairs}
    items = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {"": ""}
    if not all(name and isinstance(path, str) and path for name, path in items.items()):
        raise ValueError(f"has to be names with a path each, not {given.raw!r}")
    return {name: absolute(path, given.folder, environ) for name, path in items.items()}


_READERS: dict[str, Callable[[Given, Mapping[str, str]], Any]] = {
    "path": _path,
    "paths": _paths,
    "triggers": _triggers,
    "integer": _integer,
    "bytes": _bytes,
    "duration": _duration,
    "choice": _choice,
    "flag": _flag,
    "table": _table,
    "model": _model,
    "url": _url,
}
