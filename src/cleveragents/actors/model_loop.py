"""The process of a `model` actor: asks the model, proposes what it calls, tells it the results.

`python -m cleveragents.actors.model_loop MODEL STEPS TOKENS`, with the key of the provider in its
environment. What goes wrong with the model ends it with one line that says so.
"""

import json
import os
import sys
from collections.abc import Callable

from pydantic_ai.direct import model_request_sync
from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters, infer_model

from cleveragents.actors.model_talk import SHORT, Talk, result_text
from cleveragents.actors.model_tools import DECIDE, Data, Toolbox, arguments, decision_from, shown


class BudgetSpent(Exception):
    pass


class Loop:
    """From the start message to `done`; `say` proposes, `hear` tells how a step ended."""

    def __init__(
        self,
        model: Model,
        say: Callable[[Data], None],
        hear: Callable[[], Data],
        max_steps: int,
        max_tokens: int,
    ) -> None:
        self._model, self._say, self._hear = model, say, hear
        self._max_steps, self._max_tokens = max_steps, max_tokens
        self._steps = self._tokens = 0

    def run(self, start: Data) -> None:
        self._box = Toolbox(start["plan"])
        self._talk = Talk(start)
        self._talk.begin(start, self._box)
        while self._take_turn():
            pass
        self._say({"type": "done"})

    def _take_turn(self) -> bool:
        """Ask once and do what it calls; False when it calls nothing."""
        talk = self._talk
        self._keep()
        talk.turn = self._ask()
        words = "".join(p.content for p in talk.turn.parts if isinstance(p, TextPart)).strip()
        if not talk.calls():
            talk.end(words)
            self._keep()
            return False
        if not any(call.tool_name == DECIDE for call in talk.calls()):
            self._say(self._decision_of(words))
        for call in talk.calls():
            self._do(call)
        talk.close()
        return True

    def _ask(self) -> ModelResponse:
        if self._tokens >= self._max_tokens:
            raise BudgetSpent(f"the budget of {self._max_tokens:,} tokens is used up")
        parameters = ModelRequestParameters(function_tools=self._box.definitions)
        response = model_request_sync(
            self._model, self._talk.messages, model_request_parameters=parameters
        )
        self._tokens += response.usage.total_tokens
        return response

    def _decision_of(self, words: str) -> Data:
        """A turn without a decision of its own: what it calls is what was chosen."""
        return {
            "type": "decision",
            "question": f"what to do in turn {self._talk.turns + 1}",
            "chosen": "; ".join(shown(call) for call in self._talk.calls())[:SHORT],
            "rationale": words[: 4 * SHORT],
        }

    def _do(self, call: ToolCallPart) -> None:
        talk = self._talk
        try:
            if call.tool_name == DECIDE:
                self._say(decision_from(arguments(call)))
                talk.answer("recorded")
                return
            step = self._box.step_for(call)
        except ValueError as error:
            talk.answer(f"failed: {error}")
            return
        if self._steps >= self._max_steps:
            raise BudgetSpent(f"the budget of {self._max_steps:,} steps is used up")
        self._steps += 1
        self._keep()
        self._say(step)
        result = self._hear()
        talk.answer(result_text(result), result["step"] if result["ok"] else "")

    def _keep(self) -> None:
        self._say({"type": "state", "state": self._talk.state()})


def main(name: str, max_steps: str, max_tokens: str) -> None:
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: Data) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    def hear() -> Data:
        line = sys.stdin.readline()
        if not line:
            sys.exit("the executor is gone")
        return json.loads(line)

    try:
        Loop(infer_model(name), say, hear, int(max_steps), int(max_tokens)).run(hear())
    except (AgentRunError, UserError, ImportError, ValueError, BudgetSpent) as error:
        sys.exit(" ".join(f"{name}: {error}".split()))


if __name__ == "__main__":
    main(*sys.argv[1:])
