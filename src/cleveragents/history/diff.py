"""Show how two states of a plan differ: files, lines, and a patch."""

import os
import re
import stat
import subprocess
from typing import Any

import msgspec

from cleveragents.checkpoints.manager import States
from cleveragents.content import fsio
from cleveragents.context import Context
from cleveragents.execution.leasing import before_looking
from cleveragents.model.checkpoint import CheckpointGroup, SandboxCheckpoint
from cleveragents.model.plan import Plan
from cleveragents.model.resource import Change
from cleveragents.sandbox.git.command import environment
from cleveragents.sandbox.protocol import Sandbox
from cleveragents.sandbox.sqlite.tables import TableChange, table_changes


class FileDiff(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    resource: str
    status: str
    insertions: int
    deletions: int
    binary: bool = False
    tables: tuple[TableChange, ...] = ()
    """Of a database: what is different in it."""


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    files_changed: int
    insertions: int
    deletions: int
    files: tuple[FileDiff, ...]
    patch: str
    ignored: int


def diff_states(
    ctx: Context, plan: Plan, before: States, after: States, with_ignored: bool = False
) -> Diff:
    """The difference as users read it; ignored files are counted, not shown."""
    sandboxes = ctx.manager.sandboxes(plan.plan_id)
    files: list[FileDiff] = []
    patches: list[str] = []
    left_out = 0
    for rid, state in after.items():
        sandbox = sandboxes[rid]
        changes = sandbox.changes(before[rid], state)
        hidden = frozenset[bytes]() if with_ignored else sandbox.ignored(changes, state)
        private = sum(path.split(b"/")[0] == b".git" for path in hidden)
        left_out += len(hidden) - private
        shown = [change for change in changes if change.path not in hidden]
        if shown:
            found, patch = _one(ctx, sandbox, before[rid], state, shown)
            files += found
            # Programs that apply patches skip what stands between them.
            heading = f"# resource {sandbox.place.resource.name}\n" if len(after) > 1 else ""
            patches.append(f"{heading}{patch}" if patch else "")
    return Diff(
        files_changed=len(files),
        insertions=sum(item.insertions for item in files),
        deletions=sum(item.deletions for item in files),
        files=tuple(files),
        patch="".join(patches),
        ignored=left_out,
    )


def _one(
    ctx: Context, sandbox: Any, before: Any, after: Any, changes: list[Change]
) -> tuple[list[FileDiff], str]:
    paths = frozenset(change.path for change in changes)
    with ctx.scratch() as scratch:
        for name, state in (("a", before), ("b", after)):
            os.mkdir(f"{scratch}/{name}")
            sandbox.export(state, paths, f"{scratch}/{name}")
        counts = _numbers(_git_diff(scratch, "--numstat", "-z"))
        patch = _git_diff(scratch, "-p").decode("utf-8", "backslashreplace")
        tables = {change.path: _tables(sandbox, scratch, change.path) for change in changes}
    files = [
        FileDiff(
            path=change.shown,
            resource=change.resource,
            status=str(change.action),
            insertions=max(counts.get(change.path, (0, 0))[0], 0),
            deletions=max(counts.get(change.path, (0, 0))[1], 0),
            binary=counts.get(change.path, (0, 0))[0] < 0,
            tables=tables[change.path],
        )
        for change in changes
    ]
    return files, patch


def _tables(sandbox: Sandbox, scratch: str, path: bytes) -> tuple[TableChange, ...]:
    if sandbox.place.resource.kind != "sqlite":
        return ()
    sides = [f"{scratch}/{side}/{os.fsdecode(path)}" for side in ("a", "b")]
    before, after = (side if os.path.isfile(side) else None for side in sides)
    return table_changes(before, after)


def exact_patch(
    ctx: Context, sandbox: Sandbox, before: SandboxCheckpoint, after: SandboxCheckpoint
) -> tuple[int, bytes]:
    """How many visible paths differ, and a patch that loses no byte, whoever carries it."""
    changes = sandbox.changes(before, after)
    hidden = sandbox.ignored(changes, after)
    paths = frozenset(change.path for change in changes if change.path not in hidden)
    with ctx.scratch() as scratch:
        for folder in ("text/a", "text/b", "bytes/a", "bytes/b"):
            os.makedirs(f"{scratch}/{folder}")
        sandbox.export(before, paths, f"{scratch}/text/a")
        sandbox.export(after, paths, f"{scratch}/text/b")
        for path in _with_carriage_returns(f"{scratch}/text", paths):
            _set_apart(scratch, path)
        with open(f"{scratch}/attributes", "w", encoding="ascii") as target:
            target.write("* -diff\n")
        exact = ("-p", "--binary", "--full-index")
        text = _git_diff(f"{scratch}/text", *exact)
        whole = _git_diff(f"{scratch}/bytes", *exact, attributes=f"{scratch}/attributes")
    return len(paths), text + whole


def _with_carriage_returns(scratch: str, paths: frozenset[bytes]) -> list[bytes]:
    """Mail programs and `git am` take them off the ends of lines."""
    found: list[bytes] = []
    for path in sorted(paths):
        for side in ("a", "b"):
            there = _lstat(f"{scratch}/{side}", path)
            if there is not None and stat.S_ISREG(there.st_mode):
                with open(os.path.join(os.fsencode(f"{scratch}/{side}"), path), "rb") as content:
                    if b"\r\n" in content.read():
                        found.append(path)
                        break
    return found


def _set_apart(scratch: str, path: bytes) -> None:
    for side in ("a", "b"):
        found = _lstat(f"{scratch}/text/{side}", path)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            there = os.path.join(os.fsencode(f"{scratch}/bytes/{side}"), path)
            os.makedirs(os.path.dirname(there), exist_ok=True)
            os.rename(os.path.join(os.fsencode(f"{scratch}/text/{side}"), path), there)


def _lstat(folder: str, path: bytes) -> os.stat_result | None:
    """What is at a path. Where one state has a link and the other a folder, the link is no way."""
    try:
        with fsio.directory(folder) as top, fsio.parent_of(top, path) as (fd, name):
            return fsio.lstat_at(fd, name)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _git_diff(scratch: str, *arguments: str, attributes: str = "/dev/null") -> bytes:
    """`git diff --no-index` of two folders that hold nothing but the changed files."""
    done = subprocess.run(
        [
            "git", "-c", f"core.attributesFile={attributes}",
            "diff", "--no-index", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames",
            "--no-prefix", *arguments, "--", "a", "b",
        ],
        cwd=scratch,
        capture_output=True,
        env=environment({"GIT_CEILING_DIRECTORIES": os.path.dirname(scratch)}),
        check=False,
    )  # fmt: skip
    return _HEADER.sub(_both_sides, done.stdout) if "-p" in arguments else done.stdout


_HEADER = re.compile(rb"^diff --git (.+)$", re.MULTILINE)


def _both_sides(header: "re.Match[bytes]") -> bytes:
    """Of a file that is on one side only git names that side twice, where a patch has both."""
    names = header[1]
    half = len(names) // 2
    if names[:half] != names[half + 1 :]:
        return header[0]
    quote = names[:1] if names[:1] == b'"' else b""
    rest = names[len(quote) + 1 : half]
    return b"diff --git %sa%s %sb%s" % (quote, rest, quote, rest)


def _numbers(shown: bytes) -> dict[bytes, tuple[int, int]]:
    """Path -> lines added and removed; -1 for binary files."""
    found: dict[bytes, tuple[int, int]] = {}
    fields = shown.split(b"\0")
    position = 0
    while position < len(fields) and fields[position]:
        added, removed, path = fields[position].split(b"\t", 2)
        position += 1
        if not path:
            # With two names git gives them as fields of their own.
            old, new = fields[position], fields[position + 1]
            path = new if old == b"/dev/null" else old
            position += 2
        path = path.split(b"/", 1)[1]
        lines = (-1, -1) if added == b"-" else (int(added), int(removed))
        found[path] = lines
    return found


def diff_between(
    ctx: Context,
    plan: Plan,
    start: CheckpointGroup | None,
    end: CheckpointGroup | None,
    ignored: bool = False,
) -> Diff:
    """From one group to another; by default from what the plan began with to now."""
    before = ctx.checkpoints.states(start) if start else ctx.checkpoints.began_with(plan.plan_id)
    if not before:
        return Diff(files_changed=0, insertions=0, deletions=0, files=(), patch="", ignored=0)
    head = plan.head_group_id
    gone = any(r.state == "removed" for r in ctx.store.resources.sandboxes(plan.plan_id))
    if end is None and (gone or ctx.store.identity.is_elsewhere) and head is not None:
        end = ctx.store.checkpoints.group(head)
    if end is not None:
        return diff_states(ctx, plan, before, ctx.checkpoints.states(end), ignored)
    before_looking(ctx, plan.plan_id)
    with ctx.manager.packs.batch() as batch:
        now = ctx.manager.create_checkpoint(plan.plan_id, batch, before, strict=False)
        return diff_states(ctx, plan, before, now, ignored)


def diff_of_failure(ctx: Context, plan: Plan) -> dict[str, Any] | None:
    """What the failed step had done, if its state was kept."""
    kept = plan.error.group_id if plan.error else None
    if kept is None or plan.head_group_id is None:
        return None
    groups = ctx.store.checkpoints
    # With `stop` the plan stands on the failed state itself: what was there before is older.
    order = ctx.store.order_of(plan.plan_id)
    made = [g.group_id for g in groups.groups(plan.plan_id)]
    earlier = [name for name in made if order[name] < order[kept]]
    start = plan.head_group_id
    if start == kept and earlier:
        start = earlier[-1]
    before = ctx.checkpoints.states(groups.group(start))
    after = ctx.checkpoints.states(groups.group(kept))
    return msgspec.to_builtins(diff_states(ctx, plan, before, after))
