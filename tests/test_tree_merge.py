"""Trees with some paths from another tree, and three-way merges, against a dictionary of paths."""

import os
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from cleveragents.content import tree_diff, trees
from cleveragents.content.entry import (
    Entry,
    EntryKind,
    Tree,
)
from cleveragents.content.files import content_blocks, store_blocks
from cleveragents.content.packs import Batch, Packs
from cleveragents.content.restore.grafting import NEW_FOLDER, graft
from cleveragents.sandbox.merge_states import StateMerge, merge_states
from tests.test_content_properties import commit, opened_packs

EXAMPLES = 150 if os.environ.get("CLEVERAGENTS_HEAVY") == "1" else 50
What = tuple[str, int, bytes]
"""Kind, mode, and content or a link's text."""
Paths = dict[bytes, What]
"""A tree as a flat dictionary; every folder is in it."""

NAMES = st.sampled_from([b"a", b"b", b"c", b"d"])
FILES = st.tuples(
    st.just("f"), st.sampled_from([0o644, 0o755]), st.sampled_from([b"", b"1\n", b"2\n", b"\0"])
)
LINKS = st.tuples(st.just("l"), st.just(0o777), st.sampled_from([b"a", b"nowhere"]))
FOLDERS = st.tuples(st.just("d"), st.sampled_from([0o755, 0o700]), st.just(b""))


@st.composite
def flat(draw: st.DrawFn, prefix: bytes = b"", depth: int = 0) -> Paths:
    found: Paths = {}
    for name in draw(st.lists(NAMES, unique=True, max_size=3)):
        kind = draw(st.sampled_from("ffld" if depth < 2 else "ffl"))
        found[prefix + name] = draw({"f": FILES, "l": LINKS, "d": FOLDERS}[kind])
        if kind == "d":
            found |= draw(flat(prefix + name + b"/", depth + 1))
    return found


@st.composite
def edited(draw: st.DrawFn, tree: Paths) -> Paths:
    """The tree after some paths were put, removed or given another mode."""
    now = dict(tree)
    for _ in range(draw(st.integers(0, 4))):
        path = draw(st.sampled_from([*now, b"a", b"d/c", b"b/a/c"]))
        action = draw(st.sampled_from(["remove", "put", "mode"]))
        if action == "mode" and now.get(path, ("l",))[0] != "l":
            kind, mode, content = now[path]
            now[path] = (kind, draw(st.sampled_from([0o700, 0o750, mode])), content)
        elif action == "remove":
            now = without(now, path)
        elif action == "put":
            now = put(now, path, draw(st.one_of(FILES, LINKS, FOLDERS)))
    return now


def below(path: bytes, other: bytes) -> bool:
    return other.startswith(path + b"/")


def folders(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(1, len(parts))]


def without(tree: Paths, path: bytes) -> Paths:
    return {p: what for p, what in tree.items() if p != path and not below(path, p)}


def put(tree: Paths, path: bytes, what: What) -> Paths:
    """With everything a file system would ask for: folders above, nothing below a file."""
    now = dict(tree)
    for above in folders(path):
        if now.get(above, ("",))[0] != "d":
            now[above] = ("d", NEW_FOLDER, b"")
    if what[0] != "d":
        now = without(now, path)
    now[path] = what
    return now


@st.composite
def three(draw: st.DrawFn) -> tuple[Paths, Paths, Paths]:
    base = draw(flat())
    return base, draw(edited(base)), draw(edited(base))


class Shelf:
    """Trees in packs, made of and turned into dictionaries."""

    def __init__(self, packs: Packs, scratch: str) -> None:
        self._packs = packs
        self._scratch = scratch
        self.read = trees.reading(packs.get)

    def made(self, make: Callable[[Batch], Tree]) -> Tree:
        with self._packs.batch() as batch:
            tree = make(batch)
            commit(self._packs, batch)
        return tree

    def tree(self, paths: Paths) -> Tree:
        return self.made(lambda batch: self._folder(paths, b"", batch))

    def _folder(self, paths: Paths, prefix: bytes, batch: Batch) -> Tree:
        here = [p for p in paths if p.startswith(prefix) and b"/" not in p[len(prefix) :]]
        names = {path[len(prefix) :]: path for path in here}
        entries = [self._entry(paths, at, name, batch) for name, at in names.items()]
        return trees.store_directory(trees.Listing.of(entries), batch)

    def _entry(self, paths: Paths, path: bytes, name: bytes, batch: Batch) -> Entry:
        kind, mode, content = paths[path]
        if kind == "d":
            tree = self._folder(paths, path + b"/", batch)
            return Entry(name, EntryKind.DIRECTORY, mode, key=tree.key, state=tree.state)
        key = store_blocks(iter([content]), batch)[0] if kind == "f" else content
        return Entry(name, EntryKind(kind), mode, len(content), 0, key)

    def paths(self, tree: Tree) -> Paths:
        return {path: self._what(entry) for path, entry in trees.walk(self.read, tree)}

    def _what(self, entry: Entry) -> What:
        if entry.kind is EntryKind.FILE:
            return "f", entry.mode, b"".join(content_blocks(self._packs.get, entry.key))
        return str(entry.kind), entry.mode, b"" if entry.kind is EntryKind.DIRECTORY else entry.key

    def grafted(self, tree: Tree, wanted: Mapping[bytes, Entry | None]) -> Tree:
        return self.made(lambda batch: graft(self.read, tree, wanted, batch))

    def merged(self, base: Paths, ours: Paths, theirs: Paths) -> tuple[StateMerge, Paths]:
        first, mine, there = map(self.tree, (base, ours, theirs))
        found: list[StateMerge] = []

        def make(batch: Batch) -> Tree:
            work = tree_diff.diff(self.read, first, mine)
            get, place = self._packs.get, self._scratch
            merge = merge_states("r", work, mine, there, known, get, batch, place)
            found.append(merge)
            return graft(self.read, there, merge.wanted, batch)

        merged = self.made(make)
        if not found[0].conflicts:
            paths = self.paths(merged)
            assert merged.state == self.tree(paths).state  # the hash is that of a fresh walk
        return found[0], self.paths(merged)


def known(_path: bytes) -> tuple[bytes, int] | None:
    return None


@contextmanager
def shelf() -> Generator[Shelf]:
    with tempfile.TemporaryDirectory() as scratch, opened_packs() as packs:
        yield Shelf(packs, f"{scratch}/merge")


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_a_graft_is_the_tree_with_each_path_as_in_the_other(data: st.DataObject) -> None:
    """Named paths as they were then, with the folders they need; every other path stays."""
    then = data.draw(flat())
    now = data.draw(edited(then))
    everything = sorted(then.keys() | now.keys())
    paths = data.draw(st.lists(st.sampled_from(everything), unique=True)) if everything else []
    note(f"then {then}\nnow {now}\npaths {paths}")
    model = dict(now)
    for path in sorted(paths, reverse=True):  # what is below goes before its folder
        if path not in then:
            if not any(below(path, other) for other in model):
                model.pop(path, None)
            elif model[path][0] != "d":
                model.pop(path)
    for path in sorted(paths):
        if path in then:
            model = put(model, path, then[path])
    with shelf() as one:
        old, tree = one.tree(then), one.tree(now)
        wanted = {path: trees.find(one.read, old, path) for path in paths}
        made = one.grafted(tree, wanted)
        found = one.paths(made)
        named = {above for path in paths for above in (path, *folders(path))}
        assert {p: w for p, w in found.items() if p not in named} == {
            p: w for p, w in model.items() if p not in named
        }
        for path in paths:
            if path in then:
                assert found.get(path) == then[path] or _is_covered(path, paths, then, found)
            elif not any(below(path, other) for other in found):
                assert path not in found or found[path][0] == "d", path
        assert made.state == one.tree(found).state


def _is_covered(path: bytes, paths: list[bytes], then: Paths, found: Paths) -> bool:
    """Something that is no folder stands above it and was not named."""
    return any(found.get(above, ("",))[0] in "fl" for above in folders(path))


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_all_paths_that_differ_make_the_other_tree(data: st.DataObject) -> None:
    then = data.draw(flat())
    now = data.draw(edited(then))
    with shelf() as one:
        old, tree = one.tree(then), one.tree(now)
        wanted = {item.path: item.before for item in tree_diff.diff(one.read, old, tree)}
        made = one.grafted(tree, wanted)
        assert one.paths(made) == then
        assert made.state == old.state


def test_nothing_to_graft_is_the_same_tree() -> None:
    with shelf() as one:
        tree = one.tree({b"a": ("f", 0o644, b"1")})
        assert one.grafted(tree, {}) is tree


@settings(max_examples=EXAMPLES)
@given(three())
def test_who_changed_nothing_takes_what_the_other_has(sides: tuple[Paths, Paths, Paths]) -> None:
    base, ours, _ = sides
    with shelf() as one:
        for mine, there, wanted in ((base, ours, ours), (ours, base, ours), (ours, ours, ours)):
            merge, found = one.merged(base, mine, there)
            assert merge.conflicts == []
            assert found == wanted


@settings(max_examples=EXAMPLES)
@given(three())
def test_work_in_different_places_is_all_taken(sides: tuple[Paths, Paths, Paths]) -> None:
    base, ours, theirs = (
        {prefix + path: what for path, what in side.items() for prefix in (b"x/", b"y/")}
        | {b"x": ("d", 0o755, b""), b"y": ("d", 0o755, b"")}
        for side in sides
    )
    mine = _half(ours, b"x") | _half(base, b"y")
    there = _half(base, b"x") | _half(theirs, b"y")
    with shelf() as one:
        merge, found = one.merged(base, mine, there)
        assert merge.conflicts == []
        assert found == _half(ours, b"x") | _half(theirs, b"y")


def _half(tree: Paths, top: bytes) -> Paths:
    return {path: what for path, what in tree.items() if path == top or below(top, path)}


@settings(max_examples=EXAMPLES * 2)
@given(three())
def test_a_merge_without_conflicts_has_every_change_of_both(
    sides: tuple[Paths, Paths, Paths],
) -> None:
    """Nothing that only one side did is lost, and nothing comes back that one side removed."""
    base, ours, theirs = sides
    note(f"base {base}\nours {ours}\ntheirs {theirs}")
    with shelf() as one:
        merge, found = one.merged(base, ours, theirs)
        assume(not merge.conflicts)
        for path in base.keys() | ours.keys() | theirs.keys():
            b, o, t = base.get(path), ours.get(path), theirs.get(path)
            wanted = t if o == b else o
            if o not in (b, t) and t != b:
                continue  # both did something: they are compatible, or there were a conflict
            if wanted is None and any(below(path, other) for other in found):
                assert found[path][0] == "d"
            elif wanted is None and found.get(path, ("",))[0] == "d":
                assert any(below(path, other) for other in ours.keys() | theirs.keys())
            else:
                assert found.get(path) == wanted, path


@settings(max_examples=EXAMPLES)
@given(three())
def test_a_path_that_both_made_different_is_a_conflict_or_has_both(
    sides: tuple[Paths, Paths, Paths],
) -> None:
    base, ours, theirs = sides
    with shelf() as one:
        merge, found = one.merged(base, ours, theirs)
        named = {conflict.path.encode() for conflict in merge.conflicts}
        for path in ours.keys() & theirs.keys():
            b, o, t = base.get(path), ours[path], theirs[path]
            if len({b, o, t}) < 3 or o[0] == t[0] == "d":
                continue
            one_sided = (
                b is not None
                and b[0] == o[0] == t[0] == "f"
                and (b[1] in (o[1], t[1]) or o[1] == t[1])
                and (b[2] in (o[2], t[2]) or o[2] == t[2])
            )
            assert (path in named) != one_sided, path
            if one_sided and not merge.conflicts:
                assert b is not None
                mode = t[1] if o[1] == b[1] else o[1]
                assert found[path] == ("f", mode, t[2] if o[2] == b[2] else o[2])


LINES = b"".join(b"line %d\n" % n for n in range(20))


def file(content: bytes, mode: int = 0o644) -> Paths:
    return {b"t": ("f", mode, content)}


def test_different_lines_of_one_file_are_merged_with_the_modes() -> None:
    ours, theirs = LINES.replace(b"line 2\n", b"two\n"), LINES.replace(b"line 17\n", b"17\n")
    with shelf() as one:
        merge, found = one.merged(file(LINES), file(ours, 0o755), file(theirs))
    assert merge.conflicts == []
    assert found == file(ours.replace(b"line 17\n", b"17\n"), 0o755)


@pytest.mark.parametrize(
    ("base", "ours", "theirs"),
    [
        pytest.param(file(b"a\n"), file(b"b\n"), file(b"c\n"), id="same line"),
        pytest.param(file(b"a\0"), file(b"b\0"), file(b"c\0"), id="binary"),
        pytest.param({}, file(b"b\n"), file(b"c\n"), id="both added"),
        pytest.param(file(b"a\n"), {}, file(b"c\n"), id="removed and changed"),
        pytest.param(file(b"a\n"), file(b"b\n"), {}, id="changed and removed"),
        pytest.param(file(b""), file(b"", 0o755), file(b"", 0o600), id="modes"),
        pytest.param({}, {b"t": ("l", 0o777, b"x")}, {b"t": ("l", 0o777, b"y")}, id="links"),
        pytest.param(
            {b"t": ("d", 0o755, b"")},
            file(b"now a file"),
            {b"t": ("d", 0o755, b""), b"t/new": ("f", 0o644, b"work")},
            id="a folder became a file, and got a new file",
        ),
        pytest.param(
            {b"t": ("d", 0o755, b"")},
            {b"t": ("d", 0o755, b""), b"t/new": ("f", 0o644, b"work")},
            file(b"now a file"),
            id="a folder got a new file, and became a file",
        ),
        pytest.param(
            {b"t": ("d", 0o755, b""), b"t/x": ("f", 0o644, b"1")},
            {b"t": ("l", 0o777, b"elsewhere")},
            {b"t": ("d", 0o755, b""), b"t/x": ("f", 0o644, b"2")},
            id="a folder became a link, and a file in it changed",
        ),
    ],
)
def test_what_cannot_have_both_is_a_conflict_with_both_sides(
    base: Paths, ours: Paths, theirs: Paths
) -> None:
    with shelf() as one:
        for mine, there in ((ours, theirs), (theirs, ours)):
            merge, _ = one.merged(base, mine, there)
            assert merge.conflicts, (mine, there)
            for conflict in merge.conflicts:
                assert (conflict.resource, conflict.path.partition("/")[0]) == ("r", "t")
                assert conflict.ours != conflict.theirs


def test_a_folder_that_one_side_removed_stays_private_if_the_other_needs_it() -> None:
    base: Paths = {b"d": ("d", 0o700, b"")}
    ours = base | {b"d/new": ("f", 0o600, b"secret")}
    with shelf() as one:
        merge, found = one.merged(base, ours, {})
    assert merge.conflicts == []
    assert found == ours
