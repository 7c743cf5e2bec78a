"""Keywords that run the installed command in a home of its own, one per test."""

import os
import tempfile
from pathlib import Path

from robot.api.deco import keyword, library

from tests import scratch
from tests.harness import Agents, Outcome
from tests.rig import Shop


@library(scope="TEST", listener="SELF")
class agents:  # noqa: N801 - Robot finds a library by its file name
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="agents-robot-", ignore_cleanup_errors=True
        )
        self._agents = Agents(Path(self._folder.name), installed=True)
        self._shop: Shop | None = None

    def _path(self, path: str) -> Path:
        return self._agents.work / path  # an absolute one stays as it is

    @keyword
    def run_agents(self, *argv: str, rc: int = 0) -> Outcome:
        """The result has `rc`, `stdout`, `stderr`, `json` (the envelope) and `data`."""
        return self._agents.run(*argv).expect(rc)

    @keyword
    def make_shop(self, *steps: str, policy: str = "", more: str = "") -> None:
        """A git repository, a database beside it, and `shop.yaml`, a plan with these steps."""
        self._shop = Shop(self._agents)
        self._shop.write("\n".join(steps), "shop.yaml", policy, more, resources=("app", "db"))

    @keyword
    def write_file(self, path: str, content: str) -> Path:
        """A file below the directory in which the commands start."""
        target = self._path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        return target

    @keyword
    def read_file(self, path: str) -> str:
        return self._path(path).read_text()

    @keyword
    def file_should_not_exist(self, path: str) -> None:
        assert not os.path.lexists(self._path(path)), path

    @keyword
    def commit_all(self, path: str) -> None:
        """Make a repository of a folder, with all its files committed."""
        scratch.make_repository(self._agents, self._path(path))

    @keyword
    def run_git(self, path: str, *argv: str) -> str:
        return scratch.git(self._agents, self._path(path), "--no-optional-locks", *argv)

    @keyword
    def run_sql(self, path: str, sql: str) -> list[object]:
        """The first column of every row."""
        return [row[0] for row in scratch.query(self._path(path), sql)]

    @keyword
    def query_store(self, sql: str, *parameters: str) -> list[tuple[object, ...]]:
        store = Path(self._agents.env["CLEVERAGENTS_HOME"]) / "store.db"
        return scratch.query(store, sql, *parameters)

    @keyword
    def damage_store(self) -> None:
        store = Path(self._agents.env["CLEVERAGENTS_HOME"]) / "store.db"
        store.write_bytes(b"not a database" * 1000)

    @keyword
    def take_snapshot(self, path: str) -> scratch.Snapshot:
        """Contents, modes, links and empty folders; our ref in a repository does not count."""
        seen = scratch.snapshot(self._path(path))
        return {path: what for path, what in seen.items() if b"refs/cleveragents" not in path}

    @keyword
    def should_be_unchanged(self, path: str, before: scratch.Snapshot) -> None:
        changed = scratch.reverted(self.take_snapshot(path), before)
        assert not changed, f"{path} changed: {changed}"

    @keyword
    def regular_files_named(self, name: str, path: str) -> list[str]:
        """Links are not files."""
        seen = scratch.snapshot(self._path(path))
        wanted = os.fsencode(name)
        return sorted(
            os.fsdecode(path)
            for path, (kind, _, _) in seen.items()
            if kind == "file" and os.path.basename(path) == wanted
        )

    @keyword
    def link_target(self, path: str) -> str:
        """Where a link leads; a file that is none is an error."""
        link = self._path(path)
        assert link.is_symlink(), f"not a link: {path}"
        return str(link.resolve())

    @keyword
    def start_plan_and_wait(self) -> None:
        """The plan goes on running; a tool has written `waiting` into the sandbox of `app`."""
        assert self._shop is not None
        self._shop.start_waiting("shop.yaml")

    @keyword
    def kill_the_running_plan(self) -> None:
        """SIGKILL to our process alone: its tool lives on, as after any crash."""
        assert self._shop is not None
        self._shop.kill()

    @keyword
    def processes_of_plan(self, plan_id: str) -> list[str]:
        """Ids of all processes that were started for the plan and still live."""
        wanted = f"AGENTS_PLAN_ID={plan_id}".encode()
        return [pid for pid in os.listdir("/proc") if pid.isdigit() and wanted in _environ(pid)]

    def end_test(self, data: object, result: object) -> None:
        if self._shop is not None:
            self._shop.kill()
        self._folder.cleanup()


def _environ(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is a zombie
        return []
