"""Which home this is: of several that share metadata and a bucket, each has its own sandboxes."""

import os

from cleveragents.content import fsio
from cleveragents.model.ids import is_id, new_id


def home_id(home: str, make: bool = True) -> str:
    """Made when it is first asked for; a copy of the whole folder is the same home, moved.

    Empty if there is none and it must not be made.
    """
    path = f"{home}/home.id"
    try:
        with open(path, encoding="ascii") as found:
            text = found.read().strip()
        if is_id(text):
            return text
    except FileNotFoundError:
        if not make:
            return ""
    unnamed = f"{path}.{new_id()}"
    fsio.write_new(unnamed, new_id().encode())
    try:
        os.link(unnamed, path)  # of two who make it at once, one comes first
    except FileExistsError:
        pass
    finally:
        os.unlink(unnamed)
    with open(path, encoding="ascii") as found:
        return found.read().strip()
