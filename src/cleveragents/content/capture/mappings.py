"""Which files processes have mapped for writing: such a write gives no event, and only the first
to a page changes the file's times.

The kernel's list of what one process has mapped takes it long to write. It is asked first whether
there is anything of the kind (Linux 6.11 and later): of most processes nothing more is read.
"""

import errno
import fcntl
import os
import struct

_QUERY = struct.Struct("=9Q4I2Q")
"""`struct procmap_query`: its size, flags, an address; the rest is the answer, or not wanted."""
_PROCMAP_QUERY = 3 << 30 | _QUERY.size << 16 | ord("f") << 8 | 17
_WRITABLE, _SHARED, _OR_NEXT, _OF_A_FILE = 0x02, 0x08, 0x10, 0x20
_ASKED = _QUERY.pack(_QUERY.size, _WRITABLE | _SHARED | _OR_NEXT | _OF_A_FILE, *[0] * 13)
_NONE = (errno.ENOENT, errno.ESRCH)
"""Nothing is so mapped; the process has no memory of its own, or is gone."""


def mapped_by(pid: str) -> list[bytes]:
    """Paths that a process has mapped for writing; none if it is not ours to ask, or gone."""
    try:
        with open(f"/proc/{pid}/maps", "rb", buffering=0) as maps:
            text = maps.read() if _may_have(maps.fileno()) else b""
    except OSError:
        return []
    found = (line.split(None, 5) for line in text.splitlines())
    return [
        fields[5].replace(b"\\012", b"\n")
        for fields in found
        if len(fields) == 6 and fields[1][1:2] == b"w" and fields[1][3:] == b"s"
    ]


def _may_have(maps: int) -> bool:
    try:
        fcntl.ioctl(maps, _PROCMAP_QUERY, _ASKED)
    except OSError as error:
        return error.errno not in _NONE
    return True


def mapped_files(root: str) -> set[bytes]:
    """Names below a directory that a process of ours has mapped for writing now."""
    inside = os.path.realpath(os.fsencode(root)) + b"/"
    processes = os.listdir("/proc") if os.path.isdir("/proc/self") else ()
    return {
        path[len(inside) :]
        for pid in processes
        if pid.isdigit()
        for path in mapped_by(pid)
        if path.startswith(inside)
    }
