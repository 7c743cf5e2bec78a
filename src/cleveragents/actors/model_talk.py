"""The conversation with a model, which is the state of its actor.

It is kept such that every call in it is answered. A plan that goes back to a point between two
calls asks the model anew there, with the results it had until then and with what it was told since.
"""

import json
from dataclasses import replace
from typing import cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from cleveragents.actors.model_tools import Data, Toolbox, arguments

INSTRUCTIONS = """\
You work towards a goal with the tools you are given. Every call runs in a sandbox that is \
checkpointed before and after it; a call that fails is undone. Before you choose between ways \
that differ in what follows, call `decide` with the alternatives and how sure you are. When the \
goal is reached, answer with a short summary and call no tool.
What you can work on: {resources}."""
CORRECTION = "Correction by the person you work for: {}"
LONGEST_OUTPUT = 16_000
"""Characters of an output that the model sees, counted from its end."""
LARGEST_STATE = 200_000
"""The executor keeps at most 256 KiB."""
CUT = f"[the last {LONGEST_OUTPUT:,} characters]\n"
LEFT_OUT = "[left out to save room; call the tool again if you need it]"
SHORT = 400


class Talk:
    """The answered part (`messages`), and the model's turn that is not fully answered."""

    def __init__(self, start: Data) -> None:
        state: Data = start["state"] or {}
        self.messages: list[ModelMessage] = _loaded(state.get("messages", []))
        self.turn: ModelResponse | None = None
        self.said: str = ""
        self._results: list[ToolReturnPart] = []
        self._steps: list[str] = state.get("steps", [])
        self._heard: int = state.get("heard", 0)
        if state.get("turn"):
            turn, request = _loaded(state["turn"])
            self.turn = cast("ModelResponse", turn)
            self._results = [p for p in request.parts if isinstance(p, ToolReturnPart)]

    def begin(self, start: Data, box: Toolbox) -> None:
        """Continue: add the new result, other done steps, and messages since."""
        if not self.messages:
            self.messages = [_first(start["plan"])]
        others = [step for step in start["done"] if step["id"] not in self._steps]
        if self.turn is not None and others and self._is_next(others[0], box):
            step = others.pop(0)
            self.answer(result_text(step), step["id"])
        self.close()
        told = [CORRECTION.format(text) for text in start["guidance"][self._heard :]]
        self._heard = len(start["guidance"])
        if others:
            told.append(f"These steps are done as well: {json.dumps(others)[:LONGEST_OUTPUT]}")
            self._steps += [step["id"] for step in others]
        if not told and isinstance(self.messages[-1], ModelResponse):
            told.append("Continue.")
        if told:
            self._tell("\n".join(told))

    def _is_next(self, step: Data, box: Toolbox) -> bool:
        """Whether a done step is the call that had no result yet."""
        waiting = self.calls()[len(self._results) :]
        try:
            asked = box.step_for(waiting[0]) if waiting else {}
        except ValueError:
            return False
        return (asked.get("tool"), asked.get("with")) == (step["tool"], step["with"])

    def _tell(self, text: str) -> None:
        last, told = self.messages[-1], UserPromptPart(content=text)
        if isinstance(last, ModelRequest):
            self.messages[-1] = ModelRequest(parts=[*last.parts, told])
        else:
            self.messages.append(ModelRequest(parts=[told]))

    @property
    def turns(self) -> int:
        return sum(isinstance(message, ModelResponse) for message in self.messages)

    def calls(self) -> list[ToolCallPart]:
        """What the model calls in its turn."""
        parts = self.turn.parts if self.turn is not None else ()
        return [part for part in parts if isinstance(part, ToolCallPart)]

    def answer(self, text: str, step: str = "") -> None:
        """The result of the first call that has none."""
        call = self.calls()[len(self._results)]
        self._results.append(ToolReturnPart(call.tool_name, text, call.tool_call_id))
        if step:
            self._steps.append(step)

    def close(self) -> None:
        """Make the turn part of the conversation, without calls that have no result."""
        if self.turn is not None and self._results:
            made = {part.tool_call_id for part in self._results}
            parts = [
                part
                for part in self.turn.parts
                if not isinstance(part, ToolCallPart) or part.tool_call_id in made
            ]
            self.messages += [replace(self.turn, parts=parts), ModelRequest(parts=self._results)]
        self.turn, self._results = None, []

    def end(self, words: str) -> None:
        """The model called nothing: this is its answer."""
        if self.turn is not None:
            self.messages.append(self.turn)
        self.turn, self.said = None, words

    def state(self) -> Data:
        """As JSON; when it grows too large, the conversation itself is shortened."""
        turn: list[ModelMessage] = []
        if self.turn is not None:
            turn = [self.turn, ModelRequest(parts=self._results)]
        if _size(turn) > LARGEST_STATE // 2:
            turn = [_shortened(message) for message in turn]
        self.messages = shorten(self.messages, LARGEST_STATE - _size(turn))
        return {
            "messages": _dumped(self.messages),
            "turn": _dumped(turn),
            "steps": list(self._steps),
            "heard": self._heard,
            "said": self.said,
        }


def shorten(messages: list[ModelMessage], limit: int) -> list[ModelMessage]:
    """Shorten: leave out long inputs and outputs first, then whole turns."""
    size, kept = _size(messages), list(messages)
    if size <= limit:
        return kept
    # A good deal less at once: else every turn would do all of this again.
    limit = limit * 3 // 4
    for number, message in enumerate(messages):
        if size <= limit:
            return kept
        kept[number] = _shortened(message)
        size += _size([kept[number]]) - _size([message])
    while size > limit and len(kept) > 3:
        # The goal stays; what goes is a turn of the model with all its results.
        size -= _size(kept[1:3])
        del kept[1:3]
    return kept


def _shortened(message: ModelMessage) -> ModelMessage:
    if isinstance(message, ModelResponse):
        said = [
            replace(part, args=_short_inputs(part)) if isinstance(part, ToolCallPart) else part
            for part in message.parts
        ]
        return replace(message, parts=said)
    parts = [
        replace(part, content=LEFT_OUT)
        if isinstance(part, ToolReturnPart) and len(str(part.content)) > SHORT
        else part
        for part in message.parts
    ]
    return replace(message, parts=parts)


def _short_inputs(call: ToolCallPart) -> Data:
    try:
        given = arguments(call)
    except ValueError:
        return {}
    return {n: LEFT_OUT if len(json.dumps(v)) > SHORT else v for n, v in given.items()}


def result_text(result: Data) -> str:
    """A step's result for the model; the same whether it has just ended or was done before."""
    output: str = result["output"]
    if len(output) > LONGEST_OUTPUT:
        output = CUT + output[-LONGEST_OUTPUT:]
    if result["ok"]:
        return output or "done"
    undone = "; what it did was rolled back" if result["undone"] else ""
    return f"failed: {result['error']}{undone}\n{output}"


def _first(plan: Data) -> ModelRequest:
    kinds = ", ".join(f"{name} ({kind})" for name, kind in plan["resources"].items())
    system = SystemPromptPart(INSTRUCTIONS.format(resources=kinds))
    return ModelRequest(parts=[system, UserPromptPart(plan["goal"])])


def _size(messages: list[ModelMessage]) -> int:
    return len(json.dumps(_dumped(messages)))


def _dumped(messages: list[ModelMessage]) -> list[Data]:
    return ModelMessagesTypeAdapter.dump_python(messages, mode="json", exclude_none=True)


def _loaded(data: list[Data]) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_python(data)
