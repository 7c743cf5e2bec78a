"""git, run only so that a hostile repository executes nothing.

Explicit git directory, no hooks, no file-system monitor, no system or global config, no network,
a built environment. Commands that could run filters are never used on the user's files.
"""

import os
import signal
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO

import msgspec

from cleveragents.content import fsio
from cleveragents.content.keys import (
    GIT,
)
from cleveragents.content.safe_names import require_git_paths
from cleveragents.errors import ContentDamaged, NotAllowed, SandboxError

LOCAL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")
"""What in the environment would make git look at another repository."""
_SAFE = (
    "-c", "core.hooksPath=/dev/null",
    "-c", "core.fsmonitor=false",
    "-c", "core.untrackedCache=false",
    "-c", "core.attributesFile=/dev/null",
    "-c", "protocol.allow=never",
    "-c", "gc.auto=0",
    "-c", "core.logAllRefUpdates=false",
    "-c", "maintenance.auto=false",
    "-c", "core.fsync=all",
    "-c", "core.quotePath=false",
)  # fmt: skip


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_EDITOR": "false",
        **(extra or {}),
    }


def run(
    *arguments: str,
    cwd: str | None = None,
    stdin: bytes | None = None,
    extra: Mapping[str, str] | None = None,
    accept: tuple[int, ...] = (0,),
) -> bytes:
    """Output of a git command; a failure is an error that shows git's own last line."""
    import subprocess

    if cwd is not None and not os.path.isdir(cwd):
        raise SandboxError(f"no such directory: {cwd}")
    try:
        done = subprocess.run(
            ["git", *_SAFE, *arguments],
            cwd=cwd or "/",
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env=environment(extra),
            check=False,
        )
    except FileNotFoundError:
        raise _not_installed() from None
    if done.returncode not in accept:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        words = [w for w in arguments if not w.startswith("-") and "=" not in w]
        raise SandboxError(f"git {words[0]} failed: {said[-1] if said else done.returncode}")
    return done.stdout


def _not_installed() -> SandboxError:
    return SandboxError("git is not installed", "install git 2.36 or newer")


class Repository(msgspec.Struct, frozen=True):
    """A user's repository: where its parts are."""

    top: str
    git_dir: str
    common_dir: str
    object_format: str

    def git(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        extra: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (0,),
    ) -> bytes:
        return run(
            f"--git-dir={self.git_dir}",
            f"--work-tree={self.top}",
            *arguments,
            # From elsewhere git cannot look at files whose index entry is as young as the index.
            cwd=self.top,
            stdin=stdin,
            extra=extra,
            accept=accept,
        )

    def has_commit(self, commit: str) -> bool:
        asked = f"{commit}^{{commit}}".encode() + b"\n"
        answer = self.git("cat-file", "--batch-check", stdin=asked)
        return not answer.strip().endswith(b"missing")

    def head(self) -> tuple[str | None, str | None]:
        """Commit and branch that are checked out; either may be missing."""
        both = self.git(
            "rev-parse", "HEAD^{commit}", "--symbolic-full-name", "HEAD", accept=(0, 128)
        ).split()
        if len(both) == 2 and both[1].startswith(b"refs/"):
            return both[0].decode(), both[1].decode()
        commit = self.git("rev-parse", "--verify", "-q", "HEAD^{commit}", accept=(0, 1))
        branch = self.git("symbolic-ref", "-q", "HEAD", accept=(0, 1))
        return commit.decode().strip() or None, branch.decode().strip() or None

    def pin(self, ref: str, commit: str | None) -> None:
        """Set a ref that is ours alone, or delete it; on disk when this returns."""
        # A power cut may have left the lock of a git that is gone; nobody else locks our refs.
        lock = f"{self.common_dir}/{ref}.lock"
        if os.path.exists(lock):
            os.unlink(lock)
        if commit is None:
            self.git("update-ref", "-d", ref)
            return
        self.git("update-ref", ref, commit)
        self.sync_ref(ref)

    def holds(self, commit: str) -> bool:
        """Whether a commit can be read and some ref of the user's has it."""
        listed = self.git("for-each-ref", f"--contains={commit}", "--format=%(refname)",
                          accept=(0, 129))  # fmt: skip
        return any(not name.startswith(b"refs/cleveragents/") for name in listed.split())

    def sync_ref(self, ref: str) -> None:
        """Bring to disk where a ref points: git syncs the file, and not the name it gets."""
        log = f"{self.common_dir}/logs/{ref}"
        if os.path.exists(log):
            _sync(log)
        _sync_up(os.path.dirname(f"{self.common_dir}/{ref}"), self.common_dir)

    def sync_objects(self, commit: str) -> None:
        """Bring to disk the names of the objects that a commit brought with it."""
        objects = f"{self.common_dir}/objects"
        listed = self.git("rev-list", "--objects", "--no-object-names", commit, "--not",
                          f"{commit}^@")  # fmt: skip
        for folder in sorted({line[:2].decode() for line in listed.split()}):
            if os.path.isdir(f"{objects}/{folder}"):
                _sync(f"{objects}/{folder}")
        _sync(objects)

    def entries(self, commit: str) -> dict[bytes, tuple[bytes, bytes]]:
        """Path -> (mode, object name) of everything a commit has, submodules included."""
        found: dict[bytes, tuple[bytes, bytes]] = {}
        for about, path in self._listed(commit):
            mode, _, name = about.split()
            found[path] = (mode, name)
        return found

    def _listed(self, commit: str, *options: str, trusted: bool = False) -> list[list[bytes]]:
        """What there is to say of every path of a commit, and the path, which is safe to use."""
        shown = self.git("ls-tree", "-r", "-z", *options, "--full-tree", commit)
        lines = [line.split(b"\t", 1) for line in shown.split(b"\0") if line]
        if not trusted:
            where = f"commit {commit[:12]} of {self.top}"
            require_git_paths(shown, [path for _, path in lines], where)
        return lines

    def submodules(self, commit: str | None) -> frozenset[bytes]:
        """Paths at which a commit has a commit of another repository."""
        found = self.entries(commit) if commit else {}
        return frozenset(path for path, (mode, _) in found.items() if mode == b"160000")

    def tree(self, commit: str | None) -> dict[bytes, tuple[bytes, int]]:
        """Path -> (git key, size) of every file and link of a commit, to look up what is there.

        The paths themselves are not to be used: nobody looked at them.
        """
        return self.listing(commit, trusted=True)[0]

    def listing(
        self, commit: str | None, trusted: bool = False
    ) -> tuple[dict[bytes, tuple[bytes, int]], list[bytes]]:
        """What `tree` tells, and the paths of submodules."""
        found: dict[bytes, tuple[bytes, int]] = {}
        modules: list[bytes] = []
        if commit is None:
            return found, modules
        for about, path in self._listed(commit, "-l", trusted=trusted):
            if about.startswith((b"100", b"120")):
                _, _, name, size = about.split()
                found[path] = (GIT + bytes.fromhex(name.decode()), int(size))
            elif about.startswith(b"160000"):
                modules.append(path)
        return found, modules


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fsio.sync(fd)
    finally:
        os.close(fd)


def _sync_up(folder: str, top: str) -> None:
    """Sync a folder and those above it, up to `top`; git may have made or removed any of them."""
    while True:
        if os.path.isdir(folder):
            _sync(folder)
        if folder == top or len(folder) <= len(top):
            return
        folder = os.path.dirname(folder)


def locate(path: str) -> Repository:
    try:
        shown = run(
            "-c", "safe.directory=*",
            "rev-parse", "--show-toplevel", "--absolute-git-dir",
            "--path-format=absolute", "--git-common-dir", "--show-object-format",
            cwd=path,
        )  # fmt: skip
    except SandboxError as error:
        raise SandboxError(
            f"{path} is not a git repository: {error.message}",
            "use kind: fs-directory for a plain directory",
        ) from error
    parts = os.fsdecode(shown).rstrip("\n").split("\n")
    if len(parts) != 4:
        raise SandboxError(f"{path!r}: a repository whose path has a newline cannot be sandboxed")
    top, git_dir, common, object_format = parts
    if os.path.realpath(top) != os.path.realpath(path):
        raise SandboxError(
            f"{path} lies inside the repository {top}",
            f"name the repository itself: path: {top}",
        )
    _require_trusted(path, top, f"{top}/.git", git_dir, common)
    return Repository(os.path.realpath(path), git_dir, common, object_format)


def _require_trusted(path: str, *parts: str) -> None:
    """As git does: a repository of somebody else only if the user's `safe.directory` names it."""
    there = [part for part in parts if os.path.lexists(part)]
    if all(os.lstat(part).st_uid == os.geteuid() for part in there):
        return
    import shlex
    import subprocess

    own = {name: value for name, value in os.environ.items() if name not in LOCAL}
    done = subprocess.run(
        ["git", "rev-parse", "--git-dir"],
        cwd=path,
        env={**own, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise NotAllowed(
            f"the repository {path} belongs to somebody else",
            f"if you trust it: git config --global --add safe.directory {shlex.quote(path)}",
        )


def user_config(top: str, *arguments: str) -> list[str]:
    """Values of the user's own configuration, which only `git config` reads: nothing is run."""
    import subprocess

    done = subprocess.run(
        ["git", "config", "-z", *arguments],
        cwd=top,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return [os.fsdecode(item) for item in done.stdout.split(b"\0") if item]


def make_git_dir(path: str, repository: Repository, head: str) -> None:
    """A git directory of our own that reads the user's objects and has nothing of their config."""
    for folder in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
        os.makedirs(f"{path}/{folder}")
    _write(f"{path}/HEAD", f"{head}\n")
    version = 0 if repository.object_format == "sha1" else 1
    lines = [
        "[core]",
        f"\trepositoryformatversion = {version}",
        "\tfilemode = true",
        "\tbare = false",
        "\tlogallrefupdates = true",
    ]
    if version:
        lines += ["[extensions]", f"\tobjectformat = {repository.object_format}"]
    _write(f"{path}/config", "\n".join(lines) + "\n")
    _write(f"{path}/objects/info/alternates", f"{repository.common_dir}/objects\n")
    shallow = f"{repository.common_dir}/shallow"
    if os.path.exists(shallow):
        with open(shallow, encoding="ascii") as found:
            _write(f"{path}/shallow", found.read())


def _write(path: str, text: str) -> None:
    """A new file: what is there already, or a link, is an error."""
    with open(path, "x", encoding="utf-8", errors="surrogateescape") as target:
        target.write(text)


def add_config(git_dir: str, section: str, name: str, values: Mapping[str, str]) -> None:
    """Append a section to a config file of ours; names and values are quoted: none can escape."""
    if "\n" in name or "\0" in name:
        raise SandboxError(f"{section} {name!r} has a name that no git config can hold")
    lines = [f'[{section} "{_quoted(name)}"]' if name else f"[{section}]"]
    lines += [f'\t{key} = "{_quoted(value)}"' for key, value in values.items()]
    with open(f"{git_dir}/config", "a", encoding="utf-8", errors="surrogateescape") as target:
        target.write("\n".join(lines) + "\n")


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Spoken:
    """A git with a pipe either way; to import `subprocess` takes longer than to start one."""

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
                ["git", "-C", "/", *_SAFE, *arguments],
                environment(),
                file_actions=to_them,
                setsigdef=(signal.SIGPIPE,),
            )
        except OSError as error:
            self.questions.close()
            self.answers.close()
            if isinstance(error, FileNotFoundError):
                raise _not_installed() from None
            raise
        finally:
            os.close(theirs)
            os.close(ours)

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self.questions.close()
        self.answers.close()
        with suppress(ChildProcessError):  # whoever started us may have SIGCHLD ignored
            os.waitpid(self._pid, 0)


class Blobs:
    """Reads blobs of the user's repository through one `git cat-file --batch-command`."""

    TOGETHER = 200
    """So many questions fit into a pipe."""

    def __init__(self, repository: Callable[[], Repository]) -> None:
        self._repository = repository
        self._process: _Spoken | None = None
        self._asked: list[bytes] = []
        """Keys that git was asked for and whose answers nobody has read."""
        self._ahead: dict[bytes, bytes] = {}

    def start(self) -> None:
        """Let git get ready: something will be wanted soon."""
        self._send(b"")

    def ask(self, key: bytes) -> None:
        """It will be wanted soon; after `begin` git fetches it meanwhile."""
        if len(self._asked) < self.TOGETHER and key not in self._asked:
            self._send(b"contents " + key[1:].hex().encode() + b"\n")
            self._asked.append(key)

    def begin(self) -> None:
        """Let git fetch what it was asked for."""
        if self._asked:
            self._flush()

    def get(self, key: bytes) -> bytes:
        if key not in self._ahead:
            self._read_asked()
        if key not in self._ahead:
            self.ask(key)
            self._read_asked()
        return self._ahead.pop(key)

    def get_many(self, keys: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Several at once: asked for together, so that git does not wait for us."""
        self._read_asked()
        for key in [key for key in keys if key in self._ahead]:
            yield key, self._ahead[key]
        missing = [key for key in keys if key not in self._ahead]
        self._ahead = {}
        for start in range(0, len(missing), self.TOGETHER):
            for key in missing[start : start + self.TOGETHER]:
                self.ask(key)
            self._read_asked()
            found, self._ahead = self._ahead, {}
            yield from found.items()

    def about(self, revision: bytes) -> tuple[bytes, int] | None:
        """Key and size of the blob a revision names; None if there is none."""
        self._read_asked()
        answers = self._send(b"info " + revision + b"\n")
        self._flush()
        words = answers.readline().split()
        if not words:
            raise self._unreadable()
        if words[-1] == b"missing" or len(words) != 3 or words[1] != b"blob":
            return None
        return GIT + bytes.fromhex(words[0].decode()), int(words[2])

    def _read_asked(self) -> None:
        self.begin()
        while self._asked:
            key = self._asked.pop(0)
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
        """Give git a line; returns where its answers come from."""
        if self._process is None:
            where = f"--git-dir={self._repository().git_dir}"
            self._process = _Spoken(where, "cat-file", "--batch-command")
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
        self._asked, self._ahead = [], {}
        if self._process is not None:
            self._process.close()
            self._process = None


class BaseTree:
    """The regular files of the base commit: asked for one by one, or all read if asked for many."""

    MANY = 500

    def __init__(
        self, repository: Callable[[], Repository], commit: str | None, blobs: Blobs | None = None
    ) -> None:
        self._repository = repository
        self._commit = commit
        self._blobs = blobs or Blobs(repository)
        self._all: dict[bytes, tuple[bytes, int]] | None = None if commit else {}
        self._asked: dict[bytes, tuple[bytes, int] | None] = {}

    def get(self, path: bytes, /) -> tuple[bytes, int] | None:
        if self._all is not None:
            return self._all.get(path)
        if path in self._asked:
            return self._asked[path]
        if len(self._asked) >= self.MANY or b"\n" in path:
            self.load()
            return self.get(path)
        self._asked[path] = self._blobs.about(f"{self._commit}:".encode() + path)
        return self._asked[path]

    def know(self, path: bytes, key: bytes, size: int) -> None:
        """A checkpoint says so: that need not be asked, and cannot be if the commit is gone."""
        self._asked[path] = key, size

    def load(self) -> None:
        """Read it all: for a process that will ask often."""
        if self._all is None:
            self._all = self._repository().tree(self._commit)

    def close(self) -> None:
        self._blobs.close()


@contextmanager
def scratch_index(staging: str) -> Generator[dict[str, str]]:
    """The environment that makes git use an index of ours instead of the user's."""
    path = f"{staging}/index"
    yield {"GIT_INDEX_FILE": path}
    for leftover in (path, f"{path}.lock"):
        if os.path.exists(leftover):
            os.unlink(leftover)
