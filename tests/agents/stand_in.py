"""A `claude` for the documentation: it calls its hooks and keeps its session as Claude Code does.

`python stand_in.py install < SCRIPT` makes a program of that name in ~/bin. A line `prompt TEXT`
of the script is a prompt, any other the name of a tool and the shell command that it stands for.
"""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

HOME = Path.home()
SCRIPT = HOME / ".claude" / "script"


def install() -> None:
    program = HOME / "bin" / "claude"
    for path in (program, SCRIPT):
        path.parent.mkdir(parents=True, exist_ok=True)
    SCRIPT.write_text(sys.stdin.read())
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} "$@"\n')
    program.chmod(0o755)


class Session:
    def __init__(self, settings: Path) -> None:
        self.hooks = json.loads(settings.read_text())["hooks"] if settings.exists() else {}
        self.session = str(uuid.uuid4())
        self.path = HOME / ".claude" / "projects" / "here" / f"{self.session}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.last: str | None = None
        self.prompt = ""

    def hook(self, event: str, **payload: Any) -> None:
        said = {
            "hook_event_name": event,
            "session_id": self.session,
            "transcript_path": str(self.path),
            "prompt_id": self.prompt,
            "cwd": os.getcwd(),
        }
        for entry in self.hooks.get(event, ()):
            for hook in entry["hooks"]:
                body = json.dumps(said | payload).encode()
                argv = ["sh", "-c", hook["command"]]
                subprocess.run(argv, input=body, stdout=subprocess.DEVNULL, check=True)

    def record(self, kind: str, content: Any) -> None:
        own = str(uuid.uuid4())
        row = {
            "type": kind,
            "uuid": own,
            "parentUuid": self.last,
            "sessionId": self.session,
            "promptId": self.prompt,
            "message": {"role": kind, "content": content},
        }
        self.last = own
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def ask(self, text: str) -> None:
        self.answer()
        self.prompt = str(uuid.uuid4())
        self.record("user", text)
        self.hook("UserPromptSubmit", prompt=text)

    def answer(self) -> None:
        if self.prompt:
            self.record("assistant", [{"type": "text", "text": "Done."}])
            self.hook("Stop", last_assistant_message="Done.")

    def call(self, tool: str, command: str) -> None:
        own, inputs = f"toolu_{uuid.uuid4().hex}", {"command": command}
        self.record("assistant", [{"type": "tool_use", "id": own, "name": tool, "input": inputs}])
        self.hook("PreToolUse", tool_name=tool, tool_use_id=own, tool_input=inputs)
        argv = ["sh", "-c", command]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        self.record("user", [{"type": "tool_result", "tool_use_id": own, "content": done.stdout}])
        self.hook("PostToolUse", tool_use_id=own, tool_response={"stdout": done.stdout})


def main(argv: list[str]) -> None:
    if argv == ["install"]:
        install()
        return
    given = argv[argv.index("--settings") + 1] if "--settings" in argv else None
    session = Session(Path(given) if given else HOME / ".claude" / "settings.json")
    session.hook("SessionStart", source="startup")
    for line in SCRIPT.read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "prompt":
            session.ask(rest)
        else:
            session.call(word, rest)
    session.answer()
    session.hook("SessionEnd", reason="exit")


if __name__ == "__main__":
    main(sys.argv[1:])
