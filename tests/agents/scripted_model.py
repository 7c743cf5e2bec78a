"""A model endpoint on loopback that answers from a script, in the four wire formats agents speak.

It keeps no state: the reply depends only on the conversation in the request, so a conversation that
was resumed, forked or cut can be told from one that was not. A prompt names its script
("SCRIPT:one please"), and the reply is the script's turn after as many turns as the conversation
already has since that prompt. Every request is kept as what the model saw: that is the proof of
what an agent remembers.
"""

import gzip
import json
import re
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

MARK = re.compile(r"SCRIPT:(\w+)")
PLACE = re.compile(r"_p(\d+)_")


@dataclass(frozen=True)
class Say:
    """Words of the model."""

    text: str


@dataclass(frozen=True)
class Call:
    """A tool call of the model; `raw` is the input of a tool that takes text (Codex's patches)."""

    tool: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    raw: str | None = None
    namespace: str = ""


Turn = Sequence[Say | Call]
Scripts = dict[str, Sequence[Turn]]


@dataclass(frozen=True)
class Seen:
    """One message as the model saw it."""

    role: str
    text: str
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    wire: str
    seen: tuple[Seen, ...]
    tools: tuple[str, ...]

    @property
    def said(self) -> str:
        """All that the conversation holds, to look for words in."""
        parts = ((m.text, *m.calls, *m.results) for m in self.seen if m.role != "system")
        return "\n".join(text for part in parts for text in part)


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "\n".join(text for text in texts if isinstance(text, str))
    return ""


def flat(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def seen_anthropic(body: dict[str, Any]) -> list[Seen]:
    found: list[Seen] = []
    for message in body.get("messages", []):
        content = message["content"]
        parts = content if isinstance(content, list) else []
        found.append(
            Seen(
                message["role"],
                text_of(content),
                tuple(f"{p['name']}#{p['id']}" for p in parts if p.get("type") == "tool_use"),
                tuple(flat(p.get("content")) for p in parts if p.get("type") == "tool_result"),
            )
        )
    return found


def seen_responses(body: dict[str, Any]) -> list[Seen]:
    items = body.get("input", [])
    if isinstance(items, str):
        return [Seen("user", items)]
    found: list[Seen] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            role = {"developer": "system"}.get(item.get("role"), item.get("role"))
            found.append(Seen(role, text_of(item.get("content"))))
        elif kind.endswith("_output"):
            found.append(Seen("tool", "", results=(flat(item.get("output")),)))
        elif kind.endswith("_call"):
            found.append(Seen("assistant", "", (f"{item.get('name')}#{item.get('call_id')}",)))
    return found


def seen_chat(body: dict[str, Any]) -> list[Seen]:
    found: list[Seen] = []
    for message in body.get("messages", []):
        text = text_of(message.get("content"))
        if message["role"] == "tool":
            found.append(Seen("tool", "", results=(text,)))
            continue
        calls = message.get("tool_calls") or []
        names = tuple(f"{call['function']['name']}#{call['id']}" for call in calls)
        found.append(Seen(message["role"], text, names))
    return found


def seen_gemini(body: dict[str, Any]) -> list[Seen]:
    found: list[Seen] = []
    for content in body.get("contents", []):
        parts = content.get("parts", [])
        calls = tuple(p["functionCall"]["name"] for p in parts if "functionCall" in p)
        results = tuple(flat(p["functionResponse"]) for p in parts if "functionResponse" in p)
        role = {"model": "assistant"}.get(content.get("role"), content.get("role"))
        found.append(Seen("tool" if results else role, text_of(parts), calls, results))
    return found


SEEN = {
    "anthropic": seen_anthropic,
    "responses": seen_responses,
    "chat": seen_chat,
    "gemini": seen_gemini,
}


def wire_of(path: str) -> str | None:
    endings = {"/messages": "anthropic", "/responses": "responses", "/chat/completions": "chat"}
    for ending, wire in endings.items():
        if path.endswith(ending):
            return wire
    return "gemini" if "enerateContent" in path else None


def place_in(seen: Sequence[Seen]) -> tuple[str, int]:
    """The script that the newest prompt names, and how many of its turns were had."""
    name, start = "", 0
    for index, message in enumerate(seen):
        marks = MARK.findall(message.text) if message.role == "user" else []
        if marks:
            name, start = marks[-1], index
    place, before = 0, ""
    for message in seen[start + 1 :]:
        if message.role == "assistant":
            own = [int(n) for call in message.calls for n in PLACE.findall(call)]
            if own:  # our ids carry the place, for agents that reorder parallel calls
                place = max(place, *(n + 1 for n in own))
            elif before != "assistant":
                place += 1
        before = message.role
    return name, place


def tool_names(body: dict[str, Any]) -> tuple[str, ...]:
    names: list[str] = []
    for tool in body.get("tools") or []:
        if "functionDeclarations" in tool:
            names += [one["name"] for one in tool["functionDeclarations"]]
        else:
            names.append(tool.get("name") or tool.get("function", {}).get("name") or tool["type"])
    return tuple(names)


class ScriptedModel:
    """The server; `scripts` may be changed while it runs."""

    def __init__(self, scripts: Scripts | None = None) -> None:
        self.scripts: Scripts = dict(scripts or {})
        self.requests: list[Request] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.model = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def with_tools(self) -> list[Request]:
        """The requests of conversations; titles and summaries come without tools."""
        return [request for request in self.requests if request.tools]

    def reply(self, wire: str, body: dict[str, Any]) -> tuple[str, Turn]:
        seen = SEEN[wire](body)
        request = Request(wire, tuple(seen), tool_names(body))
        self.requests.append(request)
        name, place = place_in(seen)
        if not request.tools:
            return "", [Say("ok")]
        turns = self.scripts.get(name)
        if turns is None:
            return "", [Say("done: no such script")]
        return f"{name}_p{place}_", turns[place] if place < len(turns) else [Say("done")]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def model(self) -> ScriptedModel:
        return self.server.model  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._json({})

    def do_GET(self) -> None:
        model = {"id": "scripted", "object": "model", "type": "model", "display_name": "scripted"}
        if self.path.split("?", maxsplit=1)[0].rstrip("/").endswith("/models"):
            self._json({"object": "list", "data": [model], "models": []})
        else:
            self._json({}, 404)

    def do_POST(self) -> None:
        path = self.path.split("?", maxsplit=1)[0]
        body = json.loads(self._body() or b"{}")
        wire = wire_of(path)
        if path.endswith("/count_tokens"):
            self._json({"input_tokens": 100})
        elif path.endswith(":countTokens"):
            self._json({"totalTokens": 100})
        elif wire is None:
            self._json({})
        else:
            tag, turn = self.model.reply(wire, body)
            getattr(self, f"_{wire}")(body, turn, tag)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            raw = b""
            while size := int(self.rfile.readline().strip() or b"0", 16):
                raw += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        return gzip.decompress(raw) if self.headers.get("content-encoding") == "gzip" else raw

    def _json(self, value: Any, status: int = 200) -> None:
        raw = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def _stream(self, events: Sequence[dict[str, Any]], end: str = "") -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for event in events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            self.wfile.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(end.encode())
        self.close_connection = True

    def _anthropic(self, body: dict[str, Any], turn: Turn, tag: str) -> None:
        content: list[dict[str, Any]] = []
        for at, part in enumerate(turn):
            if isinstance(part, Say):
                content.append({"type": "text", "text": part.text})
            else:
                own = f"toolu_{tag}{at}_{_hex(6)}"
                content.append(
                    {"type": "tool_use", "id": own, "name": part.tool, "input": dict(part.inputs)}
                )
        stop = "tool_use" if any(c["type"] == "tool_use" for c in content) else "end_turn"
        message = {
            "id": f"msg_{_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model", "scripted"),
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }
        if not body.get("stream"):
            self._json(message)
            return
        start = {**message, "content": [], "stop_reason": None}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
        for index, block in enumerate(content):
            if block["type"] == "text":
                empty, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                raw = json.dumps(block["input"])
                empty, delta = {"input": {}}, {"type": "input_json_delta", "partial_json": raw}
            opened = {"content_block": {**block, **empty}}
            events += [
                {"type": "content_block_start", "index": index, **opened},
                {"type": "content_block_delta", "index": index, "delta": delta},
                {"type": "content_block_stop", "index": index},
            ]
        ended = {"stop_reason": stop, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 5}})
        self._stream([*events, {"type": "message_stop"}])

    def _responses(self, body: dict[str, Any], turn: Turn, tag: str) -> None:
        items = [_response_item(part, f"call_{tag}{at}_{_hex(6)}") for at, part in enumerate(turn)]
        base = {
            "id": f"resp_{_hex(12)}",
            "object": "response",
            "created_at": 0,
            "model": body.get("model", "scripted"),
            "status": "in_progress",
            "output": [],
        }
        usage = {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        }
        final = {**base, "status": "completed", "output": items, "usage": usage}
        if not body.get("stream"):
            self._json(final)
            return
        events: list[dict[str, Any]] = [{"type": "response.created", "response": base}]
        for index, item in enumerate(items):
            at = {"output_index": index}
            events.append({"type": "response.output_item.added", **at, "item": item})
            events.append({"type": "response.output_item.done", **at, "item": item})
        events.append({"type": "response.completed", "response": final})
        self._stream([{**event, "sequence_number": n} for n, event in enumerate(events)])

    def _chat(self, body: dict[str, Any], turn: Turn, tag: str) -> None:
        text = "".join(part.text for part in turn if isinstance(part, Say))
        calls = [
            {
                "index": at,
                "id": f"call_{tag}{at}_{_hex(6)}",
                "type": "function",
                "function": {"name": part.tool, "arguments": json.dumps(dict(part.inputs))},
            }
            for at, part in enumerate(part for part in turn if isinstance(part, Call))
        ]
        ended = "tool_calls" if calls else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        base = {"id": f"cc_{_hex(8)}", "created": 0, "model": body.get("model", "scripted")}
        if not body.get("stream"):
            whole = {"role": "assistant", "content": text or None}
            if calls:
                whole["tool_calls"] = calls
            choice = {"index": 0, "finish_reason": ended, "message": whole}
            self._json({**base, "object": "chat.completion", "usage": usage, "choices": [choice]})
            return
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": text}]
        deltas += [{"tool_calls": calls}] if calls else []
        base["object"] = "chat.completion.chunk"
        events: list[dict[str, Any]] = [
            {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            for delta in deltas
        ]
        last = {"index": 0, "delta": {}, "finish_reason": ended}
        self._stream([*events, {**base, "choices": [last], "usage": usage}], "data: [DONE]\n\n")

    def _gemini(self, body: dict[str, Any], turn: Turn, tag: str) -> None:
        del body, tag
        parts = [
            {"text": part.text}
            if isinstance(part, Say)
            else {"functionCall": {"name": part.tool, "args": dict(part.inputs)}}
            for part in turn
        ]
        content = {"role": "model", "parts": parts}
        reply = {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {
                "promptTokenCount": 10,
                "candidatesTokenCount": 5,
                "totalTokenCount": 15,
            },
            "modelVersion": "scripted",
        }
        if "stream" in self.path:
            self._stream([reply])
        else:
            self._json(reply)


def _response_item(part: Say | Call, call_id: str) -> dict[str, Any]:
    own = {"id": f"item_{_hex(8)}", "status": "completed"}
    if isinstance(part, Say):
        words = [{"type": "output_text", "text": part.text, "annotations": []}]
        return {"type": "message", "role": "assistant", "content": words, **own}
    named = {"call_id": call_id, "name": part.tool, **own}
    if part.raw is not None:
        return {"type": "custom_tool_call", "input": part.raw, **named}
    extra = {"namespace": part.namespace} if part.namespace else {}
    arguments = json.dumps(dict(part.inputs))
    return {"type": "function_call", "arguments": arguments, **named, **extra}


def _hex(length: int) -> str:
    return uuid.uuid4().hex[:length]
