"""What hangs on a decision."""

from hypothesis import given
from hypothesis import strategies as st

from cleveragents.model.impact import Deed, affected


def deed(name: str, *wrote: str, **fields: object) -> Deed:
    spots = frozenset((text.partition(":")[0], text.partition(":")[2].encode()) for text in wrote)
    return Deed(decision_id=name, steps=(f"s{name}",), wrote=spots, **fields)  # type: ignore[arg-type]


def test_siblings_that_wrote_other_things_stay() -> None:
    deeds = [deed("a", "r:x"), deed("b", "r:y"), deed("c", "r:z")]
    assert affected(deeds, ["b"]) == {"b": "corrected"}


def test_what_is_below_in_the_tree_goes_with_it() -> None:
    deeds = [deed("a"), deed("b", parent_id="a"), deed("c", parent_id="b"), deed("d")]
    assert list(affected(deeds, ["a"])) == ["a", "b", "c"]


def test_what_needs_a_step_of_it_goes_with_it() -> None:
    deeds = [deed("a"), deed("b", needs=frozenset({"sa"})), deed("c", needs=frozenset({"sb"}))]
    assert affected(deeds, ["a"])["c"] == "needs sb"


def test_an_influence_runs_from_the_earlier_to_the_later_whoever_names_it() -> None:
    by_later = [deed("a"), deed("b", influences=frozenset({"sa"}))]
    by_earlier = [deed("a", influences=frozenset({"sb"})), deed("b")]
    for deeds in (by_later, by_earlier):
        assert list(affected(deeds, ["a"])) == ["a", "b"]
        assert list(affected(deeds, ["b"])) == ["b"]


def test_a_later_write_to_the_same_path_above_or_below_it_goes_with_it() -> None:
    for other in ("r:p/q", "r:p", "r:p/q/s", "r:"):
        deeds = [deed("a", "r:p/q"), deed("b", other)]
        assert affected(deeds, ["a"])["b"] == "wrote the same paths"
    for other in ("r:p/qq", "r:p/r", "other:p/q"):
        assert "b" not in affected([deed("a", "r:p/q"), deed("b", other)], ["a"])


def test_an_earlier_decision_is_never_touched() -> None:
    deeds = [deed("a", "r:x"), deed("b", "r:x")]
    assert list(affected(deeds, ["b"])) == ["b"]


def test_a_write_between_two_affected_ones_to_what_the_second_wrote_goes_too() -> None:
    # c needs a and wrote y, which b wrote in between: y goes back to before a, so b must be redone.
    deeds = [deed("a", "r:x"), deed("b", "r:y"), deed("c", "r:y", needs=frozenset({"sa"}))]
    assert list(affected(deeds, ["a"])) == ["a", "b", "c"]


def test_cascade_takes_everything_later_but_what_people_said() -> None:
    deeds = [deed("a"), deed("b"), deed("c", is_record=True), deed("d")]
    assert list(affected(deeds, ["b"], cascade=True)) == ["b", "d"]


PATHS = st.sampled_from(["r:a", "r:a/b", "r:a/b/c", "r:d", "q:a", "q:"])


@given(st.lists(st.lists(PATHS, max_size=3), min_size=1, max_size=8), st.data())
def test_whatever_stays_wrote_nothing_that_is_rolled_back(
    wrote: list[list[str]], data: st.DataObject
) -> None:
    deeds = [deed(str(n), *spots) for n, spots in enumerate(wrote)]
    root = data.draw(st.integers(0, len(deeds) - 1))
    gone = affected(deeds, [str(root)])
    back = {spot for d in deeds if d.decision_id in gone for spot in d.wrote}
    for one in deeds[root + 1 :]:
        if one.decision_id not in gone:
            for resource, path in one.wrote:
                for other, there in back:
                    same = resource == other and (
                        path == there
                        or not path
                        or not there
                        or path.startswith(there + b"/")
                        or there.startswith(path + b"/")
                    )
                    assert not same
