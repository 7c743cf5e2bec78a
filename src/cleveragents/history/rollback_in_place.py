"""Rolls back resources in place: the plan's own writes, and nobody else's."""

import os
from collections.abc import Collection, Mapping, Sequence

import msgspec

from cleveragents.checkpoints.groups import About
from cleveragents.checkpoints.in_place import RESTORE
from cleveragents.checkpoints.manager import States
from cleveragents.checkpoints.restoration import Restoration
from cleveragents.content.packs import Batch
from cleveragents.context import Context
from cleveragents.errors import NotAllowed, NotFound, RollbackConflict
from cleveragents.history import owners
from cleveragents.history.owners import Action, Choices, History, Owner, Verdict
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import (
    CheckpointGroup,
    CheckpointType,
    OwnedPath,
    SandboxCheckpoint,
)
from cleveragents.model.ids import new_id
from cleveragents.model.plan import Plan
from cleveragents.model.resource import Change, show_path
from cleveragents.model.tool import Write
from cleveragents.model.units import plural, show_bytes
from cleveragents.sandbox.protocol import Conflict, InPlace, Owned, Place
from cleveragents.sandbox.sqlite.holders import holder_of

Spot = tuple[str, bytes]


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a rollback in place."""

    states: States
    paths: tuple[OwnedPath, ...]
    conflicts: tuple[Conflict, ...]
    notes: tuple[str, ...]


class _Resource:
    """One resource in place, judged path by path."""

    def __init__(self, owned: Owned, name: str, choices: Choices) -> None:
        self.owned = owned
        self.name = name
        self.choices = choices
        self.histories: dict[bytes, History] = {}
        self.verdicts: dict[bytes, Verdict] = {}

    def judge(self, path: bytes, history: History) -> None:
        verdict = owners.decide(
            history,
            lambda base, ours, theirs: self.owned.merge(path, base, ours, theirs),
            is_merged=self.owned.is_merged(path),
        )
        names = (path, os.fsencode(self.name), os.fsencode(self.name) + b":" + path)
        self.histories[path] = history
        self.verdicts[path] = self.choices.chosen(names, history, verdict)

    def keep_contents(self) -> None:
        """Make a conflict of a folder that would become a file and holds others' work."""
        kept = [p for p, v in self.verdicts.items() if v.action is Action.KEEP]
        for path, verdict in self.verdicts.items():
            if owners.buried(path, verdict, self.histories[path].now, kept):
                self.verdicts[path] = Verdict(
                    owner=Owner.BOTH,
                    action=Action.CONFLICT,
                    result=self.histories[path].now,
                    reason="it would become a file, and there is something in it that is new",
                )

    def keep_repositories_whole(self) -> None:
        """Keep a repository that the agent made if somebody has committed to it since."""
        kept = [p for p, v in self.verdicts.items() if owners.is_others(v)]
        for top in owners.new_repositories(self.histories):
            if any(path.startswith(top + b"/") for path in kept):
                for path in self.verdicts:
                    if path == top or path.startswith(top + b"/"):
                        self.verdicts[path] = Verdict(
                            owner=self.verdicts[path].owner,
                            action=Action.KEEP,
                            result=self.histories[path].now,
                            reason="somebody else has worked in this repository since",
                        )

    def wanted(self) -> dict[bytes, str]:
        done = (Action.RESTORE, Action.MERGE)
        return {p: v.result for p, v in self.verdicts.items() if v.action in done}

    def conflicts(self) -> list[Conflict]:
        found: list[Conflict] = []
        for path, verdict in sorted(self.verdicts.items()):
            if verdict.action is Action.CONFLICT:
                history = self.histories[path]
                base, ours, theirs = verdict.sides or (history.now, history.target, history.now)
                checkpoint, mine = self.owned.sides(path, base, ours, theirs)
                found.append(
                    Conflict(
                        resource=self.name,
                        path=show_path(path),
                        base=base,
                        ours=checkpoint,
                        theirs=mine,
                        reason=verdict.reason,
                    )
                )
        return found

    def paths(self) -> list[OwnedPath]:
        """The changed paths, and those unchanged again that both sides had changed."""
        return [
            OwnedPath(self.name, path, str(verdict.owner), str(verdict.action), verdict.reason)
            for path, verdict in sorted(self.verdicts.items())
            if verdict.owner is Owner.BOTH or not self._is_as_it_was(path)
        ]

    def _is_as_it_was(self, path: bytes) -> bool:
        return self.histories[path].now == self.histories[path].target

    def notes(self) -> list[str]:
        """What happens to git's own state, in words that fit a preview too."""
        inside = [
            (p, v) for p, v in sorted(self.verdicts.items()) if p.startswith(b".git/") and _says(p)
        ]
        back = [p for p, v in inside if v.action is Action.RESTORE]
        left = [p for p, v in inside if v.action is Action.KEEP and v.owner is Owner.BOTH]
        said: list[str] = []
        if back:
            said.append(f"{self.name}: back to the checkpoint: {_listed(back)}")
        if left:
            said.append(f"{self.name}: {_listed(left)} left as now: moved by somebody else since")
        return said


def _says(path: bytes) -> bool:
    inside = path[5:]
    return inside in (b"HEAD", b"index", b"packed-refs") or inside.startswith(b"refs/")


def _listed(paths: Sequence[bytes]) -> str:
    shown = [show_path(path[5:]) for path in paths[:5]]
    more = f" and {plural(len(paths) - 5, 'more ref')}" if len(paths) > 5 else ""
    return ", ".join(shown) + more


def outlook(
    ctx: Context,
    plan: Plan,
    group: CheckpointGroup,
    now: States,
    choices: Choices,
    batch: Batch,
    only: Mapping[str, Collection[bytes]] | None = None,
) -> Outlook:
    """Judge every path that the plan wrote since, or that differs from the checkpoint.

    `only`: paths of each resource; all others stay as they are.
    """
    targets = ctx.checkpoints.states(group)
    sandboxes = ctx.manager.sandboxes(plan.plan_id)
    writes = _writes(ctx, plan, group)
    shared = ctx.store.calls.shared_writes(plan.plan_id)
    states: States = dict(targets)
    judged: list[_Resource] = []
    notes: list[str] = []
    with ctx.scratch() as scratch:
        for rid in sandboxes.in_place:
            sandbox = sandboxes[rid]
            assert isinstance(sandbox, InPlace)
            earlier, since = _seen(ctx, plan, group, rid)
            seen = [targets[rid], now[rid], *since]
            owned = sandbox.by_owner(seen, batch, scratch)
            one = _Resource(owned, sandbox.place.resource.name, choices)
            changed = {change.path for change in sandbox.changes(targets[rid], now[rid])}
            paths = changed | {path for at, path in writes if at == rid}
            for path in paths if only is None else paths & set(only.get(rid, ())):
                made = writes.get((rid, path), ())
                history = _history(owned, path, targets[rid], now[rid], made, shared)
                if any(write.restores for write in history.writes):
                    history = _with_earlier(history, owned, path, earlier)
                one.judge(path, history)
            one.keep_repositories_whole()
            one.keep_contents()
            judged.append(one)
            wanted = one.wanted()
            _require_git_idle(sandbox.place.root, wanted)
            _require_databases_closed(sandbox.place.path, wanted)
            if not choices.everything:
                states[rid] = owned.assembled(now[rid], targets[rid], wanted)
            notes += [*one.notes(), *_not_covered(one.name, sandbox.place)]
        conflicts = tuple(conflict for one in judged for conflict in one.conflicts())
    return Outlook(
        states=states,
        paths=tuple(path for one in judged for path in one.paths()),
        conflicts=conflicts,
        notes=tuple(notes),
    )


def _history(
    owned: Owned,
    path: bytes,
    target: SandboxCheckpoint,
    now: SandboxCheckpoint,
    made: Sequence[Write],
    shared: frozenset[tuple[str, bytes]],
) -> History:
    def means(text: str) -> str:
        return owned.meaning(path, text)

    writes = [owners.Change(means(w.before), means(w.after), w.step_id == RESTORE) for w in made]
    return History(
        target=means(owned.at(target, path)),
        writes=tuple(writes),
        now=means(owned.at(now, path)),
        shared=frozenset(
            change for change, w in zip(writes, made, strict=True) if (w.call_id, path) in shared
        ),
    )


def _writes(ctx: Context, plan: Plan, group: CheckpointGroup) -> dict[Spot, tuple[Write, ...]]:
    found: dict[Spot, tuple[Write, ...]] = {}
    number = ctx.store.checkpoints.number(group.group_id)
    for write in ctx.store.calls.writes_after(plan.plan_id, number):
        spot = write.resource_id, write.path
        found[spot] = (*found.get(spot, ()), write)
    return found


def _with_earlier(
    history: History, owned: Owned, path: bytes, states: Sequence[SandboxCheckpoint]
) -> History:
    texts = {owned.meaning(path, owned.at(state, path)) for state in states}
    return msgspec.structs.replace(history, earlier=frozenset(texts))


def _seen(
    ctx: Context, plan: Plan, group: CheckpointGroup, resource_id: str
) -> tuple[list[SandboxCheckpoint], list[SandboxCheckpoint]]:
    """The distinct states of the groups before a group, and from it on, newest first."""
    groups = ctx.store.checkpoints.groups(plan.plan_id)
    at = [g.group_id for g in groups].index(group.group_id)

    def states(some: Sequence[CheckpointGroup]) -> list[SandboxCheckpoint]:
        found: dict[str, SandboxCheckpoint] = {}
        for one in reversed(some):
            if (state := ctx.checkpoints.states(one).get(resource_id)) is not None:
                found.setdefault(state.state_hash, state)
        return list(found.values())

    return states(groups[:at]), states(groups[at:])


def _require_git_idle(root: str, wanted: dict[bytes, str]) -> None:
    lock = f"{root}/.git/index.lock"
    if any(path.startswith(b".git/") for path in wanted) and os.path.exists(lock):
        raise NotAllowed(
            f"git is running in {root}", f"wait for it; if no git runs there: rm {lock}"
        )


def _require_databases_closed(root: str, wanted: dict[bytes, str]) -> None:
    """Refuse if databases among the files of a tree are open."""
    if os.path.isdir(root) and (found := holder_of(root, wanted)) is not None:
        raise NotAllowed(
            f"the database {show_path(found.path)} is open in process {found.pid}"
            f" ({found.program}), which would keep using the old file",
            "end that process and run it again; a database that [session.resources] names is"
            " written back while it is open",
        )


def _not_covered(name: str, place: Place) -> list[str]:
    uncovered = place.origin.get("not_covered", {})
    shown = [f"{path} ({show_bytes(size)})" for path, size in uncovered.items()]
    repository = place.origin.get("repository")
    if repository is not None:
        git_dir = os.path.realpath(repository["git_dir"])
        if repository["git_dir"] != repository["common_dir"]:
            shown.append("HEAD, branch and index of this linked work tree")
        elif git_dir != f"{os.path.realpath(place.root)}/.git":
            shown.append(f"HEAD, branch and index, which are in {git_dir}")
    return [f"{name}: not covered, and so left as now: {', '.join(shown)}"] if shown else []


def changes_in(
    ctx: Context, plan: Plan, group: CheckpointGroup, choices: Choices
) -> tuple[Outlook, tuple[Change, ...]]:
    """What a rollback would do now, and every path it would change; stores nothing."""
    # A full batch, not a preview: merging needs the current content.
    with ctx.manager.packs.batch() as batch:
        now = ctx.manager.create_checkpoint(plan.plan_id, batch, {}, strict=False)
        found = outlook(ctx, plan, group, now, choices, batch)
        return found, ctx.manager.changes(plan.plan_id, now, found.states)


def require_no_conflict(found: Outlook, plan: Plan, group: CheckpointGroup) -> None:
    require_decided(found.conflicts, plan.plan_id, group.group_id)


def require_decided(conflicts: Sequence[Conflict], plan_id: str, group_id: str) -> None:
    if conflicts:
        raise refusal(conflicts, plan_id, group_id)


def refusal(conflicts: Sequence[Conflict], plan_id: str, group_id: str) -> RollbackConflict:
    """The text of a refused rollback, also shown in a preview."""
    shown = ", ".join(f"{c.resource}:{c.path}" for c in conflicts[:5])
    command = f"agents plan rollback {plan_id} {group_id}"
    return RollbackConflict(
        f"{plural(len(conflicts), 'path was', 'paths were')} changed by the agent and by somebody"
        f" else, in ways that conflict: {shown}; nothing was changed",
        tuple(conflicts),
        f"{command} --keep-mine leaves them as they are now, --take-checkpoint gives up what"
        " somebody else changed; for one of them --keep-mine=PATH",
    )


def require_known(choices: Choices, found: Outlook) -> None:
    """Refuse a named path that does not exist: it is a mistake."""
    names = {
        name
        for item in found.paths
        for name in (item.path, os.fsencode(item.resource), _full(item.resource, item.path))
    }
    for given in (choices.keep_mine | choices.take_checkpoint) - {b""}:
        below = given.rstrip(b"/") + b"/"
        if given.rstrip(b"/") not in names and not any(n.startswith(below) for n in names):
            raise NotFound(
                f"{show_path(given)} is not among the paths that changed since the checkpoint",
                "the same command with --dry-run lists them",
            )


def _full(resource: str, path: bytes) -> bytes:
    return os.fsencode(resource) + b":" + path


def restore_in_place(
    ctx: Context,
    leased: LeasedPlan,
    group: CheckpointGroup,
    todo: Restoration,
    choices: Choices,
) -> tuple[Outlook, tuple[Change, ...]]:
    """Restore as a new group: the result need not equal any earlier group."""
    plan = leased.plan
    made: list[Outlook] = []

    def check(now: States, batch: Batch) -> None:
        made.append(outlook(ctx, plan, group, now, choices, batch))
        require_known(choices, made[-1])
        require_no_conflict(made[-1], plan, group)

    def make(now: States, batch: Batch) -> States:
        # Again: merged content has to be in the batch of the new group.
        check(now, batch)
        return made[-1].states

    fields = {name: value for name, value in todo.plan.items() if name != "view_mark"}
    todo = msgspec.structs.replace(todo, group_id=new_id(), plan=fields)
    about = About(CheckpointType.POST_ROLLBACK, f"rolled back to {group.group_id}")
    changes = ctx.checkpoints.restore_made(
        leased, about, make, todo, check=check, spared=group.group_id
    )
    return made[-1], changes
