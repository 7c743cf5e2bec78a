"""A plan's status in a sentence, and what undo and redo would do next."""

from typing import Any

from cleveragents.context import utc_now
from cleveragents.model.decision import DecisionKind
from cleveragents.model.journal import Operation, undo_stack
from cleveragents.model.plan import Failure, State
from cleveragents.model.resource import IN_PLACE
from cleveragents.web.view.facts import Facts
from cleveragents.web.view.rows import Row
from cleveragents.web.view.words import count, lasted, listed, shortened


def state_of(facts: Facts, rows: list[Row]) -> str:
    """The plan's state as the page groups it; `nothing`: nobody has to do anything."""
    plan = facts.plan
    if facts.held is not None and not plan.is_final:
        return "running"
    if plan.state is not State.COMPLETE and not facts.is_quiet:
        return str(plan.state)
    if facts.in_place or not has_changed(rows):
        return "nothing"
    return str(State.COMPLETE)


def has_changed(rows: list[Row]) -> bool:
    return any(row.changed for row in rows if not row.is_aside)


def sentence(facts: Facts, rows: list[Row]) -> str:
    """How the plan stands."""
    plan = facts.plan
    if facts.held is not None and not plan.is_final:
        return _running(facts)
    if plan.state in (State.ERRORED, State.CONSTRAINED) and plan.error is not None:
        return _stopped(facts, plan.error)
    if facts.is_quiet:
        return _session(facts, rows)
    return {
        State.APPLIED: lambda: _applied(plan.result or {}),
        State.CANCELLED: lambda: "Cancelled. Its sandbox and its moments are kept",
        State.COMPLETE: lambda: _complete(facts, rows),
    }.get(plan.state, lambda: _waiting(facts, rows))()


def _stopped(facts: Facts, error: Failure) -> str:
    if facts.plan.state is State.CONSTRAINED:
        return f"Apply stopped: {shortened(error.message)}. Nothing was applied."
    step = next((one for one in facts.steps if one.step_id == error.step), None)
    where = f"step {step.index + 1} of {len(facts.steps)}, " if step else ""
    return f"Stopped at {where}{shortened(error.message.removeprefix('step '))}"


def _complete(facts: Facts, rows: list[Row]) -> str:
    done = sum(step.done for step in facts.steps)
    if facts.in_place:
        names = listed([one.name for one in facts.resources])
        return f"{count(done, 'step')} in {names}, in place: there is nothing to apply"
    few = {1: "It is done", 2: "Both steps are done"}
    what = few.get(done, f"All {done:,} steps are done")
    if not has_changed(rows):
        return f"{what}. Nothing changed: there is nothing to apply."
    return f"{what}. Nothing is applied: your own files are as they were."


def _session(facts: Facts, rows: list[Row]) -> str:
    """A conversation that waits for its next prompt, in its agent."""
    asked = sum(one.kind is not DecisionKind.ROOT for one in facts.decisions.values())
    names = [one.name for one in facts.resources]
    said = f"{count(asked, 'prompt')} so far{f', in {listed(names)}' if names[1:] else ''}"
    if facts.in_place:
        return f"{said}, in place: there is nothing to apply."
    if not has_changed(rows):
        return f"{said}. Nothing changed: there is nothing to apply."
    return f"{said}. Nothing is applied: your own files are as they were."


def _waiting(facts: Facts, rows: list[Row]) -> str:
    turn = next((row for row in reversed(rows) if row.is_here and row.mark == "turn"), None)
    left = sum(not step.done for step in facts.steps)
    what = count(left, "step") if facts.steps else "The work"
    verb = "waits" if left == 1 or not facts.steps else "wait"
    act = "resume" if facts.groups else "run"
    return f"{f'{turn.title}. ' if turn else ''}{what} {verb} for you to {act}."


def _running(facts: Facts) -> str:
    call = next((c for c in reversed(facts.calls) if c.state == "running"), None)
    steps = facts.steps
    done = sum(step.done for step in steps)
    if call is None:
        held = facts.held
        return f"Working: {held.verb if held else ''}".rstrip(": ")
    index = next((s.index + 1 for s in steps if s.step_id == call.step_id), done + 1)
    since = lasted(call.started_at, utc_now())
    of = f"{index} of {len(steps)}" if index <= len(steps) else str(index)
    return f"Step {of}, {call.step_id}, for {since}."


def _applied(result: dict[str, Any]) -> str:
    told: list[str] = []
    items = result.get("applied", ())
    if items and all(item["mode"] == IN_PLACE for item in items):
        return f"Ended. {listed([item['resource'] for item in items])}, in place, is as it was left"
    for item in items:
        commit = f" as commit {item['commit'][:7]}" if item.get("commit") else ""
        mode = f" as {item['mode']}" if not commit and item.get("mode") in ("changes",) else commit
        told.append(f"{item['resource']}{mode}, {count(item['files'], 'file')}")
    return f"Applied to {listed(told)}" if told else "Applied"


def undo_words(facts: Facts) -> tuple[str, str]:
    """What undo and redo would take next, for their buttons; empty where there is nothing."""
    done, undone = undo_stack(list(facts.entries), in_place=facts.in_place)
    if facts.plan.is_final or facts.held is not None:
        return "", ""
    return (
        f"Undo {UNDO[done[-1].operation]}" if done else "",
        f"Redo {UNDO[undone[-1].operation]}" if undone else "",
    )


UNDO = {
    Operation.EXECUTE: "run",
    Operation.RESUME: "resuming",
    Operation.PROMPT: "last prompt",
    Operation.ROLLBACK: "rollback",
    Operation.RESTORE: "restore",
    Operation.CORRECT: "correction",
    Operation.EXTERNAL_EDIT: "your edits",
}
