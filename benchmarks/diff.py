"""How long one waits for the first screen of a large diff, beside `git diff` of the same files.

`python benchmarks/diff.py [RUNS]` makes 1,000 files of which every line changes (a patch of 20 MB)
and asks both in turns, each in a terminal with `less`, until the screen is full.
"""

import fcntl
import os
import pty
import random
import statistics
import struct
import subprocess
import sys
import sysconfig
import tempfile
import termios
import time
from pathlib import Path

AGENTS = str(Path(sysconfig.get_path("scripts")) / "agents")
SCREEN = 3000
PLAN = """\
name: large
resources: {app: {kind: git-checkout, path: app}}
steps:
  - {id: edit, run: 'for f in d*/*; do tr 0123456789 1234567890 < $f > x; mv x $f; done'}
"""


def make(folder):
    chance = random.Random(1)
    for number in range(1000):
        path = Path(f"{folder}/app/d{number % 20}/f{number}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (f"{chance.getrandbits(240):060x} and some text\n" for _ in range(130))
        path.write_text("".join(lines))
    Path(f"{folder}/plan.yaml").write_text(PLAN)
    who = ["-c", "user.name=x", "-c", "user.email=x@example.invalid", "-C", f"{folder}/app"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "base"]):
        subprocess.run(["git", *who, *words], check=True)


def first_screen(argv, folder, env):
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(argv[0], argv, env)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 50, 100, 0, 0))
    began, seen = time.perf_counter(), 0
    while seen < SCREEN:
        seen += len(os.read(terminal, 1 << 16))
    took = time.perf_counter() - began
    os.write(terminal, b"q")
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:
        pass
    os.waitpid(pid, 0)
    os.close(terminal)
    return took


def main(runs):
    with tempfile.TemporaryDirectory() as folder:
        make(folder)
        env = {**os.environ, "CLEVERAGENTS_HOME": f"{folder}/store", "TERM": "xterm"}
        env |= {"PAGER": "less", "GIT_PAGER": "less", "LESS": "FRX"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        run = [AGENTS, "plan", "run", "plan.yaml", "-q"]
        subprocess.run(run, cwd=folder, env=env, check=True)
        sandbox = next(Path(f"{folder}/store/sandboxes").glob("*/app"))
        patch = subprocess.run(["git", "diff"], cwd=sandbox, check=True, capture_output=True).stdout
        print(f"a patch of {len(patch) / 1e6:.1f} MB")
        git, ours = [], []
        for _ in range(runs):
            git.append(first_screen(["git", "diff"], sandbox, env))
            ours.append(first_screen([AGENTS, "plan", "diff"], folder, env))
        for name, taken in (("git diff", git), ("agents plan diff", ours)):
            ratio = statistics.median(taken) / statistics.median(git)
            print(f"{name:18} {statistics.median(taken) * 1000:5.0f} ms  {ratio:.2f}x")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
