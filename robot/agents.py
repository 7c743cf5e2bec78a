"""Keywords that run the installed command in a home of its own, one per test."""

import tempfile
from pathlib import Path

from robot.api.deco import keyword, library

from tests.harness import Agents, Outcome


@library(scope="TEST", listener="SELF")
class agents:  # noqa: N801 - Robot finds a library by its file name
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="agents-robot-", ignore_cleanup_errors=True
        )
        self._agents = Agents(Path(self._folder.name))

    @keyword
    def run_agents(self, *argv: str, rc: int = 0) -> Outcome:
        """The result has `rc`, `stdout`, `stderr`, `json` (the envelope) and `data`."""
        return self._agents.run(*argv).expect(rc)

    @keyword
    def write_file(self, path: str, content: str) -> Path:
        """A file below the directory in which the commands start."""
        target = self._agents.work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        return target

    def end_test(self, data: object, result: object) -> None:
        self._folder.cleanup()
