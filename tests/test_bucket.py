"""Content in a bucket: segments in the background, what is there, and what a bucket must keep."""

import base64
import os
import shutil
import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cleveragents.content.bucket.address import Bucket
from cleveragents.content.bucket.cipher import Cipher, cipher_from
from cleveragents.content.bucket.segments import LIMIT, cut, locations
from cleveragents.errors import (
    BucketRefused,
    BucketUnreachable,
    ConfigError,
    ContentDamaged,
)
from cleveragents.model.ids import new_id
from cleveragents.workspace import open_workspace
from tests.buckets import Proxy, make_bucket, s3_server
from tests.in_process import PLAN, Yard, cli

EFFECT = """\
name: shop
resources: {app: {kind: fs-directory, path: app}}
tools:
  mail: {run: "echo sent >> $AGENTS_PLAN_DIR/sent", side_effects: [a mail]}
steps:
  - {id: one, run: "echo one > one.txt"}
  - {id: two, tool: mail}
"""


@pytest.fixture(scope="module")
def server() -> Generator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def proxy(server: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Proxy]:
    """The way to a bucket of its own, set for this process."""
    with Proxy(server) as found:
        name = f"plans-{new_id().lower()}"
        make_bucket(server, name)
        for variable in [v for v in os.environ if v.startswith("AWS_")]:
            monkeypatch.delenv(variable)
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"s3://{name}/team")
        yield found


def url() -> str:
    return os.environ["CLEVERAGENTS_CONTENT_URL"]


def bucket() -> Bucket:
    return Bucket(url())


def rows(sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"{os.environ['CLEVERAGENTS_HOME']}/store.db")) as db:
        return db.execute(sql).fetchall()


def lose_packs() -> None:
    """As if the disk had lost them."""
    content = Path(os.environ["CLEVERAGENTS_HOME"]) / "content"
    for pack in content.glob("*.pack"):
        pack.unlink()


def test_every_group_of_a_plan_is_there_when_the_command_ends(proxy: Proxy, yard: Yard) -> None:
    done = cli("plan", "run", yard.plan(), "--json")
    status = cli("plan", "status", "shop", "--json").data["bucket"]
    assert status["behind_groups"] == 0
    assert status["groups"] == len(rows("SELECT 1 FROM groups_there")) > 2
    plan_id = done.data["plan_id"]
    names = bucket().names()
    assert names
    assert all(f"/{plan_id}/" in name for name in names)
    assert sorted(names) == sorted(row[0] for row in rows("SELECT name FROM segments"))
    assert status["bytes"] == sum(len(bucket().get(name)) for name in names)


@pytest.mark.usefixtures("on_postgres")
def test_others_may_have_a_plan_when_the_bucket_has_it(proxy: Proxy, yard: Yard) -> None:
    proxy.delay = 0.2  # so it would be noticed if nobody waited
    with open_workspace() as ws:
        plan = yard.use(ws, "steps: [{id: a, run: touch one}]")
        plan.execute()
        assert ws.ctx.store.segments.pending(plan.plan_id) == []


@pytest.mark.usefixtures("on_postgres")
def test_a_plan_that_the_bucket_does_not_have_is_not_submitted_and_can_be_later(
    proxy: Proxy, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("store", "init")
    cli("plan", "run", yard.plan(PLAN.replace("shop", "before")))
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_WAIT", "200ms")
    proxy.is_away = True
    refused = cli("plan", "submit", yard.plan(), expect=4)
    plan_id = cli("plan", "status", "shop", "--json").data["plan_id"]
    assert f"agents plan submit {plan_id}" in refused.stderr
    assert "waiting for the bucket" in refused.stderr
    assert cli("cluster", "status", "--json").data["queues"] == []
    proxy.is_away = False
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_WAIT", "60s")
    cli("plan", "submit", plan_id)
    (queue,) = cli("cluster", "status", "--json").data["queues"]
    assert queue["waiting"] == 1


def test_status_says_it_for_people(proxy: Proxy, yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    assert "nothing is missing there" in cli("plan", "status", "shop").stdout


def test_a_store_without_an_address_says_nothing_of_buckets(yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    assert cli("plan", "status", "shop", "--json").data["bucket"] is None
    assert rows("SELECT 1 FROM groups_there") == []
    assert not (Path(os.environ["CLEVERAGENTS_HOME"]) / "uploads").exists()


def test_what_the_disk_lost_is_read_from_the_bucket(proxy: Proxy, yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    lose_packs()
    cli("plan", "rollback", "shop", "first", "--yes")
    sandbox = Path(cli("plan", "status", "shop", "--json").data["sandboxes"]["app"])
    assert {path.name for path in sandbox.iterdir()} == {"old.txt"}
    assert (sandbox / "old.txt").read_text() == "old\n"


def test_what_was_fetched_is_kept_here_up_to_a_limit(
    proxy: Proxy, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (yard.app / f"large{number}").write_bytes(os.urandom(100_000))
        cli("plan", "run", yard.plan(PLAN.replace("shop", f"shop{number}")))
    lose_packs()
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_CACHE", "350KB")
    for number in range(3):
        cli("plan", "rollback", f"shop{number}", "first", "--yes")
    kept = (Path(os.environ["CLEVERAGENTS_HOME"]) / "cache" / "segments").iterdir()
    assert 0 < sum(path.stat().st_size for path in kept) <= 350_000


def test_what_was_kept_here_and_is_damaged_is_fetched_again(proxy: Proxy, yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    lose_packs()
    fetched = cli("check", "--read-data", expect=6).stdout  # the pack is missing
    kept = Path(os.environ["CLEVERAGENTS_HOME"]) / "cache" / "segments"
    for number, path in enumerate(kept.iterdir()):
        path.write_bytes(b"" if number % 2 else bytes(path.stat().st_size))
    assert cli("check", "--read-data", expect=6).stdout == fetched
    cli("plan", "rollback", "shop", "first", "--yes")


@pytest.mark.parametrize("has", ["packs", "cache"])
def test_gc_puts_back_what_the_bucket_has_lost(
    tmp_path: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch, has: str
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"file://{tmp_path}/bucket")
    cli("plan", "run", yard.plan())
    before = sorted(bucket().names())
    if has == "cache":
        lose_packs()
        cli("check", "--read-data", expect=6)  # the pack is missing
    shutil.rmtree(tmp_path / "bucket")
    # It keeps nothing that the bucket has, and puts that back first.
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_CACHE", "1B" if has == "packs" else "1GB")
    assert cli("gc", "--dry-run", "--json").data["put_back"] == len(before)
    said = cli("gc", "--grace", "0s").stdout
    assert f"{len(before)} lost segments were put back into the bucket" in said
    assert sorted(bucket().names()) == before
    lose_packs()
    cli("plan", "rollback", "shop", "first", "--yes")
    assert cli("gc", "--json").data["put_back"] == 0


def test_a_second_plan_has_all_it_needs_below_its_own_name(proxy: Proxy, yard: Yard) -> None:
    """Content that this machine has from another plan is in that plan's segments only."""
    cli("plan", "run", yard.plan())
    cli("plan", "run", yard.plan(PLAN.replace("shop", "store")))
    cli("plan", "delete", "shop", "--yes")
    lose_packs()
    cli("plan", "rollback", "store", "first", "--yes")
    sandbox = Path(cli("plan", "status", "store", "--json").data["sandboxes"]["app"])
    assert (sandbox / "old.txt").read_text() == "old\n"


def test_deleting_a_plan_deletes_what_it_had_there(proxy: Proxy, yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    cli("plan", "run", yard.plan(PLAN.replace("shop", "store")))
    kept = cli("plan", "status", "store", "--json").data["plan_id"]
    cli("plan", "delete", "shop", "--yes")
    assert {name.split("/")[1] for name in bucket().names()} == {kept}


def test_gc_removes_what_a_delete_could_not(proxy: Proxy, yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    proxy.is_away = True
    gone = cli("plan", "delete", "shop", "--yes")
    assert "still in the bucket" in gone.stderr
    proxy.is_away = False
    assert bucket().names()
    assert cli("gc", "--dry-run", "--json").data["plans_swept"] == 1
    assert bucket().names()
    assert "1 deleted plan was removed from the bucket" in cli("gc").stdout
    assert bucket().names() == []


def test_without_the_bucket_work_continues_and_catches_up(proxy: Proxy, yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    there = len(rows("SELECT 1 FROM groups_there"))
    sandbox = Path(cli("plan", "status", "shop", "--json").data["sandboxes"]["app"])
    (sandbox / "new.txt").write_text("new\n")
    proxy.is_away = True
    away = cli("plan", "checkpoint", "create", "shop", "--label", "later")
    assert "the next command continues" in away.stderr
    status = cli("plan", "status", "shop", "--json").data["bucket"]
    assert (status["behind_groups"], status["groups"]) == (2, there)  # the edit, and the label
    assert status["behind_seconds"] > 0
    proxy.is_away = False
    cli("plan", "list")
    assert cli("plan", "status", "shop", "--json").data["bucket"]["behind_groups"] == 0


def test_a_step_with_effects_waits_for_the_group_before_it(proxy: Proxy, yard: Yard) -> None:
    """The bucket has everything from before the step when the step runs."""
    home = os.environ["CLEVERAGENTS_HOME"]
    copies = " && ".join(f"cp {home}/store.db{end} {home}/seen.db{end}" for end in ("", "-wal"))
    proxy.delay = 0.1
    cli("plan", "run", yard.plan(EFFECT.replace("echo sent >> $AGENTS_PLAN_DIR/sent", copies)))
    with closing(sqlite3.connect(f"{os.environ['CLEVERAGENTS_HOME']}/seen.db")) as db:
        groups = {row[0] for row in db.execute("SELECT group_id FROM checkpoint_groups")}
        there = {row[0] for row in db.execute("SELECT group_id FROM groups_there")}
    assert groups == there


def test_the_step_after_one_with_effects_waits_for_its_group(proxy: Proxy, yard: Yard) -> None:
    """The machine may die in the next step, and what was done outside is not done again."""
    home = os.environ["CLEVERAGENTS_HOME"]
    copies = " && ".join(f"cp {home}/store.db{end} {home}/seen.db{end}" for end in ("", "-wal"))
    proxy.delay = 0.1
    effect = EFFECT.replace("echo sent", "echo mailed > mailed.txt; echo sent")
    cli("plan", "run", yard.plan(f"{effect}  - {{id: three, run: '{copies}'}}\n"))
    with closing(sqlite3.connect(f"{home}/seen.db")) as db:
        done = db.execute(
            "SELECT count(*) FROM checkpoint_groups g JOIN groups_there USING (group_id)"
            " WHERE g.step_index = 1 AND checkpoint_type = 'after_tool_execute'"
        ).fetchone()
    assert done == (1,)


def test_a_step_with_effects_does_not_run_while_the_bucket_is_away(
    proxy: Proxy, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("plan", "run", yard.plan(PLAN.replace("shop", "before")))
    proxy.is_away = True
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_WAIT", "200ms")
    failed = cli("plan", "run", yard.plan(EFFECT), "--json", expect=4)
    assert failed.data["error"]["type"] == "NotInBucket"
    assert not (yard.top / "sent").exists()
    proxy.is_away = False
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_WAIT", "60s")
    resumed = cli("plan", "resume", "shop", "--json")
    assert resumed.data["state"] == "complete"
    assert (yard.top / "sent").read_text() == "sent\n"


def test_a_bucket_that_forgets_conditions_is_refused(proxy: Proxy, yard: Yard) -> None:
    proxy.forgets_conditions = True
    with pytest.raises(BucketRefused, match="overwrites an object"):
        bucket().probe()
    assert "overwrites an object" in cli("doctor").stdout
    refused = cli("plan", "run", yard.plan(), "--json", expect=6)
    assert refused.data["error"]["type"] == "BucketRefused"
    assert not list(yard.app.glob("one.txt"))
    proxy.forgets_conditions = False
    assert "answers and keeps what it has" in cli("doctor").stdout
    assert "answers and keeps what it has" in cli("store", "status").stdout
    cli("plan", "run", yard.plan())


def test_the_bucket_is_asked_once_whether_it_can_be_used(proxy: Proxy, yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    cli("plan", "run", yard.plan(PLAN.replace("shop", "store")))
    assert len({path for verb, path in proxy.requests if "probe-" in path and verb == "PUT"}) == 1


def test_a_shared_folder_is_a_bucket_too(
    tmp_path: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"file://{tmp_path}/shared/team")
    cli("plan", "run", yard.plan())
    assert cli("plan", "status", "shop", "--json").data["bucket"]["behind_groups"] == 0
    lose_packs()
    cli("plan", "rollback", "shop", "first", "--yes")


def test_only_known_addresses_are_taken() -> None:
    refused = cli("plan", "list", "--set", "content.url=http://somewhere", "--json", expect=2)
    assert "s3://" in refused.data["error"]["message"]


def test_a_changed_object_is_not_believed(
    tmp_path: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"file://{tmp_path}/shared")
    cli("plan", "run", yard.plan())
    for path in (tmp_path / "shared").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    lose_packs()
    failed = cli("plan", "rollback", "shop", "first", "--yes", "--json", expect=6)
    assert failed.data["error"]["type"] == "ContentDamaged"


def test_an_object_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    one = Bucket(f"file://{tmp_path}/b")
    one.put_new("x", b"first")
    one.put_new("x", b"second")
    assert one.get("x") == b"first"
    with pytest.raises(BucketUnreachable, match="an object is missing"):
        one.get("y")


def test_records_are_cut_into_segments_and_found_again() -> None:
    records = [(b"b1", b"x" * 10), (b"b2", b"y" * (LIMIT - 5)), (b"b3", b"z" * 7)]
    made = list(cut("folder", iter(records)))
    assert len(made) == 3
    for segment in made:
        for key, place in locations(segment.name, segment.entries):
            data = segment.data[place.offset : place.offset + place.length]
            assert (key, data) in records


KEY = base64.b64encode(bytes(range(32))).decode()


def test_with_a_key_nothing_readable_leaves_the_machine(
    tmp_path: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"file://{tmp_path}/shared")
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_KEY_FROM", "env:AGENTS_KEY")
    monkeypatch.setenv("AGENTS_KEY", KEY)
    (yard.app / "old.txt").write_text("a secret that nobody may read\n")
    cli("plan", "run", yard.plan())
    objects = [path for path in (tmp_path / "shared").rglob("*") if path.is_file()]
    assert objects
    assert not any(b"secret" in path.read_bytes() for path in objects)
    assert KEY not in str(rows("SELECT name, value FROM store"))
    lose_packs()
    cli("plan", "rollback", "shop", "first", "--yes")
    assert "content is encrypted" in cli("doctor").stdout


def test_another_key_is_refused_before_anything_is_written_with_it(
    tmp_path: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"file://{tmp_path}/shared")
    cli("plan", "run", yard.plan())
    monkeypatch.setenv("AGENTS_KEY", KEY)
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_KEY_FROM", "command:printenv AGENTS_KEY")
    refused = cli("plan", "run", yard.plan(PLAN.replace("shop", "x")), "--json", expect=4)
    assert "another key" in refused.data["error"]["message"]


def test_what_was_sealed_opens_with_the_key_and_the_name_only() -> None:
    one, other = Cipher(bytes(32)), Cipher(bytes(31) + b"1")
    sealed = one.seal(b"content", "name")
    assert Cipher.opened(one, sealed, "name") == b"content"
    assert Cipher.opened(None, b"plain", "name") == b"plain"
    for cipher, name in ((other, "name"), (one, "other name")):
        with pytest.raises(ContentDamaged, match="cannot be decrypted"):
            Cipher.opened(cipher, sealed, name)
    with pytest.raises(ConfigError, match="no key is given"):
        Cipher.opened(None, sealed, "name")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("env:NO_SUCH_NAME", "gives no key"),
        ("command:printf short", "gives no key"),
        ("command:false", "ended with 1"),
        ("command:/no/such/program", "No such file"),
    ],
)
def test_a_key_that_is_none_is_refused(source: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cipher_from(source)


def content_size() -> int:
    content = Path(os.environ["CLEVERAGENTS_HOME"]) / "content"
    return sum(pack.stat().st_size for pack in content.glob("*.pack"))


def test_gc_keeps_what_the_bucket_has_up_to_a_limit(
    tmp_path: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"file://{tmp_path}/shared")
    (yard.app / "old.txt").write_bytes(os.urandom(300_000))
    cli("plan", "run", yard.plan())
    before = content_size()
    cli("gc", "--grace", "0s")
    assert content_size() == before > 300_000
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_CACHE", "100KB")
    cli("gc", "--grace", "0s")
    cli("gc", "--grace", "0s")
    assert content_size() < 100_000
    assert cli("check", "--read-data").rc == 0
    cli("plan", "rollback", "shop", "first", "--yes")
    sandbox = Path(cli("plan", "status", "shop", "--json").data["sandboxes"]["app"])
    assert len((sandbox / "old.txt").read_bytes()) == 300_000


def test_gc_keeps_what_a_bucket_had_that_is_away(
    proxy: Proxy, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be gone for ever."""
    (yard.app / "old.txt").write_bytes(os.urandom(300_000))
    cli("plan", "run", yard.plan())
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_CACHE", "1KB")
    proxy.is_away = True
    for _ in range(2):
        assert "nothing is removed here" in cli("gc", "--grace", "0s").stderr
    assert content_size() > 300_000
    proxy.is_away = False
    for _ in range(2):
        cli("gc", "--grace", "0s")
    assert content_size() < 300_000


def test_gc_keeps_what_is_not_in_the_bucket(
    proxy: Proxy, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("plan", "run", yard.plan(PLAN.replace("shop", "before")))
    proxy.is_away = True
    (yard.app / "old.txt").write_bytes(os.urandom(300_000))
    cli("plan", "run", yard.plan())
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_CACHE", "1KB")
    for _ in range(2):
        assert "until the next gc" in cli("gc", "--grace", "0s").stderr
    assert content_size() > 300_000
    proxy.is_away = False
    cli("plan", "rollback", "shop", "first", "--yes")
    assert cli("check", "--read-data").rc == 0


def test_another_address_is_taken_when_everything_is_there(
    tmp_path: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"file://{tmp_path}/old")
    cli("plan", "run", yard.plan())
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"file://{tmp_path}/new")
    refused = cli("plan", "rollback", "shop", "first", "--yes", "--json", expect=4)
    assert f"cannot be found in file://{tmp_path}/new" in refused.data["error"]["message"]
    shutil.copytree(tmp_path / "old", tmp_path / "new", dirs_exist_ok=True)
    lose_packs()
    cli("plan", "rollback", "shop", "first", "--yes")
    shutil.rmtree(tmp_path / "old")
    cli("plan", "resume", "shop")
    assert cli("plan", "status", "shop", "--json").data["bucket"]["behind_groups"] == 0


def test_a_plan_that_cannot_be_brought_does_not_keep_others_waiting(
    tmp_path: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = tmp_path / "way"
    way.write_text("not a folder\n")
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"file://{way}/bucket")
    cli("plan", "run", yard.plan())
    lose_packs()
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"file://{tmp_path}/bucket")
    (yard.app / "old.txt").write_text("nothing that the first plan had\n")
    other = PLAN.replace("shop", "store").replace("echo one", "echo other")
    lost = cli("plan", "run", yard.plan(other.replace("echo two", "echo another")))
    assert "1 plan has groups that are not in the bucket" in lost.stderr
    with open_workspace() as ws:
        plan_id = ws.find("store").plan_id
        uploads = ws.ctx.checkpoints.uploads
        assert uploads is not None
        uploads.wait_for(plan_id)
    assert cli("plan", "status", "store", "--json").data["bucket"]["behind_groups"] == 0
