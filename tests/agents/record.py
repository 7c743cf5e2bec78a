"""Record what a real agent's hooks are sent: `python -m tests.agents.record FOLDER [AGENT...]`.

FOLDER is where `nox -s agents` installed the programs. Paths and ids are replaced, so that a new
recording differs only where the agent does.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cleveragents.integrations.agent import agent_named
from tests.agents.programs import PROGRAMS, Lab, Program, lab_for, session
from tests.agents.scripted_model import Call, ScriptedModel, Turn

PAYLOADS = Path(__file__).with_name("payloads")
LOGGER = """\
import json, os, sys
row = {"event": (sys.argv[2:] or [""])[0], "payload": json.loads(sys.stdin.read())}
with open(os.environ["RECORD_TO"], "a") as log:
    log.write(json.dumps(row) + "\\n")
"""
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SHORT = re.compile(r"(?<=_)[0-9a-f]{6}\b|\b(?:ses|msg|prt)_[0-9A-Za-z]{20,}|\ba[0-9a-f]{16}\b")
MOMENT = re.compile(r"20\d\d-\d\d-\d\dT[\d:.]+Z")


def scripts(program: Program, project: Path) -> dict[str, Sequence[Turn]]:
    """The commands really run: they name nothing outside the scratch project."""
    write, shell = program.write, program.shell
    turns: dict[str, Sequence[Turn]] = {
        "edit": [
            [write(f"{project}/new.txt", "new\n")],
            [shell("rm old.txt; echo made > made.txt")],
            [shell("exit 3"), shell("echo more >> more.txt"), shell("echo more >> more.txt")],
        ],
        "again": [[write(f"{project}/second.txt", "second\n")]],
    }
    if program.name == "claude-code":
        task = {"description": "look", "prompt": "SCRIPT:inner", "subagent_type": "general-purpose"}
        turns["agent"] = [[Call("Agent", task)]]
        turns["inner"] = [[write(f"{project}/inner.txt", "inner\n")]]
        late = {"command": "sleep 3; echo late > late.txt", "description": "wait"}
        turns["later"] = [[Call("Bash", {**late, "run_in_background": True})]]
        turns["denied"] = [[shell("rm old.txt"), shell("ls")]]
    return session(turns)


def record(program: Program, programs: Path, root: Path) -> dict[str, list[dict[str, Any]]]:
    agent = agent_named(program.name)
    found: dict[str, list[dict[str, Any]]] = {}
    with ScriptedModel() as model:
        lab = lab_for(program, programs, root, model.url)
        model.scripts = dict(scripts(program, lab.project))
        subprocess.run(("git", "init", "-q", str(lab.project)), check=True)
        (lab.project / "old.txt").write_text("old\n")
        # the name of our client's folder marks the hooks as ours
        logger = root / "cleveragents" / "integrations" / "client.py"
        logger.parent.mkdir(parents=True)
        logger.write_text(LOGGER)
        os.environ["HOME"] = str(lab.home)  # `launch` looks at the settings there
        hook = (sys.executable, "-I", "-S", str(logger), agent.name)
        known = ""
        for name in model.scripts:
            if name == "inner":
                continue
            log = root / f"{name}.jsonl"
            lab.env["RECORD_TO"] = str(log)
            argv = command_line(program, f"SCRIPT:{name} please", known)
            private = root / f"private-{name}"
            private.mkdir()
            launch = agent.launch(argv, hook, str(private))
            lab.env |= launch.env
            done = lab.run(launch.argv)
            if done.returncode or not log.exists():
                raise SystemExit(f"{shlex.join(launch.argv)}\n{done.stdout}\n{done.stderr}")
            rows = [json.loads(line) for line in log.open()]
            known = session_of(rows) if name == "edit" else ""
            found[name] = rows
            if name == "again" and program.name in CUT:
                found["session"] = CUT[program.name](transcript_of(rows))
    return scrubbed(found, lab, times=program.name in EXACT_TIMES)


def command_line(program: Program, prompt: str, session: str) -> tuple[str, ...]:
    if session:
        return program.resumed((program.command, program.resume, session), prompt)
    flags = ("--allowed-tools", "Write") if "SCRIPT:denied" in prompt else program.flags
    return (program.command, *flags, *program.ask(prompt))


def session_of(rows: list[dict[str, Any]]) -> str:
    payload = rows[0]["payload"]
    return payload.get("session_id") or payload["sessionId"]


def transcript_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    payloads = [row["payload"] for row in rows]
    paths = [one.get("transcript_path") or one.get("transcriptPath") for one in payloads]
    paths = [path for path in paths if path]
    return [json.loads(line) for line in Path(paths[-1]).resolve().read_text().splitlines()]


def cut_claude(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of its own session file what says who speaks and what comes after what."""
    kept = ("type", "uuid", "parentUuid", "sessionId", "promptId", "version", "isSidechain")
    rows: list[dict[str, Any]] = []
    for record in records:
        row = {key: record[key] for key in kept if key in record}
        if record.get("type") in {"user", "assistant"}:
            message = record["message"]
            row["message"] = {"role": message["role"], "content": message["content"]}
        rows.append(row)
    return rows


def cut_codex(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of its own session file the turns and their items, without what it tells every model."""
    rows: list[dict[str, Any]] = []
    for record in records:
        kind, payload = record["type"], record["payload"]
        if kind == "turn_context":
            rows.append({"type": kind, "payload": {"turn_id": payload["turn_id"]}})
        elif kind == "response_item" and len(json.dumps(payload)) < 1000:
            rows.append({"type": kind, "payload": payload})
    return rows


def cut_gemini(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Its own session file without what tools showed to the person."""
    for record in records:
        for message in (record, *record.get("$set", {}).get("messages", [])):
            for part in message.get("content", []) if message.get("type") == "user" else []:
                part["text"] = part["text"][:100] if "text" in part else ""
                if not part["text"]:
                    del part["text"]
            for call in message.get("toolCalls", []):
                for key in ("resultDisplay", "description", "displayName"):
                    call.pop(key, None)
    return records


def cut_qwen(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Its own session file without what it shows to the person and counts."""
    kept = ("uuid", "parentUuid", "sessionId", "timestamp", "type", "subtype", "message")
    return [{key: record[key] for key in kept if key in record} for record in records]


def cut_copilot(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of its own log what was said, without what it tells every model."""
    kept = ("content", "sessionId", "toolRequests", "toolCallId", "turnId")
    for record in records:
        record["data"] = {key: value for key, value in record["data"].items() if key in kept}
        if record["type"] == "system.message":
            record["data"]["content"] = ""
    return records


CUT = {
    "claude-code": cut_claude,
    "copilot": cut_copilot,
    "codex": cut_codex,
    "gemini": cut_gemini,
    "qwen": cut_qwen,
}
EXACT_TIMES = {"copilot", "gemini", "qwen"}
"""Agents whose times are how a point is found: they stay as they were."""


def scrubbed(found: dict[str, Any], lab: Lab, *, times: bool) -> dict[str, list[dict[str, Any]]]:
    text = json.dumps(found)
    text = text.replace(str(lab.project), "/home/ann/project").replace(str(lab.home), "/home/ann")
    private = rf"{re.escape(str(lab.home.parent))}/private-\w+"
    for name, place in (("gemini", ""), ("qwen", "/.qwen"), ("copilot", "/.copilot")):
        text = re.sub(f"{private}/{name}-home", f"/home/ann{place}", text)
    flat = re.sub(r"[^A-Za-z0-9]", "-", str(lab.project))
    text = text.replace(flat, "-home-ann-project")
    for pattern, shape in ((UUID, "00000000-0000-4000-8000-{:012d}"), (SHORT, "id{:04d}")):
        ids: dict[str, str] = {}
        for one in pattern.findall(text):
            ids.setdefault(one, shape.format(len(ids) + 1))
        text = pattern.sub(lambda match, ids=ids: ids[match.group()], text)
    return json.loads(text if times else MOMENT.sub("2026-11-16T00:00:00.000Z", text))


def main(programs: Path, names: Sequence[str]) -> None:
    for name in names or PROGRAMS:
        with tempfile.TemporaryDirectory(prefix="record-") as root:
            for scenario, rows in record(PROGRAMS[name], programs, Path(root) / "lab").items():
                path = PAYLOADS / name / f"{scenario}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
                print(path, len(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
