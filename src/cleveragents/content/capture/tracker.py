"""Which names in a tree were touched, as reported by the kernel (inotify).

May report too much, never too little: on an overflow, a lost watch or any doubt `take` returns None
and the tree has to be walked. Writes through `mmap` give no event; but a file mapped for writing is
still open, so an opened file counts as touched until nobody holds it open.
"""

import errno
import fcntl
import os
import signal
import struct
import sys
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from cleveragents.content import fsio
from cleveragents.content.capture.mappings import mapped_by
from cleveragents.content.descent import Descent

_MODIFY, _ATTRIB, _CLOSE_WRITE, _CLOSE_NOWRITE = 0x2, 0x4, 0x8, 0x10
_OPEN, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x20, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_UNMOUNT, _OVERFLOW, _IGNORED = 0x2000, 0x4000, 0x8000
_ONLYDIR, _DONT_FOLLOW, _ISDIR = 0x01000000, 0x02000000, 0x40000000
_TOUCH = (
    _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
)  # fmt: skip
_LONGEST = 4000
"""Bytes of a path that the system takes in one call."""
_MASK = _TOUCH | _OPEN | _CLOSE_NOWRITE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR | _DONT_FOLLOW
_SAYS = _TOUCH | _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _OVERFLOW | _IGNORED
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 18

Dirty = dict[bytes, set[bytes]]
"""Directory -> names in it that were touched."""


def _opened_by(pid: str) -> list[bytes]:
    """Paths a process has open or mapped; none if we may not ask, or it is gone."""
    found: list[bytes] = []
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found
    for number in numbers:
        try:
            found.append(os.readlink(os.fsencode(f"/proc/{pid}/fd/{number}")))
        except OSError:
            continue
    return found + mapped_by(pid)


class Tracker:
    """Watches the directories of one tree."""

    def __init__(self, root: str) -> None:
        self._root = os.fsencode(root)
        self._fd = fsio.libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._paths: dict[int, bytes] = {}
        self._numbers: dict[bytes, int] = {}
        self._dirty: Dirty = {}
        self._open: dict[bytes, int] = {}
        """Path -> how often it was opened, perhaps to map it, and not closed again."""
        self._held: set[bytes] = set()
        """Found open for writing when last asked."""
        self.held_inodes: set[int] = set()
        self._moving: dict[int, bytes] = {}
        self._told = 0
        """Events so far that say that something changed."""
        self._doubt = self._fd < 0

    @staticmethod
    def available() -> bool:
        return sys.platform == "linux"

    @property
    def sure(self) -> bool:
        return not self._doubt

    def watch(self, directories: Iterable[bytes]) -> None:
        """Begin to watch; call it before reading the directories."""
        long: list[bytes] = []
        for path in directories:
            where = self._root + b"/" + path if path else self._root
            if len(where) > _LONGEST:
                long.append(path)
            else:
                self._watch(path, where)
        if long:
            with fsio.directory(self._root) as root, Descent(root) as descent:
                for path in sorted(long):
                    try:
                        where = b"/proc/self/fd/%d/." % descent.to(path)
                    except OSError as error:
                        self._not_watched(error.errno)
                    else:
                        self._watch(path, where)

    def _watch(self, path: bytes, where: bytes) -> None:
        if self._doubt:
            return
        number = fsio.libc().inotify_add_watch(self._fd, where, _MASK)
        if number < 0:
            self._not_watched(fsio.last_errno())
            return
        old = self._paths.get(number)
        if old is not None and old != path and self._numbers.get(old) == number:
            del self._numbers[old]
        self._paths[number] = path
        self._numbers[path] = number

    def _not_watched(self, code: int | None) -> None:
        """A vanished directory has an event at its parent; other failures (limits) end trust."""
        if code not in (errno.ENOENT, errno.ENOTDIR):
            self._doubt = True

    def watch_only(self, directories: Iterable[bytes]) -> None:
        """Start over with these paths, whatever the watches' paths were before."""
        self._paths.clear()
        self._numbers.clear()
        self.watch(directories)

    def look_for_holders(self) -> None:
        """Find files of the tree that were open for writing, or mapped, before we watched."""
        inside = os.path.realpath(self._root) + b"/"
        for pid in os.listdir("/proc"):
            if pid.isdigit():
                for path in _opened_by(pid):
                    name = path[len(inside) :]
                    if path.startswith(inside) and self._is_held(name):
                        self._held.add(name)

    @property
    def held(self) -> set[bytes]:
        """Names last found open for writing, or mapped."""
        return self._held

    def forget(self, directory: bytes) -> None:
        """Stop watching a removed directory and all below it."""
        below = directory + b"/"
        for path in [p for p in self._numbers if p == directory or p.startswith(below)]:
            number = self._numbers.pop(path)
            if self._paths.get(number) == path:
                del self._paths[number]
                fsio.libc().inotify_rm_watch(self._fd, number)

    @contextmanager
    def draining(self) -> Generator[None]:
        """Read events in the background: a walk causes two for each directory."""
        done = threading.Event()
        reader = threading.Thread(target=self._drain_until, args=(done,), daemon=True)
        reader.start()
        try:
            yield
        finally:
            done.set()
            reader.join()

    def _drain_until(self, done: threading.Event) -> None:
        while not done.wait(0.01):
            self.drain()

    def distrust(self) -> None:
        self._doubt = True

    def drain(self) -> int:
        """Read the kernel's queue; cheap, to be called often while tools run.

        Returns the number of changes so far.
        """
        while not self._doubt:
            try:
                data = os.read(self._fd, _BUFFER)
            except BlockingIOError:
                break
            except OSError:
                self._doubt = True
                break
            self.read_events(data)
        return self._told

    def read_events(self, data: bytes) -> None:
        at, end, read = 0, len(data), _EVENT.unpack_from
        while at < end:
            number, mask, cookie, length = read(data, at)
            at += _EVENT.size + length
            if mask & _ISDIR and not mask & _SAYS:
                continue  # a directory was listed: by far the most frequent event
            name = data[at - length : at].rstrip(b"\0")
            self._told += bool(mask & (_TOUCH | _OVERFLOW | _UNMOUNT))
            if mask & (_OVERFLOW | _UNMOUNT):
                self._doubt = True
                return
            path = self._paths.get(number)
            if path is None:
                continue
            if mask & _IGNORED:
                del self._paths[number]
                if self._numbers.get(path) == number:
                    del self._numbers[path]
            elif name:
                self._note(path, name, mask, cookie)
            elif not path and mask & (_DELETE_SELF | _MOVE_SELF):
                self._doubt = True

    def _note(self, path: bytes, name: bytes, mask: int, cookie: int) -> None:
        whole = path + b"/" + name if path else name
        if mask & (_MOVED_FROM | _MOVED_TO):
            self._moved(whole, mask, cookie)
        if mask & _TOUCH:
            # A slash after a name: only the directory's own mode may have changed.
            only_mode = mask & _ISDIR and not mask & (_TOUCH & ~_ATTRIB)
            self._dirty.setdefault(path, set()).add(name + b"/" if only_mode else name)
        if mask & _ISDIR:
            return
        if mask & _OPEN:
            self._open[whole] = self._open.get(whole, 0) + 1
        elif mask & (_CLOSE_WRITE | _CLOSE_NOWRITE):
            left = self._open.pop(whole, 1) - 1
            if left:
                self._open[whole] = left

    def _moved(self, path: bytes, mask: int, cookie: int) -> None:
        """Files held open are followed to their new name."""
        if mask & _MOVED_FROM:
            self._moving = {cookie: path}
        elif (old := self._moving.pop(cookie, None)) is not None:
            below = old + b"/"
            for held in [p for p in self._held if p == old or p.startswith(below)]:
                self._held.discard(held)
                self._held.add(path + held[len(old) :])

    def touched(self) -> set[bytes]:
        """Paths that the next `take` will return."""
        self.drain()
        return {
            folder + b"/" + name if folder else name
            for folder, names in self._dirty.items()
            for name in names
        }

    def take(self) -> Dirty | None:
        """The paths touched since the last call; None if only a walk can tell."""
        self.drain()
        if self._doubt:
            return None
        dirty, self._dirty = self._dirty, {}
        self.held_inodes = set()
        before = self._held
        if not self._open and not before:
            return dirty
        self._held = {path for path in self._open.keys() | before if self._is_held(path)}
        for path in self._held | before:
            folder, _, name = path.rpartition(b"/")
            dirty.setdefault(folder, set()).add(name)
        return dirty

    def _is_held(self, path: bytes) -> bool:
        """Whether the file is open for writing: then a read lease is refused."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(self._root + b"/" + path, flags)
        except OSError:
            return False
        try:
            # If the file is opened meanwhile the kernel signals us: SIGIO would kill this process.
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            self.held_inodes.add(os.fstat(fd).st_ino)
            return True
        finally:
            os.close(fd)
        return False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._doubt = True
