"""Runs the command that a page shows, as a process of its own.

So checks, questions and recovery are those of the command line, a change never blocks the server,
and work started from the page continues when the page is closed.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cleveragents.model.settings import Settings

PATIENCE = 300.0
"""Seconds that a browser waits for a command that runs no steps."""
PAUSE = 0.03
INTERRUPTED = 130
"""The exit code of a command that was stopped as Ctrl-C does."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A command's result, in its own words."""

    ok: bool
    interrupted: bool = False
    """Whether somebody stopped it."""
    message: str = ""
    hint: str = ""
    messages: tuple[str, ...] = ()
    data: dict[str, Any] = {}


class Job:
    """One command started here."""

    def __init__(self, argv: Sequence[str], settings: Settings, overrides: dict[str, str]) -> None:
        self.argv: tuple[str, ...] = tuple(argv)
        # Read after the command has ended, perhaps when nobody waits any more.
        self._out = tempfile.TemporaryFile()  # noqa: SIM115
        env = {**os.environ, "CLEVERAGENTS_HOME": settings.home}
        more = [word for item in overrides.items() for word in ("--set", "=".join(item))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cleveragents", *argv, "--json", *more],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.DEVNULL,
            env=env,
            # Ctrl-C in the page's terminal ends the page alone.
            start_new_session=True,
        )
        self._outcome: Outcome | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def shown(self) -> str:
        return shlex.join(["agents", *self.argv])

    def wait(self, seconds: float) -> None:
        """Until it has ended; after that long it is ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.ended()

    def ended(self) -> Outcome | None:
        """How it ended; None as long as it runs."""
        if self._outcome is None and self._process.poll() is not None:
            self._outcome = _read(self._out, self._process.returncode)
            self._out.close()
        return self._outcome


def _read(out: Any, code: int) -> Outcome:
    out.seek(0)
    try:
        envelope = json.loads(out.read())
    except ValueError:
        return Outcome(ok=False, message=f"the command ended with {code} and said nothing")
    data = envelope["data"]
    error: dict[str, Any] = data.get("error") or {}
    return Outcome(
        ok=envelope["exit_code"] == 0,
        interrupted=envelope["exit_code"] == INTERRUPTED,
        message=error.get("message", ""),
        hint=error.get("hint", ""),
        messages=tuple(envelope["messages"]),
        data=data,
    )


class Commands:
    """The commands of this server: at most one for a plan at a time is waited for."""

    def __init__(self, settings: Settings, overrides: dict[str, str] | None = None) -> None:
        self._settings = settings
        self._overrides = overrides or {}
        self._jobs: dict[str, Job] = {}
        self._earlier: list[Job] = []
        """Those that ran on when another was begun for their plan."""

    def run(
        self, plan_id: str, argv: Sequence[str], until: Callable[[], bool] = lambda: False
    ) -> Outcome | None:
        """Start it and wait until it has ended, or until `until` says it is working (None)."""
        job = Job(argv, self._settings, self._overrides)
        if plan_id in self._jobs:
            self._earlier.append(self._jobs[plan_id])
        self._earlier = [one for one in self._earlier if one.ended() is None]
        self._jobs[plan_id] = job
        limit = time.monotonic() + PATIENCE
        while (outcome := job.ended()) is None and time.monotonic() < limit and not until():
            time.sleep(PAUSE)
        return outcome

    def running(self) -> list[Job]:
        """The commands still running, which continue."""
        jobs = [*self._earlier, *self._jobs.values()]
        return [job for job in jobs if job.ended() is None]

    def of(self, plan_id: str) -> Job | None:
        return self._jobs.get(plan_id)
