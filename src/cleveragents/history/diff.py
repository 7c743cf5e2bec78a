"""The difference between two states of a plan: files, lines, database rows, and a patch."""

import os
import re
import stat
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from cleveragents.checkpoints.manager import States
from cleveragents.context import Context
from cleveragents.errors import NotFound
from cleveragents.execution.leasing import before_looking
from cleveragents.history.owners import Owner
from cleveragents.history.patches import Lines, patch_of
from cleveragents.model.checkpoint import CheckpointGroup, SandboxCheckpoint
from cleveragents.model.plan import Plan
from cleveragents.model.resource import Action, Change, show_path
from cleveragents.model.triggers import nearest
from cleveragents.sandbox.protocol import Sandbox
from cleveragents.sandbox.registry import traits_of
from cleveragents.sandbox.sqlite.tables import TableChange, table_changes

FEW = 64
"""Files up to which all are compared at once."""
FIRST = 4
"""Of more files, so many come first, and then each time so many times as many."""
GROWTH = 4
MOST_RENAMED = 1000
"""Files that came and went up to which git looks for those that were only renamed."""


class ByHand(msgspec.Struct, frozen=True):
    """Lines that no step wrote or took away, each as the first and the last of some."""

    added: tuple[tuple[int, int], ...] = ()
    """In the file afterwards."""
    removed: tuple[tuple[int, int], ...] = ()
    """In the file before."""


class FileDiff(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    resource: str
    status: str
    """added, changed, removed or renamed."""
    insertions: int
    deletions: int
    binary: bool = False
    is_directory: bool = False
    renamed_from: str | None = None
    modes: tuple[str, str] | None = None
    """Before and after, where set-uid, set-gid or sticky bits differ: no patch has them."""
    tables: tuple[TableChange, ...] = ()
    """Of a database: what is different in it."""
    owner: Owner | None = None
    """Who changed it; None where nobody asked for that."""
    by_hand: ByHand | None = None
    """Of a text that both changed: which lines somebody else did."""


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    files_changed: int
    """Of `files`, without the directories."""
    insertions: int
    deletions: int
    files: tuple[FileDiff, ...]
    patch: str
    ignored: int


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Some files of one resource, and the patch of these."""

    files: tuple[FileDiff, ...]
    patch: str


class Comparison:
    """Compares two states of a plan; content is read on demand, a few files at a time."""

    def __init__(
        self,
        ctx: Context,
        plan: Plan,
        before: States,
        after: States,
        with_ignored: bool = False,
        on: tuple[str, ...] = (),
        ends: "Ends" = (None, None),
    ) -> None:
        """Ignored files are counted, not shown; `on`: compare only these resources."""
        self.ctx: Context = ctx
        self.plan: Plan = plan
        self.ends: Ends = ends
        self.is_named: bool = len(after) > 1
        """Whether the plan has several resources."""
        self.parts: list[Part] = []
        self.ignored: int = 0
        sandboxes = ctx.manager.sandboxes(plan.plan_id)
        _require_resources(plan, on, [one.name for one in sandboxes.resources.values()])
        for rid, state in after.items():
            sandbox = sandboxes[rid]
            if on and sandbox.place.resource.name not in on:
                continue
            changes = sandbox.changes(before[rid], state)
            hidden = frozenset[bytes]() if with_ignored else sandbox.ignored(changes, state)
            private = sum(path.split(b"/")[0] == b".git" for path in hidden)
            self.ignored += len(hidden) - private
            if shown := [change for change in changes if change.path not in hidden]:
                self.parts.append(Part(sandbox, before[rid], state, shown))

    def names(self) -> Iterator[Change]:
        """Every path that differs, without reading files; a renamed file is two paths."""
        for part in self.parts:
            yield from part.changes

    def pieces(self) -> Iterator[Piece]:
        for part in self.parts:
            # Programs that apply patches skip text between them.
            heading = f"# resource {part.sandbox.place.resource.name}\n" if self.is_named else ""
            for changes in in_turns(part.changes):
                # The folder is removed after its content is shown: somebody waits for that.
                with self.ctx.scratch() as scratch:
                    piece = _compared(scratch, part, changes)
                    yield msgspec.structs.replace(piece, patch=heading + piece.patch)
                heading = ""

    def diff(self) -> Diff:
        pieces = list(self.pieces())
        files = tuple(file for piece in pieces for file in piece.files)
        return Diff(
            files_changed=sum(not item.is_directory for item in files),
            insertions=sum(item.insertions for item in files),
            deletions=sum(item.deletions for item in files),
            files=files,
            patch="".join(piece.patch for piece in pieces),
            ignored=self.ignored,
        )

    def tables(self) -> dict[str, tuple[TableChange, ...]]:
        """Resource -> changed tables, of the databases."""
        found: dict[str, tuple[TableChange, ...]] = {}
        for part in self.parts:
            if _is_database(part.sandbox):
                with self.ctx.scratch() as scratch:
                    files = _compared(scratch, part, part.changes).files
                name = part.sandbox.place.resource.name
                found[name] = tuple(table for file in files for table in file.tables)
        return found

    def contents(
        self, files: Iterable[FileDiff], most: int
    ) -> dict[tuple[str, str], tuple[bytes | None, bytes | None]]:
        """(resource, path) -> the bytes before and after.

        None for a side that is missing, not a file, or larger than `most` bytes.
        """
        wanted: dict[str, list[FileDiff]] = {}
        for file in files:
            wanted.setdefault(file.resource, []).append(file)
        found: dict[tuple[str, str], tuple[bytes | None, bytes | None]] = {}
        for part in self.parts:
            name = part.sandbox.place.resource.name
            own = wanted.get(name, [])
            paths = {change.shown: change.path for change in part.changes}
            pairs = [(paths[file.renamed_from or file.path], paths[file.path]) for file in own]
            with self.ctx.scratch() as scratch:
                before = read_files(
                    part.sandbox, part.before, [a for a, _ in pairs], f"{scratch}/a", most
                )
                after = read_files(
                    part.sandbox, part.after, [b for _, b in pairs], f"{scratch}/b", most
                )
            for file, one, two in zip(own, before, after, strict=True):
                found[name, file.path] = one, two
        return found


Ends = tuple[CheckpointGroup | None, CheckpointGroup | None]
"""The groups that are compared; None for the beginning of the plan, and for now."""


class Part(msgspec.Struct, frozen=True):
    """One resource in both states."""

    sandbox: Sandbox
    before: SandboxCheckpoint
    after: SandboxCheckpoint
    changes: list[Change]


def _require_resources(plan: Plan, wanted: tuple[str, ...], names: list[str]) -> None:
    for name in wanted:
        if name not in names:
            raise NotFound(
                f"plan {plan.name!r} has no resource {name!r}{nearest(name, names)}",
                f"its resources: {', '.join(names)}",
            )


def in_turns(changes: list[Change]) -> Iterator[list[Change]]:
    """Batches of growing size; possible renames stay together (pure)."""
    if len(changes) <= FEW:
        yield changes
        return
    moved = [change for change in changes if change.action is not Action.CHANGED]
    both = {change.action for change in moved} == {Action.ADDED, Action.REMOVED}
    if both and len(moved) <= MOST_RENAMED:
        yield moved
        changes = [change for change in changes if change.action is Action.CHANGED]
    size = FIRST
    while changes:
        yield changes[:size]
        changes, size = changes[size:], size * GROWTH


def _compared(scratch: str, part: Part, changes: list[Change]) -> Piece:
    paths = frozenset(change.path for change in changes)
    for name, state in (("a", part.before), ("b", part.after)):
        os.mkdir(f"{scratch}/{name}")
        part.sandbox.export(state, paths, f"{scratch}/{name}")
    counts, patch = patch_of(scratch)
    tables = {change.path: _tables(part.sandbox, scratch, change.path) for change in changes}
    renamed = {lines.renamed_from for lines in counts.values()}
    files = [
        _file(change, counts.get(change.path, Lines(0, 0)), tables[change.path])
        for change in changes
        if change.path not in renamed
    ]
    return Piece(files=tuple(files), patch=patch)


def read_files(
    sandbox: Sandbox, state: SandboxCheckpoint, paths: list[bytes], place: str, most: int
) -> list[bytes | None]:
    """Read those files of a state."""
    if not paths:
        return []
    os.mkdir(place)
    sandbox.export(state, frozenset(paths), place)
    found: list[bytes | None] = []
    for path in paths:
        file = os.path.join(os.fsencode(place), path)
        try:
            about = os.lstat(file)
        except FileNotFoundError:
            found.append(None)
            continue
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            found.append(None)
            continue
        with open(file, "rb") as content:
            found.append(content.read())
    return found


def _file(change: Change, lines: Lines, tables: tuple[TableChange, ...]) -> FileDiff:
    was = lines.renamed_from
    return FileDiff(
        path=change.shown,
        resource=change.resource,
        status=str(change.action) if was is None else "renamed",
        insertions=max(lines.added, 0),
        deletions=max(lines.removed, 0),
        binary=lines.added < 0,
        is_directory=change.is_directory,
        renamed_from=None if was is None else show_path(was),
        modes=_modes(change),
        tables=tables,
    )


def _modes(change: Change) -> tuple[str, str] | None:
    before, after = (_MODE.match(side) for side in (change.before, change.after))
    old, new = (found[1] if found else "" for found in (before, after))
    special = [int(mode or "0", 8) & 0o7000 for mode in (old, new)]
    return (old, new) if new and special[0] != special[1] else None


_MODE = re.compile("[fd]:([0-7]+):")
"""As in `Entry.described`."""


def _is_database(sandbox: Sandbox) -> bool:
    return traits_of(sandbox.place.resource.kind).is_sqlite


def _tables(sandbox: Sandbox, scratch: str, path: bytes) -> tuple[TableChange, ...]:
    if not _is_database(sandbox):
        return ()
    sides = [f"{scratch}/{side}/{os.fsdecode(path)}" for side in ("a", "b")]
    before, after = (side if os.path.isfile(side) else None for side in sides)
    return table_changes(before, after)


@contextmanager
def comparing(
    ctx: Context,
    plan: Plan,
    start: CheckpointGroup | None,
    end: CheckpointGroup | None,
    ignored: bool = False,
    on: tuple[str, ...] = (),
) -> Generator[Comparison]:
    """Compare two groups; by default the plan's start with now."""
    before = (
        ctx.checkpoints.states(start) if start else ctx.checkpoints.initial_states(plan.plan_id)
    )
    head = plan.head_group_id
    gone = any(r.state == "removed" for r in ctx.store.resources.sandboxes(plan.plan_id))
    if end is None and (gone or ctx.store.identity.is_elsewhere) and head is not None:
        end = ctx.store.checkpoints.group(head)
    if not before:
        yield Comparison(ctx, plan, {}, {}, ignored, on)
    elif end is not None:
        after = ctx.checkpoints.states(end)
        yield Comparison(ctx, plan, before, after, ignored, on, (start, end))
    else:
        before_looking(ctx, plan.plan_id)
        with ctx.manager.packs.batch() as batch:
            last = ctx.checkpoints.states(ctx.store.checkpoints.group(head)) if head else before
            now = ctx.manager.create_checkpoint(plan.plan_id, batch, last, strict=False)
            yield Comparison(ctx, plan, before, now, ignored, on, (start, None))


def diff_of_failure(ctx: Context, plan: Plan) -> dict[str, Any] | None:
    """The failed step's changes, if its state was kept."""
    kept = plan.error.group_id if plan.error else None
    if kept is None or plan.head_group_id is None:
        return None
    groups = ctx.store.checkpoints
    # With `stop` the plan is at the failed state itself: the state before is older.
    order = ctx.store.order_of(plan.plan_id)
    made = [g.group_id for g in groups.groups(plan.plan_id)]
    earlier = [name for name in made if order[name] < order[kept]]
    start = plan.head_group_id
    if start == kept and earlier:
        start = earlier[-1]
    before = ctx.checkpoints.states(groups.group(start))
    after = ctx.checkpoints.states(groups.group(kept))
    return msgspec.to_builtins(Comparison(ctx, plan, before, after).diff())
