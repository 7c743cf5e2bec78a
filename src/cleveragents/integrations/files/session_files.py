"""Session files of agents: private formats, read as a whole and written only as new files.

Nothing is guessed: an unexpected format is refused, and no session is ever changed.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from cleveragents.content import fsio
from cleveragents.errors import ConversationError
from cleveragents.integrations.files.payload import text

_END = 1 << 20
FILES_ONLY = "add --files-only to roll back files and databases alone"


def read_records(path: str) -> list[dict[str, Any]]:
    """The lines of a session file, each a JSON object."""
    if not path:
        raise ConversationError("the agent did not say where its session is kept", FILES_ONLY)
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise ConversationError(
            f"cannot read the session file {path}: {error.strerror}", FILES_ONLY
        ) from None
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
        except ValueError:
            if number == len(lines):  # the agent died while it wrote its last line
                continue
            raise not_understood(path, f"line {number} is not JSON") from None
        if not isinstance(record, dict):
            raise not_understood(path, f"line {number} is not an object")
        records.append(cast("dict[str, Any]", record))
    return records


def last_records(path: str) -> list[dict[str, Any]]:
    """The end of a session file, as far as it can be read; callers can do without."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _END))
            lines = file.read().splitlines()
    except OSError:
        return []
    found: list[dict[str, Any]] = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            record: Any = json.loads(line)
            if isinstance(record, dict):
                found.append(cast("dict[str, Any]", record))
    return found


def write_records(path: str, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a new session file; an existing one is never replaced."""
    data = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    try:
        fsio.write_new(path, data.encode("utf-8", "surrogatepass"))
    except OSError as error:
        raise ConversationError(
            f"cannot write the session file {path}: {error.strerror}", FILES_ONLY
        ) from None


def write_copy(path: str, session: str, records: Iterable[Mapping[str, Any]]) -> None:
    """Write the records as a new session beside the original file; no records, no file."""
    own = [{**record, "sessionId": session} for record in records]
    if own:
        write_records(os.path.join(os.path.dirname(path), f"{session}.jsonl"), own)


def chained(records: Iterable[dict[str, Any]], own: str, above: str) -> list[dict[str, Any]]:
    """Link each record to the one before; `own` and `above` are the keys of the two ids."""
    linked: list[dict[str, Any]] = []
    for record in records:
        linked.append({**record, above: linked[-1][own] if linked else None})
    return linked


def next_prompt(records: Sequence[dict[str, Any]], kind: str, moment: str) -> int:
    """The position of the first prompt after a moment, else the end.

    A prompt's event comes before the prompt is written, that of an end after the text.
    """
    later = (
        number
        for number, one in enumerate(records)
        if text(one, "type") == kind and text(one, "timestamp") > moment
    )
    return next(later, len(records))


def not_understood(path: str, why: str) -> ConversationError:
    return ConversationError(f"the session file {path} is not as expected: {why}", FILES_ONLY)


def not_in_it(path: str, what: str) -> ConversationError:
    return ConversationError(
        f"{what} is not in the session file {path}",
        f"choose a checkpoint before or after it, or {FILES_ONLY}",
    )


def inside_sub_agent() -> ConversationError:
    return ConversationError(
        "the checkpoint lies inside the work of a sub-agent, whose conversation cannot be cut",
        f"choose a checkpoint before or after it, or {FILES_ONLY}",
    )


def program(command: str, env: Mapping[str, str]) -> str:
    """The path of an agent's own program, for what only it can do."""
    from shutil import which

    found = which(command, path=env.get("PATH", os.defpath))
    if found is None:
        raise ConversationError(
            f"cannot find the program {command}, which has to copy the conversation",
            f"put it on the PATH, or {FILES_ONLY}",
        )
    return found
