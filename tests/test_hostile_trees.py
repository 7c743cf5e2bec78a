"""A repository whose commits name places outside, or whose folders are links: nothing is written
there, whatever is made of it."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cleveragents.content.safe_names import require_git_paths, require_path
from cleveragents.errors import NotAllowed, UnsafeName
from tests.harness import Agents, Outcome
from tests.scratch import git, make_repository, snapshot

BLOB, LINK, TREE, MODULE = b"100644", b"120000", b"40000", b"160000"
HERE = "hostile\n"


def write_object(agents: Agents, app: Path, kind: str, data: bytes) -> bytes:
    made = subprocess.run(
        ["git", "hash-object", "-t", kind, "--literally", "-w", "--stdin"],
        cwd=app,
        env=agents.env,
        input=data,
        capture_output=True,
        check=True,
    )
    return bytes.fromhex(made.stdout.decode())


def tree(agents: Agents, app: Path, *entries: tuple[bytes, bytes, bytes]) -> bytes:
    """A tree object with exactly these entries: mode, name, object."""
    data = b"".join(mode + b" " + name + b"\0" + made for mode, name, made in entries)
    return write_object(agents, app, "tree", data)


def repository(agents: Agents) -> tuple[Path, bytes]:
    """An ordinary one, and a blob in it."""
    app = agents.work / "app"
    app.mkdir()
    (app / "own").write_text("own\n")
    make_repository(agents, app)
    return app, write_object(agents, app, "blob", HERE.encode())


def commit(agents: Agents, app: Path, top: bytes) -> None:
    made = git(agents, app, "commit-tree", top.hex(), "-m", "hostile")
    git(agents, app, "update-ref", "refs/heads/main", made)


def run(agents: Agents, carry: str = "committed", work: str = "echo more > new") -> Outcome:
    (agents.work / "plan.yaml").write_text(
        f"name: hostile\nresources: {{app: {{kind: git-checkout, path: app, carry: {carry}}}}}\n"
        f"steps:\n  - id: work\n    run: {work}\n"
    )
    return agents.run("plan", "run", "plan.yaml", "--json")


NAMES = {
    "up": b"../../../../escaped",
    "inside": b"a/../../../../../escaped",
    "dot": b".",
    "dots": b"..",
    "empty part": b"a//b",
    "git": b".git",
    "git in capitals": b".GIT",
    "hook": b".git/hooks/post-checkout",
    "short name": b"GIT~1",
    "trailing dots": b".git. .",
    "stream": b".git::$INDEX_ALLOCATION",
    "back slash": b".git\\config",
    "not seen": ".g\u200cit".encode(),
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_the_door_refuses_a_name_that_leads_elsewhere(name: bytes) -> None:
    for path in (name, b"folder/" + name, name + b"/below"):
        paths = [b"first", path]
        listed = b"".join(b"100644 blob 00\t" + each + b"\0" for each in paths)
        with pytest.raises(UnsafeName):
            require_git_paths(listed, paths, "a commit")


@pytest.mark.parametrize(
    ("name", "carry"),
    [("up", "committed"), ("up", "all"), ("hook", "committed"), ("not seen", "tracked")],
)
def test_a_name_that_leads_elsewhere_is_refused(agents: Agents, name: str, carry: str) -> None:
    app, blob = repository(agents)
    commit(agents, app, tree(agents, app, (BLOB, b"first", blob), (BLOB, NAMES[name], blob)))
    before = snapshot(agents.work.parent)
    error = run(agents, carry).expect(4).data["error"]
    assert error["type"] == "UnsafeName"
    assert NAMES[name].split(b"\xe2")[0].decode() in error["message"]
    new = snapshot(agents.work.parent).keys() - before.keys()
    assert {path for path in new if path.split(b"/")[0] != b"store"} == {b"work/plan.yaml"}


def test_a_folder_without_a_name_is_refused_by_git_itself(agents: Agents) -> None:
    app, blob = repository(agents)
    commit(agents, app, tree(agents, app, (BLOB, b"", blob)))
    assert "empty filename" in run(agents).expect(5).data["error"]["message"]


def test_an_absolute_name_is_refused_and_nothing_is_there(agents: Agents) -> None:
    app, blob = repository(agents)
    target = agents.work / "outside" / "file"
    name = os.fsencode(target)
    commit(agents, app, tree(agents, app, (BLOB, name, blob)))
    assert run(agents).expect(4).data["error"]["type"] == "UnsafeName"
    assert not target.parent.exists()


def test_up_from_a_folder_is_refused(agents: Agents) -> None:
    """Also where the name is one of a folder, not of a file."""
    app, blob = repository(agents)
    inner = tree(agents, app, (BLOB, b"escaped", blob))
    for _ in range(4):
        inner = tree(agents, app, (TREE, b"..", inner))
    commit(agents, app, inner)
    assert "../" in run(agents).expect(4).data["error"]["message"]
    assert not list(agents.work.parent.rglob("escaped"))


@pytest.mark.parametrize("first", [LINK, TREE], ids=["link first", "folder first"])
def test_a_link_and_a_folder_of_one_name_are_refused(agents: Agents, first: bytes) -> None:
    app, blob = repository(agents)
    outside = agents.work / "outside"
    outside.mkdir()
    text = write_object(agents, app, "blob", os.fsencode(outside))
    below = tree(agents, app, (BLOB, b"planted", blob))
    both = [(LINK, b"sub", text), (TREE, b"sub", below)]
    commit(agents, app, tree(agents, app, *(both if first == LINK else both[::-1])))
    assert "sub" in run(agents).expect(4).data["error"]["message"]
    assert list(outside.iterdir()) == []


def test_a_name_that_is_there_twice_is_refused(agents: Agents) -> None:
    app, blob = repository(agents)
    commit(agents, app, tree(agents, app, (BLOB, b"twice", blob), (BLOB, b"twice", blob)))
    assert "twice" in run(agents).expect(4).data["error"]["message"]


@pytest.mark.parametrize("text", [b"", b"a\0b"], ids=["empty", "NUL"])
def test_a_link_that_no_file_system_holds_is_refused(agents: Agents, text: bytes) -> None:
    app, _ = repository(agents)
    made = write_object(agents, app, "blob", text)
    commit(agents, app, tree(agents, app, (LINK, b"lead", made)))
    error = run(agents).expect(4).data["error"]
    assert (error["type"], "lead" in error["message"]) == ("UnsafeName", True)


def test_a_submodule_with_a_name_that_leads_elsewhere_is_refused(agents: Agents) -> None:
    app, _ = repository(agents)
    other = agents.work / "other"
    other.mkdir()
    make_repository(agents, other)
    before = snapshot(other)
    head = bytes.fromhex(git(agents, other, "rev-parse", "HEAD"))
    commit(agents, app, tree(agents, app, (MODULE, b"../other", head)))
    assert run(agents, "all").expect(4).data["error"]["type"] == "UnsafeName"
    assert snapshot(other) == before


def test_a_tip_that_became_hostile_is_refused_by_apply_and_export(agents: Agents) -> None:
    """What was sandboxed was harmless; the branch has another commit by now."""
    app, blob = repository(agents)
    run(agents, "all").expect(0)
    commit(agents, app, tree(agents, app, (BLOB, b"own", blob), (BLOB, b"../up", blob)))
    outcome = agents.run("plan", "apply", "last", "--yes", "--as", "commit", "--json")
    assert outcome.expect(4).data["error"]["type"] == "UnsafeName"
    assert not (agents.work / "up").exists()


def test_ordinary_names_that_look_alike_are_carried(agents: Agents) -> None:
    app, blob = repository(agents)
    names = sorted([b".gitignore", b"...", b"a..b", b".github", b"git~2x", b"~", b"git", b"..a"])
    commit(agents, app, tree(agents, app, *((BLOB, name, blob) for name in names)))
    run(agents).expect(0)
    sandbox = Path(agents.run("plan", "status", "last", "--json").data["sandboxes"]["app"])
    assert {os.fsencode(p.name) for p in sandbox.iterdir()} >= {*names, b"new"}


@given(st.lists(st.sampled_from([b"a", b".", b"..", b"", b".git", b"b\n", b".Git", b"\xff"])))
@example([b"a", b"..", b"..", b"b"])
def test_what_the_door_lets_in_stays_below_any_root(parts: list[bytes]) -> None:
    path = b"/".join(parts)
    try:
        require_path(path, "a row")
    except NotAllowed:
        assert {b"", b".", b".."} & set(path.split(b"/"))
        return
    assert os.path.normpath(b"/root/" + path) == b"/root/" + path


@given(st.dictionaries(st.binary(min_size=1, max_size=8), st.just(None)))
def test_what_the_door_lets_in_from_git_is_one_tree(found: dict[bytes, None]) -> None:
    names = {name: None for name in found if b"\0" not in name}
    listed = b"".join(b"100644 blob 0\t" + name + b"\0" for name in names)
    try:
        require_git_paths(listed, list(names), "a commit")
    except UnsafeName:
        return
    for name in names:
        parts = name.split(b"/")
        assert not {b"", b".", b".."} & set(parts)
        assert b".git" not in [part.lower() for part in parts]
        above = {b"/".join(parts[:depth]) for depth in range(1, len(parts))}
        assert not above & names.keys()
