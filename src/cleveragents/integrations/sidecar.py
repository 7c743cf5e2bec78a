"""The process beside an agent's session: it keeps the change trackers and answers on a socket.

It is never needed for correctness: everything is in the store, and whoever finds no sidecar handles
the event alone. One thread works, in the order in which events come; each connection has a thread
that waits for it as long as the agent may be kept waiting.
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
from typing import Any

from cleveragents.content import fsio
from cleveragents.errors import AgentsError
from cleveragents.integrations.events import Answer
from cleveragents.integrations.hook import Hooked, answer_of, events_of, payload_in
from cleveragents.integrations.observer import Observer
from cleveragents.lease import start_time

IDLE = 1800.0
"""Seconds without an event after which it ends; the next event starts another."""
UNHEARD = 15.0
"""The same while it knows no agent: garbage, or a hook whose agent is gone, may have started it."""
LOOK = 0.5
"""Seconds between two looks at the agent's process and at what the trackers were told."""
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "fish", "ash"})
ADOPTS = frozenset({"systemd", "init"})
"""Who becomes the parent of a hook whose agent was killed."""
Opened = Callable[[], AbstractContextManager[Observer]]


class Job:
    """One event on its way; `late` when the agent was not kept waiting for it."""

    def __init__(self, hooked: Hooked, pid: int) -> None:
        self.hooked = hooked
        self.pid = pid
        self.came: float = time.monotonic()
        self.late = False
        self.done: threading.Event = threading.Event()
        self.answer: Answer = Answer()
        self.error = ""
        """Why it was not noted."""


class Sidecar:
    """Serves one socket until the agent is gone; `opened` gives the worker its observer."""

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
        self._lock: int | None = None
        self._line: socket.socket | None = None

    def listen(self) -> bool:
        """Take the socket's name; False if another sidecar has it."""
        fsio.make_private_dir(self._folder)
        fsio.require_own(self._folder, hint="remove it, or choose another CLEVERAGENTS_HOME")
        os.chmod(self._folder, 0o700)
        self._lock = locked(f"{self._folder}/{self._name}.lock")
        if self._lock is None:
            return False
        path = f"{self._folder}/{self._name}"
        # Only under the lock: a socket that is there is of one that was killed.
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

    def serve(self) -> None:
        """Until the agent's process or session ends, or nothing came for long."""
        worker = threading.Thread(target=self._work, daemon=True)
        worker.start()
        try:
            while not self._ended.is_set() and worker.is_alive() and not self._is_over():
                self._accept()
        finally:
            self._remove()
            # Whoever got through before the name went is answered.
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
        """Whether there was an agent and it is gone."""
        return self._agent is not None and start_time(self._agent[0]) != self._agent[1]

    def _remove(self) -> None:
        # The name goes before the lock: whoever gets that next finds no socket of ours.
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
            agent, _, event = head.decode("utf-8", "replace").partition("\t")
            line.sendall(self.told(agent, event, payload, agent_process(pid)))

    def told(self, agent: str, event: str, payload: bytes, pid: int) -> bytes:
        """The answer to one event, or word that it takes longer than the agent may wait."""
        try:
            hooked = Hooked(agent, event, payload_in(payload))
            events = events_of(hooked)
        except AgentsError as error:
            return f"failed {error.message}\n".encode()
        if not events:
            return b"ok\n"
        self._last, self.heard = time.monotonic(), True
        if pid and self._agent is None and (started := start_time(pid)):
            self._agent = pid, started
        job = Job(hooked, pid)
        self._jobs.put(job)
        if not job.done.wait(self._budget):
            job.late = True
            return b"late\n"
        word = f"failed {' '.join(job.error.split())}" if job.error else "ok"
        return f"{word}\n{answer_of(hooked, job.answer)}".encode("utf-8", "replace")

    def _work(self) -> None:
        with self._opened() as observer:
            while (job := self._next(observer)) is not None:
                if self._do(observer, job):
                    self._ended.set()
            if self._stays or self._is_alone():
                observer.end_all()

    def _next(self, observer: Observer) -> Job | None:
        while True:
            try:
                return self._jobs.get(timeout=LOOK)
            except queue.Empty:
                observer.drain()

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
        except Exception as error:
            job.error = f"{type(error).__name__}: {error}"
            raise  # what this process believes may be wrong: it ends, and another begins
        finally:
            self._agent = self._agent or observer.agent
            self._last = time.monotonic()
            job.done.set()
        return observer.is_over and not self._stays

    def _lateness(self, job: Job) -> str:
        took = time.monotonic() - job.came
        return f"{took:.1f} s after the event" if job.late or took > self._budget else ""


def locked(path: str) -> int | None:
    """A descriptor that has the lock; None if somebody else has it."""
    while True:
        if os.path.islink(path):
            os.unlink(path)  # of somebody who could write here once; it would make a file elsewhere
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it may have removed its name: such a lock keeps nobody out.
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


def agent_process(pid: int) -> int:
    """The process that started a hook, which may have done so through a shell; 0: it is gone."""
    while (pid := _parent(pid)) > 1:
        with suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            name = file.read().strip()
            if name not in SHELLS:
                return 0 if name in ADOPTS else pid
    return 0


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def handle_alone(observer: Observer, hooked: Hooked, pid: int) -> tuple[Any, str]:
    """Without a sidecar: the same, in this process; what to print, and what went wrong."""
    try:
        said = [observer.handle(event, pid=pid) for event in events_of(hooked)]
        return next((one for one in said if one != Answer()), Answer()), ""
    except AgentsError as error:
        return Answer(notice=_shown(error)), error.message
    finally:
        observer.close()
