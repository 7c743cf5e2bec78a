"""The power of a PostgreSQL server is cut, or of those who use it, around an apply.

The server runs with `fsync` on a disk that loses what was not synced: on the store's own, on
another one, or on a machine that goes on. `CLEVERAGENTS_TEST_POWER=n` tries n chance moments.
"""

import os
import random
import shutil
import time
from collections.abc import Callable, Generator
from pathlib import Path

import psycopg
import pytest

from tests import pgserver, power
from tests.databases import Where, shared_store
from tests.pgserver import PgServer, Shop, shop_on
from tests.power import Machine, PoweredAgents

missing = power.needed()
pytestmark = pytest.mark.skipif(missing is not None, reason=missing or "")
TRIES = int(os.environ.get("CLEVERAGENTS_TEST_POWER", "2"))
SEED = int(os.environ.get("CLEVERAGENTS_TEST_SEED", "11"))
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "listen_addresses": "127.0.0.1",
    "max_prepared_transactions": "10",
    "shared_buffers": "8MB",
    "max_wal_size": "32MB",
    "min_wal_size": "4MB",
    "log_min_messages": "warning",
}
PLAN = """
name: cut
resources:
  docs: {kind: fs-directory, path: docs}
  db: {kind: postgres, url: $DATABASE_URL}
steps:
  - {id: text, tool: file.write, on: docs, with: {path: made%d, content: new}}
  - {id: rows, tool: sql, on: db, with: {script: "INSERT INTO users (name) VALUES ('eve%d')"}}
"""


def made(plans: int) -> tuple[list[str], list[object]]:
    """What the targets hold when so many plans are applied."""
    numbers = range(plans)
    return sorted([*(f"made{n}" for n in numbers), "mine"]), [
        "ada", "bob", *(f"eve{n}" for n in numbers)
    ]  # fmt: skip


OLD, NEW = made(0), made(1)


class Server:
    """One that goes down with the machine, and comes up when it is told to."""

    def __init__(self, machine: Machine, folder: Path, top: Path, programs: Path) -> None:
        self.machine, self.folder = machine, folder
        self.pg = PgServer(pgserver.free_port(), programs, folder / "data", "nobody")
        secret = top / "secret"
        secret.write_text(self.pg.password)
        secret.chmod(0o644)
        machine.run("install", "-d", "-o", "nobody", "-g", "nogroup", str(folder)).expect(0)
        self._as_nobody(
            "initdb", "-D", str(self.pg.data), "-U", "postgres", "-A", "scram-sha-256", "--pwfile",
            str(secret), "--wal-segsize=1", "-E", "UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip
        machine.run("sync", "-f", str(folder)).expect(0)
        self.start()

    def _as_nobody(self, program: str, *argv: str) -> None:
        self.machine.run(*self._nobody(program), *argv, cwd=self.folder, env=ENV).expect(0)

    def _nobody(self, program: str) -> list[str]:
        become = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        return [*become, str(self.pg.bin / program)]

    def start(self) -> None:
        options = [f"-c{name}={value}" for name, value in SETTINGS.items()]
        self.machine.serve(
            *self._nobody("postgres"), "-D", str(self.pg.data), "-p", str(self.pg.port), "-k",
            str(self.folder), *options, cwd="/", log=self.machine.folder / "postgres.log",
        )  # fmt: skip
        while not self._answers():
            died = self.machine.services[-1].poll()
            assert died is None, (self.machine.folder / "postgres.log").read_text()
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.pg.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


ENV = {"PATH": os.environ["PATH"], "LC_ALL": "C"}


class World(PoweredAgents):
    """A folder and a database that one plan changes together."""

    def __init__(self, machine: Machine, server: Server | None, shop: Shop) -> None:
        super().__init__(machine, "one", "one")
        self.server, self.shop = server, shop
        self.env["DATABASE_URL"] = shop.full_url
        self.sh("mkdir docs; echo theirs > docs/mine")
        self.plan(0)
        for disk in machine.disks:
            machine.sync(disk)

    def plan(self, number: int) -> None:
        (self.here / "plan.yaml").write_text(PLAN % (number, number))

    def cut_power(self, up: bool = True) -> None:
        self.machine.cut_power()
        if self.server is not None and up:
            self.server.start()

    def targets(self) -> tuple[list[str], list[object]]:
        return sorted(os.listdir(self.here / "docs")), self.shop.users()


@pytest.fixture(params=["same", "different", "elsewhere"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[World]:
    """The server's data on the store's disk, on another one, or on one that is not cut."""
    if request.param == "elsewhere":
        with power.machine(tmp_path, ("one",)) as machine:
            yield World(machine, None, request.getfixturevalue("shop"))
        return
    disks = ("one",) if request.param == "same" else ("one", "two")
    with (
        pgserver.installed() as (top, programs, _user),
        power.machine(top, disks, 400 << 20) as machine,
    ):
        machine.run("chmod", "755", *(str(disk.point) for disk in machine.disks.values()))
        server = Server(machine, machine.disks[disks[-1]].point / "pg", top, programs)
        with shop_on(server.pg) as shop:
            yield World(machine, server, shop)


def test_what_was_acknowledged_outlives_a_cut_and_no_more_is_made_real(world: World) -> None:
    world.run("plan", "run", "plan.yaml").expect(0)
    world.cut_power()
    assert world.targets() == OLD
    world.run("plan", "apply", "cut", "--yes").expect(0)
    assert world.targets() == NEW
    world.cut_power()
    assert world.targets() == NEW
    again = world.run("plan", "apply", "cut", "--yes", "--json").expect(0)
    assert not [text for text in again.json["messages"] if "backup of database" not in text]
    world.run("check").expect(0)
    assert world.targets() == NEW


def test_where_content_of_a_shared_store_lies_is_found_again_after_a_cut(
    tmp_path: Path, pg: PgServer
) -> None:
    """The server goes on and has groups whose places the home had not brought to its disk."""
    with power.machine(tmp_path, ("one",)) as machine, shared_store(pg) as url:
        agents = PoweredAgents(machine, "one", "one")
        agents.env |= {"CLEVERAGENTS_STORE_URL": url, "CLEVERAGENTS_SANDBOX_CONFINE": "off"}
        agents.sh("mkdir docs; echo theirs > docs/mine")
        steps = "".join(f"  - {{id: s{n}, run: echo {n} > made{n}}}\n" for n in range(6))
        head = "name: cut\nresources: {docs: {kind: fs-directory, path: docs}}\nsteps:\n"
        (agents.here / "plan.yaml").write_text(head + steps)
        agents.run("plan", "use", "plan.yaml").expect(0)
        machine.sync("one")
        lost = 0
        for kill_at in (40, 60, 80, 1000):
            agents.run("plan", "resume", "cut", kill_at=kill_at)
            before = _places(agents, tmp_path / f"before{kill_at}")
            machine.cut_power()
            lost += len(before - _places(agents, tmp_path / f"after{kill_at}"))
            agents.run("plan", "diff", "cut").expect(0)
            agents.run("check", "--read-data").expect(0)
        assert lost, "some of it was not on the disk"
        shown = agents.run("plan", "status", "cut", "--json").expect(0).data
        assert shown["state"] == "complete"
        agents.run("plan", "rollback", "cut", "first", "--yes").expect(0)
        agents.run("plan", "undo", "cut").expect(0)
        agents.run("check", "--read-data").expect(0)


def _places(agents: PoweredAgents, copy: Path) -> set[object]:
    """The keys whose places the home knows, from a copy: whoever closes a database syncs it."""
    home = agents.machine.inside(Path(agents.env["CLEVERAGENTS_HOME"]))
    copy.mkdir()
    for file in home.glob("store.db*"):
        shutil.copy(file, copy)
    return set(Where(str(copy)).query("SELECT key FROM objects"))


def test_at_any_moment_of_an_apply_all_targets_are_old_or_all_are_new(
    world: World, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(f"{SEED}-{len(world.machine.disks)}-{world.server is None}")
    cuts = done = 0
    while cuts < TRIES:
        world.plan(done)
        world.run("plan", "run", "plan.yaml").expect(0)
        applied = False
        while not applied and cuts < TRIES:
            applied = _cut_in_an_apply(world, chance, done)
            cuts += 1
        world.run("plan", "apply", "last", "--yes").expect(0)
        assert world.targets() == made(done + 1)
        world.run("check").expect(0)
        done += 1
    record_property("power cuts", cuts)


def _cut_in_an_apply(world: World, chance: random.Random, done: int) -> bool:
    """Whether it came to its end, or was brought there."""
    kill_at = chance.randint(1, 60)
    ended = world.run("plan", "apply", "last", "--yes", kill_at=kill_at)
    late = world.server is not None and chance.random() < 0.5
    world.cut_power(up=not late)
    if late:
        # A server is not always up before those who use it: nothing may be decided without it.
        world.run("plan", "list").expect(0)
        world.run("plan", "status", "last")
        assert world.server is not None
        world.server.start()
    world.run("plan", "list").expect(0)
    found, old, new = world.targets(), made(done), made(done + 1)
    story = f"killed at {kill_at} with {ended.rc}, late {late}: {ended.stderr}"
    assert found in ((new,) if ended.rc == 0 else (old, new)), story
    return found == new
