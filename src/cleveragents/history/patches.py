"""Patches made by git from two folders that hold only what differs."""

import os
import re
import stat
import subprocess
from typing import NamedTuple

from cleveragents.content import fsio
from cleveragents.context import Context
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.sandbox.git.command import environment
from cleveragents.sandbox.protocol import Sandbox


class Lines(NamedTuple):
    """Numbers of added and removed lines of a file; -1 for a binary file."""

    added: int
    removed: int
    renamed_from: bytes | None = None


def patch_of(scratch: str) -> tuple[dict[bytes, Lines], str]:
    """The patch between the folders `a` and `b`, for people, with renames."""
    # Both from one process: the user waits for the first screen. An empty field ends the counts.
    found = _git_diff(scratch, "-M", "--numstat", "-z", "-p")
    counts, _, patch = found.partition(b"\0\0")
    patch = _RENAME.sub(rb"\1", _with_headers(patch))
    return _numbers(counts), patch.decode("utf-8", "backslashreplace")


_RENAME = re.compile(rb'^(rename (?:from|to) "?)[ab]/', re.MULTILINE)


def exact_patch(
    ctx: Context, sandbox: Sandbox, before: SandboxCheckpoint, after: SandboxCheckpoint
) -> tuple[int, bytes]:
    """The number of changed visible paths, and a patch that survives mail byte for byte."""
    changes = sandbox.changes(before, after)
    hidden = sandbox.ignored(changes, after)
    paths = frozenset(change.path for change in changes if change.path not in hidden)
    with ctx.scratch() as scratch:
        for folder in ("text/a", "text/b", "bytes/a", "bytes/b"):
            os.makedirs(f"{scratch}/{folder}")
        sandbox.export(before, paths, f"{scratch}/text/a")
        sandbox.export(after, paths, f"{scratch}/text/b")
        for path in _with_carriage_returns(f"{scratch}/text", paths):
            _set_apart(scratch, path)
        with open(f"{scratch}/attributes", "w", encoding="ascii") as target:
            target.write("* -diff\n")
        exact = ("-p", "--binary", "--full-index")
        text = _git_diff(f"{scratch}/text", *exact)
        whole = _git_diff(f"{scratch}/bytes", *exact, attributes=f"{scratch}/attributes")
    return len(paths), _with_headers(text) + _with_headers(whole)


def _with_carriage_returns(scratch: str, paths: frozenset[bytes]) -> list[bytes]:
    """Files with carriage returns, which mail programs and `git am` strip from lines."""
    found: list[bytes] = []
    for path in sorted(paths):
        for side in ("a", "b"):
            there = _lstat(f"{scratch}/{side}", path)
            if there is not None and stat.S_ISREG(there.st_mode):
                with open(os.path.join(os.fsencode(f"{scratch}/{side}"), path), "rb") as content:
                    if b"\r\n" in content.read():
                        found.append(path)
                        break
    return found


def _set_apart(scratch: str, path: bytes) -> None:
    for side in ("a", "b"):
        found = _lstat(f"{scratch}/text/{side}", path)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            there = os.path.join(os.fsencode(f"{scratch}/bytes/{side}"), path)
            os.makedirs(os.path.dirname(there), exist_ok=True)
            os.rename(os.path.join(os.fsencode(f"{scratch}/text/{side}"), path), there)


def _lstat(folder: str, path: bytes) -> os.stat_result | None:
    """The stat of a path, None behind a link that is a folder in the other state."""
    try:
        with fsio.directory(folder) as top, fsio.parent_of(top, path) as (fd, name):
            return fsio.lstat_at(fd, name)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _git_diff(scratch: str, *arguments: str, attributes: str = "/dev/null") -> bytes:
    """`git diff --no-index` of two folders with only the changed files."""
    argv = [
        "git", "-c", f"core.attributesFile={attributes}",
        "diff", "--no-index", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames",
        "--no-prefix", *arguments, "--", "a", "b",
    ]  # fmt: skip
    done = subprocess.run(
        argv,
        check=False,
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment({"GIT_CEILING_DIRECTORIES": os.path.dirname(scratch)}),
    )
    return done.stdout


def _with_headers(patch: bytes) -> bytes:
    return _HEADER.sub(_both_sides, patch)


_HEADER = re.compile(rb"^diff --git (.+)$", re.MULTILINE)


def _both_sides(header: "re.Match[bytes]") -> bytes:
    """A header naming both sides: for a file on one side only, git names that side twice."""
    names = header[1]
    half = len(names) // 2
    if names[:half] != names[half + 1 :]:
        return header[0]
    quote = names[:1] if names[:1] == b'"' else b""
    rest = names[len(quote) + 1 : half]
    return b"diff --git %sa%s %sb%s" % (quote, rest, quote, rest)


def _numbers(shown: bytes) -> dict[bytes, Lines]:
    """Path -> line counts; a renamed file under its new path."""
    found: dict[bytes, Lines] = {}
    fields = shown.split(b"\0")
    position = 0
    while position < len(fields) and fields[position]:
        added, removed, path = fields[position].split(b"\t", 2)
        position += 1
        old = b""
        if not path:
            # Git prints the two names of a renamed file as separate fields.
            old, path = fields[position : position + 2]
            if path == b"/dev/null":
                path = old
            position += 2
        path, old = (side.partition(b"/")[2] for side in (path, old))
        is_renamed = old not in (b"", b"dev/null", path)
        lines = (-1, -1) if added == b"-" else (int(added), int(removed))
        found[path] = Lines(*lines, renamed_from=old if is_renamed else None)
    return found
