"""The sandbox's own git directory: the user's refs, identity and remotes, and none of their rules.

Submodules that are checked out get one too, inside it, as git keeps them: their `.git` file would
lead nowhere, or to the user's own.
"""

import os

from cleveragents.content import fsio
from cleveragents.errors import SandboxError
from cleveragents.sandbox import git


def borrow(
    repository: git.Repository, top: str, private: str, commit: str | None, branch: str | None
) -> None:
    """Make `private` the git directory of the work tree `top`, a copy of the repository's."""
    git.make_git_dir(private, repository, commit or f"ref: {branch}")
    identity = {
        key: values[0]
        for key in ("name", "email")
        if (values := git.user_config(repository.top, "--get", f"user.{key}"))
    }
    if identity:
        git.add_config(private, "user", identity)
    for section in ("remote", "submodule"):
        for name, url in _urls(repository, section):
            git.add_config(private, f'{section} "{name}"', {"url": url})
    _copy_refs(repository, private)
    if commit is not None:
        repository.git("read-tree", commit, extra={"GIT_INDEX_FILE": f"{private}/index"})
    for path in sorted(repository.submodules(commit)):
        _borrow_module(repository, top, private, os.fsdecode(path))


def _urls(repository: git.Repository, section: str) -> list[tuple[str, str]]:
    items = git.user_config(repository.top, "--get-regexp", rf"^{section}\..*\.url$")
    parts = (item.partition("\n") for item in items)
    return [(key.removeprefix(f"{section}.").removesuffix(".url"), url) for key, _, url in parts]


def _copy_refs(repository: git.Repository, private: str) -> None:
    listed = repository.git("for-each-ref", "--format=%(objectname) %(refname)")
    lines = [
        line
        for line in listed.splitlines()
        if not line.split(b" ", 1)[1].startswith((b"refs/cleveragents/", b"refs/stash"))
    ]
    with open(f"{private}/packed-refs", "wb") as target:
        target.write(b"# pack-refs with: sorted \n" + b"".join(line + b"\n" for line in lines))


def _borrow_module(repository: git.Repository, top: str, private: str, path: str) -> None:
    """Only where the submodule is checked out and its git directory is inside the outer one's."""
    link = f"{top}/{path}/.git"
    if os.path.islink(link) or not os.path.isfile(link):
        return
    try:
        module = git.locate(f"{repository.top}/{path}")
    except SandboxError:
        return
    own = f"{private}/modules/{path}"
    commit, branch = module.head()
    borrow(module, f"{top}/{path}", own, commit, branch if commit is None else None)
    fsio.unlink_if_there(link)
    fsio.write_new(link, f"gitdir: {os.path.relpath(own, f'{top}/{path}')}\n".encode(), 0o644)
