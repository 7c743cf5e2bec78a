"""A plan file as nodes that know their line, and the reading of one mapping key by key.

Nothing here stops at the first mistake: what is wrong goes to `Problems`, what was meant is
replaced by the default, and reading continues, so that people see all of it at once.
"""

import re
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from cleveragents.errors import PlanFileError, Problem
from cleveragents.model.triggers import nearest
from cleveragents.model.units import parse_duration


class Node(msgspec.Struct, frozen=True):
    """One value of the file. Under a key it has the key's line, in a list its own."""

    line: int
    value: "str | int | float | bool | tuple[Node, ...] | dict[str, Node] | None"
    text: str = ""
    """A scalar as it was written: `off` is a boolean for YAML and a word for people."""

    @property
    def is_scalar(self) -> bool:
        return self.value is not None and not isinstance(self.value, tuple | dict)


def kind_of(node: Node) -> str:
    match node.value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case tuple():
            return "a list"
        case dict():
            return "a mapping"


def data_of(node: Node) -> Any:
    """The node as plain JSON data."""
    if isinstance(node.value, tuple):
        return [data_of(item) for item in node.value]
    if isinstance(node.value, dict):
        return {key: data_of(item) for key, item in node.value.items()}
    return node.value


def suggest(name: str, valid: Collection[str]) -> str:
    """The nearest valid name, or all of them when none is near."""
    if not valid:
        return ""
    return nearest(name, valid) or f", valid: {', '.join(valid)}"


class Problems:
    """All problems found in one file."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._found: list[Problem] = []
        self._hints: dict[str, None] = {}

    def add(self, line: int, text: str, hint: str = "", key: str = "") -> None:
        self._found.append(Problem(self.source, line, key, text))
        if hint:
            self._hints[hint] = None

    def error(self, spec: object = None) -> PlanFileError:
        found = {str(one): one for one in sorted(self._found, key=lambda one: one.line)}
        again = f"correct {self.source} and run the same command again"
        hint = "; ".join(self._hints) or again
        return PlanFileError(tuple(found), hint, spec, tuple(found.values()))

    def stop(self, line: int, text: str, hint: str = "") -> PlanFileError:
        """The error to raise when nothing more can be read."""
        self.add(line, text, hint)
        return self.error()

    def raise_if_any(self, spec: object) -> None:
        if self._found:
            raise self.error(spec)


class Fields:
    """One mapping of the file; each method reads one key and gives its value or the default."""

    def __init__(self, node: Node, where: str, keys: Collection[str], problems: Problems) -> None:
        self.node = node
        self.where = where
        self.problems = problems
        self.items: dict[str, Node] = {}
        if not isinstance(node.value, dict):
            problems.add(node.line, f"{where} has to be a mapping, not {kind_of(node)}")
            return
        for key, value in node.value.items():
            if key not in keys:
                text = f"unknown key {key!r} in {where}{suggest(key, keys)}"
                problems.add(value.line, text, key=key)
            elif value.value is not None:
                self.items[key] = value

    def __contains__(self, key: str) -> bool:
        return key in self.items

    def line(self, key: str) -> int:
        return self.items[key].line if key in self.items else self.node.line

    def bad(self, key: str, text: str, hint: str = "") -> None:
        self.problems.add(self.line(key), f"{self.where}: {text}", hint, key)

    def _wrong(self, key: str, wanted: str) -> None:
        node = self.items[key]
        shown = node.text if isinstance(node.value, float) else kind_of(node)
        self.bad(key, f"{key!r} has to be {wanted}, not {shown}")

    def require(self, key: str) -> bool:
        if key not in self.items and isinstance(self.node.value, dict):
            self.bad(key, f"{key!r} is missing")
        return key in self.items

    def one_of(self, *keys: str) -> str | None:
        """The one key of these that is there; none or several is a problem."""
        found = [key for key in keys if key in self.items]
        names = ", ".join(repr(key) for key in keys)
        if len(found) == 1:
            return found[0]
        if found:
            self.bad(found[1], f"only one of {names} may be given")
        elif isinstance(self.node.value, dict):
            self.bad("", f"one of {names} is missing")
        return None

    def text(self, key: str, *, empty: bool = False) -> str:
        """Prose: a bare `no` or `42` is refused, because YAML does not read it as text."""
        node = self.items.get(key)
        if node is None:
            return ""
        if isinstance(node.value, str):
            if not empty and not node.value.strip():
                self.bad(key, f"{key!r} is empty")
            return node.value
        quote = f': put it in quotes, "{node.text}"' if node.is_scalar else ""
        self.bad(key, f"{key!r} has to be text, not {kind_of(node)}{quote}")
        return ""

    def word(self, key: str, wanted: str = "a name") -> str | None:
        """An id or a name, taken as it was written."""
        node = self.items.get(key)
        if node is None:
            return None
        if not node.is_scalar:
            self._wrong(key, wanted)
            return None
        return node.text

    def words(self, key: str) -> tuple[str, ...]:
        """A list of words, or a single one."""
        node = self.items.get(key)
        if node is None:
            return ()
        items = node.value if isinstance(node.value, tuple) else (node,)
        if not all(item.is_scalar for item in items):
            self.bad(key, f"{key!r} has to be a list of names")
            return ()
        return tuple(item.text for item in items)

    def flag(self, key: str, default: bool) -> bool:
        node = self.items.get(key)
        if node is None:
            return default
        if not isinstance(node.value, bool):
            self._wrong(key, "true or false")
            return default
        return node.value

    def integer(self, key: str, minimum: int) -> int | None:
        node = self.items.get(key)
        if node is None:
            return None
        if isinstance(node.value, bool) or not isinstance(node.value, int):
            self._wrong(key, "a whole number")
            return None
        if node.value < minimum:
            self.bad(key, f"{key!r} has to be {minimum} or more, not {node.value}")
            return None
        return node.value

    def fraction(self, key: str) -> float | None:
        node = self.items.get(key)
        if node is None:
            return None
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            self._wrong(key, "a number from 0 to 1")
            return None
        if not 0 <= node.value <= 1:
            self.bad(key, f"{key!r} has to be from 0 to 1, not {node.text}")
            return None
        return float(node.value)

    def seconds(self, key: str) -> float | None:
        node = self.items.get(key)
        if node is None:
            return None
        if isinstance(node.value, bool) or not isinstance(node.value, int | float | str):
            self._wrong(key, "a number of seconds or a text such as '5m'")
            return None
        try:
            seconds = parse_duration(node.value)
        except ValueError as error:
            self.bad(key, f"{key!r}: {error}")
            return None
        if seconds <= 0:
            self.bad(key, f"{key!r} has to be more than 0")
            return None
        return seconds

    def choice(self, key: str, valid: Iterable[str]) -> str | None:
        name, names = self.word(key), [str(item) for item in valid]
        if name is None or name in names:
            return name
        self.bad(key, f"unknown {key} {name!r}{suggest(name, names)}")
        return None

    def command(self, key: str) -> tuple[str, ...] | str | None:
        """An argv list, or a shell string."""
        node = self.items.get(key)
        if node is None:
            return None
        if isinstance(node.value, str):
            return self.text(key)
        return self.argv(key, "a text or a list of words")

    def argv(self, key: str, wanted: str = "a list of words") -> tuple[str, ...] | None:
        """Words as they were written, so that `[head, -5]` needs no quotes."""
        node = self.items.get(key)
        if node is None:
            return None
        if not isinstance(node.value, tuple):
            self._wrong(key, wanted)
            return None
        if not node.value:
            self.bad(key, f"{key!r} is empty")
            return None
        for item in node.value:
            if not item.is_scalar:
                text = f"{self.where}: {key!r} has {kind_of(item)} where a word should be"
                self.problems.add(item.line, text, key=key)
        return tuple(item.text for item in node.value)

    def target(self, key: str) -> str | None:
        """`module:callable`."""
        if key not in self.items:
            return None
        text = self.text(key)
        if text and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", text):
            self.bad(key, f"{key!r} has to be 'module:callable', not {text!r}")
        return text or None

    def listed(self, key: str) -> tuple[Node, ...]:
        """The items of a list."""
        node = self.items.get(key)
        if node is None:
            return ()
        if not isinstance(node.value, tuple):
            self._wrong(key, "a list")
            return ()
        return node.value

    def named(self, key: str) -> dict[str, Node]:
        """The items of a mapping whose keys are names."""
        node = self.items.get(key)
        if node is None:
            return {}
        if not isinstance(node.value, dict):
            self._wrong(key, "a mapping")
            return {}
        return node.value

    def part(self, key: str, where: str, keys: Collection[str]) -> "Fields | None":
        """A mapping inside this one."""
        if key not in self.items:
            return None
        return Fields(self.items[key], where, keys, self.problems)
