"""Who owns a sandbox: a file beside its root, where no capture looks and no tool may write.

A row says where a sandbox is; the mark there must agree before anything in it is written or
removed. So a row that points elsewhere, or a copied store, does no harm.
"""

import os
from contextlib import suppress

import msgspec

from cleveragents import codec
from cleveragents.content import fsio
from cleveragents.model.resource import Owner, SandboxRecord

_VERSION = ".version"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    plan: str
    sandbox: str
    root: str
    path: str
    home: str = ""
    """The place of the store; those of older versions do not say it."""


def mark_of(owner: Owner, record: SandboxRecord) -> Mark:
    return Mark(
        store=owner.store,
        home=owner.home,
        plan=record.plan_id,
        sandbox=record.sandbox_id,
        root=record.root,
        path=record.path,
    )


def place_of(record: SandboxRecord) -> str:
    return f"{os.path.dirname(record.root)}/.mark-{record.sandbox_id}"


def put_mark(owner: Owner, record: SandboxRecord) -> None:
    """Write the mark, on disk when this returns: nobody owns a sandbox without one."""
    place = place_of(record)
    fsio.unlink_if_there(f"{place}.new")
    fsio.write_new(f"{place}.new", msgspec.json.encode(mark_of(owner, record)))
    os.rename(f"{place}.new", place)
    fsio.sync_dir(os.path.dirname(place))


def mark_at(record: SandboxRecord) -> Mark | None:
    try:
        with open(place_of(record), "rb") as found:
            return codec.from_json(found.read(), Mark)
    except (OSError, msgspec.DecodeError):
        return None


def is_marked(owner: Owner, record: SandboxRecord) -> bool:
    return says(mark_at(record), owner, record)


def says(mark: Mark | None, owner: Owner, record: SandboxRecord) -> bool:
    """Whether the mark is that of this sandbox, and of this store at this place."""
    if mark is None:
        return False
    home = mark.home if mark.home and owner.home else owner.home
    return msgspec.structs.replace(mark, home=home) == mark_of(owner, record)


def note_version(folder: str, version: int) -> None:
    """Note which version of the plan its sandboxes stand at; after the commit, and not synced.

    A number that is too low does no harm: it only hides that a store was put back.
    """
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(f"{folder}/{_VERSION}", flags, 0o600)
        try:
            fsio.write_all(fd, b"%020d" % version)
        finally:
            os.close(fd)


def version_at(folder: str) -> int:
    """The newest version that is noted there; 0 if none is."""
    try:
        with open(f"{folder}/{_VERSION}", "rb") as found:
            return int(found.read())
    except (OSError, ValueError):
        return 0


def store_of(folder: str) -> str | None:
    """The id of the store whose plan has its sandboxes in that folder, if a mark names it."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith(".mark-")]
        for name in names:
            with open(f"{folder}/{name}", "rb") as found:
                return codec.from_json(found.read(), Mark).store
    except (OSError, msgspec.DecodeError):
        pass
    return None
