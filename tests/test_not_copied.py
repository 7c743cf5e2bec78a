"""What the user's files have and the copies in a sandbox cannot have is named in `status`."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Agents

LARGE = 5000


@pytest.fixture
def roomy() -> Iterator[Path]:
    """A folder whose file system has more room for attributes than that of the sandboxes."""
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no second file system here: /dev/shm is missing")
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        (folder / "probe").touch()
        os.setxattr(folder / "probe", "user.big", b"x" * LARGE)
        (folder / "probe").unlink()
        yield folder
    except OSError as error:
        pytest.skip(f"/dev/shm takes no large attribute: {error}")
    finally:
        shutil.rmtree(folder)


def refuses(folder: Path) -> bool:
    probe = folder / "probe"
    probe.touch()
    try:
        os.setxattr(probe, "user.big", b"x" * LARGE)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.E2BIG, errno.ENOTSUP)
    finally:
        probe.unlink()
    return False


def plan(agents: Agents, app: Path) -> Path:
    (agents.work / "plan.yaml").write_text(
        f"name: job\nresources: {{app: {{kind: fs-directory, path: {app}}}}}\n"
        "steps: [{id: one, run: echo new > new}]\n"
    )
    made = agents.run("plan", "run", "plan.yaml", "--json").expect(0).data
    return Path(made["sandboxes"]["app"])


def test_an_attribute_that_has_no_room_in_the_sandbox_is_named(agents: Agents, roomy: Path) -> None:
    if not refuses(agents.work):
        pytest.skip("the sandboxes' file system takes attributes as large as any")
    (roomy / "sub").mkdir()
    for name, size in (("file", 10), ("large", 1 << 20)):
        (roomy / name).write_bytes(b"x" * size)
        os.setxattr(roomy / name, "user.big", b"x" * LARGE)
        os.setxattr(roomy / name, "user.small", b"small")
    os.setxattr(roomy / "sub", "user.big", b"x" * LARGE)
    sandbox = plan(agents, roomy)
    assert os.getxattr(sandbox / "file", "user.small") == b"small"
    told = agents.run("plan", "status", "job", "--json").expect(0).data["not_copied"]
    assert told == {
        "app": [
            f"{name}: its attribute user.big cannot be set in the sandbox"
            for name in ("file", "large", "sub")
        ]
    }
    assert "not copied of app" in agents.run("plan", "status", "job").stdout
    agents.run("plan", "apply", "job", "--yes").expect(0)
    assert len(os.getxattr(roomy / "file", "user.big")) == LARGE, "and the user's own keeps it"


def test_names_of_one_file_that_become_several_are_counted(agents: Agents) -> None:
    app = agents.work / "app"
    (app / "sub").mkdir(parents=True)
    (app / "a").write_text("one\n")
    os.link(app / "a", app / "sub" / "b")
    plan(agents, app)
    told = agents.run("plan", "status", "job", "--json").expect(0).data["not_copied"]
    assert told == {
        "app": ["2 files have other names (hard links): in the sandbox each is a file of its own"]
    }


def test_nothing_is_said_where_nothing_is_lost(agents: Agents) -> None:
    (agents.work / "app").mkdir()
    plan(agents, agents.work / "app")
    assert agents.run("plan", "status", "job", "--json").expect(0).data["not_copied"] == {}
