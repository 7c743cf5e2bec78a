"""Contents of the repository by their ids, asked of one long-lived `git cat-file`."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO

from cleveragents.content.keys import (
    GIT,
)
from cleveragents.errors import ContentDamaged, SandboxError
from cleveragents.sandbox.git.command import (
    SAFE,
    Repository,
    environment,
    not_installed,
)


class _GitProcess:
    """A git with a pipe each way; importing `subprocess` takes longer than starting git."""

    def __init__(self, *arguments: str) -> None:
        theirs, questions = os.pipe()
        answers, ours = os.pipe()
        to_them = [
            (os.POSIX_SPAWN_DUP2, theirs, 0),
            (os.POSIX_SPAWN_DUP2, ours, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        self.questions = os.fdopen(questions, "wb")
        self.answers = os.fdopen(answers, "rb")
        try:
            self._pid = os.posix_spawnp(
                "git",
                # Not in the caller's directory, which may have been deleted.
                ["git", "-C", "/", *SAFE, *arguments],
                environment(),
                file_actions=to_them,
                setsigdef=(signal.SIGPIPE,),
            )
        except OSError as error:
            self.questions.close()
            self.answers.close()
            if isinstance(error, FileNotFoundError):
                raise not_installed() from None
            raise
        finally:
            os.close(theirs)
            os.close(ours)

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self.questions.close()
        self.answers.close()
        with suppress(ChildProcessError):  # our parent may have SIGCHLD ignored
            os.waitpid(self._pid, 0)


class Blobs:
    """Reads blobs of the user's repository through one `git cat-file --batch-command`."""

    TOGETHER = 200
    """So many questions fit into a pipe."""

    def __init__(self, repository: Callable[[], Repository]) -> None:
        self._repository = repository
        self._process: _GitProcess | None = None
        self._requested: list[bytes] = []
        """Keys that git was asked for and whose answers nobody has read."""
        self._ahead: dict[bytes, bytes] = {}

    def start(self) -> None:
        """Start git now, so that it is ready when a blob is wanted."""
        self._send(b"")

    def ask(self, key: bytes) -> None:
        """Queue a key; after `begin`, git reads it in the background."""
        if len(self._requested) < self.TOGETHER and key not in self._requested:
            self._send(b"contents " + key[1:].hex().encode() + b"\n")
            self._requested.append(key)

    def begin(self) -> None:
        """Let git read what is queued."""
        if self._requested:
            self._flush()

    def get(self, key: bytes) -> bytes:
        if key not in self._ahead:
            self._read_requested()
        if key not in self._ahead:
            self.ask(key)
            self._read_requested()
        return self._ahead.pop(key)

    def get_many(self, keys: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Several in one request, so that git does not wait for us."""
        self._read_requested()
        for key in [key for key in keys if key in self._ahead]:
            yield key, self._ahead[key]
        missing = [key for key in keys if key not in self._ahead]
        self._ahead = {}
        for start in range(0, len(missing), self.TOGETHER):
            for key in missing[start : start + self.TOGETHER]:
                self.ask(key)
            self._read_requested()
            found, self._ahead = self._ahead, {}
            yield from found.items()

    def about(self, revision: bytes) -> tuple[bytes, int] | None:
        """Key and size of the blob a revision names; None if there is none."""
        self._read_requested()
        answers = self._send(b"info " + revision + b"\n")
        self._flush()
        words = answers.readline().split()
        if not words:
            raise self._unreadable()
        if words[-1] == b"missing" or len(words) != 3 or words[1] != b"blob":
            return None
        return GIT + bytes.fromhex(words[0].decode()), int(words[2])

    def _read_requested(self) -> None:
        self.begin()
        while self._requested:
            key = self._requested.pop(0)
            self._ahead[key] = self._answer(key)

    def _answer(self, key: bytes) -> bytes:
        source = self._send(b"")
        head = source.readline().split()
        if not head:
            raise self._unreadable()
        if len(head) != 3 or head[1] != b"blob":
            raise ContentDamaged(
                f"blob {key[1:].hex()} is no longer in {self._repository().top}",
                "bring the commit that the plan was made from back into that repository, for"
                " example with git fetch, and run the command again; agents check names it",
            )
        data = source.read(int(head[2]))
        source.read(1)
        return data

    def _send(self, line: bytes) -> IO[bytes]:
        """Send git a line; returns the stream of its answers."""
        if self._process is None:
            where = f"--git-dir={self._repository().git_dir}"
            self._process = _GitProcess(where, "cat-file", "--batch-command")
        try:
            self._process.questions.write(line)
        except BrokenPipeError:
            raise self._unreadable() from None
        return self._process.answers

    def _flush(self) -> None:
        assert self._process is not None
        try:
            self._process.questions.flush()
        except BrokenPipeError:
            raise self._unreadable() from None

    def _unreadable(self) -> SandboxError:
        return SandboxError(f"git cannot read the base commit in {self._repository().top}")

    def close(self) -> None:
        self._requested, self._ahead = [], {}
        if self._process is not None:
            self._process.close()
            self._process = None


class BaseTree:
    """The regular files of the base commit: looked up one by one, or all at once for many."""

    MANY = 500

    def __init__(
        self, repository: Callable[[], Repository], commit: str | None, blobs: Blobs | None = None
    ) -> None:
        self._repository = repository
        self._commit = commit
        self._blobs = blobs or Blobs(repository)
        self._all: dict[bytes, tuple[bytes, int]] | None = None if commit else {}
        self._requested: dict[bytes, tuple[bytes, int] | None] = {}

    def get(self, path: bytes, /) -> tuple[bytes, int] | None:
        if path in self._requested:
            return self._requested[path]
        if self._all is not None:
            return self._all.get(path)
        if len(self._requested) >= self.MANY or b"\n" in path:
            self.load()
            return self.get(path)
        self._requested[path] = self._blobs.about(f"{self._commit}:".encode() + path)
        return self._requested[path]

    def know(self, path: bytes, key: bytes, size: int) -> None:
        """Take over what a checkpoint recorded; the commit itself may be gone."""
        self._requested[path] = key, size

    def load(self) -> None:
        """Read the whole tree, for a process that will look up many paths."""
        if self._all is None:
            self._all = self._repository().tree(self._commit)

    def close(self) -> None:
        self._blobs.close()
