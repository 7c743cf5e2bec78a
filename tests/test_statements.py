"""How much a plan asks of its database: statements and journeys, counted and not timed."""

import select
import socket
import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.lease import working_on
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.store import open_store
from cleveragents.workspace import open_workspace
from tests.databases import query_shared
from tests.in_process import Yard

STEPS = 10
PLAN = "steps:\n" + "".join(
    f"  - {{id: s{n}, tool: file.write, on: app, with: {{path: f{n}, content: '{n}'}}}}\n"
    for n in range(STEPS)
)
MOST = 520
"""Statements of a plan of ten steps; it were 660 before they were counted."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What SQLite is asked from now on."""
    found: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made = connect(*arguments, **options)
        made.set_trace_callback(found.append)
        return made

    monkeypatch.setattr(sqlite3, "connect", traced)
    return found


def groups_in(asked: list[str]) -> list[list[str]]:
    """The statements of each commit that made a group, without BEGIN and COMMIT.

    Several rows of one table that are sent together count once.
    """
    commits: list[list[str]] = []
    is_open = False
    for text in asked:
        if text.startswith(("BEGIN", "COMMIT")):
            is_open = text.startswith("BEGIN")
            commits += [[]] if is_open else []
        elif is_open:
            kind = text[:40] if text.startswith("INSERT") else text
            if kind not in commits[-1]:
                commits[-1].append(kind)
    return [one for one in commits if any('INTO "checkpoint_groups"' in text for text in one)]


def test_a_plan_asks_no_more_than_it_needs(yard: Yard, asked: list[str]) -> None:
    with open_workspace() as ws:
        plan = yard.use(ws, PLAN)
        del asked[:]
        plan.execute()
        found = list(asked)
    made = groups_in(found)
    # The first group of a lease asks twice more: how many groups and children there are.
    assert len(made) == 2 * STEPS + 1
    for one in made[1:]:
        assert len(one) <= 10, one
    assert len(found) <= MOST


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What PostgreSQL is asked from now on."""
    import psycopg

    from cleveragents.store import pipe

    found: list[str] = []
    execute, send = psycopg.Connection.execute, pipe.Pipe.send

    def traced(self: Any, query: bytes, *rest: Any, **options: Any) -> Any:
        found.append(query.decode())
        return execute(self, query, *rest, **options)

    def sending(self: Any, query: bytes, *rest: Any) -> Any:
        found.append(query.decode())
        return send(self, query, *rest)

    monkeypatch.setattr(pipe.Pipe, "send", sending)
    monkeypatch.setattr(psycopg.Connection, "execute", traced)
    return found


@pytest.mark.usefixtures("on_postgres")
def test_a_shared_store_is_asked_as_little(yard: Yard, sent: list[str]) -> None:
    with open_workspace() as ws:
        plan = yard.use(ws, PLAN)
        del sent[:]
        plan.execute()
        found = list(sent)
    made = groups_in(found)
    assert len(made) == 2 * STEPS + 1
    for one in made[1:]:
        assert len(one) <= 6, one  # and BEGIN and COMMIT


def test_what_goes_to_the_bucket_is_asked_for_in_one_go(
    yard: Yard, on_postgres: str, sent: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"file://{tmp_path}/bucket")
    with open_workspace() as ws:
        plan = yard.use(ws, PLAN)
        plan.execute()
        ws.ctx.checkpoints.wait_until_uploaded(plan.plan_id)
        assert ws.ctx.store.segments.pending(plan.plan_id) == []
    looks = [text for text in sent if "m.resource_id, c.root_key" in text]
    marks = [text for text in sent if "INTO groups_there" in text]
    assert 1 <= len(marks) <= 2 * STEPS + 1
    assert len(looks) <= 2 * STEPS + 3, "once for each group, and to see that nothing is left"
    assert not any("SET LOCAL" in text for text in sent)
    for once in ("SELECT parent_plan_id", "FROM segments WHERE root_plan_id"):
        assert len([text for text in sent if once in text]) <= 4, once


@pytest.mark.usefixtures("on_postgres")
def test_a_lease_that_was_checked_with_the_plans_version_stays_until_the_commit(
    yard: Yard, on_postgres: str
) -> None:
    asked = "SELECT 1 FROM leases FOR UPDATE NOWAIT"
    with open_workspace() as ws:
        plan = yard.done(ws)
        with working_on(ws.ctx.store, plan.plan_id, "test", ws.ctx.now) as leased:
            with leased.transaction(by_write=True):
                leased.write()
                assert ws.ctx.store.plans.get(plan.plan_id) == leased.plan, "sent, and answered"
                with pytest.raises(Exception, match="could not obtain lock"):
                    query_shared(on_postgres, asked)
            assert query_shared(on_postgres, asked) == [(1,)]


class Journeys:
    """A server in front of another that counts how often the client waited for an answer."""

    def __init__(self, host: str, port: int) -> None:
        self.count = 0
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        waits = False
        with client, socket.create_connection(self._target) as server:
            while True:
                for one in select.select([client, server], [], [])[0]:
                    data = one.recv(1 << 20)
                    if not data:
                        return
                    if one is client:
                        self.count += not waits
                        waits = True
                        server.sendall(data)
                    else:
                        waits = False
                        client.sendall(data)

    def close(self) -> None:
        self._listener.close()


@contextmanager
def counting(url: str) -> Generator[tuple[Journeys, str]]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    between = Journeys(parts.hostname, parts.port)
    try:
        yield between, url.replace(f":{parts.port}/", f":{between.port}/")
    finally:
        between.close()


def test_a_group_is_one_journey_to_the_server(
    yard: Yard, on_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counting(on_postgres) as (journeys, url):
        monkeypatch.setenv("CLEVERAGENTS_STORE_URL", url)
        with open_workspace() as ws:
            plan = yard.done(ws)
            with working_on(ws.ctx.store, plan.plan_id, "test", ws.ctx.now) as leased:
                request = CheckpointRequest(force=True)
                took: list[int] = []
                for number in range(4):
                    # Every other group has content of its own, which is this machine's.
                    if number % 2:
                        (Path(plan.sandboxes["app"]) / "more.txt").write_text(f"{number}\n")
                    before = journeys.count
                    ws.ctx.checkpoints.create_checkpoint(CheckpointType.MANUAL, leased, request)
                    took.append(journeys.count - before)
            # The first one asks how many groups and children there are.
            assert took[1:] == [1, 1, 1]


def test_a_group_that_takes_the_place_of_another_is_two_journeys(
    yard: Yard, on_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counting(on_postgres) as (journeys, url):
        monkeypatch.setenv("CLEVERAGENTS_STORE_URL", url)
        monkeypatch.setenv("CLEVERAGENTS_CHECKPOINT_MAX_CHECKPOINTS_PER_PLAN", "5")
        with open_workspace() as ws:
            plan = yard.done(ws)
            with working_on(ws.ctx.store, plan.plan_id, "test", ws.ctx.now) as leased:
                request, took = CheckpointRequest(force=True), list[int]()
                for _ in range(9):
                    before = journeys.count
                    ws.ctx.checkpoints.create_checkpoint(CheckpointType.MANUAL, leased, request)
                    took.append(journeys.count - before)
            assert len(ws.ctx.store.checkpoints.groups(plan.plan_id)) <= 6  # one more is spared
            # What retention wants to know is asked at once; the first time one after the other.
            assert took[-3:] == [2, 2, 2], took


def test_a_shared_store_is_opened_with_one_question(
    on_postgres: str, sent: list[str], tmp_path: Path
) -> None:
    open_store(str(tmp_path / "home"), on_postgres).close()
    setting, *asked = sent
    assert setting == "SET search_path = cleveragents"  # on its way before, and not waited for
    assert len(asked) == 1, asked
