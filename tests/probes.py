"""Run inside the confinement by a Python without any package: tries every door to the outside.

Argument: a JSON object of what to try. Prints a JSON object: what got through, and what it saw of
itself. Nothing is written to what can be opened.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

GIVEN = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
NUMBERS = {"x86_64": (250, 310, 438), "aarch64": (219, 270, 438)}
KEYCTL, VM_READ, PIDFD_GETFD = NUMBERS[os.uname().machine]


def call(name: str, *arguments: Any) -> int:
    """A function of libc that has to give no error."""
    result = getattr(libc, name)(*arguments)
    if result in (-1, None) or result == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), name)
    return result


def opened(path: str, flags: int = os.O_RDONLY) -> None:
    os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))


def connected(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(address)


def forked(work: Callable[[], None]) -> None:
    """In a process of its own, since what it tries lasts; raises OSError if it did."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise OSError("refused")


def mount_control_groups() -> None:
    call("unshare", 0x10000000 | 0x20000 | 0x02000000)
    call("mount", b"none", b"/mnt", b"cgroup2", 0, None)
    opened("/mnt/cgroup.procs", os.O_WRONLY)


def raw_packets() -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()


def make_device() -> None:
    os.mknod("device", stat.S_IFBLK | 0o600, os.makedev(7, 0))


def set_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, PID, os.getpriority(os.PRIO_PROCESS, PID))


def limits() -> None:
    resource.prlimit(PID, resource.RLIMIT_CORE, resource.prlimit(PID, resource.RLIMIT_CORE))


def shared_memory() -> None:
    call("shmat", GIVEN["shm"], None, 0)


def other_descriptors() -> None:
    fd = call("syscall", PIDFD_GETFD, os.pidfd_open(PID), 1, 0)
    os.close(fd)


def read_memory() -> None:
    buffer = ctypes.create_string_buffer(8)
    words = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    there = (ctypes.c_size_t * 2)(GIVEN["address"], 8)
    call("syscall", VM_READ, PID, words, 1, there, 1, 0)


PID: int = GIVEN["pid"]
OUTSIDE: str = GIVEN["outside"]
DOORS: dict[str, Callable[[], object]] = {
    "signal another process": lambda: os.kill(PID, 0),
    "trace another process": lambda: forked(lambda: call("ptrace", 16, PID, 0, 0) and None),
    "its memory": lambda: opened(f"/proc/{PID}/mem", os.O_RDWR),
    "its memory, by a call": read_memory,
    "its environment": lambda: Path(f"/proc/{PID}/environ").read_bytes(),
    "its root": lambda: os.listdir(f"/proc/{PID}/root"),
    "its descriptors": other_descriptors,
    "its limits": limits,
    "its priority": set_priority,
    "shared memory": shared_memory,
    "an abstract socket": lambda: connected(f"\0{GIVEN['abstract']}"),
    "a socket of an agent": lambda: connected(GIVEN["agent"]),
    "a socket of a multiplexer": lambda: connected(GIVEN["multiplexer"]),
    "a named pipe": lambda: opened(f"{OUTSIDE}/pipe", os.O_WRONLY),
    "the keyring": lambda: call("syscall", KEYCTL, 0, -4, 0),
    "another user namespace": lambda: forked(lambda: call("unshare", 0x10000000) and None),
    "the control groups": lambda: forked(mount_control_groups),
    "mount": lambda: forked(lambda: call("mount", b"none", b"/mnt", b"tmpfs", 0, None) and None),
    "writable again": lambda: call("mount", None, b"/", None, 0x1000 | 0x20, None),
    "another root": lambda: forked(lambda: os.chroot(OUTSIDE) or os.chdir("/")),
    "a device": make_device,
    "raw packets": raw_packets,
    "kernel memory": lambda: opened("/dev/mem"),
    "the kernel's core": lambda: opened("/proc/kcore"),
    "the host name": lambda: call("sethostname", GIVEN["host"].encode(), len(GIVEN["host"])),
    "a terminal": lambda: opened("/dev/tty", os.O_RDWR),
    "an owner outside": lambda: os.chown(f"{OUTSIDE}/file", 12345, -1),
    "somebody's mode outside": lambda: os.chmod(f"{OUTSIDE}/theirs", 0o666),
    "a mode outside": lambda: os.chmod(f"{OUTSIDE}/file", 0o666),
    "a time outside": lambda: os.utime(f"{OUTSIDE}/file", (1, 1)),
    "an attribute outside": lambda: os.setxattr(f"{OUTSIDE}/file", "user.x", b"x"),
    "a file outside": lambda: opened(f"{OUTSIDE}/new", os.O_WRONLY | os.O_CREAT),
    "shared memory files": lambda: opened(f"/dev/shm/{GIVEN['name']}", os.O_WRONLY | os.O_CREAT),
}


def writable_files() -> list[str]:
    """What could be written of what the kernel shows; processes of our own are left out."""
    found: list[str] = []
    for top in ("/proc", "/sys", "/dev"):
        for folder, folders, names in os.walk(top):
            if folder == "/proc":
                folders[:] = [name for name in folders if not name.isdigit()]
            if folder == "/dev":
                folders[:] = [name for name in folders if name != "shm"]  # files of anybody
            for name in names:
                path = os.path.join(folder, name)
                try:
                    if not os.path.islink(path):
                        opened(path, os.O_WRONLY)
                        found.append(path)
                except OSError:
                    continue
    return sorted(found)


def open_descriptors() -> list[int]:
    found = [int(name) for name in os.listdir("/proc/self/fd")]
    return [fd for fd in found if os.path.exists(f"/proc/self/fd/{fd}")]


def main() -> None:
    signal.alarm(60)
    through: list[str] = []
    status = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    descriptors = {name: os.path.realpath(f"/proc/self/fd/{name}") for name in open_descriptors()}
    for name, attempt in DOORS.items():
        try:
            attempt()
            through.append(name)
        except OSError:
            continue
    about = {
        "capabilities": [status["CapEff"], status["CapPrm"], status["CapBnd"], status["CapAmb"]],
        "no_new_privileges": status["NoNewPrivs"],
        "descriptors": descriptors,
    }
    print(json.dumps({"through": through, "writable": writable_files(), **about}))


main()
