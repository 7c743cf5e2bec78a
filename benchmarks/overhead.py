"""A whole scripted session of Claude Code with our hooks and without, on the same tree.

    python -m tests.agents.programs DIR       # installs the real program from npm
    python benchmarks/overhead.py DIR [--files 10000] [--calls 40] [--rounds 2]

The model is the tests' own, on loopback, and answers at once: with a real one the share is smaller.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[1]))

from benchmarks.hooks import git
from benchmarks.peers import build
from tests.agents.programs import PROGRAMS, Lab, lab_for, session
from tests.agents.scripted_model import ScriptedModel

PROGRAM = PROGRAMS["claude-code"]


def once(lab: Lab) -> float:
    began = time.perf_counter()
    done = lab.run((PROGRAM.command, *PROGRAM.flags, *PROGRAM.ask("SCRIPT:work please")))
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=Path)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    taken: dict[str, list[float]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory(prefix="overhead-") as top, ScriptedModel() as model:
        model.scripts = session(
            {"work": [[PROGRAM.shell(f"date > made-{n}.txt")] for n in range(options.calls)]}
        )
        labs: dict[str, Lab] = {}
        for name in taken:
            lab = lab_for(PROGRAM, options.programs.absolute(), Path(top) / name, model.url)
            lab.env["CLEVERAGENTS_HOME"] = os.fspath(Path(top) / "store")
            build(lab.project, options.files)
            git("init", "-q", cwd=lab.project)
            git("add", "-A", cwd=lab.project)
            git("commit", "-qm", "base", cwd=lab.project)
            labs[name] = lab
        words = (sys.executable, "-m", "cleveragents", "hook", "install", "claude-code")
        env = labs["with"].environment()
        subprocess.run(words, env=env, cwd=labs["with"].project, check=True)
        for _ in range(options.rounds):
            for name, lab in labs.items():
                taken[name].append(once(lab))
    seconds = {name: statistics.median(each) for name, each in taken.items()}
    ratio = seconds["with"] / seconds["without"]
    more = 1000 * (seconds["with"] - seconds["without"]) / options.calls
    sys.stdout.write(f"without {seconds['without']:.1f} s, with {seconds['with']:.1f} s: ")
    sys.stdout.write(f"{ratio:.2f} times as long, {more:.0f} ms per call\n")


if __name__ == "__main__":
    main()
