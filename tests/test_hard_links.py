"""Names of one file: after a rollback they are names of one file again, and no others are."""

from pathlib import Path

import pytest

from tests.harness import Agents

LINK = "printf one > a; printf two > c; mkdir d; ln a b; ln a d/e"
AFTER = {
    "one is removed": "rm b",
    "all but one are removed": "rm b d/e",
    "all are removed": "rm -r a b d",
    "one is replaced": "printf other > x; mv x b",
    "one is replaced by the same": "cp a x; mv x b",
    "all are separated": "for n in b d/e; do cp a x; mv x $n; done",
    "one is linked to another file": "ln -f c b",
    "others are linked together": "printf one > f; ln f g; ln -f f b",
    "one more is linked": "ln a more",
    "the content is changed through one": "printf more >> b",
    "a folder with one is moved": "mv d moved",
}


def names(root: Path) -> list[list[str]]:
    """Paths by the file that they are names of."""
    found: dict[int, list[str]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            found.setdefault(path.stat().st_ino, []).append(str(path.relative_to(root)))
    return sorted(found.values())


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


class Linked:
    """A plan whose first step makes links, and its sandbox."""

    def __init__(self, agents: Agents, *steps: str) -> None:
        self.agents = agents
        (agents.work / "app").mkdir()
        lines = [
            f"  - {{id: s{n}, run: {step!r}, checkpoint: m{n}}}" for n, step in enumerate(steps)
        ]
        text = "name: job\nresources: {app: {kind: fs-directory, path: app}}\nsteps:\n"
        (agents.work / "plan.yaml").write_text(text + "\n".join(lines) + "\n")
        made = agents.run("plan", "run", "plan.yaml", "--json").expect(0).data
        self.sandbox = Path(made["sandboxes"]["app"])

    def back(self, label: str) -> None:
        self.agents.run("plan", "rollback", "job", label, "--yes").expect(0)


@pytest.mark.parametrize("what", AFTER)
def test_names_of_one_file_are_that_again(agents: Agents, what: str) -> None:
    one = Linked(agents, LINK, AFTER[what])
    after = names(one.sandbox), contents(one.sandbox)
    one.back("m0")
    assert names(one.sandbox) == [["a", "b", "d/e"], ["c"]]
    assert contents(one.sandbox) == {"a": b"one", "b": b"one", "d/e": b"one", "c": b"two"}
    agents.run("plan", "undo", "job").expect(0)
    assert (names(one.sandbox), contents(one.sandbox)) == after


def test_a_process_that_runs_on_links_them_as_well(agents: Agents) -> None:
    """With events and without a new walk: a step that fails is rolled back at once."""
    (agents.work / "app").mkdir()
    (agents.work / "plan.yaml").write_text(
        "name: job\nresources: {app: {kind: fs-directory, path: app}}\nsteps:\n"
        f"  - {{id: one, run: {LINK!r}}}\n  - {{id: two, run: 'rm b; echo x >> a; false'}}\n"
    )
    made = agents.run("plan", "run", "plan.yaml", "--json").expect(5).data
    sandbox = Path(made["sandboxes"]["app"])
    assert names(sandbox) == [["a", "b", "d/e"], ["c"]]
    assert (sandbox / "a").read_text() == "one"


def test_a_write_through_a_name_that_belonged_to_another_file_is_seen(agents: Agents) -> None:
    one = Linked(agents, LINK, "ln -f c b", "printf more >> b")
    assert (one.sandbox / "c").read_text() == "twomore"
    changed = agents.run("plan", "diff", "job", "--from", "m1", "--to", "m2", "--json").data
    assert sorted(item["path"] for item in changed["files"]) == ["b", "c"]
    one.back("m1")
    assert (names(one.sandbox), (one.sandbox / "c").read_text()) == (
        [["a", "d/e"], ["b", "c"]],
        "two",
    )


def test_a_write_through_another_name_is_seen_after_a_rollback(agents: Agents) -> None:
    one = Linked(agents, LINK, "rm b")
    one.back("m0")
    (one.sandbox / "d" / "e").write_text("by another name")
    changed = agents.run("plan", "diff", "job", "--from", "m0", "--json").expect(0).data["files"]
    assert sorted(item["path"] for item in changed) == ["a", "b", "d/e"]
