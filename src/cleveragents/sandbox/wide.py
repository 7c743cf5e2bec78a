"""Directories that are too wide to copy."""

import os

from cleveragents.errors import SandboxError


def require_not_too_wide(
    path: str, *stores: str, sandboxes: str = "", told: tuple[str, ...] = ()
) -> None:
    """Refuse `/`, the home directory, and what holds the store or its sandboxes.

    Directories named explicitly (`told`) may hold all but the sandboxes: no copy of itself.
    """
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise SandboxError(f"no such directory: {path}")
    is_told = real in {os.path.realpath(item) for item in told}
    for guarded in () if is_told else ("/", os.path.expanduser("~"), *stores):
        if _holds(real, guarded):
            raise SandboxError(
                f"{path} holds {'everything' if real == '/' else guarded} and is not sandboxed",
                f"name a folder inside it, or agents config set sandbox.allow-wide {real}",
            )
    if sandboxes and _holds(real, sandboxes):
        raise SandboxError(
            f"{path} holds the sandboxes themselves: {sandboxes}",
            "agents config set sandbox.dir DIR, outside of it",
        )


def _holds(outer: str, inner: str) -> bool:
    return f"{os.path.realpath(inner).rstrip('/')}/".startswith(f"{outer.rstrip('/')}/")
