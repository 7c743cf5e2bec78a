"""Adds, removes and finds our hooks in the settings files of agents.

A hook of ours is recognized by our client's path in its command, wherever it was installed. A file
that we made ends with one line feed, and one more for each folder that we made for it: uninstalling
removes those too, and never a folder that somebody else made. A file that was there and empty ends
with none, and is empty again.
"""

import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from shlex import join, quote
from typing import Any, cast

from cleveragents.config.tomledit import write_atomically
from cleveragents.content import fsio
from cleveragents.errors import ConfigError
from cleveragents.integrations.agent import SettingsChange
from cleveragents.integrations.files.json_edit import insert, read_json, without

MARK = "cleveragents/integrations/client"
HOOKS = "hooks"
TIMEOUT = 30
"""Seconds after which an agent continues without us; the hook itself gives up much earlier."""


def shell_command(hook: Sequence[str], *event: str) -> str:
    """A command that does nothing if we were uninstalled: Python without its script would
    end with 2, by which agents let no tool run.
    """
    client = next((word for word in hook if MARK in word), hook[0])
    return f"[ ! -e {quote(client)} ] || exec {join([*hook, *event])}"


def is_ours(value: Any) -> bool:
    """Whether a value in a list of hooks is our entry, or a group of only ours."""
    if not isinstance(value, dict):
        return False
    entry = cast("dict[str, Any]", value)
    inner = entry.get(HOOKS)
    if isinstance(inner, list) and inner:
        return all(is_ours(one) for one in cast("list[Any]", inner))
    return any(MARK in text for text in entry.values() if isinstance(text, str))


def with_hooks(
    path: str, entries: Mapping[str, Any] | None, fresh: Mapping[str, Any] | None = None
) -> SettingsChange:
    """A JSON settings file with `entries` (event -> one entry) below `hooks`; None: without ours.

    `fresh`: what else a new file needs.
    """
    before = read_settings(path)
    try:
        after = _changed(before, entries, fresh or {})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", error.hint) from None
    return SettingsChange(path=path, before=before, after=after)


def _changed(
    before: bytes | None, entries: Mapping[str, Any] | None, fresh: Mapping[str, Any]
) -> bytes | None:
    if before is None:
        return None if entries is None else _new({**fresh, HOOKS: _lists(entries)})
    try:
        whole = before.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError("the file is not UTF-8", "fix the file first") from None
    mark, text = whole[: whole.startswith("\ufeff")], whole.removeprefix("\ufeff")
    if not text.strip():
        return before if entries is None else _new({**fresh, HOOKS: _lists(entries)})[:-1]
    left = without(text, is_ours, HOOKS)
    as_we_write = before.rstrip(b"\n") + b"\n" == _new(read_json(text).value)
    if as_we_write and left != text and read_json(left).value == dict(fresh):  # all of it is ours
        ours = before.endswith(b"\n")
        if entries is None:
            return None if ours else b""
        made = _new({**fresh, HOOKS: _lists(entries)})
        return made + b"\n" * _folders_made(before) if ours else made[:-1]
    return (mark + (left if entries is None else _with_entries(left, entries))).encode()


def _with_entries(text: str, entries: Mapping[str, Any]) -> str:
    hooks = read_json(text).member(HOOKS)
    if hooks is None:
        return insert(text, read_json(text), HOOKS, _lists(entries))
    if not isinstance(hooks.value, dict):
        raise ConfigError("its `hooks` is not an object", "fix the file first")
    for event, entry in entries.items():
        hooks = read_json(text).member(HOOKS)
        assert hooks is not None
        there = hooks.member(event)
        if there is None:
            text = insert(text, hooks, event, [entry])
        elif isinstance(there.value, list):
            text = insert(text, there, None, entry)
        else:
            raise ConfigError(f"its `hooks.{event}` is not a list", "fix the file first")
    return text


def _lists(entries: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {event: [entry] for event, entry in entries.items()}


def _new(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def owned(path: str, content: str | None) -> SettingsChange:
    """A file that is entirely ours; None removes it. Somebody else's file is refused."""
    before = read_settings(path)
    if before is not None and MARK.encode() not in before:
        raise ConfigError(f"{path} is not ours", "move it away, or take another scope")
    if content is None:
        return SettingsChange(path=path, before=before, after=None)
    after = content.encode() + b"\n" * _folders_made(before or b"")
    return SettingsChange(path=path, before=before, after=after)


def named_entries(events: Iterable[str], hook: Sequence[str]) -> dict[str, Any]:
    """Event -> our entry, for agents whose entries have a name and a time in milliseconds."""
    entry = {
        "type": "command",
        "name": "cleveragents",
        "command": shell_command(hook),
        "timeout": TIMEOUT * 1000,
    }
    return {event: {HOOKS: [entry]} for event in events}


def link_settings(settings: str, real: str, own: str, state: Sequence[str]) -> None:
    """Make a settings folder for one run, with links to all of the person's other files.

    For agents that take no settings file on the command line. `state`: folders that must exist, as
    what the agent made in the new folder would be lost.
    """
    for name in state:
        os.makedirs(os.path.join(real, name), exist_ok=True)
    os.makedirs(own)
    for name in os.listdir(real):
        if name != settings:
            os.symlink(os.path.join(real, name), os.path.join(own, name))


def home_with_hooks(
    settings: str, real: str, own: str, state: Sequence[str], entries: Mapping[str, Any]
) -> None:
    """The same, with the person's settings and our hooks."""
    link_settings(settings, real, own, state)
    merged = with_hooks(os.path.join(real, settings), entries).after or b""
    with open(os.path.join(own, settings), "wb") as file:
        file.write(merged)


def read_settings(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def write_change(change: SettingsChange) -> bool:
    """Write a change through links, whole or not at all; returns whether anything changed."""
    if change.before == change.after:
        return False
    target = os.path.realpath(change.path)
    _require_writable(change.path, target)
    if read_settings(change.path) != change.before:
        raise ConfigError(f"{change.path} was changed meanwhile", "try again")
    folder = os.path.dirname(target)
    if change.before is None and change.after is not None:
        write_atomically(change.path, change.after + b"\n" * _missing(folder))
    elif change.after is not None:
        write_atomically(change.path, change.after)
    elif os.path.islink(change.path):
        write_atomically(change.path, b"{}\n")  # a link stays a link
    else:
        fsio.unlink_if_there(target)
        for _ in range(_folders_made(change.before or b"")):
            with suppress(OSError):  # a folder that is not empty stays, with its parents
                os.rmdir(folder)
            folder = os.path.dirname(folder)
    return True


def _missing(folder: str) -> int:
    """The number of missing folders."""
    return 0 if os.path.isdir(folder) else 1 + _missing(os.path.dirname(folder))


def _folders_made(content: bytes) -> int:
    """The number of folders made for a file of ours."""
    return max(len(content) - len(content.rstrip(b"\n")) - 1, 0)


def _require_writable(path: str, target: str) -> None:
    """Root may write everything; a file that its owner made read-only is meant to stay."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path} is not a regular file")
    if not mode & 0o222 or not os.access(target, os.W_OK):
        named = path if path == target else f"{path} (a link to {target})"
        raise ConfigError(f"{named} is read-only", f"chmod u+w {target}, or edit it yourself")
