"""Hard links to the objects of a repository in place, because an agent may remove `.git` itself.

They cost no space while the repository has them. Where store and repository are on different file
systems nothing is kept, and objects are lost with `.git`.
"""

import os
from collections.abc import Iterator
from contextlib import suppress

from cleveragents.errors import SandboxError
from cleveragents.sandbox.git import command

_NOT_NEEDED = ("tmp_", "multi-pack-index")
"""Temporary, or recreated by git."""
_BORROWED = "info/alternates"
"""Where a repository says whose objects it reads as well."""


def kept_objects_at(root: str, repository: command.Repository) -> command.Repository:
    """Our git directory for a repository, below the plan's folder."""
    folder = f"{root}/kept.git"
    return command.Repository(repository.top, folder, folder, repository.object_format)


def is_kept(path: str) -> bool:
    return "/kept.git/objects/" in path


class KeptObjects:
    """A git directory of ours with the objects of the user's as of the last capture."""

    def __init__(self, root: str, repository: command.Repository) -> None:
        self._theirs = f"{repository.common_dir}/objects"
        self._user = repository
        self.repository: command.Repository = kept_objects_at(root, repository)
        self._folder = self.repository.git_dir

    @property
    def tip(self) -> str:
        try:
            with open(f"{self._folder}/HEAD", encoding="ascii") as head:
                return head.read().strip()
        except FileNotFoundError:
            return ""

    def keep(self, tip: str) -> None:
        """Link the objects of the user's repository; the commit `tip` reaches all that matter."""
        is_less = bool(self.tip) and not _has(self._user, self.tip)
        if not os.path.isdir(self._folder):
            command.make_git_dir(self._folder, self._user, tip)
        ours = f"{self._folder}/objects"
        with suppress(OSError):  # another file system, or one without hard links
            _link_missing(self._theirs, ours)
            if is_less:
                return
            _write(f"{ours}/{_BORROWED}", _borrowed(self._theirs))
            for name in set(_names(f"{ours}/pack")) - set(_names(f"{self._theirs}/pack")):
                os.unlink(f"{ours}/pack/{name}")
            _write(f"{self._folder}/HEAD", f"{tip}\n")

    def is_needed(self) -> bool:
        """Whether the user's repository has lost objects that we have."""
        tip = self.tip
        return bool(tip) and not _has(self._user, tip) and _has(self.repository, tip)

    def put_back(self) -> bool:
        """Put lost objects back into the user's repository; may be repeated."""
        if not self.is_needed():
            return False
        ours = f"{self._folder}/objects"
        _link_missing(ours, self._theirs)
        if (text := _borrowed(ours)) and not _borrowed(self._theirs):
            os.makedirs(f"{self._theirs}/info", exist_ok=True)
            _write(f"{self._theirs}/{_BORROWED}", text)
        return True


def _has(repository: command.Repository, commit: str) -> bool:
    try:
        return os.path.isdir(repository.git_dir) and repository.has_commit(commit)
    except SandboxError:
        return False


def _borrowed(objects: str) -> str:
    """The repository's alternates as absolute paths, so that they hold in our folder too."""
    try:
        with open(f"{objects}/{_BORROWED}", encoding="utf-8", errors="surrogateescape") as found:
            lines = found.read().splitlines()
    except FileNotFoundError:
        return ""
    return "".join(
        os.path.normpath(f"{objects}/{line}" if line[:1] != "/" else line) + "\n"
        for line in lines
        if line
    )


def _write(path: str, text: str) -> None:
    """Write a file, whole or not at all."""
    beside = f"{path}.{os.getpid()}"
    with open(beside, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.replace(beside, path)


def _link_missing(source: str, target: str) -> None:
    for folder in _folders(source):
        names = set(_names(f"{source}/{folder}")) - set(_names(f"{target}/{folder}"))
        if names:
            os.makedirs(f"{target}/{folder}", exist_ok=True)
        # A pack without its index is no pack yet: the index comes last.
        for name in sorted(names, key=lambda name: (name.endswith(".idx"), name)):
            with suppress(FileNotFoundError, FileExistsError):
                os.link(f"{source}/{folder}/{name}", f"{target}/{folder}/{name}")


def _folders(objects: str) -> Iterator[str]:
    for name in sorted(_names(objects)):
        if name == "pack" or len(name) == 2:
            yield name


def _names(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(_NOT_NEEDED)]
    except FileNotFoundError:
        return []
