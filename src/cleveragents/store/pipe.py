"""Pipelines the statements of a transaction to PostgreSQL: all sent, none waited for.

Uses libpq's pipeline directly. With a cursor for each statement and a check of the socket after
each, a group's five statements took three times the processor time.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from psycopg import OperationalError, pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import Error, error_from_result
from psycopg.generators import fetch_many, send
from psycopg.types.string import StrDumperUnknown, TextLoader

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.pq.abc import PGresult

OFTEN = 2
"""Times after which the server keeps how it understood a statement, for this connection."""
KEPT = 100
"""Statements that it keeps at most."""


_ESCAPE = "\U0010ffff"
"""PostgreSQL has no NUL in text, and tools print it: this and 0 stand for it; and 1: for this."""


def written(text: str) -> str:
    """Encode NUL in text; `read` decodes it."""
    if "\0" not in text and _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE, f"{_ESCAPE}1").replace("\0", f"{_ESCAPE}0")


def read(text: str) -> str:
    if _ESCAPE not in text:
        return text
    return text.replace(f"{_ESCAPE}0", "\0").replace(f"{_ESCAPE}1", _ESCAPE)


def pass_nul(connection: "Connection[Any]") -> None:
    """Let the connection accept text with NUL."""

    class Dumper(StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            return super().dump(written(obj))

    class Loader(TextLoader):
        def load(self, data: Any) -> Any:
            return read(str(super().load(data)))

    connection.adapters.register_dumper(str, Dumper)
    connection.adapters.register_loader("text", Loader)


class Answer:
    """The result of a statement; reading it waits for the server."""

    def __init__(self, pipe: "Pipe") -> None:
        self._pipe = pipe
        self.result: PGresult | None = None
        self._rows: Iterator[tuple[Any, ...]] | None = None

    def _found(self) -> "PGresult":
        if self.result is None:
            self._pipe.wait_for(self)
        assert self.result is not None
        return self.result

    @property
    def rowcount(self) -> int:
        found = self._found()
        return found.ntuples if found.nfields else found.command_tuples or 0

    @property
    def description(self) -> list[tuple[str]]:
        """The names of the columns."""
        found = self._found()
        names = (found.fname(number) or b"" for number in range(found.nfields))
        return [(name.decode(),) for name in names]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self._rows is None:
            self._rows = iter(self._pipe.rows_of(self._found()))
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(iter(self), None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self)


class Pipe:
    """The pipeline of one connection, open from the first statement until `end`."""

    def __init__(self, connection: "Connection[Any]", settings: Sequence[str] = ()) -> None:
        """`settings`: statements before all others, on their way with the first of these."""
        self._connection = connection
        self._server = connection.pgconn
        self._values = Transformer.from_context(connection)
        self._asked: deque[Answer] = deque()
        """Sent, and not answered yet, oldest first."""
        self._failed: Error | None = None
        """What ended the transaction: the server skips all that comes after it."""
        self._times: Counter[tuple[Any, ...]] = Counter()
        self._names: dict[tuple[Any, ...], bytes] = {}
        self._count = 0
        for sql in settings:
            self.send(sql.encode())
            self._sync()

    @property
    def _is_open(self) -> bool:
        return self._server.pipeline_status != pq.PipelineStatus.OFF

    def send(self, sql: bytes, given: Sequence[Any] = ()) -> Answer:
        """Send a statement; its result, or its error, comes later."""
        if not self._is_open:
            self._server.enter_pipeline_mode()
        values = self._values.dump_sequence(given, [PyFormat.AUTO] * len(given))
        types, formats = self._values.types, self._values.formats
        name = self._name_of(sql, types)
        if name:
            self._server.send_query_prepared(name, values, formats)
        else:
            self._server.send_query_params(sql, values, types, formats)
        return self._awaited()

    def _awaited(self) -> Answer:
        answer = Answer(self)
        self._asked.append(answer)
        return answer

    def _name_of(self, sql: bytes, types: tuple[int, ...] | None) -> bytes:
        """The statement's name on the server; empty if it is not prepared there."""
        key = sql, types
        if key in self._names:
            return self._names[key]
        self._times[key] += 1
        if self._times[key] <= OFTEN or len(self._names) >= KEPT:
            return b""
        self._count += 1
        name = b"agents_%d" % self._count
        self._server.send_prepare(name, sql, types)
        self._awaited()
        self._names[key] = name
        return name

    def _sync(self) -> None:
        """What was sent since the last one is done, all or nothing."""
        self._server.pipeline_sync()
        self._awaited()

    def forget(self) -> None:
        """Forget prepared statements, which the server may not have."""
        self._names.clear()

    def hurry(self) -> None:
        """Flush, so that the server can begin."""
        if self._is_open:
            self._server.flush()

    def wait_for(self, answer: Answer) -> None:
        if self._asked:
            self._server.send_flush_request()
            self._connection.wait(send(self._server))
        while answer.result is None:
            if not self._asked:
                raise OperationalError("the transaction of that question is over")
            self._receive()

    def _receive(self) -> None:
        """The next answer; raises the server's error for this statement or an earlier one."""
        found = self._connection.wait(fetch_many(self._server))
        if not found:
            raise OperationalError("the server has sent no answer")
        answer, result = self._asked.popleft(), found[-1]
        if result.status == pq.ExecStatus.FATAL_ERROR:
            self._failed = error_from_result(result)
        if result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_ABORTED):
            assert self._failed is not None
            raise self._failed
        answer.result = result

    def rows_of(self, result: "PGresult") -> list[tuple[Any, ...]]:
        self._values.set_pgresult(result)
        return self._values.load_rows(0, result.ntuples, tuple)

    def end(self) -> None:
        """Wait for all answers and raise errors; then the connection is free for others."""
        if not self._is_open:
            return
        try:
            self._sync()
            self._connection.wait(send(self._server))
            while self._asked:
                try:
                    self._receive()
                except Error as error:
                    if error is not self._failed:  # the outcome on the server is unknown
                        raise self._failed or error from None
            self._server.exit_pipeline_mode()
        except BaseException:
            self._connection.close()  # pending answers would be taken for later ones
            raise
        finally:
            self._asked.clear()
            failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
