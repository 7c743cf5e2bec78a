"""All checks of the project. `nox` runs everything once, `nox -s tests` one suite while working.

`nox -R` uses the environments that are already there and needs no network.
"""

import os
import shutil
from pathlib import Path

import nox

ROOT = Path(__file__).parent
BUILD = ROOT / "build"
PROJECT = nox.project.load_toml("pyproject.toml")

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "typecheck", "bench_check", "coverage_report"]

PYTEST = ("pytest", "-n", str((os.cpu_count() or 1) + 1))  # one more: tests also wait for disks
BEHAVE = ("behave",)
ROBOT = ("robot", "--outputdir", "build/robot", "--pythonpath", ".", "--console", "dotted")


def group(name: str) -> tuple[str, ...]:
    return nox.project.dependency_groups(PROJECT, name)


def install_package(session: nox.Session, *groups: str) -> None:
    """Install as a user would, without leftovers: setuptools ships whatever lies in build/lib."""
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
    """Pyright in strict mode over src."""
    project = PROJECT["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    session.install(*project["dependencies"], *extras, *group("typecheck"))
    session.run("pyright", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Contracts, properties and faults (pytest); arguments go to pytest."""
    session.install("-e", ".", *group("test"))
    session.run("python", "-m", *PYTEST, *session.posargs)


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
    """The three suites against the installed package, in process and as a command."""
    install_package(session, "test")
    data = BUILD / "coverage"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    session.env["COVERAGE_FILE"] = str(data / "data")
    session.env["HYPOTHESIS_PROFILE"] = "ci"
    session.run("coverage", "run", "-m", *PYTEST)
    session.run("coverage", "run", "-m", *BEHAVE)
    session.run("coverage", "run", "-m", *ROBOT, "robot")
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "xml", "--quiet", "--fail-under=0")
    session.run("coverage", "report")


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
