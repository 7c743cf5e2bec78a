"""SQL against the sandbox's SQLite file, in our own process.

A script is one transaction unless it has transactions of its own. Statements that would open, write
or load another file are refused before they run.
"""

import os
import re
import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol
from urllib.parse import quote

from cleveragents.errors import ToolFailed
from cleveragents.model.resource import show_path
from cleveragents.model.units import plural
from cleveragents.tools.limits import Capture, Deadline, OutOfTime

BUSY_SECONDS = 5.0
OPCODES_PER_CHECK = 10_000
LONGEST_BLOB = 64

Params = Sequence[Any] | Mapping[str, Any] | None

_JOURNALS = ("wal", "delete", "truncate", "persist")
_FUNCTIONS = ("load_extension", "fts3_tokenizer")
# Where a `;` does not end a statement.
_TOKEN = re.compile(
    r"""'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z)"""
    r"""|--[^\n]*|/\*.*?(?:\*/|\Z)|;""",
    re.DOTALL,
)
_BLANK = re.compile(r"(?:\s|;|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)


class Watch(Protocol):
    """Receives what a script changes; entered before anything is opened."""

    def __enter__(self) -> "Watch": ...
    def __exit__(self, *_error: object) -> None: ...
    def began(self) -> None:
        """Called when a transaction has begun and nothing is written yet."""
        ...

    def committing(self) -> None: ...
    def committed(self) -> None: ...


class _Unwatched:
    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_error: object) -> None: ...
    def began(self) -> None: ...
    def committing(self) -> None: ...
    def committed(self) -> None: ...


def run_sql(
    database: str,
    script: str,
    params: Params,
    out: Capture,
    deadline: Deadline,
    read_only: bool = False,
    watch: Watch | None = None,
) -> None:
    """Run a script all or nothing; rows and the number of changes go to `out`."""
    if "\0" in script or any("\ud800" <= each <= "\udfff" for each in script):
        raise ToolFailed("the script holds a character that SQL cannot have")
    statements = list(split(script))
    if params and len(statements) != 1:
        raise ToolFailed(
            f"params are for a script of one statement, and this one has {len(statements)}"
        )
    for path in (database, f"{database}-wal", f"{database}-shm", f"{database}-journal"):
        _require_own_file(path, missing_ok=path != database)
    with (
        watch or _Unwatched() as watched,
        closing(_connect(database, deadline, read_only)) as connection,
    ):
        _Script(connection, out, deadline, read_only, watched).run(statements, params)


def split(script: str) -> Iterator[str]:
    """The script's statements; a trigger with its body is one."""
    start = 0
    for token in _TOKEN.finditer(script):
        if token[0] == ";" and sqlite3.complete_statement(script[start : token.end()]):
            if statement := _stripped(script[start : token.start()]):
                yield statement
            start = token.end()
    if rest := _stripped(script[start:]):
        yield rest


def _stripped(text: str) -> str:
    """The text without leading blanks and comments."""
    blank = _BLANK.match(text)
    return text[blank.end() if blank else 0 :].rstrip()


def _words(statement: str) -> list[str]:
    return re.findall(r"\w+", statement[:80].upper())


class _Script:
    """One script on one connection."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        out: Capture,
        deadline: Deadline,
        read_only: bool,
        watch: Watch,
    ) -> None:
        self.connection = connection
        self.out = out
        self.deadline = deadline
        self.read_only = read_only
        self.watch = watch
        self.refused = ""
        """What the authorizer said no to: SQLite's own error does not tell."""
        connection.set_authorizer(self.allow)

    def run(self, statements: list[str], params: Params) -> None:
        own = any(_controls_transaction(each) for each in statements)
        silent = not statements
        try:
            for number, statement in enumerate(statements, 1):
                if not own and not self.connection.in_transaction and not _outside(statement):
                    self.step(0, "BEGIN" if self.read_only else "BEGIN IMMEDIATE")
                    self.watch.began()
                silent |= not self.step(number, statement, params)
            if own and self.connection.in_transaction:
                raise ToolFailed("the script begins a transaction and does not commit it")
            if self.connection.in_transaction:
                self.watch.committing()
                self.step(0, "COMMIT")
                self.watch.committed()
        finally:
            if self.connection.in_transaction:
                self.connection.rollback()
        changed = self.connection.total_changes
        if changed or silent:
            self.out.line(f"{plural(changed, 'row')} changed")

    def step(self, number: int, statement: str, params: Params = None) -> bool:
        """Run one statement; returns whether it gave rows. Number 0 is ours."""
        where = f"statement {number} ({_beginning(statement)})" if number else statement.lower()
        self.refused = _refused_by_name(statement)
        try:
            if self.refused:
                raise sqlite3.DatabaseError(self.refused)
            with closing(self.connection.execute(statement, params or ())) as cursor:
                return self.show(cursor)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            self.raise_if_stopped(error)
            raise ToolFailed(f"{where}: {self.refused or error}") from error

    def raise_if_stopped(self, error: Exception) -> None:
        if str(error) != "interrupted":
            return
        if self.deadline.passed():
            raise OutOfTime from error
        # Only Ctrl-C remains: raised in the progress handler, where sqlite3 swallows it.
        raise KeyboardInterrupt from error

    def show(self, cursor: sqlite3.Cursor) -> bool:
        if cursor.description is None:
            return False
        self.out.line("\t".join(_cell(column[0]) for column in cursor.description))
        for row in cursor:
            self.deadline.check()
            self.out.line("\t".join(_cell(value) for value in row))
        return True

    def allow(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """SQLite asks before it compiles each part of a statement."""
        no = ""
        # A plain VACUUM attaches a nameless temporary file; VACUUM INTO attaches its target.
        if action == sqlite3.SQLITE_ATTACH and first != "":
            no = "ATTACH and VACUUM INTO are"
        elif action == sqlite3.SQLITE_PRAGMA and second is not None:
            no = _refused_pragma((first or "").lower(), second.lower(), self.read_only)
        elif action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS:
            no = f"{second} is"
        if not no:
            return sqlite3.SQLITE_OK
        self.refused = f"{no} not allowed: a step's SQL stays in its own database"
        return sqlite3.SQLITE_DENY


def _connect(database: str, deadline: Deadline, read_only: bool) -> sqlite3.Connection:
    left = deadline.left()
    busy = BUSY_SECONDS if left is None else min(BUSY_SECONDS, left)
    uri = f"file:{quote(os.fsencode(database))}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=busy, isolation_level=None)
    connection.text_factory = _decoded
    connection.execute("PRAGMA trusted_schema=OFF")
    # Not mode=ro: a read-only connection leaves the side files of a WAL behind.
    connection.execute(f"PRAGMA query_only={int(read_only)}")
    connection.set_progress_handler(lambda: int(deadline.passed()), OPCODES_PER_CHECK)
    return connection


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _require_own_file(path: str, missing_ok: bool) -> None:
    """Refuse links, hard and symbolic: SQLite writes through them to files that are not ours."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        if missing_ok:
            return
        raise ToolFailed(f"no such database: {show_path(os.fsencode(path))}") from None
    if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
        raise ToolFailed(
            f"{show_path(os.fsencode(path))} is a link or not a file, and is not opened"
        )


def _controls_transaction(statement: str) -> bool:
    words = _words(statement)
    return words[:1] in (["BEGIN"], ["COMMIT"], ["END"]) or (
        words[:1] == ["ROLLBACK"] and "TO" not in words[1:3]
    )


def _outside(statement: str) -> bool:
    """Whether it does nothing, or only fails, inside a transaction."""
    return _words(statement)[:1] in (["PRAGMA"], ["VACUUM"])


def _refused_by_name(statement: str) -> str:
    first = "".join(_words(statement)[:1])
    if first not in ("ATTACH", "DETACH"):
        return ""
    return f"{first} is not allowed: a step's SQL stays in its own database"


def _refused_pragma(name: str, value: str, read_only: bool) -> str:
    never = ("temp_store_directory", "data_store_directory", "trusted_schema", "query_only")
    journal = name == "journal_mode" and (read_only or value not in _JOURNALS)
    return f"PRAGMA {name}={value} is" if journal or name in never else ""


def _beginning(statement: str) -> str:
    line = " ".join(statement[:200].split())
    return line if len(line) <= 40 else f"{line[:37]}..."


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        small = len(value) <= LONGEST_BLOB
        return f"x'{value.hex()}'" if small else f"<blob of {len(value)} bytes>"
    text = str(value).replace("\\", "\\\\").replace("\t", "\\t")
    return text.replace("\n", "\\n").replace("\r", "\\r")
