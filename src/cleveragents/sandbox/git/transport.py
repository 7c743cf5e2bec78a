"""A remote git repository: asked, fetched from and pushed to.

The one place where git has a network. The user's own configuration counts here, because it says
how to log in (ssh, credential helpers, proxies); hooks do not run. Nothing is asked at a terminal,
and a server that does not answer times out.
"""

import fcntl
import os
import signal
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from cleveragents.content import fsio
from cleveragents.errors import ApplyRefused, SandboxError
from cleveragents.sandbox.git import command
from cleveragents.sandbox.git.address import Address, read

ANSWER, TRANSFER = 60.0, 3600.0
"""Seconds to say what branches there are, and to fetch or push."""
LOOK_AGAIN = 0.05
MOST_SAID = 600
"""Characters of what git and the remote say that are shown."""
HEADS = "refs/heads/"
TIP = "refs/remote/tip"
"""In our copy: where the branch was when it was last fetched."""
_PROTOCOLS = ("http", "https", "ssh", "git", "file")
_HELPER = (
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n"'
    ' "$CLEVERAGENTS_GIT_USER" "$CLEVERAGENTS_GIT_PASSWORD"; }; f'
)
_TELLING = ("fatal:", "error:", "remote:", "ssh:", "!")


class Remote:
    """The repository at a stored address, and our copy, which fetches and pushes.

    Without a copy it can only be queried.
    """

    def __init__(self, stored: str, copy: str = "") -> None:
        self.address: Address = read(stored)
        self._copy = copy

    @property
    def url(self) -> str:
        return self.address.url

    def head(self) -> str:
        """The ref of the branch that the plan names, or of the remote's default branch."""
        if self.address.branch:
            return HEADS + self.address.branch
        lines = self._git(ANSWER, "ls-remote", "--symref", "--", self.url, "HEAD").decode()
        for line in lines.splitlines():
            if line.startswith("ref: ") and line.endswith("\tHEAD"):
                return line.removeprefix("ref: ").removesuffix("\tHEAD")
        raise SandboxError(f"{self.url} has no branch", "push a first commit, or say branch: NAME")

    def tip(self, ref: str, seconds: float = ANSWER) -> str | None:
        """The commit of a ref there; None if there is no such ref."""
        listed = self._git(seconds, "ls-remote", "--", self.url, ref).decode().splitlines()
        found = [line.partition("\t") for line in listed]
        return next((commit for commit, _, name in found if name == ref), None)

    def require_tip(self, ref: str) -> str:
        commit = self.tip(ref)
        if commit is None:
            raise SandboxError(
                f"{self.url} has no branch {ref.removeprefix(HEADS)}",
                f"git ls-remote --heads {self.url} lists those that exist",
            )
        return commit

    def fetch(self, ref: str, to: str, *options: str) -> None:
        """Fetch a ref into the copy; with `--depth=1` without its history."""
        quiet = ("-q", "--no-tags", "--no-write-fetch-head", "--update-head-ok")
        words = ("fetch", *quiet, "--no-recurse-submodules", *options, "--")
        self._git(TRANSFER, f"--git-dir={self._copy}", *words, self.url, f"+{ref}:{to}")

    def push(self, commit: str | None, ref: str, expected: str | None) -> None:
        """Move a remote ref if it is where expected; None, for either: no such ref."""
        lease = f"--force-with-lease={ref}:{expected or ''}"
        words = ("push", "--porcelain", "--no-verify", "--no-follow-tags", lease, "--", self.url)
        fsio.point("push")
        try:
            self._git(TRANSFER, f"--git-dir={self._copy}", *words, f"{commit or ''}:{ref}")
        except SandboxError as error:
            # Only the remote knows whether the push happened: its answer may have been lost.
            if (there := self.tip(ref)) == commit:
                return
            name = ref.removeprefix(HEADS)
            if there != expected:
                raise ApplyRefused(
                    f"branch {name} of {self.url} was moved while the plan was being applied",
                    "no target was changed; apply again, which merges",
                ) from error
            raise ApplyRefused(
                f"branch {name} cannot be pushed: {error.message}",
                "no target was changed; fix the cause and apply again, or agents plan apply PLAN"
                " --as branch",
            ) from error
        fsio.point("pushed")

    def _git(self, seconds: float, *arguments: str) -> bytes:
        user, password = self.address.login(os.environ)
        words = ["git", *_configured(self.address.server if user else ""), *arguments]
        with self._exclusive(min(seconds, ANSWER)) as held:
            code, out, said = _run(words, _environment(user, password), held, seconds)
        if code is None:
            raise SandboxError(f"{self.url} does not answer", f"git ls-remote {self.url} shows why")
        if code:
            raise self._failure(arguments, said, password)
        return out

    @contextmanager
    def _exclusive(self, seconds: float) -> Generator[tuple[int, ...]]:
        """The lock of the copy, for the git that is started to inherit.

        Killed, we leave that git behind: until it has ended too, nobody asks what it has done,
        and the locks of its own that it may leave are then nobody's.
        """
        if not self._copy:
            yield ()
            return
        fd = os.open(f"{self._copy}/in-use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock(fd, seconds)
            for name in ("shallow.lock", f"{TIP}.lock"):
                fsio.unlink_if_there(f"{self._copy}/{name}")
            yield (fd,)
        finally:
            os.close(fd)

    def _lock(self, fd: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() > end:
                raise SandboxError(
                    f"a git that was started earlier still talks to {self.url}",
                    "wait for it, or end it, and run the command again",
                )
            fsio.point("wait")
            time.sleep(LOOK_AGAIN)

    def _failure(self, arguments: Sequence[str], said: str, password: str) -> SandboxError:
        verb = next(word for word in arguments if not word.startswith("-"))
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        telling = [line for line in lines if line.startswith(_TELLING)]
        text = "; ".join(dict.fromkeys(telling or lines[-1:]))[:MOST_SAID] or "it failed"
        text = "".join(letter if letter.isprintable() else " " for letter in text)
        if password:
            text = text.replace(password, "***")
        return SandboxError(
            f"git {verb} {self.url}: {text}",
            f"git ls-remote {self.url} has to work without asking anything",
        )


def _run(
    words: Sequence[str], env: dict[str, str], held: tuple[int, ...], seconds: float
) -> tuple[int | None, bytes, str]:
    """Exit code, output and messages; no code: it took too long and was killed."""
    import subprocess

    try:
        process = subprocess.Popen(
            words,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            pass_fds=held,
            # Away from any terminal, where ssh would ask, and in a group to kill with its children.
            start_new_session=True,
        )
    except FileNotFoundError:
        raise command.not_installed() from None
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None, b"", ""
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, out, (err + out).decode("utf-8", "replace")


def _configured(login_at: str) -> list[str]:
    """Settings over the user's own configuration; `login_at`: the one server to log in to."""
    words = list(command.SAFE)
    given = {f"protocol.{name}.allow": "always" for name in _PROTOCOLS}
    given |= {"http.lowSpeedLimit": "1", "http.lowSpeedTime": f"{ANSWER:.0f}"}
    given |= {"push.gpgSign": "false", "push.recurseSubmodules": "no", "push.pushOption": ""}
    words += [word for key, value in given.items() for word in ("-c", f"{key}={value}")]
    if login_at:
        words += ["-c", "credential.helper=", "-c", f"credential.{login_at}.helper={_HELPER}"]
    return words


def _environment(user: str, password: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in command.LOCAL}
    login = {"CLEVERAGENTS_GIT_USER": user, "CLEVERAGENTS_GIT_PASSWORD": password} if user else {}
    fixed = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "SSH_ASKPASS_REQUIRE": "never"}
    return {**own, **fixed, "GIT_NO_REPLACE_OBJECTS": "1", "GIT_OPTIONAL_LOCKS": "0", **login}
