"""Which events make a checkpoint group, and the names people may call them by."""

from collections.abc import Iterable

from cleveragents.errors import ConfigError
from cleveragents.model.checkpoint import CheckpointType

ALIASES = {
    "on_tool_write": CheckpointType.BEFORE_TOOL_EXECUTE,
    "on_tool_write_complete": CheckpointType.AFTER_TOOL_EXECUTE,
}
CONFIGURABLE = (
    CheckpointType.BEFORE_STEP,
    CheckpointType.AFTER_STEP,
    CheckpointType.BEFORE_TOOL_EXECUTE,
    CheckpointType.AFTER_TOOL_EXECUTE,
    CheckpointType.ON_DECISION,
    CheckpointType.ON_SUBPLAN_SPAWN,
    CheckpointType.AFTER_SUBPLAN,
    CheckpointType.ON_ERROR,
)
ALWAYS = frozenset(
    {
        CheckpointType.PRE_EXECUTE,
        CheckpointType.POST_EXECUTE,
        CheckpointType.PRE_APPLY,
        CheckpointType.PRE_ROLLBACK,
    }
)
DEFAULT = (
    CheckpointType.BEFORE_TOOL_EXECUTE,
    CheckpointType.AFTER_TOOL_EXECUTE,
    CheckpointType.ON_DECISION,
    CheckpointType.ON_SUBPLAN_SPAWN,
    CheckpointType.AFTER_SUBPLAN,
    CheckpointType.ON_ERROR,
)


def valid_names() -> tuple[str, ...]:
    return (*(str(name) for name in CONFIGURABLE), *ALIASES)


def closest(name: str, valid: Iterable[str]) -> str | None:
    """What was meant: one slip in four letters away, or the only one with its stem inside."""
    names = list(valid)
    near = min(names, key=lambda one: _slips(name, one), default="")
    far = _slips(name, near)
    if far <= max(1, max(len(name), len(near)) // 4) and far < len(name):
        return near
    stem = name if len(name) < 5 else name[:-1]
    around = [one for one in names if stem in one]
    return around[0] if len(stem) > 2 and len(around) == 1 else None


def _slips(typed: str, name: str) -> int:
    """Letters that were left out, put in, exchanged or turned round."""
    before: list[int] = []
    row = list(range(len(name) + 1))
    for i, letter in enumerate(typed, 1):
        last, before = before, row
        row = [i]
        for j, other in enumerate(name, 1):
            here = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and typed[i - 2 : i] == other + name[j - 2]:
                here = min(here, last[j - 2] + 1)
            row.append(here)
    return row[-1]


def nearest(name: str, valid: Iterable[str]) -> str:
    """`, did you mean X?` for the closest valid name, or nothing."""
    found = closest(name, valid)
    return f", did you mean {found!r}?" if found else ""


def parse_trigger(name: str) -> CheckpointType:
    name = name.strip()
    if name in ALIASES:
        return ALIASES[name]
    for known in CONFIGURABLE:
        if known == name:
            return known
    raise ConfigError(
        f"unknown trigger {name!r}{nearest(name, valid_names())}",
        f"valid triggers: {', '.join(valid_names())}",
    )


def parse_triggers(value: str | Iterable[str]) -> tuple[CheckpointType, ...]:
    """A list, or a comma string; aliases resolved, doubles dropped, order kept."""
    names = value.split(",") if isinstance(value, str) else value
    return tuple(dict.fromkeys(parse_trigger(name) for name in names if name.strip()))


def fires(trigger: CheckpointType, configured: Iterable[str]) -> bool:
    """Whether the trigger makes a group while rollback is enabled."""
    return trigger in ALWAYS or trigger in set(configured)
