"""YAML to nodes: safe scalars only, line numbers kept, bounded however hostile the text is.

PyYAML composes, we convert: no constructor of a mapping or of an object ever runs. Import this
module only where a file is read, because it brings `yaml` along.
"""

import math
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.reader import Reader

from cleveragents.planfile.node import Node, Problems

MAX_NODES = 1_000_000
MAX_DEPTH = 100
# The C composer recurses on the machine's stack and takes the process down with it at a depth
# of some 100,000; a text shorter than this cannot nest deep enough.
SHORT = 5_000

_TAG = "tag:yaml.org,2002:"
_SCALARS = {f"{_TAG}{name}" for name in ("null", "bool", "int", "float")}
_TEXTS = {f"{_TAG}{name}" for name in ("str", "timestamp", "merge", "value")}
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_YAML: Any = yaml  # its stubs leave out what compose and parse give


def read_yaml(text: str, problems: Problems) -> Node:
    """The one document of the text; what can be read past goes to `problems`."""
    _refuse_unprintable(text, problems)
    try:
        root = _compose(text, problems)
    except RecursionError:
        raise problems.stop(1, f"nested more than {MAX_DEPTH} levels deep") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context
        raise problems.stop(mark.line + 1 if mark else 1, f"not valid YAML: {what}") from None
    except yaml.YAMLError as error:
        raise problems.stop(1, f"not valid YAML: {error}") from None
    _measure(root, {}, 1, problems)
    return _Converter(problems).node(root, _line(root))


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _refuse_unprintable(text: str, problems: Problems) -> None:
    found = Reader.NON_PRINTABLE.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise problems.stop(line, f"the character {found[0]!a} is not allowed in YAML")


def _compose(text: str, problems: Problems) -> yaml.Node:
    if len(text) > SHORT:
        _refuse_deep(text, problems)
    documents: Iterator[yaml.Node] = _YAML.compose_all(text, _LOADER)
    root = next(documents, None)
    if root is None or (root.tag == f"{_TAG}null" and not root.value):
        raise problems.stop(1, "the file is empty")
    second = next(documents, None)
    if second is not None:
        raise problems.stop(_line(second), "more than one document in the file")
    return root


def _refuse_deep(text: str, problems: Problems) -> None:
    depth = 0
    for event in _YAML.parse(text, _LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            line = event.start_mark.line + 1
            raise problems.stop(line, f"nested more than {MAX_DEPTH} levels deep")


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _measure(
    node: yaml.Node, known: dict[int, tuple[int, int]], depth: int, problems: Problems
) -> tuple[int, int]:
    """Nodes and levels after aliases are written out, counted without writing them out."""
    if depth > MAX_DEPTH:
        raise problems.stop(
            _line(node), f"nested more than {MAX_DEPTH} levels deep, or an alias inside itself"
        )
    if id(node) not in known:
        sizes = [_measure(child, known, depth + 1, problems) for child in _children(node)]
        size = 1 + sum(size for size, _ in sizes)
        height = 1 + max((height for _, height in sizes), default=0)
        if size > MAX_NODES:
            raise problems.stop(_line(node), f"aliases expand to more than {MAX_NODES:,} values")
        known[id(node)] = size, height
    size, height = known[id(node)]
    if depth + height - 1 > MAX_DEPTH:
        raise problems.stop(_line(node), f"nested more than {MAX_DEPTH} levels deep")
    return size, height


class _Converter:
    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.scalars: Any = SafeConstructor()

    def node(self, node: yaml.Node, line: int) -> Node:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, line)
        wanted = "map" if isinstance(node, yaml.MappingNode) else "seq"
        if node.tag != f"{_TAG}{wanted}":
            self._refuse_tag(node)
            return Node(line, None)
        if isinstance(node, yaml.MappingNode):
            return Node(line, self._mapping(node))
        return Node(line, tuple(self.node(item, _line(item)) for item in _children(node)))

    def _refuse_tag(self, node: yaml.Node) -> None:
        tag = node.tag.replace(_TAG, "!!", 1)
        self.problems.add(_line(node), f"the tag {tag!r} is not allowed")

    def _scalar(self, node: yaml.ScalarNode, line: int) -> Node:
        if node.tag in _SCALARS:
            return Node(line, self._plain(node), node.value)
        if node.tag not in _TEXTS:
            self._refuse_tag(node)
            return Node(line, None)
        text = self._text(node)
        return Node(line, text, text)

    def _text(self, node: yaml.ScalarNode) -> str:
        if any("\ud800" <= char <= "\udfff" for char in node.value):
            self.problems.add(_line(node), "half of a surrogate pair is not a character")
            return "?"
        return node.value

    def _plain(self, node: yaml.ScalarNode) -> int | float | bool | None:
        try:
            value = self.scalars.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, ArithmeticError):
            value = math.nan
        fits = not isinstance(value, int) or -(2**63) <= value < 2**63
        if fits and (not isinstance(value, float) or math.isfinite(value)):
            return value
        self.problems.add(_line(node), f"not a number we can use: {node.value[:40]!r}")
        return None

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.problems.add(_line(key), "a key has to be text")
            elif key.tag == f"{_TAG}merge":
                for name, item in self._merge(value).items():
                    merged.setdefault(name, item)
            elif (name := self._text(key)) in own:
                text = f"duplicate key {name!r}, first on line {own[name].line}"
                self.problems.add(_line(key), text)
            else:
                own[name] = self.node(value, _line(key))
        return merged | own

    def _merge(self, value: yaml.Node) -> dict[str, Node]:
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        merged: dict[str, Node] = {}
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self.problems.add(_line(source), "'<<' has to name a mapping")
                continue
            for name, item in self._mapping(source).items():
                merged.setdefault(name, item)
        return merged
