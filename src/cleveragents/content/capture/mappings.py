"""Which files processes have mapped for writing: such a write gives no event, and only the first
to a page changes the file's times.

Linux 6.11 and later can be asked for just these. Before, all mappings of a process have to be read,
which is slow.
"""

import errno
import fcntl
import os
import struct
from array import array

_QUERY = struct.Struct("=9Q4I2Q")
"""`struct procmap_query`: its size, what is asked for, from which address on; the answer."""
_END, _NAME_SIZE = 4, 11
_PROCMAP_QUERY = 3 << 30 | _QUERY.size << 16 | ord("f") << 8 | 17
_WRITABLE, _SHARED, _OR_NEXT, _OF_A_FILE = 0x02, 0x08, 0x10, 0x20
_ASKED = _WRITABLE | _SHARED | _OR_NEXT | _OF_A_FILE
_NO_MORE = (errno.ENOENT, errno.ESRCH)
"""Nothing is so mapped from there on; the process has no memory of its own, or is gone."""


def mapped_by(pid: str) -> list[bytes]:
    """Paths that a process has mapped for writing; none if we may not ask, or it is gone."""
    try:
        with open(f"/proc/{pid}/maps", "rb", buffering=0) as maps:
            told = _query_kernel(maps.fileno())
            return _parse_maps(maps.read()) if told is None else told
    except OSError:
        return []


def _query_kernel(maps: int) -> list[bytes] | None:
    """The kernel's answer; None if there is none, or not a complete one."""
    found: list[bytes] = []
    name = array("B", bytes(4096))
    buffer, size = name.buffer_info()
    address = 0
    while True:
        asked = (_QUERY.size, _ASKED, address, 0, 0, 0, 0, 0, 0, 0, 0, size, 0, buffer, 0)
        query = bytearray(_QUERY.pack(*asked))
        try:
            fcntl.ioctl(maps, _PROCMAP_QUERY, query)
        except OSError as error:
            return found if error.errno in _NO_MORE else None
        answer = _QUERY.unpack(query)
        address = answer[_END]
        if answer[_NAME_SIZE]:
            found.append(name[: answer[_NAME_SIZE] - 1].tobytes())  # its end is a zero


def _parse_maps(text: bytes) -> list[bytes]:
    found = (line.split(None, 5) for line in text.splitlines())
    return [
        fields[5].replace(b"\\012", b"\n")
        for fields in found
        if len(fields) == 6 and fields[1][1:2] == b"w" and fields[1][3:] == b"s"
    ]


def mapped_files(root: str) -> set[bytes]:
    """Names below a directory that a process of this user has mapped for writing."""
    inside = os.path.realpath(os.fsencode(root)) + b"/"
    processes = os.listdir("/proc") if os.path.isdir("/proc/self") else ()
    return {
        path[len(inside) :]
        for pid in processes
        if pid.isdigit()
        for path in mapped_by(pid)
        if path.startswith(inside)
    }
