"""A machine whose power is cut: real file systems that lose what was not synced, and another boot.

Each disk is a loop-mounted ext4 in a mount namespace of its own. A cut kills what runs, shuts the
disks down without flushing their journals (EXT4_IOC_SHUTDOWN), mounts them again, and gives the
machine another boot id. Needs root; `needed()` says what is missing.
"""

import ctypes
import fcntl
import functools
import io
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cleveragents.cli import entry
from cleveragents.content import fsio
from tests.command_server import import_commands
from tests.harness import Outcome, private_environment
from tests.scratch import wait_until

SHUTDOWN = 0x8004587D
WITHOUT_FLUSH = struct.pack("I", 2)
BOOT_ID = "/proc/sys/kernel/random/boot_id"
PROGRAMS = ("unshare", "nsenter", "mkfs.ext4", "losetup", "mount", "umount")


def needed() -> str | None:
    """Why power cannot be cut here; None if it can."""
    if os.geteuid() != 0:
        return "cutting the power needs root: mounts, loop devices, EXT4_IOC_SHUTDOWN"
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"cutting the power needs {', '.join(missing)}"
    try:
        with tempfile.TemporaryDirectory() as folder, _machine(Path(folder), ("one",)) as machine:
            machine.cut_power()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"the power cannot be cut here: {error}"
    return None


class Disk:
    """An ext4 file system that is mounted at the same place after every cut."""

    def __init__(self, folder: Path, name: str, size: int) -> None:
        self.image = folder / f"{name}.img"
        self.point = folder / name
        self.point.mkdir()
        with open(self.image, "wb") as image:
            image.truncate(size)
        run("mkfs.ext4", "-q", "-E", "lazy_itable_init=1", "-O", "^metadata_csum", self.image)
        # Always the same device: its number is part of what names an inode.
        self.device = run("losetup", "--find", "--show", str(self.image)).strip()

    def release(self) -> None:
        run("losetup", "--detach", self.device)


class Machine:
    """Disks that lose what was not synced, and the commands that run on them."""

    def __init__(self, folder: Path, names: tuple[str, ...], size: int) -> None:
        self.folder = folder
        self.services: list[subprocess.Popen[bytes]] = []
        """What runs until the power is cut; whoever adds one starts it again."""
        self._boot = folder / "boot_id"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 3600"],
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        with self._holder.stdout as ready:
            ready.read(1)
        self.disks: dict[str, Disk] = {}
        for name in names:
            self.disks[name] = Disk(folder, name, size)
        self._start()

    def inside(self, path: Path | str) -> Path:
        """How this process reaches a path of the machine."""
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def run(
        self, *argv: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Outcome:
        """A command of the machine."""
        where = (f"--wd={self.inside(cwd)}",) if cwd else ()
        done = subprocess.run(
            ["nsenter", f"--target={self._holder.pid}", "--mount", *where, "--", *argv],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return Outcome(argv, done.returncode, done.stdout, done.stderr)

    def forked(self, work: Callable[[], None], cwd: Path, said: list[Path]) -> int:
        """Run something in a fork of this process that has become one of the machine."""
        namespace = os.open(f"/proc/{self._holder.pid}/ns/mnt", os.O_RDONLY)
        for path in said:
            path.write_bytes(b"")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for number, path in enumerate((Path(os.devnull), *said)):
                    os.dup2(os.open(path, os.O_RDWR), number)
                sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), write_through=True)
                sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), write_through=True)
                if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):
                    os.write(2, f"setns: {os.strerror(ctypes.get_errno())}".encode())
                    os._exit(1)
                os.chdir(cwd)
                work()
                status = 0
            except SystemExit as stop:
                status = int(stop.code or 0)
            except BaseException:  # noqa: BLE001 - it ends here, and says why
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(namespace)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def sync(self, name: str) -> None:
        """Bring all of a disk to its image, as the kernel does from time to time."""
        self.run("sync", "-f", str(self.disks[name].point)).expect(0)

    def cut_power(self) -> None:
        """What was not synced is gone; another boot."""
        self.cut_power_and(lambda: None)

    def cut_power_and(self, meanwhile: Callable[[], None]) -> None:
        """The same; something happens to the disks while the machine is down."""
        for disk in self.disks.values():
            fd = os.open(self.inside(disk.point), os.O_RDONLY)
            try:
                fcntl.ioctl(fd, SHUTDOWN, WITHOUT_FLUSH)
            finally:
                os.close(fd)
        # After the disks: what they still write on hearing of it is lost.
        self._kill_services()
        for point in (*(str(disk.point) for disk in self.disks.values()), BOOT_ID):
            # Who was killed lets go of files a moment later.
            wait_until(functools.partial(self._is_unmounted, point), f"umount {point}")
        meanwhile()
        self._start()

    def _is_unmounted(self, point: str) -> bool:
        done = self.run("umount", point)
        assert done.rc == 0 or "busy" in done.stderr, done
        return done.rc == 0

    def pull_disks(self) -> None:
        """The same to the disks; the machine runs on: they are mounted again in the same boot."""
        boot = self._boot.read_text()
        self.cut_power()
        self._boot.write_text(boot)

    def serve(self, *argv: str, cwd: str, log: Path) -> None:
        """Start a program with a process namespace of its own: it ends with all its children."""
        enter = ("nsenter", f"--target={self._holder.pid}", "--mount", f"--wd={cwd}", "--")
        alone = ("unshare", "--pid", "--fork", "--kill-child")
        with open(log, "ab") as said:
            service = subprocess.Popen(
                [*enter, *alone, *argv], stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        self.services.append(service)

    def _kill_services(self) -> None:
        for service in self.services:
            # The first process of the namespace; it ends when all the others are gone.
            for child in (
                Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()
            ):
                os.kill(int(child), signal.SIGKILL)
            service.wait()
        self.services.clear()

    def _start(self) -> None:
        for disk in self.disks.values():
            # Nothing is committed by the clock: what reaches the disk does not depend on speed.
            options = "commit=300"
            self.run("mount", "-t", "ext4", "-o", options, disk.device, str(disk.point)).expect(0)
        self._boot.write_text(f"{uuid.uuid4()}\n")
        self.run("mount", "--bind", str(self._boot), BOOT_ID).expect(0)

    def release(self) -> None:
        self._kill_services()
        for disk in self.disks.values():
            self.run("umount", str(disk.point))
        self._holder.kill()
        self._holder.wait()
        for disk in self.disks.values():
            disk.release()


@contextmanager
def _machine(folder: Path, names: tuple[str, ...], size: int = 96 << 20) -> Generator[Machine]:
    machine = Machine(folder, names, size)
    try:
        yield machine
    finally:
        machine.release()


machine = _machine


class PoweredAgents:
    """The `agents` command on a machine: store on one disk, the user's files on one or another."""

    def __init__(self, machine: Machine, store: str, work: str) -> None:
        import_commands()
        self.machine = machine
        self.env = private_environment(machine.disks[store].point)
        self.work = machine.disks[work].point / "work"
        for folder in (self.work, Path(self.env["XDG_CONFIG_HOME"])):
            machine.inside(folder).mkdir(parents=True, exist_ok=True)

    @property
    def here(self) -> Path:
        """The user's files, as this process reaches them."""
        return self.machine.inside(self.work)

    def run(self, *argv: str, kill_at: int = 0) -> Outcome:
        """The command in a fork of this process, which saves the start of an interpreter."""
        said = [self.machine.folder / name for name in ("out", "err")]
        code = self.machine.forked(lambda: self._become([*argv], kill_at), self.work, said)
        return Outcome(("agents", *argv), code, *(path.read_text() for path in said))

    def _become(self, argv: list[str], kill_at: int) -> None:
        os.environ.clear()
        os.environ.update(self.env)
        fsio.arm(kill_at or None)
        sys.argv = ["agents", *argv]
        entry.run()

    def sh(self, script: str) -> str:
        return self.machine.run("sh", "-ec", script, cwd=self.work, env=self.env).expect(0).stdout


def run(*argv: str | Path) -> str:
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return done.stdout
