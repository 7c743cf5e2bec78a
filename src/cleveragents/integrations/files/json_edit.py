"""Edits somebody else's JSON file, keeping every byte that is not ours.

The file may have comments and trailing commas, as agents allow them. An entry in an existing empty
container follows one blank (`[ {...}]`), one in a container of ours does not; so removing our
entries later knows which containers to keep.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from cleveragents.errors import ConfigError

_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"-?\d[\d.eE+-]*|true|false|null")


class Node(msgspec.Struct):
    """A value and its position; of a member, `start` is where its name begins."""

    start: int
    end: int
    value: Any
    opened: int = -1
    """Where the container's first bracket is; -1 for a plain value."""
    names: list[str] = []
    inner: list["Node"] = []

    def member(self, name: str) -> "Node | None":
        """The last member of that name, which is the one that counts."""
        found = [node for own, node in zip(self.names, self.inner, strict=True) if own == name]
        return found[-1] if found and isinstance(self.value, dict) else None


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self) -> ConfigError:
        line = self.text.count("\n", 0, self.at) + 1
        return ConfigError(f"line {line} is not JSON", "fix the file first")

    def blank(self) -> str:
        found = _BLANK.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.text[self.at : self.at + 1]

    def take(self, pattern: re.Pattern[str]) -> Any:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self.fail()
        try:
            value = json.loads(found.group())
        except ValueError:
            raise self.fail() from None
        self.at = found.end()
        return value

    def node(self) -> Node:
        first, start = self.blank(), self.at
        if first in {"{", "["}:
            return self.container(first, start)
        value = self.take(_STRING if first == '"' else _SCALAR)
        return Node(start, self.at, value)

    def container(self, first: str, start: int) -> Node:
        last = "}" if first == "{" else "]"
        names: list[str] = []
        inner: list[Node] = []
        self.at += 1
        while self.blank() != last:
            begins = self.at
            if first == "{":
                names.append(self.take(_STRING))
                if self.blank() != ":":
                    raise self.fail()
                self.at += 1
            inner.append(self.node())
            inner[-1].start = begins
            if self.blank() == ",":
                self.at += 1
            elif self.blank() != last:
                raise self.fail()
        self.at += 1
        values = [node.value for node in inner]
        value = dict(zip(names, values, strict=True)) if first == "{" else values
        return Node(start, self.at, value, start, names or [""] * len(inner), inner)


def read_json(text: str) -> Node:
    """Parse the file into a tree with positions."""
    reader = _Reader(text)
    try:
        root = reader.node()
    except RecursionError:
        raise ConfigError("the file is nested too deeply", "fix the file first") from None
    if reader.blank():
        raise reader.fail()
    if not isinstance(root.value, dict):
        raise ConfigError("the file does not hold an object", "fix the file first")
    return root


def insert(text: str, container: Node, name: str | None, value: Any) -> str:
    """The text with one more member at the end; `name` is None in a list."""
    label = "" if name is None else f"{json.dumps(name)}: "
    if not container.inner:
        at = container.opened + 1
        return f"{text[:at]} {label}{json.dumps(value, ensure_ascii=False)}{text[at:]}"
    last = container.inner[-1]
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = _indent(text, container)
    if indent is None:
        shown, gap = json.dumps(value, ensure_ascii=False), " "
    else:
        unit = _unit(text)
        lines = json.dumps(value, ensure_ascii=False, indent=unit).split("\n")
        gap = newline + indent
        shown = gap.join(lines)
    return f"{text[: last.end]},{gap}{label}{shown}{text[last.end :]}"


def _indent(text: str, container: Node) -> str | None:
    """The indentation of members on lines of their own; None if they share one."""
    before = text[container.opened + 1 : container.inner[-1].start]
    _, newline, indent = before.rpartition("\n")
    return indent if newline and not indent.strip() else None


def _unit(text: str) -> str:
    """One level of indentation, as the file has it."""
    found = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    return found.group(1) if found else "  "


def remove(text: str, path: list[Node], index: int) -> str:
    """The text without a member of the last container of `path`.

    A container of ours that becomes empty goes too; the others of `path` contain it.
    """
    container = path[-1]
    node = container.inner[index]
    before = container.inner[index - 1].end if index else container.opened + 1
    if index and re.fullmatch(r",[ \t\r\n]*", text[before : node.start]):
        return text[:before] + text[node.end :]
    after = _past_blank(text, node.end)
    if text[after] == ",":
        following = container.inner[index + 1].start if index + 1 < len(container.inner) else -1
        joined = following > 0 and not text[after + 1 : following].strip()
        return text[: node.start] + text[following if joined else after + 1 :]
    if index:  # there is a comment between the comma and our entry
        comma = _past_blank(text, before)
        return text[:comma] + text[comma + 1 : node.start] + text[node.end :]
    gap = text[before : node.start]
    if gap == " ":
        return text[:before] + text[node.end :]
    if len(path) > 1 and not gap.strip() and not text[node.end : container.end - 1].strip():
        return remove(text, path[:-1], path[-2].inner.index(container))
    return text[: node.start] + text[node.end :]


def _past_blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def without(text: str, ours: Callable[[Any], bool], under: str) -> str:
    """The text without our values below the member `under`."""
    while True:
        root = read_json(text)
        top = root.member(under)
        found = _find([root, top], ours) if top is not None else None
        if found is None:
            return text
        text = remove(text, *found)


def _find(path: list[Node], ours: Callable[[Any], bool]) -> tuple[list[Node], int] | None:
    for index, node in enumerate(path[-1].inner):
        if ours(node.value):
            return path, index
        deeper = _find([*path, node], ours)
        if deeper is not None:
            return deeper
    return None
