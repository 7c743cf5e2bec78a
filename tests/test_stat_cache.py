"""A stat cache that cannot be trusted is not used."""

import os
from pathlib import Path

import msgspec
from blake3 import blake3

from cleveragents.content.capture.statcache import StatCache
from tests.test_capture import bench


def test_a_stat_cache_of_another_form_is_not_used(tmp_path: Path) -> None:
    data = msgspec.msgpack.encode(["not", "what", 1])
    record = len(data).to_bytes(8, "little") + blake3(data).digest() + data
    (tmp_path / "cache").write_bytes(record)
    assert StatCache(str(tmp_path / "cache"), str(tmp_path)).load() is None


def test_a_stat_cache_that_is_torn_is_not_used(tmp_path: Path) -> None:
    with bench(tmp_path, follow=False) as one:
        (one.root / "file").write_text("x")
        one.capture()
        one.restart()
        assert StatCache(one.cache, str(one.root)).load() is not None
        with open(one.cache, "r+b") as file:
            file.truncate(os.path.getsize(one.cache) - 1)
        assert StatCache(one.cache, str(one.root)).load() is None
        one.restart()
        one.check()
