"""A commit that the server has done and nobody was told of: what the plan does next is right."""

import os
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

from cleveragents.errors import MachineError
from cleveragents.model.plan import State
from cleveragents.store.pipe import Pipe
from cleveragents.workspace import open_workspace
from tests.in_process import Yard, box

PLAN = """\
name: NAME
resources: {app: {kind: fs-directory, path: app}}
steps:
  - {id: one, run: "echo 1 >> log"}
  - {id: two, run: "echo 2 >> log"}
  - {id: three, run: "echo 3 >> log"}
"""
STRIDE = 1 if "CLEVERAGENTS_TEST_FULL" in os.environ else 3


class Line:
    """The way to the server, cut behind a commit of this process before its answer comes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException]) -> None:
        self.left = 0
        """Commits until then; the last one is 1."""
        send, end = Pipe.send, Pipe.end
        committing: set[Pipe] = set()

        def sent(pipe: Pipe, sql: bytes, *given: object) -> object:
            if sql == b"COMMIT":
                committing.add(pipe)
            return send(pipe, sql, *given)  # pyright: ignore[reportArgumentType]

        def ended(pipe: Pipe) -> None:
            end(pipe)
            if pipe in committing:
                committing.discard(pipe)
                self.left -= 1
                if self.left == 0:
                    pipe._connection.close()  # pyright: ignore[reportPrivateUsage]
                    raise error()

        monkeypatch.setattr(Pipe, "send", sent)
        monkeypatch.setattr(Pipe, "end", ended)


@pytest.mark.usefixtures("on_postgres")
@pytest.mark.parametrize(
    ("error", "said"),
    [(lambda: psycopg.OperationalError("cut"), MachineError), (KeyboardInterrupt,) * 2],
    ids=["cut", "Ctrl-C"],
)
def test_whatever_commit_was_not_answered_the_plan_ends_as_without_that(
    yard: Yard,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[], BaseException],
    said: type[BaseException],
) -> None:
    line = Line(monkeypatch, error)
    number, is_cut = 2, True
    while is_cut:
        file = yard.plan(PLAN.replace("NAME", f"shop{number}"))
        line.left = number
        with open_workspace() as ws:
            with suppress(said):
                ws.run(file)
            is_cut, line.left = line.left <= 0, 0
            with open_workspace() as again:  # in the process that lives on
                plan = again.find(f"shop{number}")
                plan.resume()
                assert plan.plan.state is State.COMPLETE
                assert (box(plan) / "log").read_text() == "1\n2\n3\n", number
                assert "external_edit" not in {g.checkpoint_type for g in plan.checkpoints()}
                assert again.check().problems == (), number
        number += STRIDE
    assert number > 20
