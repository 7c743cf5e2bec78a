"""Apply keeps owner, attributes, ACLs and capabilities of a file it changes, or says that not."""

import os
import shutil
import stat
import subprocess
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.scratch import make_repository
from tests.test_apply_targets import Bench

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def bench(tmp_path: Path) -> Generator[Bench]:
    with ExitStack() as stack:
        one = Bench(tmp_path / "bench", stack)
        one.write("file", "text\n")
        require_attributes(one.target / "file")
        yield one


def require_attributes(path: Path) -> None:
    try:
        os.setxattr(path, "user.kept", b"mine")
    except OSError as error:
        pytest.skip(f"no extended attributes here: {error}")


def tool(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("step", ["echo more >> file", "echo new > x; mv x file", "chmod 600 file"])
def test_the_attributes_of_a_changed_file_stay(bench: Bench, step: str) -> None:
    file = bench.target / "file"
    tool("setfacl", "-m", "u:12:rw", str(file))
    acl = tool("getfacl", "-cn", str(file))
    result = bench.run(step).apply()
    assert not result["applied"][0]["notes"]
    assert os.getxattr(file, "user.kept") == b"mine"
    if "chmod" not in step and "mv" not in step:
        assert tool("getfacl", "-cn", str(file)) == acl
    assert "user:12:rw" in tool("getfacl", "-cn", str(file))


@root_only
def test_the_owner_of_a_changed_file_and_link_stays(bench: Bench) -> None:
    bench.write("suid", mode=0o4755)
    os.symlink("a", bench.target / "link")
    for name in ("file", "suid", "link"):
        os.chown(bench.target / name, 12, 34, follow_symlinks=False)
    (bench.target / "suid").chmod(0o4755)
    bench.run(
        "for f in file suid; do echo more >> $f; done; chmod 4755 suid; ln -sfn b link"
    ).apply()
    for name in ("file", "suid", "link"):
        found = (bench.target / name).lstat()
        assert (found.st_uid, found.st_gid) == (12, 34), name
    assert (bench.target / "suid").stat().st_mode & 0o7777 == 0o4755


@root_only
def test_a_capability_stays(bench: Bench) -> None:
    file = bench.write("program", mode=0o755)
    tool("setcap", "cap_net_raw=ep", str(file))
    bench.run("echo more >> program").apply()
    assert "cap_net_raw=ep" in tool("getcap", str(file))


@root_only
def test_a_new_file_has_the_group_that_its_folder_gives(bench: Bench) -> None:
    folder = bench.target / "shared"
    folder.mkdir()
    os.chown(folder, -1, 34)
    folder.chmod(0o2775)
    bench.run("echo new > shared/new; mkdir shared/deep; echo x > shared/deep/x").apply()
    assert (folder / "new").stat().st_gid == 34
    assert (folder / "deep").stat().st_gid == 34


def test_other_names_of_a_changed_file_are_spoken_of(bench: Bench) -> None:
    os.link(bench.target / "file", bench.root / "outside")
    [done] = bench.run("echo more >> file").apply()["applied"]
    assert list(done["notes"]) == ["file: its 1 other name (a hard link) has still the old content"]
    assert (bench.root / "outside").read_text() == "text\n"


def test_in_a_repository_too(bench: Bench) -> None:
    bench.repository()
    file = bench.target / "kept.txt"
    os.setxattr(file, "user.kept", b"mine")
    os.link(file, bench.root / "outside")
    [done] = bench.run("echo more >> kept.txt").apply("commit")["applied"]
    assert os.getxattr(file, "user.kept") == b"mine"
    assert len(done["notes"]) == 1


def test_an_apply_that_is_undone_leaves_attributes_alone(bench: Bench) -> None:
    bench.repository()
    hook = bench.target / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    before = (bench.target / "kept.txt").stat().st_ino
    plan = bench.run("echo more >> kept.txt")
    with pytest.raises(Exception, match="pre-commit"):
        plan.apply("commit", hooks=True)
    assert (bench.target / "kept.txt").stat().st_ino == before


@pytest.mark.parametrize("kind", ["fs-directory", "git-checkout"])
def test_what_a_plan_changed_of_the_folder_itself_is_said_not_to_be_applied(
    agents: Agents, kind: str
) -> None:
    """The diff counted it as a file, and apply said nothing."""
    app = agents.work / "app"
    app.mkdir(mode=0o755)
    (app / "file").write_text("text\n")
    require_attributes(app / "file")
    make_repository(agents, app)
    (agents.work / "plan.yaml").write_text(
        f"name: folder\nresources: {{app: {{kind: {kind}, path: app}}}}\n"
        "steps: [{id: a, run: 'chmod 750 . && python3 set.py && echo more >> file'}]\n"
    )
    script = "import os; os.remove('set.py'); os.setxattr('.', 'user.k', b'1')"
    (app / "set.py").write_text(script)
    agents.run("plan", "run", "plan.yaml").expect(0)
    assert "2 files, 1 directory changed" in agents.run("plan", "diff", "folder").stdout
    said = [
        "app: the mode of the folder itself is not applied: 755 -> 750",
        "app: the attributes of the folder itself are not applied",
    ]
    preview = agents.run("plan", "apply", "folder", "--dry-run", "--json").expect(0).data
    assert preview["would_apply"][0]["notes"] == said
    shown = agents.run("plan", "apply", "folder", "--dry-run").stdout
    assert all(f"{text}\n" in shown for text in said)
    told = agents.run("plan", "apply", "folder", "--yes", "--json").expect(0)
    assert told.data["applied"][0]["notes"] == said
    assert told.json["messages"] == said
    assert stat.S_IMODE(app.stat().st_mode) == 0o755
