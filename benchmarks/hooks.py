"""One hook of an agent's session, from the start of its client to its end, beside git on the tree.

    python benchmarks/hooks.py --sizes S,M --rounds 30 [--keep]

Each round changes ten files between the hooks of a tool call, in place, with the session's sidecar
running; what is timed is the hook after the call, which captures the change durably. In turns with
it, `git add -A && git write-tree` runs on a copy of the tree with the same change. `--keep` writes
the table to `benchmarks/results/hooks.json`. What counts is the ratio: the machine may be busy.
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

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[1]))

from benchmarks.peers import SIZES, Changer, build
from cleveragents.integrations.hook import hook_command
from cleveragents.workspace import open_workspace, settings_here

RESULTS = Path(__file__).parent / "results" / "hooks.json"


class Session:
    """An agent's session on one tree; this process stands for the agent."""

    def __init__(self, work: Path, home: Path) -> None:
        self.work = work
        self.argv = (*hook_command(settings_here(os.fspath(home)), "claude-code"), "--budget=600")
        self.env = {**os.environ, "CLEVERAGENTS_SESSION_HOOK_BUDGET": "600s"}

    def hook(self, event: str, **payload: object) -> float:
        """How many seconds it took."""
        body = {"session_id": "bench", "cwd": os.fspath(self.work), "hook_event_name": event}
        began = time.perf_counter()
        subprocess.run(
            self.argv, input=json.dumps({**body, **payload}).encode(), check=True, env=self.env
        )
        return time.perf_counter() - began


def git(*words: str, cwd: Path) -> None:
    own = ("-c", "user.name=bench", "-c", "user.email=bench@example.invalid", "-c", "gc.auto=0")
    subprocess.run(("git", *own, *words), cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def measured(files: int, rounds: int, top: Path) -> dict[str, float]:
    work, copy, home = top / "work", top / "copy", top / "store"
    build(work, files)
    git("init", "-q", cwd=work)
    git("add", "-A", cwd=work)
    git("commit", "-qm", "base", cwd=work)
    shutil.copytree(work, copy, symlinks=True)
    git("add", "-A", cwd=copy)
    session = Session(work, home)
    session.hook("UserPromptSubmit", prompt="change files", prompt_id="p1")
    before: list[float] = []
    after: list[float] = []
    beside: list[float] = []
    changers = Changer(work), Changer(copy)
    for number in range(rounds):
        call = {"tool_use_id": f"c{number}", "tool_name": "Bash"}
        before.append(session.hook("PreToolUse", tool_input={"command": "x"}, **call))
        for changer in changers:
            changer.change()
        after.append(session.hook("PostToolUse", tool_response={}, **call))
        began = time.perf_counter()
        git("add", "-A", cwd=copy)
        git("write-tree", cwd=copy)
        beside.append(time.perf_counter() - began)
    session.hook("SessionEnd", reason="exit")
    _require_captured(home, rounds)
    return {
        "before_ms": 1000 * statistics.median(before),
        "after_ms": 1000 * statistics.median(after),
        "git_ms": 1000 * statistics.median(beside),
        "times_as_quick_as_git": statistics.median(beside) / statistics.median(after),
        "p99_of_median": sorted(after)[int(0.99 * len(after))] / statistics.median(after),
    }


def _require_captured(home: Path, rounds: int) -> None:
    with open_workspace(os.fspath(home), recover=False) as ws:
        plan = ws.find("bench")
        wrote = {write.step_id for write in ws.ctx.store.calls.writes(plan.plan_id)}
        assert len(wrote) == rounds, f"{len(wrote)} of {rounds} calls have what they wrote"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="S,M")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for size in options.sizes.split(","):
        with tempfile.TemporaryDirectory(prefix="hooks-") as top:
            found[size] = measured(SIZES[size], options.rounds, Path(top))
        shown = "  ".join(f"{name} {value:.2f}" for name, value in found[size].items())
        sys.stdout.write(f"{size}: {shown}\n")
    if options.keep:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
