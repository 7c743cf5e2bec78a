"""What a step locked or closed does not keep a rollback from putting it back."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cleveragents.errors import ApplyRefused
from tests.needed import needs
from tests.test_apply_targets import Bench
from tests.test_attributes_and_times import exactly, sandbox

ROOT = Path(__file__).parent.parent


@pytest.fixture
def bench(tmp_path: Path) -> Generator[Bench]:
    with ExitStack() as stack:
        one = Bench(tmp_path / "bench", stack)
        one.write("file")
        one.write("folder/inner")
        yield one


LOCKS = {
    "a file": "echo more >> file; chattr +i file",
    "a folder": "echo more >> folder/inner; chattr +i folder",
    "only appended to": "echo more >> file; chattr +a file folder",
    "a new folder": "mkdir new; echo x > new/x; chattr +i new/x new",
    "touched": "touch -d 2001-01-01 file; chattr +i file",
    "the root": "echo more > new; chattr +i .",
}


def needs_immutable_files(bench: Bench) -> None:
    needs("chattr")
    probe = bench.write("probe")
    done = subprocess.run(["chattr", "+i", str(probe)], check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"files cannot be made immutable here: {done.stderr!r}")
    subprocess.run(["chattr", "-i", str(probe)], check=True)


@pytest.mark.parametrize("name", LOCKS)
def test_what_a_step_made_immutable_is_rolled_back(bench: Bench, name: str) -> None:
    needs_immutable_files(bench)
    plan = bench.run(LOCKS[name])
    root = sandbox(plan)
    try:
        plan.rollback("first")
        assert exactly(root) == exactly(bench.target)
        plan.delete(force=True)
        assert not root.exists()
    finally:
        subprocess.run(["chattr", "-R", "-i", "-a", str(root)], check=False, capture_output=True)


def test_a_sandbox_with_immutable_files_is_deleted(bench: Bench) -> None:
    needs_immutable_files(bench)
    plan = bench.run("chattr +i file folder folder/inner")
    root = sandbox(plan)
    try:
        plan.delete(force=True)
        assert not root.exists()
    finally:
        subprocess.run(["chattr", "-R", "-i", str(root)], check=False, capture_output=True)


CLOSED = ["chmod 000 file", "chmod 000 folder", "chmod 000 file folder", "chmod 100 folder"]
CLOSED += [
    "chmod 000 .",
    "chmod 000 folder/inner folder .",
    "mkdir new; echo x > new/x; chmod 0 new",
]


def ordinary_python() -> str:
    """A Python of this version that an ordinary user may start."""
    for found in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        test = [found, "-c", "import sys; print(sys.version_info[:2])"]
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *map(str, test)],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        if found and done.stdout.strip() == str(tuple(sys.version_info[:2])):
            return found
    pytest.skip("no Python that another user may start")


@pytest.mark.parametrize("step", CLOSED)
def test_what_a_step_closed_is_rolled_back_for_an_ordinary_user(tmp_path: Path, step: str) -> None:
    """Neither an internal error nor a sandbox that nobody gets rid of."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user, with setpriv")
    python = ordinary_python()
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        home = Path(name)
        (home / "docs/folder").mkdir(parents=True)
        (home / "docs/file").write_text("text\n")
        (home / "docs/folder/inner").write_text("text\n")
        (home / "plan.yaml").write_text(
            "name: work\nresources: {docs: {kind: fs-directory, path: docs}}\n"
            f"steps:\n  - {{id: one, run: {step!r}}}\n"
        )
        for path in [home, *home.rglob("*")]:
            os.chown(path, 65534, 65534)
        packages = [path for path in sys.path if path.endswith("site-packages")]
        env = {
            "PATH": os.environ["PATH"],
            "HOME": name,
            "CLEVERAGENTS_HOME": f"{name}/store",
            "CLEVERAGENTS_SANDBOX_CONFINE": "off",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *packages]),
        }

        def agents(*argv: str) -> subprocess.CompletedProcess[str]:
            user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            return subprocess.run(
                [*user, python, "-m", "cleveragents", *argv],
                cwd=home, env=env, check=False, capture_output=True, text=True,
            )  # fmt: skip

        # Asked before any plan is there: a failure of ours must not look like a reason to skip.
        starts = agents("--version")
        if starts.returncode:
            pytest.skip(f"an ordinary user cannot start it here: {starts.stderr[-200:]}")
        ran = agents("plan", "run", "plan.yaml")
        assert ran.returncode in (0, 5), ran.stderr
        back = agents("plan", "rollback", "last", "first", "--yes")
        assert back.returncode == 0, back.stderr
        [root] = (home / "store/sandboxes").glob("*/docs")
        assert exactly(root) == exactly(home / "docs")
        assert stat.S_IMODE(root.stat().st_mode) == 0o755
        gone = agents("plan", "delete", "last", "--yes")
        assert gone.returncode == 0, gone.stderr
        assert not root.exists()


@pytest.mark.parametrize(
    ("locked", "named"),
    [
        ("sub", "sub/gone"),
        ("other", "other/new"),
        ("file", "file"),
        ("sub/new", "sub/new/y"),
        (".", "."),
    ],
)
def test_an_apply_names_what_it_may_not_write_in_the_target(
    bench: Bench, locked: str, named: str
) -> None:
    """It named what is staged: "o1: Operation not permitted"."""
    needs_immutable_files(bench)
    bench.write("sub/gone")
    bench.write("sub/new/file")
    bench.write("other/kept")
    plan = bench.run(
        "rm sub/gone; echo more >> file; touch other/new; chmod 700 sub/new; touch sub/new/y"
    )
    target = bench.target / locked
    before = exactly(bench.target)
    subprocess.run(["chattr", "+i", str(target)], check=True)
    try:
        with pytest.raises(ApplyRefused) as refused:
            plan.apply()
    finally:
        subprocess.run(["chattr", "-i", str(target)], check=True)
    place = os.path.normpath(bench.target / named)
    assert str(refused.value).split(": ")[1:] == [place, "Operation not permitted"]
    assert refused.value.hint == f"allow it: ls -ld {place}"
    assert exactly(bench.target) == before
