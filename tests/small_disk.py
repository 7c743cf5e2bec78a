"""A real file system of a few megabytes, mounted where only the commands started here see it."""

import os
import shutil
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.harness import Agents, Outcome, command

NEEDED = ("mkfs.ext4", "mount", "unshare", "nsenter")


class SmallDisk:
    """An ext4 without reserved blocks; `world` is its root as this process sees it."""

    def __init__(self, agents: Agents, holder: int, mounted: Path) -> None:
        self._agents = agents
        self._holder = holder
        self.mounted = mounted
        self.world = Path(f"/proc/{holder}/root{mounted}")
        self.store = mounted / "store"
        self.work = mounted / "work"
        (self.world / "work").mkdir()

    def inside(self, path: Path) -> Path:
        """The same path, for this process."""
        return Path(f"/proc/{self._holder}/root{path}")

    def argv(self, *argv: str) -> list[str]:
        enter = ["nsenter", f"--target={self._holder}", "--mount"]
        return [*enter, "env", f"--chdir={self.work}", *argv]

    def run(self, *argv: str, env: Mapping[str, str] | None = None) -> Outcome:
        """The `agents` command with its store, its work and its sandboxes on the disk."""
        return self.run_any(command(), *argv, env=env)

    def run_any(self, *argv: str, env: Mapping[str, str] | None = None) -> Outcome:
        done = subprocess.run(
            self.argv(*argv),
            env={**self._agents.env, "CLEVERAGENTS_HOME": str(self.store), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return Outcome(argv, done.returncode, done.stdout, done.stderr)

    @property
    def free(self) -> int:
        found = os.statvfs(self.world)
        return found.f_bavail * found.f_frsize

    def fill(self, leave: int = 0, name: str = "filler") -> None:
        """Write a file that takes all but `leave` bytes."""
        with open(self.world / name, "ab", buffering=0) as file:  # closing writes nothing more
            while (size := self.free - leave) > 0:
                try:
                    os.posix_fallocate(file.fileno(), file.tell(), min(size, 1 << 20))
                    file.seek(0, os.SEEK_END)
                except OSError:
                    if size < 4096:
                        break
                    with suppress(OSError):
                        file.write(b"\0" * 4096)
                    if self.free >= size:
                        break

    def use_up_files(self) -> None:
        """Make empty files until there can be no more: bytes are free all the same."""
        folder = self.world / "files"
        folder.mkdir(exist_ok=True)
        with suppress(OSError):
            while True:
                (folder / os.urandom(8).hex()).touch()

    def remount(self, how: str) -> None:
        subprocess.run(self.argv("mount", "-o", f"remount,{how}", str(self.mounted)), check=True)


@contextmanager
def small_disk(
    agents: Agents, folder: Path, megabytes: int, block: int = 4096, files: int | None = None
) -> Generator[SmallDisk]:
    """`files`: about as many as it can hold. Skips, with the reason, where it cannot be made."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"a file system of our own needs root and {', '.join(NEEDED)}")
    image, mounted = folder / "disk.img", folder / "disk"
    mounted.mkdir()
    with open(image, "wb") as file:
        file.truncate(megabytes << 20)
    most = ["-N", str(files)] if files else []
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-b", str(block), *most, str(image)], check=True)
    script = 'mount -o loop "$0" "$1" && echo ready && read _'
    holder = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, str(image), str(mounted)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            pytest.skip(f"cannot mount: {holder.communicate()[1]}")
        yield SmallDisk(agents, holder.pid, mounted)
    finally:
        holder.communicate("\n")
