"""Agents and frameworks that people already use: each translates its own events and answers.

One file per agent or framework. Must not know how content is stored or sandboxes work.
"""


def not_installed(error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """What to raise where a framework is not there that an adapter is for."""
    if error.name is None or error.name.partition(".")[0] == "cleveragents":
        return error
    said = f"no module named {error.name!r}: pip install 'cleveragents[{extra}]'"
    return ModuleNotFoundError(said, name=error.name)
