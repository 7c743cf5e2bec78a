"""What a program pays that calls the command for every tool call."""

import subprocess
import sysconfig
from pathlib import Path

AGENTS = str(Path(sysconfig.get_path("scripts")) / "agents")


class Startup:
    def time_version(self):
        subprocess.run([AGENTS, "--version"], check=True, stdout=subprocess.DEVNULL)
