"""Changing one key of a TOML file: comments and order stay, and a crash leaves the old file."""

import os
from collections.abc import Callable, MutableMapping
from typing import Any, cast

from cleveragents.errors import ConfigError
from cleveragents.model.ids import new_id

Table = MutableMapping[str, Any]


def insert(table: Table, path: list[str], value: Any) -> None:
    import tomlkit
    from tomlkit.items import InlineTable

    for part in path[:-1]:
        if part not in table:
            inline = isinstance(table, InlineTable)
            table[part] = tomlkit.inline_table() if inline else tomlkit.table()
        table = table[part]
    table[path[-1]] = value


def remove(table: Table, path: list[str]) -> bool:
    """Whether there was such a key; tables that it leaves empty go too."""
    name, *rest = path
    if not rest:
        return table.pop(name, None) is not None
    inner = table.get(name)
    if not isinstance(inner, MutableMapping):
        return False
    inside = cast("Table", inner)
    removed = remove(inside, rest)
    if removed and _is_bare(inside):
        del table[name]
    return removed


def _is_bare(table: Table) -> bool:
    """Whether a table has nothing, not even a comment."""
    from tomlkit.items import AbstractTable

    if not isinstance(table, AbstractTable) or table:
        return False
    return "#" not in f"{table.trivia.comment}{table.as_string()}"


def edited(text: str, change: Callable[[Table], None]) -> str:
    """The text after `change` was made to the document."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
        change(document)
        return tomlkit.dumps(cast("dict[str, Any]", document))
    except (TOMLKitError, TypeError, ValueError) as error:
        raise ConfigError(f"cannot change this file: {error}", "edit the file yourself") from None


def write_atomically(path: str, content: str | bytes) -> None:
    """The file as a whole or not at all; a link stays a link, a mode stays."""
    data = content.encode() if isinstance(content, str) else content
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    try:
        os.makedirs(folder, exist_ok=True)
        _replace(target, os.path.join(folder, f".{new_id()}.tmp"), data)
        _sync_folder(folder)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def delete(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        raise ConfigError(f"cannot delete {path}: {error.strerror}") from None


def _replace(target: str, temporary: str, data: bytes) -> None:
    try:
        with open(temporary, "xb") as file:
            if os.path.exists(target):
                os.fchmod(file.fileno(), os.stat(target).st_mode & 0o7777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
