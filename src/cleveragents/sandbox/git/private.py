"""The sandbox's own git directory: the user's refs, identity and remotes, but no hooks or filters.

Checked-out submodules get one too, inside it, as git keeps them: their `.git` file would otherwise
point nowhere, or to the user's own.
"""

import os
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from cleveragents.content import descent, fsio
from cleveragents.errors import SandboxError
from cleveragents.sandbox.git import command

_WANTED = r"^(user\.(name|email)|(remote|submodule)\..*\.url)$"


def borrow(
    repository: command.Repository, private: str, commit: str | None, branch: str | None
) -> None:
    """Make `private` a git directory like the repository's."""
    command.make_git_dir(private, repository, commit or f"ref: {branch}")
    _copy_config(repository, private)
    _copy_refs(repository, private)
    if commit is not None:
        repository.git("read-tree", commit, extra={"GIT_INDEX_FILE": f"{private}/index"})


def borrow_modules(
    repository: command.Repository, top: str, private: str, paths: Iterable[bytes], inside: str = ""
) -> None:
    """The same for the submodules in the existing work tree `top`.

    `repository`: of which they are submodules; it has its own work tree at `inside`.
    """
    for path in sorted(paths):
        _borrow_module(repository, top, private, os.fsdecode(path), inside)


def borrowed(top: str) -> dict[str, str]:
    """Each git directory of the new work tree `top`, and the object directory it reads.

    Read once, before any tool runs: later a tool may have written anything there.
    """
    found: dict[str, str] = {}
    for folder, names, _ in os.walk(f"{top}/.git"):
        if "objects" in names:
            with open(
                f"{folder}/objects/info/alternates", encoding="utf-8", errors="surrogateescape"
            ) as file:
                found[os.path.relpath(folder, top)] = file.read().rstrip("\n")
        names[:] = [name for name in names if name not in ("objects", "refs", "logs", "info")]
    return found


def _copy_config(repository: command.Repository, private: str) -> None:
    """Copy identity, remotes and submodule addresses, and nothing that git would run."""
    identity: dict[str, str] = {}
    urls: dict[str, list[tuple[str, str]]] = {"remote": [], "submodule": []}
    for item in command.user_config(repository.top, "--get-regexp", _WANTED):
        key, _, value = item.partition("\n")
        section, _, name = key.partition(".")
        if section == "user":
            identity[name] = value
        else:
            urls[section].append((name.removesuffix(".url"), value))
    if identity:
        command.add_config(private, "user", "", identity)
    for section, found in urls.items():
        for name, url in found:
            command.add_config(private, section, name, {"url": url})


def _copy_refs(repository: command.Repository, private: str) -> None:
    listed = repository.git("for-each-ref", "--format=%(objectname) %(refname)")
    lines = [
        line
        for line in listed.splitlines()
        if not line.split(b" ", 1)[1].startswith((b"refs/cleveragents/", b"refs/stash"))
    ]
    with open(f"{private}/packed-refs", "xb") as target:
        target.write(b"# pack-refs with: sorted \n" + b"".join(line + b"\n" for line in lines))


def _borrow_module(
    repository: command.Repository, top: str, private: str, path: str, inside: str
) -> None:
    """Only where the submodule is checked out, and no link leads there."""
    where = f"{inside}/{path}" if inside else path
    with _folder(top, where) as folder, _folder(repository.top, path) as theirs:
        link = fsio.lstat_at(folder, b".git") if folder is not None else None
        if folder is None or theirs is None or link is None or not stat.S_ISREG(link.st_mode):
            return
        try:
            module = command.locate(f"{repository.top}/{path}")
        except SandboxError:
            return
        own = f"{private}/modules/{path}"
        commit, branch = module.head()
        inner = module.submodules(commit)
        borrow(module, own, commit, branch if commit is None else None)
        borrow_modules(module, top, own, inner, where)
        os.unlink(b".git", dir_fd=folder)
        text = f"gitdir: {os.path.relpath(own, f'{top}/{where}')}\n"
        fsio.put(folder, b".git", os.fsencode(text), 0o644)


@contextmanager
def _folder(top: str, path: str) -> Generator[int | None]:
    """Its descriptor; None if it is not there, or only by a link."""
    try:
        with fsio.directory(top) as root:
            fd = descent.open_below(root, os.fsencode(path))
    except (FileNotFoundError, NotADirectoryError):
        fd = None
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)
