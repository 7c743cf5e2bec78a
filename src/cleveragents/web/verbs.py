"""Actions on a plan from the page: a preview by GET, the command by POST.

A preview is the library's own; if it refuses, the page shows its message and no button.
"""

import os
import shlex
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from markupsafe import Markup

from cleveragents.actors import STEPS
from cleveragents.errors import NotAllowed, UsageError
from cleveragents.history.owners import Owner
from cleveragents.integrations.conversation import current
from cleveragents.lease import holder, host_name
from cleveragents.lookup import short_ids, typed_plan
from cleveragents.model.checkpoint import OwnedPath
from cleveragents.model.conversation import Conversation
from cleveragents.model.effect import Outlook
from cleveragents.model.journal import Operation
from cleveragents.model.resource import IN_PLACE, Change
from cleveragents.plan_handle import PlanHandle
from cleveragents.web.view.changes import summary_of_changes, table_words
from cleveragents.web.view.facts import facts_of
from cleveragents.web.view.fates import Fate, fates_to, target_of
from cleveragents.web.view.line import rows_of
from cleveragents.web.view.marks import Sign, mini
from cleveragents.web.view.standing import UNDO
from cleveragents.web.view.sums import Sum, shown, sums_of, with_tables
from cleveragents.web.view.words import clock, count, listed
from cleveragents.workspace import Workspace

MOST_PATHS = 200


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """A preview page with one button."""

    verb: str
    title: str
    about: str
    button: str
    argv: tuple[str, ...]
    """Without what is chosen in the form."""
    said: str = ""
    lasting: str = ""
    """What undo can do about it."""
    effects: Outlook = Outlook()
    sums: tuple[Sum, ...] = ()
    changes: tuple[Change, ...] = ()
    more_changes: int = 0
    fates: tuple[Fate, ...] = ()
    decisions: int = 0
    """How many decisions are set aside."""
    owned: tuple[OwnedPath, ...] = ()
    conflicts: tuple[Any, ...] = ()
    conversation: Conversation | None = None
    notes: tuple[str, ...] = ()
    fields: dict[str, Any] = {}
    """What the form of this verb asks for."""

    @property
    def command(self) -> str:
        return shlex.join(["agents", *self.argv])

    @property
    def picture(self) -> Markup:
        """The decisions that stay and go, as one line."""
        return mini([Sign(fate.sign, fate.is_target) for fate in self.fates])

    @property
    def unknown(self) -> str:
        """The steps with unknown outside effects."""
        names = self.effects.unknown_steps
        more = f"{len(names) - 4:,} more" if len(names) > 5 else ""
        return listed([*names[:4], more] if more else names)


def rollback(ws: Workspace, handle: PlanHandle, query: dict[str, str]) -> Preview:
    if not query.get("to"):
        raise UsageError("no moment was chosen", f"agents plan checkpoints {handle.plan_id}")
    group = handle.group(query["to"])
    todo = handle.preview_rollback(group.group_id)
    facts = facts_of(ws, handle.plan_id)
    rows = rows_of(facts)
    target = target_of(facts, rows, group.group_id)
    sums = with_tables(handle, group.group_id, facts, sums_of(todo.changes))
    where = "in place" if facts.in_place else "in the sandboxes only"
    paths = sum(s.restored + s.removed + s.recreated for s in sums)
    if target is None:
        title, place = f"To the moment {clock(group.created_at)}", "The moment of "
    else:
        title, place = target.title(facts), target.place(facts)
    short = short_ids([g.group_id for g in facts.groups])[group.group_id]
    return Preview(
        verb="rollback",
        title=title,
        about=f"{place}{clock(group.created_at)}, {short}",
        button="Roll back",
        argv=("plan", "rollback", _typed(ws, handle), short),
        said=f"{count(paths, 'path')} in {count(len(sums), 'resource')} "
        f"{'returns' if paths == 1 else 'return'}, {count(todo.decisions_after, 'decision')} "
        f"{'is' if todo.decisions_after == 1 else 'are'} set aside. This happens {where}.",
        lasting="brings everything back as it is now, your edits too, at any time before apply.",
        effects=todo.effects,
        sums=sums,
        changes=shown(todo.changes)[:MOST_PATHS],
        more_changes=max(0, len(shown(todo.changes)) - MOST_PATHS),
        fates=fates_to(facts, rows, group.group_id, target),
        decisions=todo.decisions_after,
        owned=_yours(todo.in_place),
        conflicts=todo.conflicts,
        conversation=current(ws.ctx, handle.plan_id),
        notes=todo.notes,
        fields={"to": group.group_id},
    )


def _typed(ws: Workspace, handle: PlanHandle) -> str:
    return typed_plan(ws.ctx.store, handle.plan)


def _yours(paths: Iterable[OwnedPath]) -> tuple[OwnedPath, ...]:
    """Paths that are neither the agent's alone nor git's own."""
    return tuple(
        item for item in paths if item.owner != Owner.AGENT and not item.path.startswith(b".git/")
    )


def travel(ws: Workspace, handle: PlanHandle, query: dict[str, str], way: str) -> Preview:
    """Undo or redo: the operation it takes next, and what that means."""
    facts = facts_of(ws, handle.plan_id)
    todo = handle.preview_undo(redo=way == "redo")
    about = "The last operation as a whole" if way == "undo" else "What was undone, again"
    if not todo.entry_id:
        about = "You have edited since the last operation: that is undone first"
    result = todo.result
    sums = with_tables(handle, result.group_id, facts, sums_of(result.changes))
    return Preview(
        verb=way,
        title=f"{way.capitalize()} {UNDO[Operation(todo.operation)]}",
        about=about,
        button=way.capitalize(),
        argv=("plan", way, _typed(ws, handle)),
        said=f"{count(len(shown(result.changes)), 'path')} "
        f"{'changes' if len(shown(result.changes)) == 1 else 'change'}; the plan is then "
        f"{result.phase}/{result.state}.",
        lasting="can be redone, until the next operation."
        if way == "undo"
        else "cancels it again.",
        effects=result.effects,
        sums=sums,
        changes=shown(result.changes)[:MOST_PATHS],
        more_changes=max(0, len(shown(result.changes)) - MOST_PATHS),
        owned=_yours(result.in_place),
        conflicts=result.conflicts,
        conversation=current(ws.ctx, handle.plan_id),
        notes=result.notes,
    )


def correct(ws: Workspace, handle: PlanHandle, query: dict[str, str]) -> Preview:
    facts = facts_of(ws, handle.plan_id)
    decision = facts.decisions.get(query.get("decision", ""))
    if decision is None:
        raise UsageError("no decision was chosen", f"agents plan tree {handle.plan_id}")
    cascade = query.get("cascade") == "1"
    todo = handle.preview_correct(decision.decision_id, "what is to be different", cascade=cascade)
    kept = len(todo.kept) - 1
    return Preview(
        verb="correct",
        title=decision.question,
        about=f"It was: {decision.chosen}" if decision.chosen else "",
        button="Correct this decision",
        argv=(
            *("plan", "correct", short_ids(list(facts.decisions))[decision.decision_id]),
            *(("--cascade",) if cascade else ()),
            *("--guidance", "TEXT"),
        ),
        said=f"{count(len(todo.superseded), 'decision')} done again, {kept:,} kept;"
        f" {count(len(todo.steps), 'step')} {'runs' if len(todo.steps) == 1 else 'run'} again.",
        lasting="brings the old attempt back, your edits too, at any time before apply.",
        effects=todo.effects,
        sums=sums_of(todo.changes),
        changes=shown(todo.changes)[:MOST_PATHS],
        more_changes=max(0, len(shown(todo.changes)) - MOST_PATHS),
        fates=tuple(Fate(f"{d.question} {d.chosen}", True, False, d.why) for d in todo.superseded),
        fields={"decision": decision.decision_id, "cascade": cascade, "steps": todo.steps},
    )


def resume(ws: Workspace, handle: PlanHandle, query: dict[str, str]) -> Preview:
    conversation = current(ws.ctx, handle.plan_id)
    if conversation is not None:
        raise NotAllowed(
            f"the conversation is continued in its agent: {conversation.agent}",
            shlex.join(conversation.continue_),
        )
    todo = handle.preview_resume()
    plan = handle.plan
    steps = [s for s in ws.ctx.store.plans.steps(handle.plan_id) if not s.done]
    did = summary_of_changes(todo.changes)
    edits = {
        "adopted": f"Your edits stay and become a moment: {did.names}",
        "residue": f"What the interrupted step left is rolled back, and kept: {did.names}",
    }.get(str(todo.reconciled), "")
    given = plan.spec["actor"]["kind"] == STEPS
    rest = "No step is left to do" if given else "Its actor decides what comes next"
    first = f"beginning with {todo.next_step}" if todo.next_step else rest
    begun = plan.head_group_id is not None
    word = "Resume" if begun else "Run"
    since = "It continues from the newest moment." if begun else "It works on copies: sandboxes."
    return Preview(
        verb="resume",
        title=f"{word} {plan.name}",
        about=f"{count(len(steps), 'step')} to do, {first}" if steps and todo.next_step else first,
        button=word,
        argv=("plan", "resume", _typed(ws, handle)),
        said=edits or since,
        lasting="cancels all that it does, as a whole.",
        effects=Outlook(compensable=todo.compensable),
        fates=tuple(Fate(step.step_id, False) for step in steps[:30]),
        changes=shown(todo.changes)[:MOST_PATHS],
        fields={
            "in_doubt": todo.in_doubt,
            "adopted": str(todo.reconciled) == "adopted",
            "error": plan.error,
        },
    )


def apply(ws: Workspace, handle: PlanHandle, query: dict[str, str]) -> Preview:
    mode = query.get("as") or None
    if mode not in (None, "commit", "changes", "branch"):
        raise UsageError(f"no such way to apply: {mode}", "commit, changes or branch")
    ignored = query.get("ignored") == "1"
    proposals = handle.preview_apply(mode, ignored=ignored)
    conflicts = tuple(conflict for item in proposals for conflict in item.conflicts)
    names = [item.resource for item in proposals]
    number = sum(len(item.files) for item in proposals)
    with handle.compare() as found:
        tables = {name: [table_words(one) for one in own] for name, own in found.tables().items()}
    records = ws.ctx.store.resources.sandboxes(handle.plan_id)
    several = len(names) > 1
    if proposals and all(item.mode == IN_PLACE for item in proposals):
        return _end(ws, handle)
    return Preview(
        verb="apply",
        title=f"Apply to {listed(names)}",
        about=f"{'All of them or none, exactly' if several else 'Exactly'} once. If anything is in"
        " the way, nothing is changed",
        button="Apply",
        argv=("plan", "apply", _typed(ws, handle)),
        said=f"{count(number, 'path')} {'becomes' if number == 1 else 'become'} real."
        if not conflicts
        else "",
        lasting="does not revert this; agents plan revert-applied makes a plan that does.",
        conflicts=conflicts,
        fields={
            "proposals": proposals,
            "as": mode or "",
            "ignored": ignored,
            "tables": tables,
            "repositories": any(record.origin.get("base") for record in records),
        },
    )


def _end(ws: Workspace, handle: PlanHandle) -> Preview:
    """Of a plan in place nothing is applied: it ends."""
    return Preview(
        verb="apply",
        title=f"End {handle.plan.name}",
        about="Its work is in place already. Once it is ended, nothing of it can be rolled back",
        button="End it",
        argv=("plan", "apply", _typed(ws, handle)),
        lasting="does not bring it back.",
        fields={"proposals": (), "as": ""},
    )


def keep(ws: Workspace, handle: PlanHandle, query: dict[str, str]) -> Preview:
    return Preview(
        verb="keep",
        title="Keep this moment",
        about="A checkpoint of everything as it is now, your edits too",
        button="Keep",
        argv=("plan", "checkpoint", "create", _typed(ws, handle)),
    )


def cancel(ws: Workspace, handle: PlanHandle, query: dict[str, str]) -> Preview:
    number = handle.unapplied()
    resources = ws.ctx.store.resources.of_plan(handle.plan_id)
    in_place = any(item.is_in_place for item in resources)
    ends = " Its work in place stays, and nothing of it can be rolled back then."
    return Preview(
        verb="cancel",
        title=f"Cancel {handle.plan.name}",
        about="It ends without being applied; that cannot be undone",
        button="Cancel the plan",
        argv=("plan", "cancel", _typed(ws, handle)),
        said=f"{count(number, 'change')} {'is' if number == 1 else 'are'} never applied. Sandboxes"
        f" and moments are kept.{ends if in_place else ''}",
    )


PREVIEWS: dict[str, Callable[[Workspace, PlanHandle, dict[str, str]], Preview]] = {
    "rollback": rollback,
    "undo": lambda ws, handle, query: travel(ws, handle, query, "undo"),
    "redo": lambda ws, handle, query: travel(ws, handle, query, "redo"),
    "correct": correct,
    "resume": resume,
    "apply": apply,
    "keep": keep,
    "cancel": cancel,
}
RUNS_STEPS = frozenset({"resume", "correct"})


def stop(ws: Workspace, plan_id: str) -> None:
    """End the process that works on a plan, as Ctrl-C in its terminal does."""
    held = holder(ws.ctx.store, plan_id)
    if held is None:
        raise NotAllowed("nobody works on this plan now", f"agents plan status {plan_id}")
    if held.host != host_name() or held.pid == os.getpid():
        raise NotAllowed(f"`{held.verb}` runs on {held.host}", f"there: kill {held.pid}")
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(held.pid, number)
        limit = time.monotonic() + 5
        while time.monotonic() < limit:
            now = holder(ws.ctx.store, plan_id)
            if now is None or now.epoch != held.epoch:
                return
            time.sleep(0.05)
    raise NotAllowed(f"process {held.pid} has not ended yet", f"kill -9 {held.pid}")
