"""Who owns a change in place, and what a rollback makes of it: the pure rule, against a model."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleveragents.history.owners import (
    ABSENT,
    Action,
    Change,
    Choices,
    History,
    Owner,
    Verdict,
    buried,
    decide,
    others_changes,
)

SLOTS = 4


def never(_base: str, _ours: str, _theirs: str) -> str | None:
    return None


def by_slot(base: str, ours: str, theirs: str) -> str | None:
    """A text of some words, each merged by itself; whole texts come and go as one."""
    if ABSENT in (base, ours, theirs):
        return None
    found: list[str] = []
    for was, mine, other in zip(base.split(), ours.split(), theirs.split(), strict=True):
        if mine in (was, other):
            found.append(other)
        elif other == was:
            found.append(mine)
        else:
            return None
    return " ".join(found)


def history(target: str, *writes: tuple[str, str], now: str) -> History:
    return History(target=target, writes=tuple(Change(*one) for one in writes), now=now)


def test_what_only_the_agent_wrote_is_restored() -> None:
    verdict = decide(history("a", ("a", "b"), ("b", "c"), now="c"), never)
    assert verdict == Verdict(owner=Owner.AGENT, action=Action.RESTORE, result="a")


def test_what_the_agent_never_wrote_stays() -> None:
    verdict = decide(history("a", now="b"), never)
    assert verdict == Verdict(owner=Owner.OTHERS, action=Action.KEEP, result="b")


def test_what_the_agent_brought_back_itself_is_somebody_elses_to_change() -> None:
    verdict = decide(history("a", ("a", "b"), ("b", "a"), now="mine"), never)
    assert (verdict.action, verdict.result) == (Action.KEEP, "mine")


def test_a_file_that_the_agent_made_and_somebody_removed_stays_removed() -> None:
    verdict = decide(history(ABSENT, (ABSENT, "a"), now=ABSENT), never)
    assert (verdict.action, verdict.result) == (Action.KEEP, ABSENT)


def test_an_edit_before_and_one_after_the_agents_write_are_both_kept() -> None:
    found = history("1 2 3 4", ("1 2 p 4", "a 2 p 4"), now="a q p 4")
    assert others_changes(found) == [
        Change("1 2 3 4", "1 2 p 4"),
        Change("a 2 p 4", "a q p 4"),
    ]
    wanted = Verdict(owner=Owner.BOTH, action=Action.MERGE, result="1 q p 4")
    assert decide(found, by_slot) == wanted


def test_a_conflict_keeps_what_is_there_and_names_all_sides() -> None:
    verdict = decide(history("1 2", ("1 2", "a 2"), now="p 2"), by_slot)
    assert (verdict.action, verdict.result) == (Action.CONFLICT, "p 2")
    assert verdict.sides == ("a 2", "1 2", "p 2")


def test_calls_that_ran_side_by_side_share_their_write() -> None:
    verdict = decide(history("a", ("a", "b"), ("a", "b"), now="b"), never)
    assert (verdict.owner, verdict.result) == (Owner.AGENT, "a")


def test_what_is_not_merged_is_left_alone_if_somebody_else_changed_it() -> None:
    found = history("a", ("a", "b"), now="c")
    assert decide(found, never, is_merged=False).action is Action.KEEP
    assert decide(history("a", ("a", "b"), now="b"), never, is_merged=False).result == "a"


def test_what_another_session_wrote_at_the_same_time_is_a_conflict() -> None:
    found = History(
        target="a", writes=(Change("a", "b"),), now="b", shared=frozenset({Change("a", "b")})
    )
    verdict = decide(found, never)
    assert (verdict.owner, verdict.action) == (Owner.UNKNOWN, Action.CONFLICT)


def restored(before: str, after: str) -> Change:
    return Change(before, after, True)


def test_a_restore_leads_back_to_the_moment_that_had_the_same() -> None:
    """The person gave their edit up; undo of that gives it back, and it counts again."""
    agent, given_up = Change("1 2", "a 2"), restored("p q", "1 2")
    after = History(target="1 2", writes=(agent, given_up), now="1 2")
    assert decide(after, by_slot) == Verdict(owner=Owner.OTHERS, action=Action.KEEP, result="1 2")
    since = msgspec.structs.replace(after, now="1 r")
    assert (decide(since, by_slot).action, decide(since, by_slot).result) == (Action.KEEP, "1 r")
    writes = (agent, given_up, restored("1 2", "p q"))
    undone = History(target="1 2", writes=writes, now="p q")
    never_done = History(target="1 2", writes=(agent,), now="p q")
    assert decide(undone, by_slot) == decide(never_done, by_slot)
    assert decide(undone, by_slot).action is Action.CONFLICT


def test_a_restore_to_before_the_checkpoint_gives_up_what_came_since() -> None:
    writes = (Change("two", "three"), restored("mine", "one"))
    after = History(target="two", writes=writes, now="one", earlier=frozenset({"one"}))
    assert decide(after, never) == Verdict(owner=Owner.AGENT, action=Action.RESTORE, result="two")
    since = msgspec.structs.replace(after, now="one more")
    assert decide(since, never).action is Action.CONFLICT


def test_what_is_as_at_the_checkpoint_is_no_conflict() -> None:
    """The agent itself wrote over what the person did, and both choices would be the same."""
    found = history("1 2", ("1 2", "a 2"), ("p 2", "1 2"), now="1 2")
    assert decide(found, by_slot) == Verdict(owner=Owner.BOTH, action=Action.KEEP, result="1 2")


@pytest.mark.parametrize(
    ("given_", "action", "result"),
    [
        ({"keep_mine": frozenset({b""})}, Action.KEEP, "c"),
        ({"take_checkpoint": frozenset({b""})}, Action.RESTORE, "a"),
        ({"take_checkpoint": frozenset({b"src"})}, Action.RESTORE, "a"),
        ({"keep_mine": frozenset({b"other"})}, Action.CONFLICT, "c"),
        ({"everything": True}, Action.RESTORE, "a"),
    ],
)
def test_a_conflict_is_decided_by_the_person(
    given_: dict[str, object], action: Action, result: str
) -> None:
    found = history("a", ("a", "b"), now="c")
    choices = Choices(**given_)  # type: ignore[arg-type]
    verdict = choices.chosen((b"src/main.py", b"app"), found, decide(found, never))
    assert (verdict.action, verdict.result) == (action, result)


def test_every_conflict_does_not_mean_every_path() -> None:
    found = history("a", now="b")
    choices = Choices(take_checkpoint=frozenset({b""}))
    assert choices.chosen((b"f",), found, decide(found, never)).action is Action.KEEP
    named = Choices(take_checkpoint=frozenset({b"f"}))
    assert named.chosen((b"f",), found, decide(found, never)).result == "a"


def test_a_folder_with_somebody_elses_work_does_not_become_a_file() -> None:
    back = Verdict(owner=Owner.AGENT, action=Action.RESTORE, result="f:644:b")
    assert buried(b"x", back, "d:755:", [b"x/mine"])
    assert not buried(b"x", back, "d:755:", [b"xy/mine"])
    gone = Verdict(owner=Owner.AGENT, action=Action.RESTORE, result=ABSENT)
    assert not buried(b"x", gone, "d:755:", [b"x/mine"])


WHO = st.sampled_from(["agent", "person"])
OPERATIONS = st.lists(st.tuples(WHO, st.integers(0, SLOTS - 1), st.booleans()), max_size=12)


@given(OPERATIONS)
def test_a_rollback_is_the_persons_work_without_the_agents(
    operations: list[tuple[str, int, bool]],
) -> None:
    """The model: of each word, the last that a person wrote; else what it was at the checkpoint."""
    words = [f"w{n}" for n in range(SLOTS)]
    target, writes = " ".join(words), list[Change]()
    mine, touched = list(words), dict[int, set[str]]()
    for number, (who, slot, twice) in enumerate(operations):
        before = " ".join(words)
        words[slot] = f"{who}{number}"
        touched.setdefault(slot, set()).add(who)
        if who == "agent":
            writes += [Change(before, " ".join(words))] * (2 if twice else 1)
        else:
            mine[slot] = words[slot]
    found = History(target=target, writes=tuple(writes), now=" ".join(words))
    verdict = decide(found, by_slot)
    there_and_back = (restored(found.now, target), restored(target, found.now))
    again = msgspec.structs.replace(found, writes=(*found.writes, *there_and_back))
    assert decide(again, by_slot) == verdict or not writes
    if verdict.action is Action.CONFLICT:
        assert any(len(who) == 2 for who in touched.values())
        assert verdict.result == found.now
    elif not writes:
        assert verdict == Verdict(owner=Owner.OTHERS, action=Action.KEEP, result=found.now)
    else:
        kept = verdict.result.split()
        alone = [slot for slot in range(SLOTS) if len(touched.get(slot, ())) < 2]
        assert [kept[slot] for slot in alone] == [mine[slot] for slot in alone]
        assert not any(word.startswith("agent") for word in kept)
