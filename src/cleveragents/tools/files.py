"""The `file.*` tools, in our own process.

Existing inodes are never written to: new content gets a temporary name in the same directory and is
renamed, so a hard link keeps its content and a failure leaves no half file.
"""

import fnmatch
import os
import re
import stat
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import IO, Any, NamedTuple

from cleveragents.errors import ToolFailed
from cleveragents.tools.builtin import parse_mode
from cleveragents.tools.limits import Capture, Deadline
from cleveragents.tools.paths import Root, Spot, shown, walk
from cleveragents.tools.trees import BLOCK, NEW, OLD, copy, move, remove, remove_empty, staged

LONGEST_LINE = 1 << 20
SHOWN_OF_LINE = 500


class Job(NamedTuple):
    root: Root
    inputs: Mapping[str, Any]
    out: Capture
    deadline: Deadline


def run_file_tool(name: str, job: Job) -> None:
    """Run the tool, with output in `job.out`; raises ToolFailed."""
    try:
        OPERATIONS[name](job)
    except OSError as error:
        what = shown(str(job.inputs.get("path") or job.inputs.get("to")))
        reason = (error.strerror or str(error)).lower()
        raise ToolFailed(f"{name} {what}: {reason}") from error


def _read(job: Job) -> None:
    with job.root.at(job.inputs["path"]) as spot, _opened(spot) as file:
        while block := file.read(BLOCK):
            job.deadline.check()
            job.out.feed(block)


def _write(job: Job) -> None:
    content = _encoded(job.inputs["content"])
    with job.root.at(job.inputs["path"], parents=True) as spot:
        done = _put(spot, content, parse_mode(job.inputs["mode"]))
        job.out.line(f"{done} {spot} ({len(content)} bytes)")


def _edit(job: Job) -> None:
    old, new = _encoded(job.inputs["old"]), _encoded(job.inputs["new"])
    if not old:
        raise ToolFailed("input 'old' of file.edit is empty")
    with job.root.at(job.inputs["path"]) as spot:
        with _opened(spot) as file:
            content = file.read()
        times = content.count(old)
        if not times:
            raise ToolFailed(f"the text to replace is not in {spot}")
        if times > 1 and not job.inputs["all"]:
            raise ToolFailed(
                f"the text to replace is in {spot} {times} times",
                "give more of the text around it, or all: true",
            )
        _put(spot, content.replace(old, new), None)
        job.out.line(f"replaced {times} in {spot}")


def _delete(job: Job) -> None:
    with job.root.at(job.inputs["path"], follow=False) as spot:
        info = _present(spot)
        _own(job.root, spot)
        if stat.S_ISDIR(info.st_mode) and not job.inputs["recursive"]:
            remove_empty(spot)
        else:
            remove(spot.name, spot.dir_fd)
        job.out.line(f"deleted {spot}")


def _list(job: Job) -> None:
    with job.root.at(job.inputs["path"]) as top:
        if not stat.S_ISDIR(_present(top).st_mode):
            raise ToolFailed(f"{top} is not a directory")
        for spot, info in walk(job.root, top, job.deadline, job.inputs["recursive"]):
            mark = "/" if stat.S_ISDIR(info.st_mode) else ""
            if stat.S_ISLNK(info.st_mode):
                mark = f" -> {shown(os.readlink(spot.name, dir_fd=spot.dir_fd))}"
            job.out.line(f"{spot}{mark}")


def _search(job: Job) -> None:
    pattern = re.compile(job.inputs["pattern"])
    with job.root.at(job.inputs["path"]) as top:
        if not stat.S_ISDIR(_present(top).st_mode):
            _search_file(job, top, pattern)
            return
        for spot, info in walk(job.root, top, job.deadline, deep=True):
            if stat.S_ISREG(info.st_mode) and _matches(spot.rel, job.inputs["glob"]):
                _search_file(job, spot, pattern)


def _search_file(job: Job, spot: Spot, pattern: re.Pattern[str]) -> None:
    with _opened(spot) as file:
        if b"\0" in file.read(8192):
            return
        file.seek(0)
        number = 1
        while raw := file.readline(LONGEST_LINE):
            job.deadline.check()
            line = raw.decode("utf-8", "backslashreplace").rstrip("\r\n")
            if pattern.search(line):
                job.out.line(f"{spot}:{number}:{line[:SHOWN_OF_LINE]}")
            number += raw.endswith(b"\n")


def _matches(rel: str, glob: str | None) -> bool:
    if not glob:
        return True
    if "/" not in glob:
        return fnmatch.fnmatchcase(rel.rpartition("/")[2], glob)
    # `*` crosses slashes here, so `**/` only has to match no directory as well.
    return any(fnmatch.fnmatchcase(rel, each) for each in (glob, glob.replace("**/", "")))


def _move(job: Job) -> None:
    with ExitStack() as stack:
        source, target = _from_to(job, stack)
        _own(job.root, source)
        if source.rel != target.rel:
            # Renaming one hard link over another of the same file does nothing.
            there = target.stat()
            if there and os.path.samestat(there, _present(source)):
                remove(target.name, target.dir_fd)
            move(source, target, job.deadline)
        job.out.line(f"moved {source} to {target}")


def _copy(job: Job) -> None:
    with ExitStack() as stack:
        source, target = _from_to(job, stack)
        if job.root.holds_place(source.rel):
            raise ToolFailed(f"{source} has another resource in it and cannot be copied whole")
        copy(source, target, job.deadline)
        job.out.line(f"copied {source} to {target}")


def _mkdir(job: Job) -> None:
    with job.root.at(job.inputs["path"], parents=job.inputs["parents"]) as spot:
        info = spot.stat()
        if info is None:
            os.mkdir(spot.name, dir_fd=spot.dir_fd)
        elif not stat.S_ISDIR(info.st_mode):
            raise ToolFailed(f"{spot} exists and is not a directory")
        job.out.line(f"{'made' if info is None else 'unchanged'} {spot}")


OPERATIONS: dict[str, Callable[[Job], None]] = {
    "file.read": _read,
    "file.write": _write,
    "file.edit": _edit,
    "file.delete": _delete,
    "file.list": _list,
    "file.search": _search,
    "file.move": _move,
    "file.copy": _copy,
    "file.mkdir": _mkdir,
}


def _from_to(job: Job, stack: ExitStack) -> tuple[Spot, Spot]:
    source = stack.enter_context(job.root.at(job.inputs["from"], follow=False))
    info = _present(source)
    target = stack.enter_context(job.root.at(job.inputs["to"], follow=False, parents=True))
    _own(job.root, target)
    there = target.stat()
    if there and (stat.S_ISDIR(there.st_mode) or stat.S_ISDIR(info.st_mode)):
        raise ToolFailed(f"{target} already exists", "name the new path in full, or delete it")
    if any(os.path.samestat(info, os.stat(fd)) for fd in target.trail):
        raise ToolFailed(f"{target} is inside {source}")
    return source, target


def _present(spot: Spot) -> os.stat_result:
    info = spot.stat()
    if info is None:
        raise ToolFailed(f"no such file: {spot}")
    return info


def _own(root: Root, spot: Spot) -> None:
    """Refuse to remove or replace what belongs to another resource."""
    if not spot.rel:
        raise ToolFailed("the sandbox itself cannot be moved, replaced or deleted")
    if spot.place or root.holds_place(spot.rel):
        raise ToolFailed(
            f"{spot} {'is' if spot.place else 'has in it'} another resource",
            "use the step's on: to work on that resource",
        )


@contextmanager
def _opened(spot: Spot) -> Generator[IO[bytes]]:
    info = _present(spot)
    if stat.S_ISREG(info.st_mode):
        fd = os.open(spot.name, OLD, dir_fd=spot.dir_fd)
        with os.fdopen(fd, "rb") as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                yield file
                return
    raise ToolFailed(f"{spot} is {'a directory' if stat.S_ISDIR(info.st_mode) else 'no file'}")


def _put(spot: Spot, content: bytes, mode: int | None) -> str:
    """Give the file this content; a file that has it already is not touched."""
    if spot.place or not spot.rel:
        raise ToolFailed(f"{spot} is a resource of its own and cannot be written as a file")
    info = spot.stat()
    if info is not None:
        old = stat.S_IMODE(info.st_mode)
        mode = old if mode is None else mode
        with _opened(spot) as file:
            same = info.st_size == len(content) and file.read() == content
        if same and mode == old:
            return "unchanged"
    with (
        staged(spot) as temp,
        os.fdopen(os.open(temp, NEW, 0o666, dir_fd=spot.dir_fd), "wb") as file,
    ):
        file.write(content)
        if mode is not None:
            os.fchmod(file.fileno(), mode)
    return "wrote"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
