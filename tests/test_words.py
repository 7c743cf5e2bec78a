"""One word per idea: help texts and messages do not use the words that were retired.

Docstrings of commands count as help. Names in JSON, plan files and rows stay as they are.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cleveragents.cli.main import root
from cleveragents.model.settings import KEYS
from cleveragents.model.units import plural

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "cleveragents"

RETIRED = {
    r"(take|takes|taken|taking|took)( \w+){0,3} back": "roll back, undo, revert or discard",
    r"(go|goes|going|gone|went) back": "roll back",
    r"(go|goes|going|gone|went) on": "resume or continue",
    r"(let|lets|letting) go": "release",
    r"hangs? on": "dependents, depends on",
    r"settle[sd]?": "reconcile, resolve",
    r"by hand": "manual edit",
    r"vouch\w*": "known, trusted",
    r"(bug|mistake) of ours": "internal error",
    r"all the same": "anyway",
    r"shall": "will, should",
    r"mend\w*": "fix",
    r"besides": "also, extra",
    r"where (you|one|it) stands?": "current directory, status",
    r"(says?|said) no": "rejected, declined",
    r"did not take": "could not",
}
CODE = re.compile(r"^```.*?^```$|<!--.*?-->|`[^`\n]+`", re.MULTILINE | re.DOTALL)
EXCEPTIONS = {
    "settled",  # a key of the answer to `plan resume`
}
PATTERN = {re.compile(rf"\b{old}\b", re.IGNORECASE): new for old, new in RETIRED.items()}


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """String literals that are not docstrings; a placeholder of an f-string is `{}`."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
            yield node.lineno, "".join(map(str, parts))
            skipped.update(v for v in node.values if isinstance(v, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.lineno, node.value


def helps(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    yield path, command.help or ""
    yield path, command.short_help or ""
    for param in command.params:
        yield f"{path} {param.name}", getattr(param, "help", None) or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from helps(found, f"{path} {name}")


def retired(text: str) -> list[str]:
    if text in EXCEPTIONS:
        return []
    return [f"{m[0]!r}: {new}" for p, new in PATTERN.items() if (m := p.search(text))]


def test_messages_use_one_word_per_idea() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {word}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in texts(ast.parse(path.read_text()))
        for word in retired(text)
    ]
    assert not found, "\n".join(found)


def test_help_uses_one_word_per_idea() -> None:
    found = [f"{where}: {word}" for where, text in helps(root, "agents") for word in retired(text)]
    found += [f"{key.name}: {word}" for key in KEYS for word in retired(key.help)]
    assert not found, "\n".join(found)


def test_pages_use_one_word_per_idea() -> None:
    """What is written for users; code and quoted outputs are not looked at."""
    pages = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "SECURITY.md"]
    pages += [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]
    found = [
        f"{page.relative_to(ROOT)}: {word}"
        for page in sorted(pages)
        for line in CODE.sub("", page.read_text()).splitlines()
        for word in retired(line)
    ]
    assert not found, "\n".join(found)


def test_help_is_a_sentence() -> None:
    for where, text in helps(root, "agents"):
        first = text.strip().split("\n\n")[0]
        assert not first or (first[0].isupper() and first.endswith(".")), f"{where}: {first}"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("9 changes taken back", True),
        ("takes the plan back", True),
        ("it went on", True),
        ("edited by hand", True),
        ("recommend a handy one", False),
        ("roll back", False),
    ],
)
def test_the_rule_itself(text: str, wrong: bool) -> None:
    assert bool(retired(text)) is wrong


@pytest.mark.parametrize(
    ("count", "words", "shown"),
    [
        (0, ("file",), "0 files"),
        (1, ("file",), "1 file"),
        (2, ("file",), "2 files"),
        (1, ("path was", "paths were"), "1 path was"),
        (3, ("directory", "directories"), "3 directories"),
    ],
)
def test_counts_are_inflected(count: int, words: tuple[str, ...], shown: str) -> None:
    assert plural(count, *words) == shown
