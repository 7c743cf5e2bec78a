"""Files with holes: a hole is not read, costs no disk in store or sandbox, and is a hole again."""

import os
from pathlib import Path

import pytest

from cleveragents import open_workspace
from cleveragents.content import files, fsio
from tests.harness import Agents

MB = 1 << 20
SIZE = 900 * MB
HEAD, MIDDLE = b"head", b"middle"
PLAN = """
name: sparse
resources: {docs: {kind: fs-directory, path: docs}}
steps:
  - {id: one, run: "printf changed | dd of=image bs=1 seek=5000 conv=notrunc status=none"}
  - {id: two, run: "truncate -s 700M image; cp --sparse=always image other"}
"""


def make(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(HEAD)
        file.seek(SIZE // 2 + 5)
        file.write(MIDDLE)
        file.truncate(SIZE)


def used(path: Path) -> int:
    """Bytes on disk of all that is there."""
    found = [path, *path.rglob("*")]
    return sum(os.lstat(each).st_blocks * 512 for each in found)


def content(path: Path) -> tuple[int, bytes, bytes]:
    with open(path, "rb") as file:
        head = file.read(6000).rstrip(b"\0")
        file.seek(SIZE // 2)
        return os.fstat(file.fileno()).st_size, head, file.read(20).strip(b"\0")


@pytest.fixture
def docs(agents: Agents) -> Path:
    docs = agents.work / "docs"
    docs.mkdir()
    make(docs / "image")
    if used(docs) > 4 * MB:
        pytest.skip("this file system knows no holes")
    (agents.work / "plan.yaml").write_text(PLAN)
    return docs


def test_holes_stay_holes_in_sandbox_store_rollback_and_apply(agents: Agents, docs: Path) -> None:
    store = Path(agents.env["CLEVERAGENTS_HOME"])
    ran = agents.run("plan", "run", "plan.yaml", "--json").expect(0)
    image = Path(ran.data["sandboxes"]["docs"]) / "image"
    # The store keeps a reserve of some 32 MB for a full disk.
    assert used(store) < 64 * MB, "after the run"
    agents.run("plan", "rollback", "sparse", "first", "--yes").expect(0)
    assert content(image) == content(docs / "image") == (SIZE, HEAD, MIDDLE)
    assert used(store) < 64 * MB, "after the rollback"
    agents.run("plan", "undo", "sparse").expect(0)
    agents.run("plan", "apply", "sparse", "--yes").expect(0)
    size, head, middle = content(docs / "image")
    assert (size, head.rstrip(b"\0"), middle) == (700 * MB, HEAD + bytes(4996) + b"changed", MIDDLE)
    assert used(docs) < 4 * MB, "after the apply"


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs /proc/self/io")
def test_a_hole_is_not_read(agents: Agents, docs: Path) -> None:
    def read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    with open_workspace(str(agents.work.parent / "own")) as ws:
        plan = ws.plan("sparse", {"docs": {"kind": "fs-directory", "path": str(docs)}})
        before = read()
        with plan.decision("touch") as decision:
            decision.call("file.write", path="new", content="new")
        assert read() - before < 32 * MB


LAYOUTS = {
    "all data": b"d" * (files.CHUNK * 2 + 9),
    "all zeros": bytes(files.CHUNK * 3),
    "zeros at the end": b"d" * 300_000 + bytes(400_000),
    "zeros at the start": bytes(700_000) + b"d",
    "pages of both": (b"d" * 4096 + bytes(4096)) * 100 + b"end",
    "zeros that are no page": (bytes(4095) + b"d") * 100 + bytes(4095),
    "a short block of zeros": b"d" * files.CHUNK + bytes(100),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_written_with_holes_is_the_same_content(tmp_path: Path, name: str) -> None:
    data = LAYOUTS[name]
    parts = [data[at : at + files.CHUNK] for at in range(0, len(data), files.CHUNK)]
    fd = fsio.create(str(tmp_path / "file"), 0o600)
    for part in parts:
        files.write_block(fd, files.ZEROS if part == files.ZEROS else part)
    files.end_blocks(fd)
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == data
    with open(tmp_path / "file", "rb") as file:
        assert b"".join(files.blocks(file.fileno())) == data
