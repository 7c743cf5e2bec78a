"""All checks of the project. `nox` runs everything once, `nox -s tests` one suite while working.

`nox -R` uses the environments that are already there and needs no network.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import nox

ROOT = Path(__file__).parent
BUILD = ROOT / "build"
PROJECT = nox.project.load_toml("pyproject.toml")

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "typecheck", "docs", "dist", "bench_check", "coverage_report"]

# Without it each of thousands of interpreters would compile what it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

PYTEST = ("pytest", "-n", str(2 * (os.cpu_count() or 1) + 1))  # half the time they wait for disks
HEAVY = {  # what `nox -s faults` asks of the tests of faults
    "CLEVERAGENTS_HEAVY": "1",
    "CLEVERAGENTS_TEST_FULL": "1",
    "CLEVERAGENTS_ALL_JUMPS": "1",
    "CLEVERAGENTS_TEST_POWER": "125",
    "CLEVERAGENTS_TEST_KILLS": "10",
    "FOUR_KILLS": "20",
    "KILL_STRIDE": "1",
}
FAULTS = ("capture", "clock", "crash", "crash_correction", "four_resources", "full_disk")
FAULTS += ("in_place_machine", "killed_sessions", "lost_answers", "planfile", "postgres")
FAULTS += ("power_cut", "revert_postgres", "state_machine", "tree_merge")
FRAMEWORKS = ("tests/test_frameworks.py", "tests/test_langgraph.py")
# always in one order: what fails in CI is the change's fault; `nox -s tests` shuffles
IN_ORDER = ("-p", "no:randomly")
SHARED = ("apply_once", "apply_targets", "attributes_and_times", "base_commit_gone", "base_ref")
SHARED += ("cancel_delete", "carry_limit", "checkpoint_create", "child_plans", "clock")
SHARED += ("command_line", "completion", "config", "confinement", "control_files", "conversation")
SHARED += ("copy_tree", "correction", "crash", "crash_correction", "diff", "diff_patches")
SHARED += ("disk_usage", "doctor", "edits_during_calls", "edits_during_run", "effects")
SHARED += ("error_screen", "exact_rollback", "export", "failed_commits", "first_checkpoint")
SHARED += ("four_resources", "gc_check", "git_remote", "git_repositories", "hard_links")
SHARED += ("hostile_links", "hostile_trees", "killed_sessions", "kinds", "large_sqlite", "lease")
SHARED += ("locked_files", "lookup", "mcp", "model_actor", "names_left_out", "not_copied")
SHARED += ("observed", "open_checkpoint", "owners", "pager", "pasted_hints", "plan_record")
SHARED += ("postgres", "preflight", "progress", "python_api", "questions", "quiet_points")
SHARED += ("recovery", "render", "reports", "resume", "retention", "revert_applied")
SHARED += ("revert_postgres", "rollback", "rollback_counts", "rollback_in_place", "rollback_only")
SHARED += ("run_agent", "run_command", "sandbox_names", "sandboxes", "shell", "sidecar")
SHARED += ("sqlite_tables", "starting", "state_machine", "step_execution", "third_party_kind")
SHARED += ("timeline", "two_machines", "undo")
# Not among them: what is about a store.db itself (copied_store, damaged_store, full_disk,
# hostile_store, machine_errors, other_device_number, power_cut, schema, store_upgrade), what has a
# PostgreSQL of its own (bucket, cluster, elsewhere, shared_store, statements, what takes `where`),
# what has no store; actors, durable_rollback and many_processes look into store.db in some tests.
ON_POSTGRES = {"CLEVERAGENTS_TEST_STORE": "postgres"}
# of `nox -s shared_store` what CI has time for, beside all features; the contracts of stores and
# what else takes `where` run on both databases anyway
SHARED_IN_CI = ("crash", "crash_correction", "recovery", "undo")
# Run, and not measured: they go again and again through lines that others reach too, and being
# watched costs them up to half of their time. A new file is measured until it is named here.
UNMEASURED = ("apply_once", "base_ref", "capture", "clock", "closed_output", "confinement_choice")
UNMEASURED += ("confinement_doors", "content_properties", "conversation", "cost_of_long_plans")
UNMEASURED += ("crash", "crash_correction", "deep_trees", "disk_usage", "elsewhere_kills")
UNMEASURED += ("examples", "failed_commits", "first_checkpoint", "four_resources")
UNMEASURED += ("git_remote_contract", "git_remote_team", "killed_sessions", "machines")
UNMEASURED += ("many_processes", "pages", "plan_record", "power_cut", "power_cut_postgres")
UNMEASURED += ("reference_programs", "resume", "revert_postgres", "state_machine", "two_machines")
BEHAVE = ("behave",)
PROGRAM_IS_THERE = (
    "from cleveragents.integrations import client; assert client.command()[0].endswith('_quick')"
)
ROBOT = ("robot", "--outputdir", "build/robot", "--pythonpath", ".", "--console", "dotted")


def group(name: str) -> tuple[str, ...]:
    return nox.project.dependency_groups(PROJECT, name)


def install_package(session: nox.Session, *groups: str) -> None:
    """Install as a user would, without leftovers: setuptools ships whatever lies in build/lib.

    One at a time: two sessions may run beside each other, and both build there.
    """
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in (BUILD / "lib", *BUILD.glob("lib.*"), *BUILD.glob("bdist.*")):
            shutil.rmtree(leftover, ignore_errors=True)
        session.install(".", *(tool for name in groups for tool in group(name)))


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting, dead code."""
    session.install(*group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("vulture")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Pyright in strict mode over src; and whoever imports the package knows all its types."""
    optional = PROJECT["project"]["optional-dependencies"]
    session.install(*(name for names in optional.values() for name in names), *group("typecheck"))
    install_package(session)
    session.run("pyright", *session.posargs)
    session.run("pyright", "--verifytypes", "cleveragents", "--ignoreexternal", silent=True)


@nox.session
def docs(session: nox.Session) -> None:
    """The site, in build/site; a link or an anchor that leads nowhere is an error."""
    session.install(*group("docs"))
    session.run("zensical", "build", "--strict", "--clean", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Contracts, properties and faults (pytest); arguments go to pytest."""
    session.install("-e", ".", *group("test"))
    session.run("python", "-m", *PYTEST, *session.posargs)


@nox.session
def frameworks(session: nox.Session) -> None:
    """The adapters alone, against the newest releases that their extras allow."""
    session.install("-U", "-e", ".", *group("test"))
    files = ("tests/test_model_actor.py", "tests/test_mcp.py", *FRAMEWORKS)
    session.run("python", "-m", *PYTEST, *files, *session.posargs)


@nox.session
def shared_store(session: nox.Session) -> None:
    """Verbs, contracts, crashes and features with every store on PostgreSQL; tests/databases.py
    says what is left out, and why.
    """
    session.install("-e", ".", *group("test"))
    files = [f"tests/test_{name}.py" for name in SHARED]
    session.run(
        "python", "-m", *PYTEST, "-rs", *files, "tests/web", *session.posargs, env=ON_POSTGRES
    )
    session.run("python", "-m", *BEHAVE, env=ON_POSTGRES)


@nox.session
def agents(session: nox.Session) -> None:
    """The real agents from npm at pinned versions, against a scripted model: 15 min or more."""
    session.install("-e", ".", *group("test"), *group("agents"))
    folder = BUILD / "agents"
    try:
        session.run("python", "-m", "tests.agents.programs", str(folder))
    except nox.command.CommandFailed:
        session.skip("npm could not install them: NO REAL AGENT WAS TRIED")
    session.env["CLEVERAGENTS_TEST_AGENTS"] = str(folder)
    session.env["CLEVERAGENTS_TEST_KILLS"] = os.environ.get("CLEVERAGENTS_TEST_KILLS", "2")
    names = ("live", "live_kills", "mcp_clients")
    files = [f"tests/agents/test_{name}.py" for name in names]
    session.run("python", "-m", "pytest", "-rs", *files, *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """The page in a real browser, Debian's chromium or that of CHROMIUM; arguments go to pytest."""
    session.install("-e", ".", *group("test"), *group("browser"))
    session.env["CLEVERAGENTS_TEST_BROWSER"] = "1"
    session.run("python", "-m", "pytest", "-rs", "tests/web/test_browser.py", *session.posargs)


@nox.session
def behave(session: nox.Session) -> None:
    """The features of the specification; arguments go to behave."""
    session.install("-e", ".", *group("test"))
    session.run("python", "-m", *BEHAVE, *session.posargs)


@nox.session
def robot(session: nox.Session) -> None:
    """The installed command from outside; arguments go to robot."""
    session.install("-e", ".", *group("test"))
    session.run("python", "-m", *ROBOT, *session.posargs, "robot")


@nox.session
def coverage_report(session: nox.Session) -> None:
    """The three suites against the installed package; the lines that pytest reaches, but for
    UNMEASURED, are enough.
    """
    install_package(session, "test")
    data = BUILD / "coverage"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    session.env["COVERAGE_FILE"] = str(data / "data")
    session.env["HYPOTHESIS_PROFILE"] = "ci"
    if sys.version_info >= (3, 12):
        session.env["COVERAGE_CORE"] = "sysmon"  # a third of the time
    # frameworks triple the memory of a process, and most other tests fork theirs
    alone = ("pytest", *IN_ORDER, *FRAMEWORKS)
    shared = ("pytest", *IN_ORDER, *(f"tests/test_{name}.py" for name in SHARED_IN_CI))
    unmeasured = [f"tests/test_{name}.py" for name in UNMEASURED]
    others = [f"--ignore={file}" for file in (*FRAMEWORKS, *unmeasured)]
    with (
        beside(session, "behave", *BEHAVE),
        beside(session, "robot", *ROBOT, "robot"),
        beside(session, "frameworks", *alone, measured=True),
        beside(session, "shared", *shared, env=ON_POSTGRES),
        beside(session, "shared_features", *BEHAVE, env=ON_POSTGRES),
    ):
        session.run("coverage", "run", "-m", *PYTEST, *IN_ORDER, *others)
        session.run("python", "-m", *PYTEST, *IN_ORDER, *unmeasured)
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "xml", "--quiet", "--fail-under=0")
    session.run("coverage", "report")


@contextmanager
def beside(
    session: nox.Session,
    name: str,
    *module: str,
    env: Mapping[str, str] | None = None,
    measured: bool = False,
) -> Generator[None]:
    """A suite that runs at the same time, in one thread; what it says is shown as a whole."""
    file = BUILD / f"{name}.log"
    argv = [
        f"{session.bin}/python",
        "-m",
        *(("coverage", "run", "-m") if measured else ()),
        *module,
    ]
    here = {key: value for key, value in session.env.items() if value is not None}
    env = {**os.environ, **here, **(env or {})}
    with open(file, "w") as said:
        process = subprocess.Popen(argv, env=env, stdout=said, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        code = process.wait()
        sys.stdout.write(file.read_text())
    if code:
        session.error(f"{name} failed")


@nox.session
def faults(session: nox.Session) -> None:
    """Hours: every fault point, many seeds and power cuts; arguments go to pytest."""
    session.install("-e", ".", *group("test"))
    session.env.update(HEAVY)
    files = [f"tests/test_{name}.py" for name in FAULTS]
    session.run("python", "-m", *PYTEST, *files, *session.posargs)


@nox.session
def dist(session: nox.Session) -> None:
    """The source distribution, twice the same bytes, and its wheel, with the compiled parts."""
    session.install(*group("dist"))
    shutil.rmtree(BUILD / "dist", ignore_errors=True)
    made: list[bytes] = []
    for zone, mask in (("UTC", "022"), ("Asia/Tokyo", "077")):
        argv = ("bash", "-c", f"umask {mask} && exec .ci/sdist build/dist")
        session.run(*argv, external=True, env={"TZ": zone, "PYTHON": f"{session.bin}/python"})
        (archive,) = (BUILD / "dist").glob("*.tar.gz")
        made.append(archive.read_bytes())
    if made[0] != made[1]:
        session.error("two builds of one commit differ")
    session.install(str(archive))
    parts = [part["name"] for part in PROJECT["tool"]["setuptools"]["ext-modules"]]
    session.chdir(BUILD)  # not the sources
    session.run("python", "-c", f"import {', '.join(name for name in parts if 'native' in name)}")
    session.run("python", "-c", PROGRAM_IS_THERE)
    session.run("agents", "--version")


@nox.session
def bench_check(session: nox.Session) -> None:
    """Every benchmark imports, and runs once on the small tree; no number is kept."""
    install_package(session, "bench")
    home = BUILD / "asv" / "home"
    home.mkdir(parents=True, exist_ok=True)
    session.env["HOME"] = str(home)  # asv keeps its machine file there
    session.env["BENCH_SMOKE"] = "1"
    asv = ("asv", "--config", "benchmarks/asv.conf.json")
    session.run(*asv, "check", "--python=same")
    session.run(*asv, "machine", "--yes", silent=True)
    session.run(*asv, "run", "--python=same", "--quick", "--dry-run", "--show-stderr")
