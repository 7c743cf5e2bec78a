"""The `steps` of a plan file: what each calls, what it depends on, and the order they run in."""

import heapq
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from cleveragents.errors import PlanFileError, UsageError
from cleveragents.model.checkpoint import RESERVED
from cleveragents.model.plan import OnFailure
from cleveragents.model.plan_spec import DecisionSpec, PlanSpec, StepSpec, SubplanSpec
from cleveragents.model.tool import ToolSpec
from cleveragents.planfile.node import Fields, Node, Problems, data_of, suggest
from cleveragents.tools.builtin import BUILTINS, check_inputs, inputs_of

SUBPLAN = "subplan"
STEP_KEYS = (
    "id",
    "tool",
    "run",
    SUBPLAN,
    "on",
    "with",
    "decision",
    "needs",
    "checkpoint",
    "timeout",
    "on_failure",
    "retries",
)

SUBPLAN_KEYS = ("file", "steps", "group", "needs")
_WORDS = ("texts", "argv")
_ID = re.compile(r"[A-Za-z0-9_.-]+")


class _Draft(msgspec.Struct):
    """A step and where it was written, for the checks that need all steps."""

    step: StepSpec
    fields: Fields
    decision: Fields | None


class StepReader:
    """Reads lists of steps; those of an inline child plan see the same tools and resources."""

    def __init__(
        self,
        base_dir: str,
        tools: Mapping[str, ToolSpec],
        resources: Iterable[str],
        problems: Problems,
        read_child: Callable[[str], PlanSpec],
    ) -> None:
        self.read_child = read_child
        self.base_dir = base_dir
        self.tools: dict[str, ToolSpec] = {**tools, **BUILTINS}
        self.resources: tuple[str, ...] = tuple(resources)
        self.problems = problems

    def read(self, nodes: tuple[Node, ...]) -> tuple[StepSpec, ...]:
        """The steps in the order in which they run."""
        drafts = [self._draft(node, number) for number, node in enumerate(nodes, start=1)]
        by_id: dict[str, _Draft] = {}
        for draft in drafts:
            first = by_id.setdefault(draft.step.id, draft)
            if first is not draft:
                line = first.fields.line("id")
                draft.fields.bad("id", f"duplicate step id, first on line {line}")
        for draft in drafts:
            _check_needs(draft, by_id)
        order = _order(by_id)
        places = {step_id: place for place, step_id in enumerate(order)}
        for draft in drafts:
            _check_decision(draft, places)
        return tuple(by_id[step_id].step for step_id in order)

    def resource(self, fields: Fields) -> str | None:
        """The resource named by `on`; it may be left out when there is only one."""
        name = self._named_resource(fields)
        if name is None and len(self.resources) == 1:
            return self.resources[0]
        if "on" not in fields and self.resources:
            fields.bad("", f"'on' is missing, name one of: {', '.join(self.resources)}")
        return name

    def _named_resource(self, fields: Fields) -> str | None:
        name = fields.word("on")
        if name is not None and name not in self.resources:
            fields.bad("on", f"unknown resource {name!r}{suggest(name, self.resources)}")
        return name

    def _draft(self, node: Node, number: int) -> _Draft:
        step_id = _id_of(node) or f"step-{number}"
        fields = Fields(node, f"step {step_id!r}", STEP_KEYS, self.problems)
        if not _ID.fullmatch(fields.word("id") or step_id):
            fields.bad("id", "an id has only letters, digits, '_', '.' and '-'")
        form = fields.one_of("tool", "run", SUBPLAN)
        tool, inputs = self._call(fields, form)
        subplan = self._subplan(fields)
        needs = fields.words("needs") + (subplan.needs if subplan else ())
        decision = _decision_fields(fields)
        if fields.text("checkpoint") in RESERVED:
            fields.bad("checkpoint", "'first' and 'last' mean a checkpoint of every plan")
        on_failure = fields.choice("on_failure", OnFailure)
        step = StepSpec(
            id=step_id,
            tool=tool,
            on=self._named_resource(fields) if form == SUBPLAN else self.resource(fields),
            inputs=inputs,
            decision=_decision(decision) if decision else fields.word("decision"),
            needs=tuple(dict.fromkeys(needs)),
            checkpoint=fields.text("checkpoint") or None,
            timeout=fields.seconds("timeout"),
            on_failure=OnFailure(on_failure) if on_failure else None,
            retries=fields.integer("retries", 0),
            subplan=subplan,
        )
        return _Draft(step, fields, decision)

    def _call(self, fields: Fields, form: str | None) -> tuple[str, dict[str, Any]]:
        """The tool and its inputs; `run` is the short form of `shell` and `run`."""
        if form != "tool" and "with" in fields:
            fields.bad("with", "'with' is for a 'tool' only")
        if form == "run":
            command = fields.command("run") or ""
            if isinstance(command, str):
                return "shell", {"command": command}
            return "run", {"argv": list(command)}
        if form == "tool":
            return self._tool_call(fields)
        return SUBPLAN, {}

    def _tool_call(self, fields: Fields) -> tuple[str, dict[str, Any]]:
        name, given = fields.word("tool") or "", fields.named("with")
        tool = self.tools.get(name)
        inputs = {key: _input(tool, key, node) for key, node in given.items()}
        if tool is None:
            if name:
                fields.bad("tool", f"unknown tool {name!r}{suggest(name, self.tools)}")
            return name, inputs
        for text in check_inputs(tool, inputs):
            key = next((key for key in given if f"'{key}'" in text), "")
            line = given[key].line if key else fields.line("with")
            self.problems.add(line, f"{fields.where}: {text}", key=key or "with")
        return name, inputs

    def _subplan(self, fields: Fields) -> SubplanSpec | None:
        part = fields.part(SUBPLAN, f"the subplan of {fields.where}", SUBPLAN_KEYS)
        if part is None:
            return None
        part.one_of("file", "steps")
        steps = self.read(part.listed("steps"))
        if "steps" in part and not steps:
            part.bad("steps", "'steps' is empty")
        file = self._file(part)
        return SubplanSpec(
            file=file,
            steps=steps,
            group=part.word("group"),
            needs=part.words("needs"),
            plan=self._plan(part, file) if file else None,
        )

    def _file(self, part: Fields) -> str | None:
        text = part.text("file")
        if not text:
            return None
        path = os.path.abspath(os.path.join(self.base_dir, os.path.expanduser(text)))
        if not os.path.isfile(path):
            part.bad("file", f"no such file: {text}")
            return None
        return path

    def _plan(self, part: Fields, file: str) -> PlanSpec | None:
        """The child's plan file; what is wrong in it is wrong here."""
        try:
            return self.read_child(file)
        except PlanFileError as error:
            for text in error.problems:
                part.bad("file", text)
        except UsageError as error:
            part.bad("file", error.message)
        return None


def _input(tool: ToolSpec | None, name: str, node: Node) -> Any:
    """Words of a command line stay as they were written: 0755 is no number there."""
    declared = inputs_of(tool) if tool else None
    wordy = any(each.name == name and each.type in _WORDS for each in declared or ())
    if wordy and isinstance(node.value, tuple):
        return [item.text if item.is_scalar else data_of(item) for item in node.value]
    return data_of(node)


def _id_of(node: Node) -> str:
    given = node.value.get("id") if isinstance(node.value, dict) else None
    return given.text if given else ""


def _decision_fields(fields: Fields) -> Fields | None:
    node = fields.items.get("decision")
    if node is None or node.is_scalar:
        return None
    return fields.part(
        "decision", f"the decision of {fields.where}", DecisionSpec.__struct_fields__
    )


def _decision(fields: Fields) -> DecisionSpec:
    fields.require("question")
    fields.require("chosen")
    return DecisionSpec(
        question=fields.text("question"),
        chosen=fields.text("chosen"),
        alternatives=fields.words("alternatives"),
        rationale=fields.text("rationale", empty=True),
        confidence=fields.fraction("confidence"),
        parent=fields.word("parent"),
        influences=fields.words("influences"),
    )


def _known(fields: Fields, key: str, name: str, ids: Iterable[str]) -> bool:
    valid = tuple(ids)
    if name not in valid:
        fields.bad(key, f"unknown step {name!r} in {key!r}{suggest(name, valid)}")
    return name in valid


def _check_needs(draft: _Draft, by_id: dict[str, _Draft]) -> None:
    key = "needs" if "needs" in draft.fields else SUBPLAN
    for name in draft.step.needs:
        if name not in by_id:
            draft.fields.bad(key, f"unknown step {name!r} in 'needs'{suggest(name, tuple(by_id))}")


def _check_decision(draft: _Draft, places: dict[str, int]) -> None:
    """A decision depends on one that was recorded before it; influence may point anywhere."""
    decision = draft.step.decision
    if isinstance(decision, str):
        _check_earlier(draft, draft.fields, "decision", decision, places)
    elif decision and draft.decision:
        if decision.parent is not None:
            _check_earlier(draft, draft.decision, "parent", decision.parent, places)
        for name in decision.influences:
            _known(draft.decision, "influences", name, places)


def _check_earlier(
    draft: _Draft, fields: Fields, key: str, name: str, places: dict[str, int]
) -> None:
    if _known(fields, key, name, places) and places[name] >= places[draft.step.id]:
        fields.bad(key, f"{key!r} has to name an earlier step, {name!r} does not run before this")


def _order(drafts: dict[str, _Draft]) -> list[str]:
    """The file's order, moved only where `needs` asks for it; a cycle is a problem."""
    ids = list(drafts)
    place = {step_id: number for number, step_id in enumerate(ids)}
    waiting = {key: {n for n in draft.step.needs if n in place} for key, draft in drafts.items()}
    followers: dict[str, list[str]] = {step_id: [] for step_id in ids}
    for step_id, needs in waiting.items():
        for need in needs:
            followers[need].append(step_id)
    ready = [place[step_id] for step_id in ids if not waiting[step_id]]
    order: list[str] = []
    while ready:
        done = ids[heapq.heappop(ready)]
        order.append(done)
        for step_id in followers[done]:
            waiting[step_id].discard(done)
            if not waiting[step_id]:
                heapq.heappush(ready, place[step_id])
    if len(order) == len(ids):
        return order
    left = {key: min(needs, key=place.__getitem__) for key, needs in waiting.items() if needs}
    for cycle in _cycles(left):
        fields = drafts[cycle[0]].fields
        fields.bad("needs", f"'needs': steps need each other: {' -> '.join((*cycle, cycle[0]))}")
    return ids


def _cycles(need: dict[str, str]) -> list[list[str]]:
    """Every cycle among steps that all wait for another; first step first."""
    found: list[list[str]] = []
    seen: set[str] = set()
    for start in need:
        path: list[str] = []
        step_id = start
        while step_id not in seen:
            seen.add(step_id)
            path.append(step_id)
            step_id = need[step_id]
        if step_id in path:
            found.append(path[path.index(step_id) :])
    return found
