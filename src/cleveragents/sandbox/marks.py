"""Who owns a sandbox: a file beside its root, where no capture looks and no tool may write.

A row says where a sandbox is; the mark there must agree before anything in it is written or
removed. So a row that points elsewhere, or a copied store, does no harm.
"""

import os

import msgspec

from cleveragents import codec
from cleveragents.content import fsio
from cleveragents.model.resource import SandboxRecord


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    plan: str
    sandbox: str
    root: str
    path: str


def mark_of(store_id: str, record: SandboxRecord) -> Mark:
    return Mark(
        store=store_id,
        plan=record.plan_id,
        sandbox=record.sandbox_id,
        root=record.root,
        path=record.path,
    )


def place_of(record: SandboxRecord) -> str:
    return f"{os.path.dirname(record.root)}/.mark-{record.sandbox_id}"


def put_mark(store_id: str, record: SandboxRecord) -> None:
    """Write the mark, on disk when this returns: nobody owns a sandbox without one."""
    place = place_of(record)
    fsio.unlink_if_there(f"{place}.new")
    fsio.write_new(f"{place}.new", msgspec.json.encode(mark_of(store_id, record)))
    os.rename(f"{place}.new", place)
    fsio.sync_dir(os.path.dirname(place))


def mark_at(record: SandboxRecord) -> Mark | None:
    try:
        with open(place_of(record), "rb") as found:
            return codec.from_json(found.read(), Mark)
    except (OSError, msgspec.DecodeError):
        return None


def is_marked(store_id: str, record: SandboxRecord) -> bool:
    return mark_at(record) == mark_of(store_id, record)


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
