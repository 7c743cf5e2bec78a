"""How content lies in packs: compressed where it pays, and the same when it is read."""

import os
import struct
from binascii import crc32
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from cleveragents.content import pack_file, trees
from cleveragents.content import packs as packing
from cleveragents.content.entry import (
    Entry,
    EntryKind,
    Tree,
)
from cleveragents.content.keys import (
    BLOB,
    TREE,
    key_of,
)
from cleveragents.content.native import manifests
from cleveragents.content.pack_file import (
    RAW,
    ZLIB,
    compressed,
)
from cleveragents.content.packs import (
    Batch,
    Packs,
)
from cleveragents.content.trees import (
    Manifests,
)
from cleveragents.errors import ContentDamaged
from tests.test_content_properties import DictIndex, opened_packs

TEXT = b"the same words again and again\n" * 400
NOISE = os.urandom(12_000)
NOTHING = manifests.manifest([])


def stored(packs: Packs, *content: bytes, kind: bytes = BLOB) -> tuple[Batch, list[bytes]]:
    with packs.batch() as batch:
        keys = [batch.put(kind, data) for data in content]
        batch.seal()
        index = packs.index
        assert isinstance(index, DictIndex)
        index.known.update(batch.located)
    return batch, keys


def codec_of(packs: Packs, key: bytes) -> int:
    place = packs.index.find(key)
    assert place is not None
    with Path(packs.directory, place.pack).open("rb") as file:
        file.seek(place.offset)
        return file.read(4)[2]


def test_text_is_compressed_and_noise_manifests_and_short_pieces_are_not() -> None:
    with opened_packs() as packs:
        _, (text, noise, short) = stored(packs, TEXT, NOISE, TEXT[:1000])
        _, (tree,) = stored(packs, TEXT, kind=TREE)
        assert codec_of(packs, text) == ZLIB
        assert [codec_of(packs, key) for key in (noise, short, tree)] == [RAW] * 3
        assert [packs.get(key) for key in (text, noise, short)] == [TEXT, NOISE, TEXT[:1000]]
        assert compressed(text, TEXT).codec == ZLIB


def test_what_a_batch_says_it_added_is_what_lies_in_the_pack() -> None:
    with opened_packs() as packs:
        batch, keys = stored(packs, TEXT, NOISE)
        heads = sum(pack_file.RECORD.size + len(key) for key in keys)
        size = sum(place.length for place in batch.located.values())
        assert batch.added_bytes == size - heads
        assert batch.added_bytes < len(TEXT) + len(NOISE)


def test_so_much_at_once_that_time_counts_for_more_is_not_compressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "COMPRESSED", 20_000)
    with opened_packs() as packs:
        pieces = [b"%d " % number + TEXT for number in range(5)]
        _, keys = stored(packs, *pieces)
        assert {codec_of(packs, key) for key in keys} == {RAW}
        assert [packs.get(key) for key in keys] == pieces


@pytest.mark.parametrize("at", [2, 60, -3])
def test_a_flipped_bit_in_a_compressed_record_is_damage(at: int) -> None:
    with opened_packs() as packs:
        _, (key,) = stored(packs, TEXT)
        place = packs.index.find(key)
        assert place is not None
        path = Path(packs.directory, place.pack)
        data = bytearray(path.read_bytes())
        data[place.offset + at if at > 0 else place.offset + place.length + at] ^= 4
        path.write_bytes(data)
        with pytest.raises(ContentDamaged):
            packs.get(key)


def test_content_in_the_store_is_asked_for_once_and_not_written_again() -> None:
    with opened_packs() as packs:
        stored(packs, TEXT, NOISE)
        batch, keys = stored(packs, TEXT, NOISE, TEXT)
        assert batch.located == {}
        assert batch.reused == set(keys)
        assert batch.added_bytes == 0


def is_safe(name: bytes) -> bool:
    """Whether a file can be called that; other names are refused when they are read."""
    return not {b"/"[0], 0} & set(name) and name not in (b".", b"..")


names = st.binary(min_size=1, max_size=300).filter(is_safe)
entries = st.builds(
    Entry,
    names,
    st.sampled_from(EntryKind),
    st.integers(0, 0o7777),
    st.integers(0, 1 << 60),
    st.integers(-(1 << 62), 1 << 62),
    st.binary(max_size=70_000 >> 8),
    st.binary(max_size=40),
)


@given(st.lists(entries, max_size=40))
def test_both_twins_find_the_same_state(found: list[Entry]) -> None:
    manifest = manifests.manifest(found)
    assert manifests.state_text(manifest) == manifests.python_state_text(manifest)


named = st.dictionaries(
    st.binary(min_size=1, max_size=9).filter(is_safe), st.integers(0, 3), max_size=300
)


def listing(names: dict[bytes, int]) -> trees.Listing:
    return trees.Listing.of(
        Entry(name, EntryKind.FILE, 0o600, 1, number, b"b%d" % number)
        for name, number in names.items()
    )


class Kept(Batch):
    """A batch without packs."""

    def __init__(self) -> None:
        self.content: dict[bytes, bytes] = {}

    def put_keyed(self, key: bytes, data: bytes) -> None:
        self.content[key] = data


@given(named, st.data())
def test_a_large_directory_is_kept_in_pieces_that_a_change_elsewhere_leaves_alone(
    names: dict[bytes, int], data: st.DataObject
) -> None:
    batch, found = Kept(), listing(names)
    tree = trees.store_directory(found, batch)
    loaded = trees.reading(batch.content.__getitem__)(tree.key)
    assert loaded.data == found.data
    assert loaded.pieces == found.pieces
    assert len(loaded) == len(names)
    assert bool(found.pieces) == (len(names) > trees.WHOLE)
    assert [*found.all()] == sorted(names)
    assert tree.state == blake3(manifests.state_text(found.data)).digest()
    keys = {key for key in trees.keys_in(lambda _: loaded, tree.key, set()) if key[:1] == TREE}
    assert keys == {tree.key, *loaded.pieces}
    if not found.pieces:
        return
    name = data.draw(st.sampled_from(sorted(names)))
    again = Kept()
    changed = listing({**names, name: 4})
    trees.store_directory(changed, again, loaded)
    assert len(again.content) == 2, "the list, and the piece that the name is in"
    alone = Kept()
    same = trees.store_directory(listing({**names, name: 4}), alone)
    assert same == trees.store_directory(changed, Kept(), loaded)
    assert alone.content.items() <= {**batch.content, **again.content}.items()


@given(st.lists(entries, max_size=200))
def test_both_twins_cut_a_manifest_in_the_same_pieces(found: list[Entry]) -> None:
    for entries in (found, [Entry(b"%d" % n, EntryKind.FIFO, n) for n in range(1500)] + found):
        manifest = manifests.manifest(entries)
        assert manifests.pieces(manifest, NOTHING) == manifests.python_pieces(manifest, NOTHING)


@given(named, named)
def test_both_twins_find_the_same_differences(
    one: dict[bytes, int], other: dict[bytes, int]
) -> None:
    before, after = listing(one).data, listing(one | other).data
    assert manifests.pieces(after, before) == manifests.python_pieces(after, before)
    assert manifests.unequal(before, after) == manifests.python_unequal(before, after)
    assert manifests.unequal(after, before) == sorted(
        name for name in other if one.get(name) != other[name]
    )
    names = sorted(other)
    assert manifests.picked(before, names) == manifests.python_picked(before, names)
    assert manifests.picked(after, names) == listing(other).data
    # A name with 0 is to go.
    new = listing(other).all()
    changes = [(n, manifests.manifest([new[n]])[1:] if other[n] else b"") for n in names]
    found = manifests.changed(before, changes)
    assert found == manifests.python_changed(before, changes)
    assert found == listing({n: v for n, v in (one | other).items() if n not in other or v}).data


def test_where_a_manifest_is_cut_never_changes() -> None:
    """A store keeps what an earlier version cut; a piece is known again by its place."""
    large = [7, 25, 47, 39, 3, 49, 44, 11, 64, 10, 4, 33]
    for count, sizes in ((40, [7, 6, 7, 6, 6, 8]), (1200, large)):
        data = manifests.manifest([Entry(b"%05d" % n, EntryKind.FIFO, 0) for n in range(count)])
        for cut in (manifests.pieces, manifests.python_pieces):
            parts = [part for part in cut(data, NOTHING) if isinstance(part, bytes)]
            assert [len(trees.Listing(part)) for part in parts][:12] == sizes


def test_no_piece_is_longer_than_the_longest() -> None:
    unlucky = [name for n in range(5000) if crc32(name := b"%d" % n) & 31]
    found = [Entry(name, EntryKind.FIFO, 0) for name in unlucky]
    for cut in (manifests.pieces, manifests.python_pieces):
        cuts = cut(manifests.manifest(found), NOTHING)
        parts = [msgspec.msgpack.decode(p, type=list[Entry]) for p in cuts if isinstance(p, bytes)]
        assert {len(part) for part in parts[:-1]} == {manifests.LONGEST}
        assert [entry for part in parts for entry in part] == found


@pytest.mark.skipif(manifests.state_text is manifests.python_state_text, reason="not compiled")
@given(st.binary(max_size=200))
def test_the_compiled_twin_refuses_what_is_no_manifest(data: bytes) -> None:
    try:
        expected = manifests.python_state_text(data)
    except msgspec.MsgspecError:
        expected = None
    try:
        found = manifests.state_text(data)
    except ValueError:
        found = None
    assert found == expected or expected is None


@pytest.mark.skipif(manifests.state_text is manifests.python_state_text, reason="not compiled")
@pytest.mark.parametrize("head", [b"\xdd" + struct.pack(">I", 1 << 31), b"\x91\x97\xc6\xff"])
def test_a_manifest_that_promises_more_than_it_holds_is_refused(head: bytes) -> None:
    for read in (
        manifests.state_text,
        lambda data: manifests.pieces(data, NOTHING),
        lambda data: manifests.pieces(NOTHING, data),
        lambda data: manifests.picked(data, [b"x"]),
        lambda data: manifests.changed(data, [(b"x", b"")]),
        lambda data: manifests.unequal(data, NOTHING),
        lambda data: manifests.unequal(NOTHING, data),
    ):
        with pytest.raises(ValueError, match="not a manifest"):
            read(head)


@st.composite
def mangled_manifests(draw: st.DrawFn) -> bytes:
    """Any bytes, or a manifest of which some were removed or replaced."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=200))
    names = sorted(draw(st.sets(st.binary(min_size=1, max_size=3), max_size=4)))
    data = manifests.manifest([Entry(name, EntryKind.FILE, 0o644, key=b"b") for name in names])
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 4)))
    return data[:start] + draw(st.binary(max_size=4)) + data[end:]


@pytest.mark.skipif(manifests.state_text is manifests.python_state_text, reason="not compiled")
@given(mangled_manifests(), st.lists(st.binary(max_size=3)))
def test_all_that_read_manifests_refuse_the_same(data: bytes, names: list[bytes]) -> None:
    manifest = manifests.manifest([Entry(name, EntryKind.FIFO, 0) for name in sorted(set(names))])
    refusals = {
        name: refuses(read)
        for name, read in {
            "picked": lambda: manifests.picked(data, sorted(names)),
            "changed": lambda: manifests.changed(data, [(name, b"") for name in sorted(names)]),
            "unequal": lambda: manifests.unequal(data, manifest),
            "pieces": lambda: manifests.pieces(data, manifest),
        }.items()
    }
    assert len(set(refusals.values())) == 1, refusals
    try:
        msgspec.msgpack.decode(data)
    except ValueError:  # also a text that is no UTF-8
        assert all(refusals.values())


def refuses(read: Callable[[], object]) -> bool:
    try:
        read()
    except ValueError:
        return True
    return False


@pytest.mark.skipif(manifests.state_text is manifests.python_state_text, reason="not compiled")
def test_what_is_asked_of_a_manifest_has_to_be_bytes() -> None:
    wrong: Any = ["name"]
    pair: Any = [[b"name", b""]]
    for ask in (
        lambda: manifests.picked(NOTHING, wrong),
        lambda: manifests.changed(NOTHING, wrong),
        lambda: manifests.changed(NOTHING, pair),
    ):
        with pytest.raises(TypeError):
            ask()


def test_a_manifest_that_cannot_be_read_is_damaged_content() -> None:
    for kind in (b"?", b"\xff"):
        data = b"\x91\x97\xc4\x01x\xa1" + kind + b"\x00\x00\x00\xc4\x00\xc4\x00"
        key = key_of(TREE, data)
        with pytest.raises(ContentDamaged, match="cannot be read"):
            trees.find(trees.reading({key: data}.__getitem__), Tree(key, b""), b"x")
    for data in (b"", b"\x91\x01", trees.PIECED + key_of(TREE, b"")[1:]):
        key = key_of(TREE, data)
        content = {key: data, key_of(TREE, b""): b""}
        with pytest.raises(ContentDamaged, match="cannot be read"):
            trees.find(trees.reading(content.__getitem__), Tree(key, b""), b"x")


def test_manifests_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Manifests, "LIMIT", 1100)  # three of about 320 each
    read: list[bytes] = []
    content = {}
    for number in range(3):
        data = manifests.manifest([Entry(b"%d" % number, EntryKind.FIFO, 0o600)])
        content[key_of(TREE, data)] = data
    kept = Manifests(lambda key: read.append(key) or content[key])
    first, second, third = content
    for key in (first, second, first, third, second, first):
        assert [*kept(key).all()] == [b"%d" % list(content).index(key)]
    assert read == [first, second, third]
    kept.put(b"new", trees.Listing.of([Entry(b"x", EntryKind.FIFO, 0)]))
    kept(third)
    assert read == [first, second, third, third], "the one not used for longest had to go"
