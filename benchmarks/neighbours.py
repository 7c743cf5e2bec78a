"""stepback (PyPI) beside us at its own job: an agent's work in place, checkpointed and rewound.

    python -m venv DIR && DIR/bin/pip install stepback==0.2.0
    python benchmarks/neighbours.py --stepback DIR --sizes S,M --rounds 15 [--keep]

Each works on a tree of its own with the same ten changes per round, in turns. A checkpoint is asked
of the process that watches the session: their engine, our sidecar; ours is durable when it answers.
A rewind of ten changes is the installed command, from its start to its end, and the processor time
of it and what it started; the first of each is not counted, so both have their bytecode. The trees
are some seconds old, as people's are. What comes back exactly is looked at each time.
`--keep` writes `benchmarks/results/neighbours.json`. What counts is the ratio.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[1]))

from benchmarks.hooks import Session, git
from benchmarks.peers import SIZES, Changer, build
from cleveragents.integrations import client
from cleveragents.workspace import open_workspace

RESULTS = Path(__file__).parent / "results" / "neighbours.json"
REWINDS = 9
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
THEIRS = """
import sys
from pathlib import Path
from stepback.engine import Engine
engine = Engine(Path.cwd(), adapters=[])
engine.start_session()
for line in sys.stdin:
    made = engine.checkpoint()
    print(made.id if made else 0, flush=True)
"""


class Stepback:
    name = "stepback"

    def __init__(self, work: Path, folder: Path, home: Path) -> None:
        self.work, self.program = work, folder / "bin" / "stepback"
        self.env = {**ENV, "HOME": os.fspath(home)}
        self.engine = subprocess.Popen(
            [folder / "bin" / "python", "-c", THEIRS],
            cwd=work,
            env=self.env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def begin(self) -> None:
        """It is told of nothing before a change."""

    def checkpoint(self) -> str:
        assert self.engine.stdin is not None
        assert self.engine.stdout is not None
        self.engine.stdin.write("\n")
        self.engine.stdin.flush()
        return self.engine.stdout.readline().strip()

    def newest(self) -> str:
        raise AssertionError("it made no checkpoint")

    def rewind(self, checkpoint: str) -> tuple[float, float]:
        return run([self.program, "rewind", checkpoint, "--yes"], self.work, self.env)

    def close(self) -> None:
        assert self.engine.stdin is not None
        assert self.engine.stdout is not None
        self.engine.stdin.close()
        self.engine.stdout.close()
        self.engine.wait()


class Ours:
    name = "cleveragents"

    def __init__(self, work: Path, home: Path) -> None:
        self.work, self.home, self.calls = work, home, 0
        self.session = Session(work, home)
        self.session.hook("UserPromptSubmit", prompt="change files", prompt_id="p1")
        self.folder, self.socket = self.session.argv[-3], client.socket_name(b"bench")

    def tell(self, event: str, **payload: object) -> None:
        body = {"session_id": "bench", "cwd": os.fspath(self.work), "hook_event_name": event}
        line = client.open_socket(self.folder, self.socket)
        assert line is not None
        data = json.dumps({**body, "tool_use_id": f"c{self.calls}", **payload}).encode()
        assert client.ask(line, b"claude-code\t\n" + data, 600).startswith(b"ok")

    def begin(self) -> None:
        self.calls += 1
        self.tell("PreToolUse", tool_name="Bash", tool_input={"command": "x"})

    def checkpoint(self) -> str:
        self.tell("PostToolUse", tool_response={})
        return ""

    def newest(self) -> str:
        with open_workspace(os.fspath(self.home), recover=False) as ws:
            return ws.find("bench").group("last").group_id

    def rewind(self, checkpoint: str) -> tuple[float, float]:
        program = Path(sys.executable).with_name("agents")
        argv = [program, "plan", "rollback", "bench", checkpoint, "--yes", "--files-only"]
        return run(argv, self.work, {**ENV, "CLEVERAGENTS_HOME": os.fspath(self.home)})

    def close(self) -> None:
        self.session.hook("SessionEnd", reason="exit")


def timed(function: Any, *words: str) -> float:
    began = time.perf_counter()
    function(*words)
    return 1000 * (time.perf_counter() - began)


def run(argv: list[Any], work: Path, env: dict[str, str]) -> tuple[float, float]:
    """Milliseconds of a command by the clock, and of a processor."""
    began = time.perf_counter()
    command = subprocess.Popen(argv, cwd=work, env=env, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(command.pid, 0)
    took = time.perf_counter() - began
    command.returncode = os.waitstatus_to_exitcode(status)
    if command.returncode:
        raise subprocess.CalledProcessError(command.returncode, argv)
    return 1000 * took, 1000 * (used.ru_utime + used.ru_stime)


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        os.fspath(path.relative_to(root)): (
            path.lstat().st_mode,
            b"" if path.is_dir() and not path.is_symlink() else content(path),
        )
        for path in root.rglob("*")
        if not {".git", ".stepback"} & set(path.relative_to(root).parts)
    }


def content(path: Path) -> bytes:
    return os.readlink(path).encode() if path.is_symlink() else path.read_bytes()


def measured(files: int, rounds: int, stepback: Path, top: Path) -> dict[str, Any]:
    one, other = top / "ours", top / "theirs"
    build(one, files)
    git("init", "-q", cwd=one)
    git("add", "-A", cwd=one)
    git("commit", "-qm", "base", cwd=one)
    shutil.copytree(one, other, symlinks=True)
    time.sleep(3)
    both = (Ours(one, top / "store"), Stepback(other, stepback, top / "home"))
    changers = {tool.name: Changer(tool.work) for tool in both}
    taken: dict[str, dict[str, list[float]]] = {
        tool.name: {"make": [], "back": [], "cpu": []} for tool in both
    }
    for tool in both:
        tool.checkpoint()
    for _ in range(rounds):
        for tool in both:
            tool.begin()
            changers[tool.name].change()
            taken[tool.name]["make"].append(timed(tool.checkpoint))
    exact: dict[str, Any] = {}
    for number in range(REWINDS + 1):
        for tool in both:
            tool.begin()
            (tool.work / f"point-{number}.txt").write_text("a point to return to\n")
            point = tool.checkpoint() or tool.newest()
            before = tree(tool.work)
            tool.begin()
            changers[tool.name].change()
            ignored = next(tool.work.rglob("*.out"))
            ignored.write_bytes(b"changed by the agent %d" % number)
            tool.checkpoint()
            mine = next(tool.work.rglob("*.bin"))
            mine.write_bytes(b"by the person %d" % number)
            took, used = tool.rewind(point)
            if number:
                taken[tool.name]["back"].append(took)
                taken[tool.name]["cpu"].append(used)
            after = tree(tool.work)
            edited = os.fspath(mine.relative_to(tool.work))
            kept = after.pop(edited, (0, b""))[1] == b"by the person %d" % number
            before.pop(edited)
            wrong = sorted(n for n in {*before, *after} if before.get(n) != after.get(n))
            exact[tool.name] = {"paths_wrong": len(wrong), "persons_edit_kept": kept}
    for tool in both:
        tool.close()
    ms = {n: {k: statistics.median(v) for k, v in each.items()} for n, each in taken.items()}
    return {
        "checkpoint_ms": {name: each["make"] for name, each in ms.items()},
        "rewind_ms": {name: each["back"] for name, each in ms.items()},
        "rewind_cpu_ms": {name: each["cpu"] for name, each in ms.items()},
        "times_as_quick": {
            what: ms["stepback"][key] / ms["cleveragents"][key]
            for what, key in (("checkpoint", "make"), ("rewind", "back"), ("rewind_cpu", "cpu"))
        },
        "exact": exact,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stepback", type=Path, required=True, help="its virtual environment")
    parser.add_argument("--sizes", default="S,M")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for size in options.sizes.split(","):
        with tempfile.TemporaryDirectory(prefix="neighbours-") as top:
            stepback = options.stepback.absolute()
            found[size] = measured(SIZES[size], options.rounds, stepback, Path(top))
        sys.stdout.write(f"{size}: {json.dumps(found[size])}\n")
    if options.keep:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
