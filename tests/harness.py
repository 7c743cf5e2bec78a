"""The installed `agents` command in a home of its own; pytest, Behave and Robot all use it."""

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR")
IDENTITY = {
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.invalid",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.invalid",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def private_environment(root: Path) -> dict[str, str]:
    """What a process needs and nothing of the developer's: own home, store and git identity."""
    kept = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith("COVERAGE_")}
    home = root / "home"
    return (
        kept
        | IDENTITY
        | {
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "XDG_DATA_HOME": str(home / ".local" / "share"),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "CLEVERAGENTS_HOME": str(root / "store"),
            "NO_COLOR": "1",
        }
    )


@dataclass(frozen=True)
class Outcome:
    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """The envelope that `--json` prints."""
        try:
            return json.loads(self.stdout)
        except ValueError:
            raise AssertionError(f"not JSON: {self}") from None

    @property
    def data(self) -> dict[str, Any]:
        return self.json["data"]

    def expect(self, rc: int) -> "Outcome":
        assert self.rc == rc, f"exit code {self.rc}, expected {rc}: {self}"
        return self

    def __str__(self) -> str:
        return f"{' '.join(self.argv)}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


class Agents:
    """Everything it writes is below `root`; commands start in `root/work` unless told otherwise."""

    def __init__(self, root: Path) -> None:
        self.work = root / "work"
        self.env = private_environment(root)
        for folder in (self.work, Path(self.env["XDG_CONFIG_HOME"])):
            folder.mkdir(parents=True, exist_ok=True)

    def run(
        self,
        *argv: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
    ) -> Outcome:
        done = subprocess.run(
            [command(), *argv],
            cwd=cwd or self.work,
            env=self.env | dict(env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Outcome(("agents", *argv), done.returncode, done.stdout, done.stderr)


def command() -> str:
    """The command installed beside this Python, never another one on the PATH."""
    found = shutil.which("agents", path=sysconfig.get_path("scripts"))
    assert found, "agents is not installed here: pip install -e ."
    return found
