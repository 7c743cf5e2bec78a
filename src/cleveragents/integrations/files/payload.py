"""Reads payloads of any shape without raising."""

import json
from typing import Any, cast


def text(payload: Any, *path: str) -> str:
    """The text at a key path of the payload; "" if there is none."""
    value: Any = payload
    for key in path:
        value = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def mapping(payload: Any, key: str) -> dict[str, Any]:
    value: Any = cast("dict[str, Any]", payload).get(key) if isinstance(payload, dict) else None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def items(payload: Any, key: str) -> list[dict[str, Any]]:
    """The objects in a list of the payload."""
    value: Any = cast("dict[str, Any]", payload).get(key) if isinstance(payload, dict) else None
    found = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in found if isinstance(item, dict)]


def shown(value: Any) -> str:
    """A tool's response as text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
