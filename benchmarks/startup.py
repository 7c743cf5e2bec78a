"""What a program pays that calls the command for every tool call, and a person who looks.

`python benchmarks/startup.py [RUNS]` prints processor time beside that of an interpreter which
imports `sqlite3` and `json`, in turns, because a machine is never alone.
"""

import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

AGENTS = str(Path(sysconfig.get_path("scripts")) / "agents")
PLAN = """\
name: start-up
resources: {app: {kind: git-checkout, path: app}}
steps:
""" + "".join(f"  - {{id: s{n}, run: 'echo {n} > f{n}'}}\n" for n in range(12))
CASES = {
    "python -c 'import sqlite3, json'": [sys.executable, "-c", "import sqlite3, json"],
    "agents --version": [AGENTS, "--version"],
    "agents plan status": [AGENTS, "plan", "status"],
    "agents plan status --json": [AGENTS, "plan", "status", "--json"],
    "agents plan list": [AGENTS, "plan", "list"],
}


class Startup:
    def time_version(self):
        subprocess.run([AGENTS, "--version"], check=True, stdout=subprocess.DEVNULL)


def seconds(argv, folder, env):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(runs):
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "CLEVERAGENTS_HOME": f"{folder}/store"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        Path(f"{folder}/plan.yaml").write_text(PLAN)
        who = ["-c", "user.name=x", "-c", "user.email=x@example.invalid"]
        git = ["git", *who, "-C", f"{folder}/app"]
        subprocess.run(["git", "init", "-q", f"{folder}/app"], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "base"], check=True)
        seconds([AGENTS, "plan", "run", "plan.yaml"], folder, env)
        taken = {name: [] for name in CASES}
        for _ in range(runs):
            for name, argv in CASES.items():
                taken[name].append(seconds(argv, folder, env))
    base, *_ = (statistics.median(values) for values in taken.values())
    for name, values in taken.items():
        middle = statistics.median(values)
        print(f"{name:34} {middle * 1000:6.1f} ms  {middle / base:.2f}x")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 21)
