"""Content of the base commit that only the user's repository and the sandbox have."""

from collections.abc import Callable, Iterator
from contextlib import suppress

from cleveragents.content import fsio, trees
from cleveragents.content.entry import Entry, EntryKind
from cleveragents.content.keys import GIT, matches
from cleveragents.content.native.filecopy import open_source
from cleveragents.content.packs import Batch, Packs
from cleveragents.errors import AgentsError


def copy_borrowed(
    roots: list[bytes],
    sandbox: str,
    packs: Packs,
    from_repository: Callable[[bytes], bytes],
    batch: Batch,
) -> None:
    """Put what these states borrow into the batch, from the sandbox or else the repository.

    What is in neither stays missing, and `agents check` names it.
    """
    paths = _borrowed(roots, packs)
    there = packs.index.present(set(paths)) if paths else set[bytes]()
    for key, where in paths.items():
        if key in there:
            continue
        data = _in_sandbox(sandbox, where, key)
        if data is None:
            with suppress(AgentsError):
                data = from_repository(key)
        if data is not None:
            batch.put_missing(key, data)


def _borrowed(roots: list[bytes], packs: Packs) -> dict[bytes, list[bytes]]:
    """Key of a blob -> the paths that had it."""
    found: dict[bytes, list[bytes]] = {}
    for path, entry in borrowed_entries(roots, packs):
        found.setdefault(entry.key, []).append(path)
    return found


def borrowed_entries(roots: list[bytes], packs: Packs) -> Iterator[tuple[bytes, Entry]]:
    """Path and entry of every file of these states that is a blob of the base commit."""
    load = trees.reading(packs.get)
    todo, seen = [(b"", root) for root in roots], set[tuple[bytes, bytes]]()
    while todo:
        prefix, folder = todo.pop()
        if (prefix, folder) in seen:
            continue
        seen.add((prefix, folder))
        for entry in load(folder).all().values():
            path = prefix + entry.name
            if entry.kind is EntryKind.DIRECTORY:
                todo.append((path + b"/", entry.key))
            elif entry.kind is EntryKind.FILE and entry.key[:1] == GIT:
                yield path, entry


def _in_sandbox(sandbox: str, paths: list[bytes], key: bytes) -> bytes | None:
    for data in _contents(sandbox, paths):
        if matches(key, data):
            return data
    return None


def _contents(sandbox: str, paths: list[bytes]) -> Iterator[bytes]:
    for path in dict.fromkeys(paths):
        with (
            suppress(OSError),
            fsio.directory(sandbox) as root,
            fsio.parent_of(root, path) as (folder, name),
            open(open_source(name, folder), "rb") as file,
        ):
            yield file.read()
