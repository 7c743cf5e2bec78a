"""Exports a plan's checkpoints as a chain of commits or as patches.

Only the groups that lead to the plan's current state are exported, without failed or rolled-back
ones.
"""

import math
import os
import re
from datetime import datetime

import msgspec

from cleveragents.content.packs import Batch
from cleveragents.context import Context
from cleveragents.errors import NotAllowed, NotFound, UsageError
from cleveragents.history.patches import exact_patch
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType, SandboxCheckpoint
from cleveragents.model.decision import Decision, DecisionState
from cleveragents.model.journal import (
    UNDOABLE,
    EntryState,
    JournalEntry,
    Operation,
    are_edits,
    undo_stack,
)
from cleveragents.model.plan import Plan
from cleveragents.sandbox.git.apply import GitTarget
from cleveragents.sandbox.git.chain import Chain, Link, repositories, write_chain
from cleveragents.sandbox.protocol import PathByPath, Sandbox
from cleveragents.store import Store

ASIDE = frozenset({CheckpointType.ON_ERROR, CheckpointType.PRE_ROLLBACK})
_BEGAN = "what the plan began with"


class Piece(msgspec.Struct, frozen=True):
    """The content of one commit or patch: a state, and the decision whose work it adds."""

    state: SandboxCheckpoint
    group: CheckpointGroup
    decision_id: str | None


class ExportedCommit(msgspec.Struct, frozen=True, kw_only=True):
    commit: str
    group_id: str
    type: str
    decision_id: str | None
    subject: str
    files: int


class ExportedBranch(msgspec.Struct, frozen=True, kw_only=True):
    plan_id: str
    resource: str
    branch: str
    base: str
    tip: str
    commits: tuple[ExportedCommit, ...]


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    resource: str
    group_id: str
    decision_id: str | None
    subject: str
    files: int
    name: str
    text: bytes


def current_line(
    groups: list[CheckpointGroup],
    head: str | None,
    entries: list[JournalEntry],
    in_force: frozenset[str],
    in_place: bool,
) -> list[CheckpointGroup]:
    """The groups that lead to the plan's current state, oldest first (pure).

    `in_force`: groups whose decision is in force and whose steps are all still done.
    """
    left = abandoned(groups, entries, in_place)
    return [
        group
        for group in groups
        if group.group_id == head
        or (
            group.group_id in in_force
            and group.group_id not in left
            and group.checkpoint_type not in ASIDE
        )
    ]


def abandoned(
    groups: list[CheckpointGroup], entries: list[JournalEntry], in_place: bool
) -> frozenset[str]:
    """The groups abandoned by a rollback or undo in force (pure)."""
    done = {entry.entry_id for entry in undo_stack(entries, in_place=in_place)[0]}
    left: set[str] = set()
    for entry in entries:
        if entry.operation not in UNDOABLE or entry.state is EntryState.OPEN:
            continue
        if in_place and are_edits(entry):
            continue  # they stay, whatever is rolled back or undone
        since = entry.before.version
        if entry.entry_id in done:
            if entry.operation is not Operation.ROLLBACK:
                continue
            target = next((g for g in groups if g.group_id == entry.detail.get("to")), None)
            since = target.version if target else since
        until = entry.after.version if entry.after else since
        # Who undoes a rollback is where they were when they rolled back, edits included; one that
        # counts stands where it led, in place to a group of its own.
        led = entry.after.group_id if entry.after else None
        back = entry.before.group_id if entry.entry_id not in done else led
        left |= {g.group_id for g in groups if since < g.version <= until and g.group_id != back}
    return frozenset(left)


def exported_groups(store: Store, plan: Plan) -> list[CheckpointGroup]:
    groups = leading_here(store, plan)
    if not groups:
        raise NotAllowed(
            f"plan {plan.name!r} has no checkpoints to export", f"agents plan status {plan.plan_id}"
        )
    return groups


def leading_here(store: Store, plan: Plan) -> list[CheckpointGroup]:
    """The same for a plan in the store; empty if it has no group."""
    groups = store.checkpoints.groups(plan.plan_id)
    steps = {step.step_id: step for step in store.plans.steps(plan.plan_id)}
    active = {
        d.decision_id
        for d in store.plans.decisions(plan.plan_id)
        if d.state is DecisionState.ACTIVE
    }

    def counts(group: CheckpointGroup) -> bool:
        then = store.plans.view_at(plan.plan_id, group.version).steps
        return (group.decision_id is None or group.decision_id in active) and all(
            name in steps and steps[name].done and steps[name].decision_id == step.decision_id
            for name, step in then.items()
            if step.done
        )

    in_force = frozenset(group.group_id for group in groups if counts(group))
    entries = store.journal.of_plan(plan.plan_id)
    head = store.checkpoints.number(plan.head_group_id) if plan.head_group_id else math.inf
    order = store.order_of(plan.plan_id)
    until = [g for g in groups if order[g.group_id] <= head]
    in_place = any(one.is_in_place for one in store.resources.of_plan(plan.plan_id))
    return current_line(until, plan.head_group_id, entries, in_force, in_place)


def pieces_of(
    ctx: Context, plan: Plan, sandbox: Sandbox, groups: list[CheckpointGroup], batch: Batch
) -> list[Piece]:
    """The states that lead here, with each decision's work separate.

    A correction keeps work of decisions whose own groups are no longer on the line, because they
    hold what was corrected: the kept work of each comes first, then the group's own changes.
    """
    rid = sandbox.place.resource.resource_id
    before = ctx.checkpoints.initial_states(plan.plan_id)[rid]
    wrote = _kept_without_group(ctx.store, plan, groups, rid)
    found: list[Piece] = []
    for group in groups:
        state = ctx.checkpoints.states(group)[rid]
        changes = sandbox.changes(before, state) if wrote else ()
        changed = {change.path for change in changes}
        for decision_id, paths in wrote.items():
            own = frozenset(paths & changed)
            if own and decision_id != group.decision_id:
                before = sandbox.grafted(before, state, own, batch)
                found.append(Piece(before, group, decision_id))
                changed -= own
        found.append(Piece(state, group, group.decision_id))
        before = state
    return found


def _kept_without_group(
    store: Store, plan: Plan, groups: list[CheckpointGroup], resource_id: str
) -> dict[str, set[bytes]]:
    """Decisions in force without a group on the line -> their writes, in the plan's order."""
    there = {group.decision_id for group in groups}
    wrote: dict[str, set[bytes]] = {}
    for step in store.plans.steps(plan.plan_id):
        if step.done and step.decision_id is not None and step.decision_id not in there:
            wrote.setdefault(step.decision_id, set())
    for decision_id, write in store.calls.writes_by_decision(plan.plan_id):
        if decision_id in wrote and write.resource_id == resource_id:
            wrote[decision_id].add(write.path)
    return {decision_id: paths for decision_id, paths in wrote.items() if paths}


def export_branch(
    ctx: Context, plan: Plan, branch: str, *, on: str | None = None, force: bool = False
) -> ExportedBranch:
    """Write the checkpoints of a repository as commits on a new branch of it."""
    sandbox = _repository(ctx, plan, on)
    groups = exported_groups(ctx.store, plan)
    decisions = {d.decision_id: d for d in ctx.store.plans.decisions(plan.plan_id)}
    origin = ctx.checkpoints.initial_states(plan.plan_id)[sandbox.place.resource.resource_id]
    with ctx.manager.packs.preview() as batch:
        pieces = pieces_of(ctx, plan, sandbox, groups, batch)
        words = [_words(plan, piece, decisions) for piece in pieces]
        links = [
            Link(piece.state, _date(piece.group), f"{subject}\n\n{body}\n")
            for piece, (subject, body) in zip(pieces, words, strict=True)
        ]
        chain: Chain = write_chain(sandbox, origin, links, branch, force)
    written = zip(chain.commits, chain.files, pieces, words, strict=True)
    commits = tuple(
        ExportedCommit(
            commit=commit,
            group_id=piece.group.group_id,
            type=str(piece.group.checkpoint_type),
            decision_id=piece.decision_id,
            subject=subject,
            files=files,
        )
        for commit, files, piece, (subject, _) in written
        if commit is not None
    )
    return ExportedBranch(
        plan_id=plan.plan_id,
        resource=sandbox.name,
        branch=branch,
        base=chain.base,
        tip=commits[-1].commit,
        commits=commits,
    )


def export_patches(ctx: Context, plan: Plan, *, on: str | None = None) -> tuple[Patch, ...]:
    """One patch for each group with changes, resource by resource."""
    sandboxes = [s for s in _existing_sandboxes(ctx, plan, on) if isinstance(s, PathByPath)]
    if not sandboxes:
        raise NotAllowed(
            f"plan {plan.name!r} has no resource that patches can be made of",
            "only directories and repositories",
        )
    groups = exported_groups(ctx.store, plan)
    decisions = {d.decision_id: d for d in ctx.store.plans.decisions(plan.plan_id)}
    return tuple(
        patch
        for sandbox in sandboxes
        for patch in _patches_of(ctx, plan, sandbox, groups, decisions)
    )


def _patches_of(
    ctx: Context,
    plan: Plan,
    sandbox: Sandbox,
    groups: list[CheckpointGroup],
    decisions: dict[str, Decision],
) -> list[Patch]:
    found: list[tuple[Piece, int, bytes]] = []
    before = ctx.checkpoints.initial_states(plan.plan_id)[sandbox.place.resource.resource_id]
    with ctx.manager.packs.preview() as batch:
        for piece in pieces_of(ctx, plan, sandbox, groups, batch):
            files, patch = exact_patch(ctx, sandbox, before, piece.state)
            if patch:
                found.append((piece, files, patch))
            before = piece.state
    author = _author(sandbox)
    patches: list[Patch] = []
    for number, (piece, files, patch) in enumerate(found, 1):
        subject, body = _words(plan, piece, decisions)
        head = (
            f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n"
            f"From: {author}\n"
            f"Date: {_mail_date(piece.group)}\n"
            f"Subject: [PATCH {number}/{len(found)}] {subject}\n"
            "MIME-Version: 1.0\n"
            "Content-Type: text/plain; charset=UTF-8\n"
            "Content-Transfer-Encoding: 8bit\n"
            f"\n{body}\n---\n\n"
        )
        patches.append(
            Patch(
                resource=sandbox.place.resource.name,
                group_id=piece.group.group_id,
                decision_id=piece.decision_id,
                subject=subject,
                files=files,
                name=f"{number:04}-{_slug(subject)}.patch",
                text=head.encode("utf-8", "replace") + patch + b"-- \ncleveragents\n\n",
            )
        )
    return patches


def write_patches(patches: tuple[Patch, ...], folder: str, *, force: bool = False) -> list[str]:
    """Write patches as files, with a folder for each resource if there are several."""
    several = len({patch.resource for patch in patches}) > 1
    paths = [
        os.path.join(folder, *([patch.resource] if several else []), patch.name)
        for patch in patches
    ]
    taken = [path for path in paths if os.path.lexists(path)]
    if taken and not force:
        raise NotAllowed(f"{taken[0]} already exists", "choose another folder, or --force")
    for path, patch in zip(paths, patches, strict=True):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as target:
            target.write(patch.text)
    return paths


def _existing_sandboxes(ctx: Context, plan: Plan, on: str | None) -> list[Sandbox]:
    """The plan's sandboxes that were ever made, or the named one."""
    opened = ctx.manager.sandboxes(plan.plan_id)
    if on is not None and on not in opened.paths:
        raise NotFound(
            f"plan {plan.name!r} has no resource {on!r}", f"it has {', '.join(opened.paths)}"
        )
    made = [s for rid, s in opened.capturable.items() if rid in opened.records]
    return [s for s in made if on in (None, s.place.resource.name)]


def _repository(ctx: Context, plan: Plan, on: str | None) -> GitTarget:
    found = repositories(_existing_sandboxes(ctx, plan, on))
    if not found:
        what = f"resource {on!r} of plan {plan.name!r}" if on else f"plan {plan.name!r}"
        raise NotAllowed(
            f"{what} has no git_worktree sandbox: commits are made of repositories only",
            f"agents plan export {plan.plan_id} --patch DIR",
        )
    if len(found) > 1:
        names = ", ".join(s.name for s in found)
        raise UsageError(f"plan {plan.name!r} has several: {names}", "say which: --on RESOURCE")
    return found[0]


def _words(plan: Plan, piece: Piece, decisions: dict[str, Decision]) -> tuple[str, str]:
    """Subject and body of a message: the decision, and where to find it."""
    group, decision = piece.group, decisions.get(piece.decision_id or "")
    if decision is not None:
        subject = f"{decision.question}: {decision.chosen}"
    elif group.checkpoint_type is CheckpointType.PRE_EXECUTE:
        subject = _BEGAN
    else:
        subject = group.label or str(group.checkpoint_type)
    lines = [_plain(decision.rationale), ""] if decision and decision.rationale else []
    lines += [
        f"Agents-Plan: {plan.plan_id}",
        f"Agents-Group: {group.group_id}",
        f"Agents-Checkpoint: {', '.join(group.triggers)}",
    ]
    if decision is not None:
        lines.append(f"Agents-Decision: {decision.decision_id}")
    if group.label:
        lines.append(f"Agents-Label: {_one_line(group.label)}")
    return _one_line(subject) or str(group.checkpoint_type), "\n".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _plain(text: str) -> str:
    """Prose in which no line looks like the start of a patch or a mail."""
    return "\n".join(
        f" {line}" if re.match(r"(diff |Index: |--- |---$|From |-- $)", line) else line
        for line in text.strip().splitlines()
    )


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:52].rstrip("-") or "checkpoint"


def _date(group: CheckpointGroup) -> str:
    return f"@{int(datetime.fromisoformat(group.created_at).timestamp())} +0000"


def _mail_date(group: CheckpointGroup) -> str:
    from email.utils import format_datetime

    return format_datetime(datetime.fromisoformat(group.created_at))


def _author(sandbox: Sandbox) -> str:
    from cleveragents.sandbox.git.command import user_config

    top = sandbox.place.resource.path
    where = top if os.path.isdir(top) else "/"
    name, email = (
        (user_config(where, "--get", f"user.{key}") or [default])[0]
        for key, default in (("name", "cleveragents"), ("email", "cleveragents@localhost"))
    )
    return f"{_one_line(name)} <{_one_line(email)}>"
