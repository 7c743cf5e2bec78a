"""The contract of sandboxes, kept by `postgres` with `snapshot`; `pg_dump` is the judge."""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from cleveragents.content.packs import Packs
from cleveragents.model.ids import new_id
from cleveragents.model.resource import Resource
from cleveragents.sandbox.postgres.address import with_database
from cleveragents.sandbox.postgres.snapshot import working_name
from cleveragents.sandbox.protocol import Place
from cleveragents.sandbox.registry import open_sandbox
from cleveragents.store import open_store
from cleveragents.testing import (
    Bench,
    Change,
    SandboxContract,
    bench,
    sandbox_contract,
    state_contract,
)
from tests.pgserver import PASSWORD, PgServer, Shop, shop_on


class PgBench(Bench):
    """`source` and `path` are names of databases here, and `root` an empty folder."""

    def __init__(self, folder: Path, shop: Shop, store: Any, packs: Packs) -> None:
        resource = Resource(
            resource_id=new_id(),
            plan_id=new_id(),
            name="app",
            kind="postgres",
            path=shop.url,
            strategy="snapshot",
        )
        work = working_name(resource.resource_id)
        self.folder, self.store, self.packs = folder, store, packs
        self.source = folder / "users" / shop.name
        self.place = Place(
            plan_id=resource.plan_id,
            resource=resource,
            root=str(folder / "sandbox" / work),
            path=with_database(shop.url, work),
            packs=packs,
            cache=str(folder / "cache" / "app"),
        )
        self.sandbox = open_sandbox(self.place)
        self._staged = 0

    @property
    def path(self) -> Path:
        return Path(self.place.root)


class TestPostgresSnapshot(SandboxContract):
    kind, strategy = "postgres", "snapshot"
    keeps_mtime: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def _judge(self, pg: PgServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where files are walked, the databases they stand for are dumped."""
        self.pg = pg
        monkeypatch.setenv("PGPASSWORD", PASSWORD)

        def look(root: Path, leave_out: tuple[bytes, ...] = ()) -> dict[bytes, Any]:
            databases = pg.databases()
            name = root.name if root.name != "users" else self.shop.name
            return {b"dump": ("dump", 0, pg.dump(name))} if name in databases else {}

        def stamps(root: Path) -> dict[bytes, tuple[int, int]]:
            return {}

        for module in (bench, sandbox_contract, state_contract):
            monkeypatch.setattr(module, "look", look)
        for module in (bench, state_contract):
            monkeypatch.setattr(module, "stamps", stamps)
        self.look = look

    @pytest.fixture
    def new_bench(self, tmp_path: Path, pg: PgServer) -> Generator[Callable[[], Bench]]:
        with ExitStack() as opened:

            def make() -> Bench:
                folder = tmp_path / str(len(list(tmp_path.iterdir())))
                (folder / "users").mkdir(parents=True)
                self.shop = opened.enter_context(shop_on(pg))
                store = open_store(str(folder / "store"))
                opened.callback(store.close)
                (folder / "content").mkdir()
                packs = Packs(str(folder / "content"), store.objects)
                opened.callback(packs.close)
                bench = PgBench(folder, self.shop, store, packs)
                opened.callback(bench.sandbox.remove)
                return bench

            yield make
        assert not pg.sandboxes()

    def seen_of_target(self, source: Path) -> object:
        return self.look(source)

    def seen_of_result(self, path: Path) -> object:
        return self.look(path)

    def _sql(self, script: str) -> Change:
        def change(path: Path) -> None:
            url = self.pg.url(path.name, "app", PASSWORD)
            with psycopg.connect(url, autocommit=True) as db:
                db.execute(script.encode())

        return change

    def changes(self) -> dict[str, Change]:
        return {
            "a row": self._sql("INSERT INTO users (name) VALUES ('eve')"),
            "a table": self._sql("CREATE TABLE more (x int)"),
            "a sequence": self._sql("SELECT nextval('users_id_seq')"),
        }

    def all_changes(self, path: Path) -> None:
        self._sql(
            "DELETE FROM users; CREATE TABLE IF NOT EXISTS more (x int);"
            " INSERT INTO more VALUES (1)"
        )(path)

    def test_restore_brings_back_mtimes_and_touches_nothing_else(self) -> None:  # type: ignore[override]
        """Databases have none."""
