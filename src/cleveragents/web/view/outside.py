"""What a plan did to the world outside, as the page says it."""

from cleveragents.model.effect import Effect, EffectState
from cleveragents.web.view.facts import Facts
from cleveragents.web.view.rows import Row
from cleveragents.web.view.words import count, first_upper, listed


def effect_words(effect: Effect) -> str:
    what = first_upper(listed(list(effect.side_effects)))
    if effect.state == "compensated":
        return f"{what}: undone since"
    if effect.effect_class == "compensable":
        return f"{what}: is undone by a rollback"
    return f"{what}: cannot be undone"


def turn_words(row: Row) -> list[str]:
    """What a rollback did to the world outside, and whether undoing the rollback changed that."""
    said: list[str] = []
    failed = [effect for effect in row.undid if effect.state is EffectState.FAILED]
    kept = _declared([effect for effect in row.undid if effect not in failed])
    if kept:
        verb = "was" if len(kept) == 1 else "were"
        again = ", and not done again" if row.is_aside else ""
        said.append(f"{first_upper(listed(kept))} {verb} undone on the way{again}")
    if failed:
        said.append(f"{first_upper(listed(_declared(failed)))} could not be undone")
    if row.left:
        said.append(f"{first_upper(listed(_declared(row.left)))} stayed")
    return said


def _declared(effects: list[Effect]) -> list[str]:
    return [one for effect in effects for one in effect.side_effects]


def outside_words(facts: Facts) -> str:
    number = sum(
        effect.effect_class == "irreversible" and effect.state != "compensated"
        for effect in facts.effects
    )
    return f"{count(number, 'effect')} outside cannot be undone" if number else ""
