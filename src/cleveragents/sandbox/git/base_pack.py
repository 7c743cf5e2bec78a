"""The base commit without its history: packed for the store, unpacked on another machine."""

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from cleveragents.content import files, fsio, removal
from cleveragents.content.packs import Batch
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.sandbox.anywhere import MACHINE_FILES
from cleveragents.sandbox.git import command
from cleveragents.sandbox.protocol import Place
from cleveragents.sandbox.tree import TreeSandbox

PACK, AT = "base_pack", "base_at"
"""In an origin: the key of the packed base commit, and where it is unpacked on this machine."""
ALTERNATES, SHALLOW = "objects/info/alternates", ".git/shallow"


def portable(
    repository: command.Repository,
    commit: str | None,
    borrowed: dict[str, str],
    batch: Batch | None,
) -> dict[str, Any]:
    """What an origin needs so that another machine can make the sandbox."""
    packed = {PACK: _packed(repository, commit, batch).hex()} if commit and batch else {}
    return {**packed, MACHINE_FILES: [SHALLOW, *(f"{name}/{ALTERNATES}" for name in borrowed)]}


def _packed(repository: command.Repository, commit: str, batch: Batch) -> bytes:
    listed = repository.git("rev-list", "--objects", "--no-walk", commit)
    names = b"".join(line.split(b" ", 1)[0] + b"\n" for line in listed.splitlines())
    data = repository.git("pack-objects", "--stdout", "-q", stdin=names)
    return files.store_blocks(_blocks(data), batch)[0]


def _blocks(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), files.CHUNK):
        yield data[at : at + files.CHUNK]


class GitAnywhere(TreeSandbox):
    """The half of a git sandbox that needs no repository of the user's."""

    place: Place

    @property
    def unpacked(self) -> command.Repository | None:
        """The base commit unpacked here; None where the user's repository has it."""
        folder = self.place.origin.get(AT)
        if PACK in self.place.origin and not (folder and os.path.isdir(folder)):
            folder = self._cached_base()
        if folder is None:
            return None
        noted = self.place.origin["repository"]
        return command.Repository(folder, folder, folder, noted["object_format"])

    @property
    def base_folder(self) -> str:
        """Beside the sandbox; removed with it."""
        name = f".base-{self.place.resource.resource_id}"
        return os.path.join(os.path.dirname(self.place.root), name)

    def _cached_base(self) -> str | None:
        """For a look from a machine with neither the sandbox nor the repository: in the cache."""
        origin, folder = self.place.origin, f"{self.place.cache}.base"
        here = (origin["repository"]["git_dir"], f"{self.place.resource.path}/.git")
        if self.place.cache is None or any(os.path.exists(path) for path in here):
            return None
        if not os.path.isdir(folder):
            fsio.make_private_dir(os.path.dirname(folder))
            unnamed = f"{folder}-{os.getpid()}"
            removal.remove_tree(unnamed)
            self._unpack(unnamed, origin)
            os.rename(unnamed, folder)
        return folder

    def create_at(self, state: SandboxCheckpoint, staging: str) -> dict[str, Any]:
        origin = {key: item for key, item in self.place.origin.items() if key != AT}
        folder = self.base_folder
        removal.remove_tree(folder)
        if PACK in origin:
            self._unpack(folder, origin)
            origin |= {AT: folder, "borrowed": {".git": f"{folder}/objects"}}
        self.place = msgspec.structs.replace(self.place, origin=origin)
        super().create_at(state, staging)
        if PACK in origin:
            self._link_base(folder, origin["base"])
        return origin

    def _unpack(self, folder: str, origin: dict[str, Any]) -> None:
        form = f"--object-format={origin['repository']['object_format']}"
        command.run("init", "-q", "--bare", "--template=", form, folder)
        key = bytes.fromhex(origin[PACK])
        data = b"".join(files.content_blocks(self.place.packs.get, key))
        command.run(f"--git-dir={folder}", "index-pack", "--stdin", stdin=data)
        with open(f"{folder}/shallow", "x", encoding="ascii") as cut:
            cut.write(f"{origin['base']}\n")

    def _link_base(self, folder: str, base: str) -> None:
        """Point the sandbox's own git at the base commit, as a shallow one."""
        with fsio.directory(self.place.root) as root:
            for path, text in (
                (f".git/{ALTERNATES}", f"{folder}/objects\n"),
                (SHALLOW, f"{base}\n"),
            ):
                with fsio.parent_of(root, os.fsencode(path)) as (fd, name):
                    fsio.put(fd, name, os.fsencode(text), 0o644)

    def remove(self) -> None:
        super().remove()
        folder = self.place.origin.get(AT, "")
        # A child plan's sandbox reads its parent's folder, and must leave it there.
        if os.path.dirname(folder) == os.path.dirname(self.place.root):
            removal.remove_tree(folder)
        if self.place.cache is not None:
            removal.remove_tree(f"{self.place.cache}.base")
