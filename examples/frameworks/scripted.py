"""Models that answer from a list, so that the examples need no key.

A text is an answer; a list has a call of `write` for each of its texts, all to the file a.txt.
"""

import json
from typing import Any

Turn = str | list[str]


def openai_model(*turns: Turn) -> Any:
    """For the OpenAI Agents SDK; `seen` has the kinds of items of each request."""
    from agents import Model
    from agents.items import ModelResponse
    from agents.usage import Usage
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    def message(text: str, name: str) -> ResponseOutputMessage:
        content = [ResponseOutputText(type="output_text", text=text, annotations=[])]
        parts = {"type": "message", "role": "assistant", "status": "completed"}
        return ResponseOutputMessage(id=name, content=content, **parts)

    def call(text: str, name: str) -> ResponseFunctionToolCall:
        given = json.dumps({"name": "a.txt", "text": text})
        kind = {"type": "function_call", "name": "write"}
        return ResponseFunctionToolCall(call_id=name, arguments=given, **kind)

    class Scripted(Model):
        def __init__(self) -> None:
            self.left, self.seen = list(turns), []

        async def get_response(self, system_instructions, input, *_, **__):
            self.seen.append([item.get("type", item.get("role")) for item in input])
            turn, name = self.left.pop(0), f"t{len(self.seen)}"
            said = [message(turn, name)] if isinstance(turn, str) else []
            calls = [call(text, f"{name}{text}") for text in turn] if not said else []
            return ModelResponse(output=[*said, *calls], usage=Usage(), response_id=None)

        def stream_response(self, *_, **__):
            raise NotImplementedError

    return Scripted()


def pydantic_model(*turns: Turn) -> Any:
    """For Pydantic-AI."""
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    left = list(turns)

    def answer(messages: Any, info: Any) -> ModelResponse:
        turn = left.pop(0)
        if isinstance(turn, str):
            return ModelResponse([TextPart(turn)])
        return ModelResponse(
            [ToolCallPart("write", {"name": "a.txt", "text": text}) for text in turn]
        )

    return FunctionModel(answer)
