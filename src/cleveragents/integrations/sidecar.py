"""The process beside an agent's session: it runs the change trackers and answers on a socket.

It is never needed for correctness: everything is in the store, and a hook without a sidecar handles
the event itself. One thread works through events in order; each connection has a thread that waits
as long as the agent may be kept waiting. An event whose hook gave up is in a file (`client.keep`)
until it is recorded: here, or by the next command.
"""

import fcntl
import os
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

from cleveragents.content import fsio
from cleveragents.errors import AgentsError, MachineError, PlanBusy
from cleveragents.integrations import client
from cleveragents.integrations.events import Answer
from cleveragents.integrations.hook import (
    Hooked,
    answer_of,
    events_of,
    folder_of,
    observing,
    payload_in,
)
from cleveragents.integrations.observer import Observer
from cleveragents.lease import start_time
from cleveragents.machine import FULL
from cleveragents.maintenance.sidecars import EVENT
from cleveragents.model.settings import Settings

IDLE = 1800.0
"""Seconds without an event after which it ends; the next event starts another."""
UNHEARD = 15.0
"""The same while it knows no agent: garbage, or a hook whose agent is gone, may have started it."""
LOOK = 0.5
"""Seconds between two looks at the agent's process and at what the trackers were told."""
REMEMBERED = 1000
"""Events that are known by name, in case their hooks wrote them down while they were noted."""
Opened = Callable[[], AbstractContextManager[Observer]]


class Job:
    """One queued event; `late` if its hook did not wait for the answer."""

    def __init__(self, hooked: Hooked, pid: int, age: float | None = None) -> None:
        self.hooked = hooked
        self.pid = pid
        self.came: float = time.monotonic() - max(age or 0.0, 0.0)
        self.late: bool = age is not None
        self.again = False
        """What kept it from being noted passes: if its hook wrote it down, it is tried again."""
        self.done: threading.Event = threading.Event()
        self.answer: Answer = Answer()
        self.error = ""
        """Why it was not noted."""


class Sidecar:
    """Serves one socket until the agent is gone; `opened` opens the worker's observer."""

    def __init__(
        self, folder: str, name: str, opened: Opened, budget: float, stays: bool = False
    ) -> None:
        self._folder = folder
        self._stays = stays
        """Until `end` is called, whatever becomes of sessions."""
        self.heard: bool = False
        """Whether an event came."""
        self._name = name
        self._opened = opened
        self._budget = budget
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._agent: tuple[int, str] | None = None
        self._last = time.monotonic()
        self._ended = threading.Event()
        self._talking: list[threading.Thread] = []
        self._known: dict[str, Job] = {}
        """By the name that the hook gave the event, so that none is noted twice."""
        self._guard = threading.Lock()
        self._lock: int | None = None
        self._line: socket.socket | None = None

    def listen(self) -> bool:
        """Bind the socket; False if another sidecar has it."""
        fsio.make_private_dir(self._folder)
        fsio.require_own(self._folder, hint="remove it, or choose another CLEVERAGENTS_HOME")
        os.chmod(self._folder, 0o700)
        if not self._take_lock():
            return False
        path = f"{self._folder}/{self._name}"
        # Only under the lock: an existing socket belongs to a killed sidecar.
        with suppress(FileNotFoundError):
            os.unlink(path)
        at = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        line = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            line.bind(f"/proc/self/fd/{at}/{self._name}")
        finally:
            os.umask(before)
            os.close(at)
        line.listen(64)
        self._line = line
        return True

    def record_left_events(self) -> None:
        """Record events left in files, answering nobody; a living sidecar would do it itself."""
        if self._take_lock():
            try:
                with self._opened() as observer:
                    self._record_left_events(observer)
            finally:
                self._remove()

    def _take_lock(self) -> bool:
        self._lock = locked(f"{self._folder}/{self._name}.lock")
        return self._lock is not None

    def serve(self) -> None:
        """Serve until the agent's process or session ends, or there was no event for long."""
        worker = threading.Thread(target=self._work, daemon=True)
        worker.start()
        try:
            while not self._ended.is_set() and worker.is_alive() and not self._is_over():
                self._accept()
        finally:
            self._remove()
            # Connections made before the socket was removed are answered.
            for thread in self._talking:
                thread.join()
            self._jobs.put(None)
            worker.join()

    def end(self) -> None:
        self._ended.set()

    def _accept(self) -> None:
        assert self._line is not None
        if select.select([self._line], [], [], LOOK)[0]:
            found, _ = self._line.accept()
            self._talking = [one for one in self._talking if one.is_alive()]
            self._talking.append(threading.Thread(target=self._talk, args=(found,), daemon=True))
            self._talking[-1].start()

    def _is_over(self) -> bool:
        if self._stays:
            return False
        if time.monotonic() - self._last > (IDLE if self._agent else UNHEARD):
            return True
        return self._is_alone()

    def _is_alone(self) -> bool:
        """Whether there was an agent, and it is gone."""
        return self._agent is not None and start_time(self._agent[0]) != self._agent[1]

    def _remove(self) -> None:
        # Remove the socket before the lock: the lock's next holder must not find it.
        for name in (self._name, f"{self._name}.lock"):
            with suppress(OSError):
                os.unlink(f"{self._folder}/{name}")
        if self._line is not None:
            self._line.close()
        if self._lock is not None:
            os.close(self._lock)

    def _talk(self, line: socket.socket) -> None:
        with line, suppress(OSError):
            pid, uid, _ = struct.unpack(
                "3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            if uid != os.getuid():
                return
            head, _, payload = _all_of(line).partition(b"\n")
            agent, event, own, *_ = (*head.decode("utf-8", "replace").split("\t"), "", "")
            line.sendall(self.told(agent, event, payload, client.agent_process(pid), own))

    def told(self, agent: str, event: str, payload: bytes, pid: int, own: str = "") -> bytes:
        """The answer to one event, or word that it takes longer than the agent can wait."""
        try:
            hooked = Hooked(agent, event, payload_in(payload))
            events = events_of(hooked)
        except AgentsError as error:
            return f"failed {error.message}\n".encode()
        if not events:
            return b"ok\n"
        job, is_new = self._job(own, Job(hooked, pid))
        if is_new:
            self._jobs.put(job)
        if not job.done.wait(self._budget):
            job.late = True
            return client.LATE + b"\n"
        word = f"failed {' '.join(job.error.split())}" if job.error else "ok"
        return f"{word}\n{answer_of(hooked, job.answer)}".encode("utf-8", "replace")

    def _job(self, own: str, made: Job) -> tuple[Job, bool]:
        """The event's job, and whether it is new: a hook that gave up may have sent it before."""
        with self._guard:
            if own in self._known and not self._known[own].again:
                return self._known[own], False
            if own:
                self._known[own] = made
            while len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
        self._last, self.heard = time.monotonic(), True
        if made.pid and self._agent is None and (started := start_time(made.pid)):
            self._agent = made.pid, started
        return made, True

    def _work(self) -> None:
        with self._opened() as observer:
            while (job := self._next(observer)) is not None:
                # Earlier events that were not recorded yet come first.
                self._record_left_events(observer)
                if not job.done.is_set() and self._do(observer, job):
                    self._ended.set()
            # Without the lock, unknown files are another sidecar's.
            self._record_left_events(observer, new=self._stays)
            if self._stays or self._is_alone():
                observer.end_all()

    def _next(self, observer: Observer) -> Job | None:
        while True:
            try:
                return self._jobs.get(timeout=LOOK)
            except queue.Empty:
                self._record_left_events(observer)
                observer.drain()

    def _record_left_events(self, observer: Observer, new: bool = True) -> None:
        """Record events left in files, in order, and remove the files."""
        for path in kept(self._folder, self._name):
            own = path.removesuffix(EVENT).rpartition(".")[2]
            job = self._known.get(own)
            if (job is None or job.again) and not new:
                continue
            if job is None or job.again:
                made = read(path)
                job = None if made is None else self._job(own, made)[0]
            try:
                if job is not None and not job.done.is_set() and self._do(observer, job):
                    self._ended.set()
            finally:
                if job is None or not job.again:
                    with suppress(OSError):
                        os.unlink(path)
            if job is not None and job.again:
                return  # later ones wait for it

    def _do(self, observer: Observer, job: Job) -> bool:
        """Handle it; True if the session is over."""
        try:
            said = [
                observer.handle(event, pid=job.pid, late=lambda: self._lateness(job))
                for event in events_of(job.hooked)
            ]
            job.answer = next((one for one in said if one != Answer()), Answer())
        except AgentsError as error:
            job.answer, job.error = Answer(notice=_shown(error)), error.message
            job.again = isinstance(error, PlanBusy | MachineError)
        except Exception as error:
            job.error = f"{type(error).__name__}: {error}"
            job.again = isinstance(error, OSError) and error.errno in FULL
            raise  # this process may hold wrong state: it ends, and another takes over
        finally:
            self._agent = self._agent or observer.agent
            self._last = time.monotonic()
            job.hooked = job.hooked._replace(payload={})  # it may be large, and is not needed
            job.done.set()
        return observer.is_over and not self._stays

    def _lateness(self, job: Job) -> str:
        took = time.monotonic() - job.came
        return f"{took:.1f} s after the event" if job.late or took > self._budget else ""


def locked(path: str) -> int | None:
    """A descriptor with the lock; None if another process has it."""
    while True:
        if os.path.islink(path):
            os.unlink(path)  # a link left by somebody would create a file elsewhere
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before may have removed the file: a lock on that would exclude nobody.
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        except FileNotFoundError:
            pass
        except OSError:
            os.close(lock)
            return None
        os.close(lock)


def _shown(error: AgentsError) -> str:
    return f"cleveragents: {error.message}" + (f" ({error.hint})" if error.hint else "")


def _all_of(line: socket.socket) -> bytes:
    parts: list[bytes] = []
    line.settimeout(30)
    while part := line.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


def kept(folder: str, name: str) -> list[str]:
    """Files with events for the sidecar of this socket, oldest first."""
    own = name.removesuffix("sock")
    try:
        found = os.listdir(folder)
    except OSError:
        return []
    return sorted(f"{folder}/{one}" for one in found if one.startswith(own) and one.endswith(EVENT))


def read(path: str) -> Job | None:
    """The event in such a file; None if there is no valid one."""
    with suppress(OSError, ValueError, AgentsError):
        came = int(path.rpartition("-")[0].rpartition(".")[2])  # see `client.ask_or_start`
        there = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(there, "rb") as file:
            head, _, payload = file.read(client.LARGEST + (1 << 16)).partition(b"\n")
        age = (time.monotonic_ns() - came) / 1e9
        agent, event, pid, started = head.decode("utf-8", "replace").split("\t")
        hooked = Hooked(agent, event, payload_in(payload))
        if events_of(hooked):
            return Job(hooked, int(pid) if start_time(int(pid)) == started else 0, age)
    return None


def record_left_sessions(settings: Settings) -> None:
    """Record events that hooks left in files and no living sidecar will record."""
    folder = folder_of(settings)
    names = {name.partition(".")[0] for name in os.listdir(folder) if name.endswith(EVENT)}
    for name in sorted(names):
        opened = partial(observing, settings, wait=0.0)
        Sidecar(folder, f"{name}.sock", opened, settings.hook_budget).record_left_events()


def handle_alone(observer: Observer, hooked: Hooked, pid: int) -> tuple[Any, str]:
    """Handle an event in this process, without a sidecar; returns the output and the error."""
    try:
        said = [observer.handle(event, pid=pid) for event in events_of(hooked)]
        return next((one for one in said if one != Answer()), Answer()), ""
    except AgentsError as error:
        return Answer(notice=_shown(error)), error.message
    finally:
        observer.close()
