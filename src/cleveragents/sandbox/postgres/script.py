"""SQL scripts: split into statements, run, and their output shown."""

import re
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from cleveragents.errors import ToolFailed
from cleveragents.model.units import plural
from cleveragents.sandbox.postgres.server import said

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

Params = Sequence[Any] | Mapping[str, Any] | None
LONGEST_BYTES = 64
_TOKEN = re.compile(
    r"(?i:\be)'(?:[^'\\]|\\.|'')*(?:'|\Z)|'(?:[^']|'')*(?:'|\Z)|\"(?:[^\"]|\"\")*(?:\"|\Z)"
    r"|(?P<dollar>\$(?:[^\W\d]\w*)?\$).*?(?:(?P=dollar)|\Z)|--[^\n]*|/\*|[^\W\d][\w$]*|[;()]",
    re.DOTALL,
)
_COMMENT = re.compile(r"/\*|\*/")
_ROUTINE = re.compile(r"CREATE(?: OR REPLACE)? (?:FUNCTION|PROCEDURE)\b")
_OF_THE_SERVER = re.compile(
    r"(?:CREATE|DROP|ALTER)"
    r" (?:DATABASE|ROLE|USER(?! MAPPING)|GROUP|TABLESPACE|SYSTEM|SUBSCRIPTION)\b"
)
_CONTROL = re.compile(
    r"(?:BEGIN|START|COMMIT|END|ABORT|ROLLBACK|SAVEPOINT|RELEASE|PREPARE|DISCARD)\b"
)


class Output(Protocol):
    def line(self, text: str) -> None: ...


class Limit(Protocol):
    def left(self) -> float | None: ...


class Statement:
    """The text of one statement and its first words, comments left out."""

    def __init__(self, text: str, words: list[str]) -> None:
        self.text: str = text.strip()
        self.words: str = " ".join(words[:6]).upper()


def split(script: str) -> Iterator[Statement]:
    """Split a script; quotes, brackets and routine bodies end no statement."""
    start = position = depth = 0
    words: list[str] = []
    while match := _TOKEN.search(script, position):
        position, token = match.end(), match[0]
        if token == "/*":
            position = _after_comment(script, position)
        elif token == ";" and depth <= 0:
            if words:
                yield Statement(script[start : match.start()], words)
            start, depth, words = position, 0, []
        elif token in "()":
            depth += 1 if token == "(" else -1
        elif token[0].isalpha() or token[0] == "_":
            depth += _nesting(token.upper(), depth, words)
            words.append(token)
        elif not token.startswith("--") and token != ";":
            words.append("'")
    if words:
        yield Statement(script[start:], words)


def _nesting(word: str, depth: int, before: list[str]) -> int:
    """Nesting depth: a routine's body goes from BEGIN ATOMIC to END, with CASE ... END inside."""
    if not _ROUTINE.match(" ".join(before[:4]).upper()):
        return 0
    if word == "ATOMIC" and before[-1].upper() == "BEGIN":
        return 1
    if depth > 0 and word in ("CASE", "END"):
        return 1 if word == "CASE" else -1
    return 0


def _after_comment(script: str, position: int) -> int:
    depth = 1
    while depth:
        match = _COMMENT.search(script, position)
        if match is None:
            return len(script)
        position = match.end()
        depth += 1 if match[0] == "/*" else -1
    return position


def require_local(statements: Sequence[Statement]) -> None:
    """Refuse statements for the whole server, which no checkpoint covers."""
    for number, one in enumerate(statements, 1):
        if match := _OF_THE_SERVER.match(one.words):
            raise ToolFailed(
                f"statement {number} ({beginning(one.text)}): {match[0]} is not allowed:"
                " it changes the server, which cannot be rolled back"
            )


def require_no_control(statements: Sequence[Statement]) -> None:
    """Refuse statements that end the transaction we roll back."""
    for number, one in enumerate(statements, 1):
        if match := _CONTROL.match(one.words):
            raise ToolFailed(
                f"statement {number} ({beginning(one.text)}): {match[0]} is not allowed with"
                " strategy transaction_rollback: everything runs in one transaction"
            )


def beginning(statement: str) -> str:
    line = " ".join(statement[:200].split())
    return line if len(line) <= 40 else f"{line[:37]}..."


@contextmanager
def limited(db: "Connection[Any]", limit: Limit) -> Generator[None]:
    """Cancel the statement when time is up; the server's errors become the tool's."""
    from psycopg import Error

    left = limit.left()
    timer = threading.Timer(left, db.cancel_safe) if left is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    except Error as error:
        raise ToolFailed(said(error)) from error
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()


def show(cursor: "Cursor[Any]", out: Output) -> int:
    """Write out every result; returns the number of changed rows."""
    changed, more = 0, True
    while more:
        if cursor.description is not None:
            out.line("\t".join(_cell(column.name) for column in cursor.description))
            for row in cursor:
                out.line("\t".join(_cell(value) for value in row))
        elif cursor.rowcount > 0:
            changed += cursor.rowcount
        more = bool(cursor.nextset())
    return changed


def tell_changed(out: Output, changed: int, silent: bool) -> None:
    if changed or silent:
        out.line(f"{plural(changed, 'row')} changed")


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        small = len(value) <= LONGEST_BYTES
        return f"\\x{value.hex()}" if small else f"<{len(value)} bytes>"
    text = str(value).replace("\\", "\\\\").replace("\t", "\\t")
    return text.replace("\n", "\\n").replace("\r", "\\r")
