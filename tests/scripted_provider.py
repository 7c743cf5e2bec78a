"""A model on loopback that answers from a script: Anthropic Messages, OpenAI Chat and Responses.

A prompt names its script: "SCRIPT:edit please". The reply depends on the conversation in the
request alone: it is the turn of that script with as many turns of the assistant before it as the
conversation has since the prompt. `seen` has every request as (role, text) pairs.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Turn = str | list[tuple[str, dict[str, Any]]]
"""What the model says: a text, or calls of tools."""


class ScriptedProvider:
    def __init__(self, scripts: Mapping[str, list[Turn]], port: int) -> None:
        self.scripts = dict(scripts)
        self.url = f"http://127.0.0.1:{port}"
        self.seen: list[list[tuple[str, str]]] = []
        self.keys: list[str] = []
        self.refuse_with = ""

    def environment(self, key: str = "sk-test-0123456789abcdef") -> dict[str, str]:
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": key,
        }

    def reply(self, talk: list[tuple[str, str]]) -> tuple[Turn, str]:
        self.seen.append(talk)
        marks = [n for n, (role, text) in enumerate(talk) if role == "user" and "SCRIPT:" in text]
        name = re.findall(r"SCRIPT:(\w+)", talk[marks[-1]][1])[-1]
        turn = sum(
            role == "assistant" and (n == 0 or talk[n - 1][0] != "assistant")
            for n, (role, _) in enumerate(talk)
            if n > marks[-1]
        )
        script = self.scripts[name]
        return (script[turn] if turn < len(script) else "done"), f"{name}{turn}"


@contextmanager
def scripted(scripts: Mapping[str, list[Turn]]) -> Iterator[ScriptedProvider]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            key = self.headers.get("x-api-key") or self.headers.get("authorization") or ""
            provider.keys.append(key.removeprefix("Bearer "))
            if provider.refuse_with:
                text = provider.refuse_with.format(key=provider.keys[-1])
                return self._send({"error": {"message": text, "type": "auth"}}, 401)
            kind = self.path.rsplit("/", 1)[-1]
            turn, tag = provider.reply(FLAT[kind](body))
            return self._send(WIRE[kind](turn, tag))

        def _send(self, data: dict[str, Any], code: int = 200) -> None:
            raw = json.dumps(data).encode()
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = ScriptedProvider(scripts, server.server_port)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text") or part.get("content") or "") for part in content or ())


def _flat_chat(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (m["role"], _text(m.get("content")) or ",".join(_called(m)))
        for m in body["messages"]
        if m["role"] != "system"
    ]


def _called(message: dict[str, Any]) -> list[str]:
    return [call["function"]["name"] for call in message.get("tool_calls") or ()]


def _flat_messages(body: dict[str, Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for message in body["messages"]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in parts:
            if part["type"] == "text":
                found.append((message["role"], part["text"]))
            elif part["type"] == "tool_use":
                found.append(("assistant", part["name"]))
            else:
                found.append(("tool", _text(part["content"])))
    return found


def _flat_responses(body: dict[str, Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "message" and item["role"] not in ("system", "developer"):
            found.append((item["role"], _text(item["content"])))
        elif kind == "function_call":
            found.append(("assistant", item["name"]))
        elif kind == "function_call_output":
            found.append(("tool", _text(item["output"])))
    return found


def _wire_chat(turn: Turn, tag: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn}
    if not isinstance(turn, str):
        calls = [
            {
                "id": f"call_{tag}_{n}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(given)},
            }
            for n, (name, given) in enumerate(turn)
        ]
        message |= {"content": None, "tool_calls": calls}
    reason = "stop" if isinstance(turn, str) else "tool_calls"
    return {
        "id": tag,
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "finish_reason": reason, "message": message}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


def _wire_messages(turn: Turn, tag: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": str(turn)}]
    if not isinstance(turn, str):
        content = [
            {"type": "tool_use", "id": f"toolu_{tag}_{n}", "name": name, "input": given}
            for n, (name, given) in enumerate(turn)
        ]
    return {
        "id": tag,
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": content,
        "stop_reason": "end_turn" if isinstance(turn, str) else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


def _wire_responses(turn: Turn, tag: str) -> dict[str, Any]:
    text = {"type": "output_text", "text": turn, "annotations": []}
    items: list[dict[str, Any]] = [
        {
            "type": "message",
            "id": tag,
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }
    ]
    if not isinstance(turn, str):
        items = [
            {
                "type": "function_call",
                "id": f"fc_{tag}_{n}",
                "call_id": f"call_{tag}_{n}",
                "name": name,
                "arguments": json.dumps(given),
                "status": "completed",
            }
            for n, (name, given) in enumerate(turn)
        ]
    return {
        "id": tag,
        "object": "response",
        "created_at": 1,
        "model": "scripted",
        "status": "completed",
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        },
    }


FLAT = {"completions": _flat_chat, "messages": _flat_messages, "responses": _flat_responses}
WIRE = {"completions": _wire_chat, "messages": _wire_messages, "responses": _wire_responses}
