"""A store's place: recorded when it is first opened, adopted again when it was moved."""

import os
import shlex
import sqlite3
from collections.abc import Collection
from contextlib import closing

import msgspec

from cleveragents.apply.staging import moved
from cleveragents.content import fsio
from cleveragents.context import Context
from cleveragents.errors import NotAllowed
from cleveragents.model.resource import Owner, SandboxRecord, SandboxState
from cleveragents.sandbox.marks import is_marked, mark_at, put_mark, says
from cleveragents.sandbox.registry import has_copy
from cleveragents.sandbox.tree import repair_links
from cleveragents.store import Identity


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a store that was moved, or put back from a backup."""

    moved_from: str
    """Where it was; "" if it is in its place."""
    sandboxes: tuple[str, ...] = ()
    """Those that are its own at their new place, or again in their old one."""
    missing: tuple[str, ...] = ()
    """Those that are not where the store is now, nor where they were."""


def claim(ctx: Context) -> None:
    """Note where the store is; sandboxes of a version that knew no marks get theirs."""
    store = ctx.store
    with store.unguarded():
        if store.identity.made_at:
            return
        for record in store.resources.all_sandboxes():
            if _is_old_and_ours(ctx, record):
                put_mark(store.identity.owner, record)
        store.claim()


def _is_copy(ctx: Context, record: SandboxRecord) -> bool:
    return has_copy(ctx.store.resources.get(record.resource_id))


def _is_old_and_ours(ctx: Context, record: SandboxRecord) -> bool:
    return (
        _is_copy(ctx, record)
        and record.state is not SandboxState.REMOVED
        and os.path.basename(os.path.dirname(record.root)) == record.plan_id
        and os.path.lexists(record.root)
        and (record.state is SandboxState.CREATING or fsio.is_inode(record.root, record.identity))
    )


def adopt(ctx: Context) -> Adopted:
    """Make a moved store's rows and marks name the place where it is now; or those put back."""
    store, identity = ctx.store, ctx.store.identity
    if not identity.is_elsewhere:
        return Adopted(moved_from="", sandboxes=_adopt_put_back(ctx))
    if _is_there(identity):
        raise NotAllowed(
            f"this is a copy: its original is still at {identity.made_at}",
            "work with the original; or remove it first, then agents doctor --adopt",
        )
    if os.stat(f"{identity.home}/store.db").st_nlink > 1:
        raise NotAllowed(
            "this is a copy made of hard links: store.db is also the original's, and would be"
            " written by both",
            f"cp -a {shlex.quote(identity.home)} to another place and adopt that,"
            " or remove the original first",
        )
    owner = msgspec.structs.replace(identity, made_at=identity.home).owner
    found: list[str] = []
    missing: list[str] = []
    with store.unguarded():
        for record in store.resources.all_sandboxes():
            if not _is_copy(ctx, record) or record.state is SandboxState.REMOVED:
                continue
            here = _moved(record, identity, owner)
            if here is not None:
                put_mark(owner, here)
                store.resources.put_sandbox(here)
                found.append(here.root)
            elif is_marked(identity.owner, record):
                put_mark(owner, record)  # outside of the store, and no longer the original's
            elif not is_marked(owner, record):
                missing.append(record.root)
        store.resources.move_sources(identity.made_at, identity.home)
        for intent in store.intents.all():
            if intent.kind == "apply":
                store.intents.put(moved(intent, identity.home))
        if ctx.settings.content_url:
            # The database alone was brought here: content is what the bucket has.
            store.objects.forget_lost(ctx.manager.packs.names())
        store.claim()
    ctx.manager.close()
    _mend_links(ctx, found)
    return Adopted(moved_from=identity.made_at, sandboxes=tuple(found), missing=tuple(missing))


def put_back(ctx: Context) -> list[SandboxRecord]:
    """Sandboxes that a backup brought back: other directories than were made, with our marks."""
    return [
        record
        for record in ctx.store.resources.all_sandboxes()
        if _is_copy(ctx, record)
        and record.state is SandboxState.READY
        and os.path.lexists(record.root)
        and not fsio.is_inode(record.root, record.identity)
        and is_marked(ctx.store.identity.owner, record)
    ]


def _adopt_put_back(ctx: Context) -> tuple[str, ...]:
    found = put_back(ctx)
    if found:
        with ctx.store.unguarded():
            for record in found:
                here = msgspec.structs.replace(record, identity=fsio.identity(record.root))
                ctx.store.resources.put_sandbox(here)
        ctx.manager.close()
    return tuple(record.root for record in found)


def _mend_links(ctx: Context, roots: Collection[str]) -> None:
    """Links to inner resources lead to where those were; what is no link any more stays."""
    for plan_id in {record.plan_id for record in ctx.store.resources.all_sandboxes()}:
        for sandbox in ctx.manager.sandboxes(plan_id).opened.values():
            spots = [f"{sandbox.place.root}/{spot}" for spot in sandbox.place.links]
            if sandbox.place.root in roots and all(map(os.path.islink, spots)):
                repair_links(sandbox.place)
    ctx.manager.close()


def _is_there(identity: Identity) -> bool:
    """Whether the place it was made at still has the store of that id, or cannot be looked at."""
    path = f"{identity.made_at}/store.db"
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            row = db.execute("SELECT value FROM store WHERE name = 'id'").fetchone()
    except sqlite3.Error:
        return True
    return row == (identity.store_id,)


def _moved(record: SandboxRecord, identity: Identity, owner: Owner) -> SandboxRecord | None:
    """The row of a sandbox that came along with the store; None if it did not."""

    def here(path: str) -> str:
        inside = path.startswith(f"{identity.made_at}/")
        return identity.home + path.removeprefix(identity.made_at) if inside else path

    root = here(record.root)
    if root == record.root or not os.path.lexists(root):
        return None
    moved = msgspec.structs.replace(
        record, root=root, path=here(record.path), identity=fsio.identity(root)
    )
    mark = mark_at(moved)
    # Half adopted before, it may say the new place already.
    is_known = says(mark, identity.owner, record) or says(mark, owner, moved)
    return moved if is_known else None
