"""The id of this home: homes that share metadata and a bucket have sandboxes of their own."""

import os

from cleveragents.content import fsio
from cleveragents.model.ids import is_id, new_id


def home_id(home: str, make: bool = True) -> str:
    """The home's id, made on first use; a copy of the whole folder is the same home, moved.

    Empty if there is none and `make` is false.
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
        os.link(unnamed, path)  # if two make it at once, the first wins
    except FileExistsError:
        pass
    finally:
        os.unlink(unnamed)
    with open(path, encoding="ascii") as found:
        return found.read().strip()
