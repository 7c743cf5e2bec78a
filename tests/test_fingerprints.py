"""Fingerprints of a large database's chunks: what they are, and that by them nothing is missed."""

import errno
import random
import sqlite3
import sys
import threading
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest
from blake3 import blake3

from cleveragents.content.files import CHUNK
from cleveragents.content.native import fingerprint
from cleveragents.content.native.fingerprint import SIZE, Keyed
from cleveragents.sandbox.sqlite.prints import WORTH, Printing
from tests.test_large_sqlite import MB, World

pytestmark = pytest.mark.skipif(not fingerprint.ACCELERATED, reason="needs what is compiled")

BLOCK, SHIFT, MOST = 1024, 4, 64
SEED = b"a seed for tests"


def words(content: bytes) -> list[int]:
    return [int.from_bytes(content[at : at + 4], sys.byteorder) for at in range(0, len(content), 4)]


def nh(message: list[int], key: list[int]) -> bytes:
    """As RFC 4418 has it, twice, with words beside each other as pairs."""
    made = b""
    for shift in (0, SHIFT):
        total = 0
        for at in range(0, len(message), 2):
            left = (message[at] + key[at + shift]) & 0xFFFFFFFF
            right = (message[at + 1] + key[at + 1 + shift]) & 0xFFFFFFFF
            total += left * right
        made += (total & 0xFFFFFFFFFFFFFFFF).to_bytes(8, sys.byteorder)
    return made


def expected(content: bytes) -> bytes:
    key = words(blake3(SEED).digest(length=4 * (BLOCK + SHIFT + 4 * MOST + SHIFT)))
    blocks = [content[at : at + 4 * BLOCK] for at in range(0, len(content), 4 * BLOCK)]
    made = b"".join(nh(words(one.ljust(4 * BLOCK, b"\0")), key) for one in blocks)
    return nh(words(made), key[BLOCK + SHIFT :])


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 70_000, CHUNK - 1, CHUNK])
def test_the_compiled_one_computes_what_is_written_down(length: int) -> None:
    content = random.Random(length).randbytes(length)
    assert Keyed(SEED).of(content) == expected(content)
    assert Keyed(SEED).of(b"\xff" * length) == expected(b"\xff" * length)


def test_every_byte_counts_and_so_does_the_seed() -> None:
    content = bytearray(random.Random(1).randbytes(CHUNK))
    keyed, before = Keyed(SEED), Keyed(SEED).of(content)
    for at in random.Random(2).sample(range(CHUNK), 2000):
        content[at] ^= 1 << at % 8
        assert keyed.of(content) != before
        content[at] ^= 1 << at % 8
    assert keyed.of(content) == before != Keyed(SEED + b"2").of(content)


def test_more_than_a_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="too many bytes"):
        Keyed(SEED).of(bytes(CHUNK + 1))


def test_a_file_gives_what_its_pieces_give(tmp_path: Path) -> None:
    content = random.Random(3).randbytes(40 * CHUNK)
    (tmp_path / "file").write_bytes(content)
    keyed, pieces = Keyed(SEED), [content[at * CHUNK : (at + 1) * CHUNK] for at in range(40)]
    with open(tmp_path / "file", "rb") as file:
        assert keyed.of_file(file.fileno(), 0, 40) == b"".join(map(keyed.of, pieces))
        assert keyed.of_file(file.fileno(), 17, 3) == b"".join(map(keyed.of, pieces[17:20]))
        assert keyed.of_file(file.fileno(), 5, 0) == b""


def test_what_is_not_there_any_more_is_an_error_and_ends_no_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3 * CHUNK))
    keyed, errors = Keyed(SEED), list[OSError]()

    def too_far() -> None:
        with open(tmp_path / "file", "rb") as file:
            try:
                keyed.of_file(file.fileno(), 0, 40)
            except OSError as error:
                errors.append(error)

    threads = [threading.Thread(target=too_far) for _ in range(4)]
    for thread in threads:
        thread.start()
    too_far()
    for thread in threads:
        thread.join()
    assert [error.errno for error in errors] == [errno.EIO] * 5
    with open(tmp_path / "file", "rb") as file:
        assert len(keyed.of_file(file.fileno(), 0, 3)) == 3 * SIZE


def test_chunks_that_differ_are_told_and_no_others(tmp_path: Path) -> None:
    content = bytearray(random.Random(4).randbytes(WORTH * CHUNK))
    making = Printing(WORTH)
    for at in range(WORTH):
        making.put(at, making.of(bytes(content[at * CHUNK : (at + 1) * CHUNK])))
    prints = making.end(b"root")
    assert prints is not None
    for at in (0, 31, 32, WORTH - 1):
        content[at * CHUNK + at] ^= 1
    (tmp_path / "file").write_bytes(content)
    with open(tmp_path / "file", "rb") as file:
        again = Printing(WORTH, prints, b"root")
        assert again.differing(file.fileno(), WORTH) == [0, 31, 32, WORTH - 1]
        assert again.differing(file.fileno(), WORTH + 9) is None, "the file is not that long"
        assert Printing(WORTH, prints, b"another").differing(file.fileno(), WORTH) is None


def test_those_of_which_some_are_not_known_are_none() -> None:
    making = Printing(WORTH)
    making.put(0, making.of(b"only this one"))
    assert making.end(b"root") is None
    assert Printing(WORTH - 1).of(b"hashed as quickly") == b""


@pytest.fixture
def world(tmp_path: Path) -> Generator[World]:
    world = World(tmp_path, 20)
    yield world
    world.stack.close()


def another_program(world: World, script: str) -> None:
    with closing(sqlite3.connect(world.file)) as db:
        db.executescript(script)


def test_whatever_another_program_does_the_capture_is_the_file(world: World) -> None:
    for script in (
        "UPDATE t SET turn = 2 WHERE id = 3000",
        "INSERT INTO t(body) SELECT randomblob(3600) FROM t LIMIT 500",
        "DELETE FROM t WHERE id > 4000; VACUUM",
        "PRAGMA journal_mode=WAL; UPDATE t SET turn = 3 WHERE id = 9",
        "PRAGMA journal_mode=DELETE; DELETE FROM t WHERE id > 200; VACUUM",
        "INSERT INTO t(body) SELECT randomblob(3600) FROM t a, t b LIMIT 5000",
    ):
        another_program(world, script)
        assert world.captured() == world.really(), script
        another_program(world, "UPDATE t SET turn = turn + 1 WHERE id = 7")
        world.again()
        assert world.captured() == world.really(), f"in a new process, after {script}"


def test_after_a_rollback_too(world: World) -> None:
    start = world.plan.checkpoints()[-1]
    another_program(world, "UPDATE t SET turn = 5 WHERE id IN (1, 4000)")
    assert world.captured() == world.really() != start.root_key
    world.plan.rollback(start.checkpoint_id)
    assert world.really() == start.root_key
    another_program(world, "UPDATE t SET turn = 6 WHERE id = 4000")
    assert world.captured() == world.really()


def test_bytes_written_past_sqlite_are_seen(world: World) -> None:
    with open(world.file, "r+b") as file:
        file.seek(9 * MB)
        file.write(b"!")
    assert world.captured() == world.really()
