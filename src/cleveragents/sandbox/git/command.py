"""Runs git so that a hostile repository cannot execute anything.

Explicit git directory, no hooks, no file-system monitor, no system or global config, no network,
a built environment. Commands that could run filters are never used on the user's files.
"""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import msgspec

from cleveragents.content import fsio
from cleveragents.content.keys import (
    GIT,
)
from cleveragents.content.safe_names import require_git_paths
from cleveragents.errors import NotAllowed, SandboxError

LOCAL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")
"""What in the environment would make git look at another repository."""
REFS = "refs/cleveragents/"
"""Ours alone in the user's repository; each is named after a plan."""
_NOBODY = {
    f"GIT_{who}_{what}": text
    for who in ("AUTHOR", "COMMITTER")
    for what, text in (("NAME", "cleveragents"), ("EMAIL", "cleveragents@localhost"))
}
SAFE = (
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
    "-c", "core.filesRefLockTimeout=10000",  # another git may hold the branch
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
            ["git", *SAFE, *arguments],
            cwd=cwd or "/",
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env=environment(extra),
            check=False,
        )
    except FileNotFoundError:
        raise not_installed() from None
    if done.returncode not in accept:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        words = [w for w in arguments if not w.startswith("-") and "=" not in w]
        raise SandboxError(f"git {words[0]} failed: {said[-1] if said else done.returncode}")
    return done.stdout


def not_installed() -> SandboxError:
    return SandboxError("git is not installed", "install git 2.36 or newer")


class Repository(msgspec.Struct, frozen=True):
    """A user's repository and where its parts are."""

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
            # Run elsewhere, git cannot check files whose index entry is as young as the index.
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
        """The commit and branch that are checked out; either may be missing."""
        both = self.git(
            "rev-parse", "HEAD^{commit}", "--symbolic-full-name", "HEAD", accept=(0, 128)
        ).split()
        if len(both) == 2 and both[1].startswith(b"refs/"):
            return both[0].decode(), both[1].decode()
        commit = self.git("rev-parse", "--verify", "-q", "HEAD^{commit}", accept=(0, 1))
        branch = self.git("symbolic-ref", "-q", "HEAD", accept=(0, 1))
        return commit.decode().strip() or None, branch.decode().strip() or None

    def pin(self, ref: str, commit: str | None) -> None:
        """Set or delete a ref of ours; on disk when this returns."""
        # A power cut may have left the lock of a dead git; nobody else locks our refs.
        lock = f"{self.common_dir}/{ref}.lock"
        if os.path.exists(lock):
            os.unlink(lock)
        if commit is None:
            self.git("update-ref", "-d", ref)
            return
        asked = ("rev-parse", "--verify", "-q", f"{ref}^{{commit}}")
        there = self.git(*asked, accept=(0, 1, 128)).decode().strip()
        if not there or self.is_before(there, commit):
            self.git("update-ref", ref, commit)
        elif not self.is_before(commit, there):
            # Two work trees of one repository in one plan: one ref for the bases of both.
            self.git("update-ref", ref, self._joined(there, commit))
        self.sync_ref(ref)

    def is_before(self, commit: str, other: str) -> bool:
        """Whether this commit is an ancestor of the other."""
        common = self.git("merge-base", commit, other, accept=(0, 1, 128))
        return commit == other or common.decode().split()[:1] == [commit]

    def _joined(self, *commits: str) -> str:
        tree = self.git("hash-object", "-t", "tree", "-w", "--stdin", stdin=b"").decode().strip()
        parents = [word for commit in commits for word in ("-p", commit)]
        made = self.git("commit-tree", tree, *parents, "-m", "bases of one plan", extra=_NOBODY)
        self.sync_objects(made.decode().strip())
        return made.decode().strip()

    def holds(self, commit: str) -> bool:
        """Whether a commit can be read and a ref of the user's reaches it."""
        listed = self.git("for-each-ref", f"--contains={commit}", "--format=%(refname)",
                          accept=(0, 129))  # fmt: skip
        return any(not name.startswith(b"refs/cleveragents/") for name in listed.split())

    def sync_ref(self, ref: str) -> None:
        """Sync the folder of a ref: git syncs the file but not its name."""
        log = f"{self.common_dir}/logs/{ref}"
        if os.path.exists(log):
            _sync(log)
        _sync_up(os.path.dirname(f"{self.common_dir}/{ref}"), self.common_dir)

    def sync_objects(self, commit: str) -> None:
        """Sync the folders of the objects that came with a commit."""
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
        """The `ls-tree` fields of every path of a commit, and the path, which is safe to use."""
        shown = self.git("ls-tree", "-r", "-z", *options, "--full-tree", commit)
        lines = [line.split(b"\t", 1) for line in shown.split(b"\0") if line]
        if not trusted:
            where = f"commit {commit[:12]} of {self.top}"
            require_git_paths(shown, [path for _, path in lines], where)
        return lines

    def submodules(self, commit: str | None) -> frozenset[bytes]:
        """Paths of a commit's submodules."""
        found = self.entries(commit) if commit else {}
        return frozenset(path for path, (mode, _) in found.items() if mode == b"160000")

    def tree(self, commit: str | None) -> dict[bytes, tuple[bytes, int]]:
        """Path -> (git key, size) of every file and link of a commit.

        The paths themselves are not to be used: nobody looked at them.
        """
        return self.listing(commit, trusted=True)[0]

    def listing(
        self, commit: str | None, trusted: bool = False
    ) -> tuple[dict[bytes, tuple[bytes, int]], list[bytes]]:
        """What `tree` returns, and the paths of submodules."""
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
    """Sync a folder and its parents up to `top`; git may have made or removed any of them."""
    while True:
        if os.path.isdir(folder):
            _sync(folder)
        if folder == top or len(folder) <= len(top):
            return
        folder = os.path.dirname(folder)


def locate(path: str) -> Repository:
    if not os.path.lexists(path):
        raise SandboxError(
            f"the repository {path} is missing", "move it back there, then run it again"
        )
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
    """Accept another user's repository only if `safe.directory` names it, as git does."""
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
    """Make a git directory of our own that reads the user's objects and none of their config."""
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
    """Write a new file; an existing file or link is an error."""
    with open(path, "x", encoding="utf-8", errors="surrogateescape") as target:
        target.write(text)


def add_config(git_dir: str, section: str, name: str, values: Mapping[str, str]) -> None:
    """Append a section to a config file of ours, with names and values quoted."""
    if "\n" in name or "\0" in name:
        raise SandboxError(f"{section} {name!r} has a name that no git config can hold")
    lines = [f'[{section} "{_quoted(name)}"]' if name else f"[{section}]"]
    lines += [f'\t{key} = "{_quoted(value)}"' for key, value in values.items()]
    with open(f"{git_dir}/config", "a", encoding="utf-8", errors="surrogateescape") as target:
        target.write("\n".join(lines) + "\n")


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@contextmanager
def scratch_index(staging: str) -> Generator[dict[str, str]]:
    """The environment that makes git use an index of ours instead of the user's."""
    path = f"{staging}/index"
    yield {"GIT_INDEX_FILE": path}
    for leftover in (path, f"{path}.lock"):
        if os.path.exists(leftover):
            os.unlink(leftover)
