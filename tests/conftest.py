import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from cleveragents.content import fsio
from tests import pgserver
from tests.databases import BOTH, EVERYWHERE, LEFT_OUT, Where, shared_store
from tests.harness import STOPPING, Agents, private_environment
from tests.in_process import Arm, Yard

pytest.register_assert_rewrite("cleveragents.testing")
# A shell that starts us in the background has it ignored, and so would what we start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("dev", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, print_blob=True, max_examples=100
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if EVERYWHERE else ():
        file = item.path.name
        name = f"{file}::{item.name.partition('[')[0]}"
        if why := LEFT_OUT.get(file) or LEFT_OUT.get(name):
            item.add_marker(pytest.mark.skip(why))


@pytest.fixture(autouse=True)
def private_process(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Generator[Path]:
    """No test sees the developer's home, settings or git identity; the folder used instead."""
    root = tmp_path_factory.mktemp("private")
    for name in tuple(os.environ):
        if name.startswith(("CLEVERAGENTS_", "GIT_", "XDG_", "PG")):
            monkeypatch.delenv(name)
    for name, value in private_environment(root).items():
        monkeypatch.setenv(name, value)
    yield root
    # 32 MiB each, which thousands of tests would leave behind until pytest ends.
    for reserve in root.glob("*/reserve"):
        reserve.unlink(missing_ok=True)


@pytest.fixture(autouse=EVERYWHERE)
def on_postgres(
    pg: pgserver.PgServer, private_process: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[str]:
    """What is opened in this test is a store on PostgreSQL of its own."""
    with shared_store(pg) as url:
        monkeypatch.setenv("CLEVERAGENTS_STORE_URL", url)
        yield url


@pytest.fixture(params=BOTH)
def where(
    request: pytest.FixtureRequest, tmp_path: Path, private_process: Path
) -> Generator[Where]:
    """A home for a store, on each database."""
    home = str(tmp_path / "store")
    if request.param == "sqlite":
        yield Where(home)
        return
    with shared_store(request.getfixturevalue("pg")) as url:
        yield Where(home, url)


@pytest.fixture
def agents(private_process: Path) -> Agents:
    return Agents(private_process)


@pytest.fixture
def stopped(agents: Agents) -> dict[str, str]:
    """The sandboxes of a plan that stopped at its second step."""
    (agents.work / "app").mkdir()
    (agents.work / "plan.yaml").write_text(STOPPING)
    return agents.run("plan", "run", "plan.yaml", "--json").expect(5).data["sandboxes"]


@pytest.fixture
def arm() -> Generator[Arm]:
    """`fsio.arm`: what is to happen at fault points, for as long as the test runs."""
    yield fsio.arm
    fsio.arm(None)


@pytest.fixture
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools run as they are: quicker, where confinement is not what is tested."""
    monkeypatch.setenv("CLEVERAGENTS_SANDBOX_CONFINE", "off")


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unconfined: None) -> Yard:
    """Where plans are run in this process; commands start there."""
    made = Yard(tmp_path / "yard")
    monkeypatch.chdir(made.top)
    return made


@pytest.fixture(scope="session")
def pg_server() -> Generator[pgserver.PgServer]:
    """A PostgreSQL server, started when the first test wants one."""
    with pgserver.running() as running:
        yield running


@pytest.fixture
def pg(pg_server: pgserver.PgServer) -> Generator[pgserver.PgServer]:
    """That server; no test sees the sandboxes and backups that another one left on it."""
    yield pg_server
    pg_server.drop_sandboxes()


@pytest.fixture
def shop(pg: pgserver.PgServer) -> Generator[pgserver.Shop]:
    with pgserver.shop_on(pg) as made:
        yield made
