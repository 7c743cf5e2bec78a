"""Trees to measure on, and the plain shadow-git sequence to measure against."""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from cleveragents.lease import (
    working_on,
)
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.plan import Phase
from cleveragents.workspace import open_workspace

SIZES = (300,)
"""Files in the tree; `benchmarks/peers.py` measures the large ones."""


def build(root: Path, files: int, seed: int = 7) -> None:
    """Small text files in folders of about a dozen, the same for the same seed."""
    chance = random.Random(seed)
    for number in range(files):
        folder = root / f"d{number // 120}" / f"e{number // 12 % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}.txt").write_text(f"{number} " * chance.randint(50, 2000))


def change(root: Path, turn: int) -> None:
    """Five edits, three new files, one deleted, one renamed."""
    names = sorted(p for p in root.rglob("*.txt") if ".git" not in p.parts)
    for path in names[turn % 7 : turn % 7 + 5]:
        path.write_text(f"turn {turn} {path.name}\n" * 40)
    for number in range(3):
        (root / f"new-{turn}-{number}.txt").write_text("new\n" * 100)
    names[-1].unlink()
    names[-2].rename(names[-2].with_suffix(".moved.txt"))


def rewrite(root: Path, turn: int, count: int) -> None:
    """That many files with new content."""
    for number in range(count):
        (root / f"many-{number}.txt").write_text(f"turn {turn} file {number}\n" * 40)


class Shadow:
    """`git add -A` and `write-tree` in a private git directory: the lower bound of that family."""

    def __init__(self, work: Path, git_dir: Path) -> None:
        self._base = ["git", f"--git-dir={git_dir}", f"--work-tree={work}"]
        subprocess.run(["git", "init", "-q", "--bare", str(git_dir)], check=True)

    def _git(self, *arguments: str) -> str:
        done = subprocess.run([*self._base, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def checkpoint(self) -> str:
        self._git("add", "-A")
        return self._git("write-tree")

    def restore(self, tree: str) -> None:
        self._git("read-tree", "-u", "--reset", tree)
        self._git("clean", "-fdq")


class OpenPlan:
    """A plan with one directory, held by this process as an executor holds it."""

    def __init__(self, files: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="agents-bench-")
        top = Path(self._folder.name)
        source = top / "source"
        source.mkdir()
        build(source, files)
        plan_file = top / "plan.yaml"
        plan_file.write_text(
            "name: bench\nresources: {work: {kind: fs-directory, path: source}}\n"
            "steps: [{id: nothing, run: 'true'}]\n"
        )
        self.home = os.fspath(top / "store")
        self._opened = open_workspace(self.home)
        self.workspace = self._opened.__enter__()
        self.ctx = self.workspace.ctx
        plan = self.workspace.run(os.fspath(plan_file))
        assert plan.plan.phase is Phase.EXECUTE
        self.plan_id = plan.plan_id
        self.root = Path(plan.sandboxes["work"])
        self._held = working_on(self.ctx.store, plan.plan_id, "bench", self.ctx.now)
        self.leased = self._held.__enter__()
        self.shadow = Shadow(self.root, top / "shadow.git")
        self.shadow.checkpoint()

    def command(self) -> list[str]:
        """`agents plan checkpoint create` as another process would call it."""
        words = ("plan", "checkpoint", "create", self.plan_id, "--json")
        return [sys.executable, "-m", "cleveragents", *words]

    def run_command(self) -> None:
        env = {**os.environ, "CLEVERAGENTS_HOME": self.home}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run(self.command(), env=env, check=True, capture_output=True)

    def let_go(self) -> None:
        """Give the plan back, so that another process can work on it."""
        self._held.__exit__(None, None, None)
        self._held = contextlib.nullcontext()
        self.workspace.ctx.manager.forget(self.plan_id)

    def checkpoint(self) -> str:
        group = self.ctx.checkpoints.create_checkpoint(CheckpointType.MANUAL, self.leased)
        return group.group_id

    def close(self) -> None:
        self._held.__exit__(None, None, None)
        self._opened.__exit__(None, None, None)
        self._folder.cleanup()
