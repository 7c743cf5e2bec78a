"""Freeing what nobody needs, and finding what is damaged before it does harm."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.content import pack_file
from cleveragents.content import packs as packing
from cleveragents.content.keys import (
    BLOB,
    TREE,
)
from cleveragents.errors import CheckpointFailed, ContentDamaged, StoreError
from cleveragents.history import checkpoints
from cleveragents.lease import (
    LeasedPlan,
    hold,
)
from cleveragents.maintenance import gc
from cleveragents.maintenance.check import check
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.settings import Settings
from cleveragents.testing import look, require_same
from cleveragents.workspace import PlanHandle, Workspace, open_workspace
from tests.harness import Agents, command

HOUR = 3600.0


class Clock:
    def __init__(self) -> None:
        self.time = datetime(2026, 1, 2, tzinfo=UTC)

    def __call__(self) -> str:
        return self.time.isoformat(timespec="microseconds")


class Place:
    """A store, a clock, and a directory for plans to work on."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self.clock = Clock()
        self.docs = root / "docs"
        self.docs.mkdir(parents=True)
        (self.docs / "start").write_bytes(os.urandom(1000))
        self._stack = stack
        self._plans = 0

    def open(self) -> Workspace:
        """As another process would."""
        settings = Settings(home=str(self.root / "store"), confine="off")
        return self._stack.enter_context(open_workspace(settings=settings, now=self.clock))

    @property
    def content(self) -> Path:
        return self.root / "store/content"

    def stored(self) -> int:
        """Bytes the content takes on disk."""
        return sum(path.stat().st_size for path in self.content.iterdir())

    def run(self, ws: Workspace, *steps: str, head: str = "") -> PlanHandle:
        """A plan of shell steps on the directory."""
        self._plans += 1
        lines = [f"  - {{id: s{n}, run: {step!r}}}" for n, step in enumerate(steps)]
        text = f"name: plan{self._plans}\nresources: {{docs: {{kind: fs-directory, path: docs}}}}\n"
        file = self.root / f"plan{self._plans}.yaml"
        file.write_text("\n".join([text + head, "steps:", *lines]) + "\n")
        plan = ws.run(str(file))
        assert plan.plan.error is None, plan.plan.error
        return plan


@pytest.fixture
def place(tmp_path: Path) -> Generator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path / "place", stack)


@pytest.fixture
def ws(place: Place) -> Workspace:
    return place.open()


def collect(ws: Workspace, grace: float = 0, dry_run: bool = False) -> gc.Collected:
    """As a command of its own does it: nothing is held open for writing."""
    ws.ctx.manager.packs.close()
    return gc.collect(ws.ctx, grace, dry_run)


def require_whole(ws: Workspace) -> None:
    assert check(ws.ctx, read_data=True).problems == ()


def random_file(size: int) -> str:
    return f"head -c {size} /dev/urandom > random$RANDOM"


# gc


def test_what_a_deleted_plan_held_leaves_the_disk(place: Place, ws: Workspace) -> None:
    kept = place.run(ws, "echo kept > kept")
    gone = place.run(ws, random_file(300_000), random_file(300_000))
    before = place.stored()
    gone.delete(force=True)
    assert place.stored() == before, "only gc takes content from the disk"
    found = collect(ws)
    assert place.stored() < 20_000
    assert found.freed_bytes == before - place.stored(), "measured, not guessed"
    assert found.removed > 0
    assert found.waiting == 0
    require_whole(ws)
    kept.rollback("first")
    assert collect(ws).removed == 0


def test_the_process_that_wrote_the_content_can_free_it_as_well(
    place: Place, ws: Workspace
) -> None:
    place.run(ws, random_file(300_000)).delete(force=True)
    gc.collect(ws.ctx, 0)
    assert place.stored() < 20_000


def test_nothing_that_a_plan_refers_to_is_removed(place: Place, ws: Workspace) -> None:
    plan = place.run(ws, random_file(50_000), "rm start", "mkdir deep; echo x > deep/x")
    shared = place.run(ws, "echo same > same")
    place.run(ws, "echo same > same").delete(force=True)
    states = {group: seen_at(plan, group) for group in groups_of(plan)}
    collect(ws)
    collect(place.open())
    require_whole(ws)
    for group, seen in states.items():
        plan.rollback(group)
        require_same(look(Path(plan.sandboxes["docs"])), seen)
    shared.rollback("first")


def groups_of(plan: PlanHandle) -> list[str]:
    return list(dict.fromkeys(row.group_id for row in plan.checkpoints()))


def seen_at(plan: PlanHandle, group: str) -> dict[bytes, Any]:
    plan.rollback(group)
    return look(Path(plan.sandboxes["docs"]))


def test_what_pruned_groups_held_leaves_the_disk_too(place: Place, ws: Workspace) -> None:
    steps = [f"head -c 100000 /dev/urandom > big; echo {n} > n" for n in range(6)]
    plan = place.run(ws, *steps, head="policy: {max_checkpoints_per_plan: 2}\n")
    assert place.stored() > 600_000
    collect(ws)
    assert place.stored() < 350_000
    require_whole(ws)
    for group in groups_of(plan):
        plan.rollback(group)


def test_the_work_of_a_plan_without_checkpoints_outlives_a_collection(
    place: Place, ws: Workspace
) -> None:
    plan = place.run(ws, "echo new > start", head="policy: {rollback_enabled: false}\n")
    collect(ws)
    require_whole(ws)
    plan.apply()
    assert (place.docs / "start").read_text() == "new\n"


def test_content_is_condemned_first_and_removed_after_the_grace_period(
    place: Place, ws: Workspace
) -> None:
    place.run(ws, random_file(100_000)).delete(force=True)
    before = place.stored()
    first = collect(ws, HOUR)
    assert (first.removed, place.stored()) == (0, before)
    assert first.condemned == first.waiting > 0
    place.clock.time += timedelta(minutes=59)
    assert collect(ws, HOUR).removed == 0
    place.clock.time += timedelta(minutes=2)
    assert collect(ws, HOUR).removed == first.condemned
    assert place.stored() < 10_000


def test_the_clock_alone_never_condemns(place: Place, ws: Workspace) -> None:
    plan = place.run(ws, random_file(1000))
    place.clock.time += timedelta(days=1000)
    assert collect(ws).removed == 0
    require_whole(ws)
    plan.rollback("first")


def test_condemned_content_that_is_needed_again_is_pardoned(place: Place, ws: Workspace) -> None:
    step = "seq 1 20000 > numbers"
    place.run(ws, step).delete(force=True)
    assert collect(ws, HOUR).condemned > 0
    plan = place.run(ws, step)
    needed = gc.live_keys(ws.ctx)
    assert not [k for k, _, condemned in ws.ctx.store.objects.all() if condemned and k in needed]
    place.clock.time += timedelta(hours=2)
    collect(ws, HOUR)
    require_whole(ws)
    plan.rollback("first")
    plan.resume()
    assert Path(plan.sandboxes["docs"], "numbers").stat().st_size > 100_000


def test_content_that_came_into_use_while_a_collection_was_at_work_stays(place: Place) -> None:
    """The plan commits after the collection has looked round and before it removes anything."""
    writer = place.open()
    step = "seq 1 20000 > numbers"
    place.run(writer, step).delete(force=True)
    writer.ctx.manager.packs.close()
    plans: list[PlanHandle] = []

    def meanwhile() -> str:
        if not plans:
            plans.append(place.run(writer, step))
            writer.ctx.manager.packs.close()
        return place.clock()

    settings = Settings(home=str(place.root / "store"), confine="off")
    with open_workspace(settings=settings, now=meanwhile) as slow:
        collect(slow)
    assert plans, "the collection never looked at the clock"
    require_whole(place.open())
    plans[0].rollback("first")
    plans[0].undo()
    assert Path(plans[0].sandboxes["docs"], "numbers").stat().st_size > 100_000


def test_content_removed_between_capture_and_commit_is_never_acknowledged(
    place: Place, ws: Workspace
) -> None:
    """A checkpoint found it there; before its commit a collection took it away."""
    other = place.open()
    packs = ws.ctx.manager.packs
    with packs.batch() as first:
        key = first.put(BLOB, b"wanted again")
        keep(ws, first)
    with packs.batch() as batch:
        assert batch.put(BLOB, b"wanted again") == key
        batch.seal()
        assert collect(other).removed == 1
        with pytest.raises(CheckpointFailed):
            keep(ws, batch)
    with packs.batch() as again:
        again.put(BLOB, b"wanted again")
        keep(ws, again)
    assert packs.get(key) == b"wanted again"


def keep(ws: Workspace, batch: packing.Batch) -> None:
    """What the service does with a batch when it commits a group."""
    batch.seal()
    with ws.ctx.store.transaction():
        ws.ctx.store.objects.add(batch.located.items())
        if ws.ctx.store.objects.reuse(batch.reused):
            raise CheckpointFailed("gone")


def test_packs_that_filled_up_before_the_commit_are_not_collected(
    place: Place, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cleveragents.content.pack_file.PACK_LIMIT", 10_000)
    monkeypatch.setattr(packing, "FLUSH_AT", 4_000)
    packs = ws.ctx.manager.packs
    with packs.batch() as batch:
        wanted = {batch.put(BLOB, data): data for data in (os.urandom(3000) for _ in range(12))}
        batch.seal()
        assert len(packs.names()) > 2
        collect(place.open())
        keep(ws, batch)
    for key, data in wanted.items():
        assert packs.get(key) == data


def test_a_pack_is_rewritten_once_most_of_it_is_unused(place: Place, ws: Workspace) -> None:
    plan = place.run(ws, "echo kept > kept")
    place.run(ws, random_file(200_000)).delete(force=True)
    reader = place.open()
    keys = [key for key, _, _ in reader.ctx.store.objects.all()]
    contents = {key: reader.ctx.manager.packs.get(key) for key in keys}
    ws.ctx.manager.packs.close()
    found = collect(place.open())
    assert found.packs_rewritten == 1
    for key, _, _ in reader.ctx.store.objects.all():
        assert reader.ctx.manager.packs.get(key) == contents[key]
    plan.rollback("first")
    require_whole(place.open())


def test_a_pack_that_is_written_to_just_before_it_would_be_dropped_stays(
    place: Place, ws: Workspace
) -> None:
    """The collection saw a pack without content in use; before it has the lock, there is some."""
    place.run(ws, random_file(100_000)).delete(force=True)
    ws.ctx.manager.packs.close()
    collector = place.open()
    packs, plans = collector.ctx.manager.packs, []
    lock = packs.try_lock

    def late(pack: str) -> int | None:
        if not plans:
            plans.append(place.run(ws, "echo new > new"))
            ws.ctx.manager.packs.close()
        return lock(pack)

    packs.try_lock = late  # type: ignore[method-assign]
    collect(collector)
    assert plans
    require_whole(place.open())
    plans[0].rollback("first")


def test_content_that_moves_while_it_is_looked_up_is_found(place: Place, ws: Workspace) -> None:
    plan = place.run(ws, "echo kept > kept")
    place.run(ws, random_file(200_000)).delete(force=True)
    ws.ctx.manager.packs.close()
    reader, moved = place.open(), []
    index = reader.ctx.store.objects
    find = index.find

    def slow(key: bytes) -> pack_file.Location | None:
        found = find(key)
        if not moved:
            moved.append(collect(place.open()))
        return found

    index.find = slow  # type: ignore[method-assign]
    [row, *_] = plan.checkpoints()
    assert reader.ctx.manager.packs.get(row.root_key)
    assert moved[0].packs_rewritten == 1


def test_a_dry_run_changes_nothing_and_foretells_what_happens(place: Place, ws: Workspace) -> None:
    place.run(ws, random_file(100_000)).delete(force=True)
    place.run(ws, "echo kept > kept")
    before = (everything(place), place.stored())
    told = collect(ws, dry_run=True)
    assert (everything(place), place.stored()) == before
    assert told.dry_run
    done = collect(ws)
    assert (told.live, told.removed, told.condemned) == (done.live, done.removed, done.condemned)
    assert done.removed > 0


def everything(place: Place) -> list[str]:
    """All rows there are."""
    with closing(sqlite3.connect(place.root / "store/store.db")) as db:
        return list(db.iterdump())


def test_a_checkpoint_is_made_also_if_a_collection_takes_content_it_had_found(
    place: Place, ws: Workspace
) -> None:
    """Tidying up is no reason for a plan to fail: what is gone is stored once more."""
    step = "seq 1 20000 > numbers"
    plan = place.run(ws, "echo x > x")
    place.run(ws, step).delete(force=True)
    other = place.open()
    subprocess.run(["/bin/sh", "-c", step], cwd=plan.sandboxes["docs"], check=True)
    with hold(ws.ctx.store, plan.plan_id, "test", ws.ctx.now) as lease:
        leased = LeasedPlan(ws.ctx.store, plan.plan, lease, ws.ctx.now)
        request = CheckpointRequest(prepare=lambda _now: collect(other))
        ws.ctx.checkpoints.create_checkpoint(CheckpointType.MANUAL, leased, request)
    require_whole(place.open())
    plan.rollback("first")
    plan.undo()
    assert Path(plan.sandboxes["docs"], "numbers").stat().st_size > 100_000


def test_a_plan_and_collectors_at_the_same_time_lose_nothing(agents: Agents) -> None:
    """It prunes its own groups and uses their content again, the collectors run without pause."""
    steps = "\n".join(
        f"  - {{id: s{n}, run: 'seq 1 {5000 + n % 3} > numbers; echo {n} > n'}}" for n in range(12)
    )
    (agents.work / "docs").mkdir()
    (agents.work / "plan.yaml").write_text(
        "name: busy\nresources: {docs: {kind: fs-directory, path: docs}}\n"
        f"policy: {{max_checkpoints_per_plan: 2}}\nsteps:\n{steps}\n"
    )
    agents.run("plan", "list").expect(0)
    script = f"while :; do {command()} gc --grace 0s -q || exit 1; done"
    collectors = [
        subprocess.Popen(["/bin/sh", "-c", script], env=agents.env, cwd=agents.work, **own_group())
        for _ in range(2)
    ]
    try:
        done = agents.run("plan", "run", "plan.yaml", "--json")
        assert [one.poll() for one in collectors] == [None, None], "a collector failed"
    finally:
        for one in collectors:
            os.killpg(one.pid, 9)
            one.wait()
    if done.rc:
        assert "of content needed again had been collected" in done.data["error"]["message"]
    agents.run("check", "--read-data").expect(0)
    agents.run("plan", "resume", "last").expect(0)
    agents.run("plan", "rollback", "last", "first", "--yes").expect(0)


def own_group() -> dict[str, Any]:
    return {"start_new_session": True, "stdout": subprocess.DEVNULL}


def test_a_restore_that_is_not_finished_keeps_what_it_needs(place: Place, ws: Workspace) -> None:
    """The target of an open intent is needed, whatever else happens to its group."""
    plan = place.run(ws, random_file(50_000), "rm start")
    before = look(Path(plan.sandboxes["docs"]))
    plan.rollback("first")
    collect(ws)
    plan.undo()
    require_same(look(Path(plan.sandboxes["docs"])), before)


# what a kept group needs is in the store once its sandbox is gone


@pytest.mark.parametrize("how", ["apply", "delete of another plan"])
def test_what_a_plan_changed_in_a_repository_is_in_the_store_after_the_sandbox_is_gone(
    agents: Agents, how: str
) -> None:
    repo = agents.work / "repo"
    repo.mkdir()
    for name in ("changed", "same"):
        (repo / name).write_text(f"{name}\n" * 100)
    for argv in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run(["git", *argv], cwd=repo, env=agents.env, check=True)
    (agents.work / "plan.yaml").write_text(
        "name: p\nresources: {app: {kind: git-checkout, path: repo}}\n"
        "steps: [{id: one, run: 'echo new > changed'}]\n"
    )
    agents.run("plan", "run", "plan.yaml").expect(0)
    if how == "apply":
        agents.run("plan", "apply", "last", "--yes").expect(0)
    else:
        first = agents.run("plan", "list", "--json").data["plans"][0]["plan_id"]
        agents.run("plan", "run", "plan.yaml").expect(0)
        agents.run("plan", "delete", "last", "--yes").expect(0)
        agents.run("plan", "rollback", first, "first", "--yes").expect(0)
        agents.run("plan", "resume", first).expect(0)
        return
    agents.run("gc", "--grace", "0s").expect(0)
    agents.run("check", "--read-data").expect(0)
    argv = ["git", "rev-parse", "HEAD:same"]
    same = subprocess.check_output(argv, cwd=repo, env=agents.env, text=True).strip()
    shutil.rmtree(repo)
    shown = agents.run("plan", "diff", "last", "--from", "first", "--to", "last", "--json")
    assert shown.expect(0).data["files_changed"] == 1
    assert "-changed" in shown.data["patch"]
    with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as ws:
        needed = gc.live_keys(ws.ctx)
        missing = [key.hex() for key in needed if not ws.ctx.manager.packs.has(key)]
    # What the plan never changed stays borrowed: our ref keeps it as long as there are groups.
    assert missing == [b"g".hex() + same]


# check


def damage(place: Place, ws: Workspace, kind: bytes, how: Callable[[Path, Any], None]) -> bytes:
    """Do something to the largest object of that kind; its key."""
    found = [(key, where) for key, where, _ in ws.ctx.store.objects.all() if key[:1] == kind]
    key, where = max(found, key=lambda item: item[1].length)
    how(place.content / where.pack, where)
    return key


def flip(path: Path, where: Any) -> None:
    data = bytearray(path.read_bytes())
    data[where.offset + where.length - 1] ^= 4
    path.write_bytes(data)


def truncate(path: Path, where: Any) -> None:
    os.truncate(path, where.offset + where.length - 1)


def remove(path: Path, _where: Any) -> None:
    path.unlink()


def test_a_store_that_is_whole_has_no_problem(place: Place, ws: Workspace) -> None:
    place.run(ws, random_file(300_000), "rm start")
    before = everything(place)
    found = check(place.open().ctx, read_data=True)
    assert found.problems == ()
    assert found.bytes_read > 300_000
    assert found.plans == 1
    assert everything(place) == before


@pytest.mark.parametrize(
    ("kind", "how", "read_data", "word"),
    [
        (BLOB, remove, False, "is missing"),
        (BLOB, truncate, False, "ends before"),
        (BLOB, flip, True, "is damaged"),
        (TREE, flip, False, "is damaged"),
        (TREE, flip, True, "is damaged"),
        (TREE, truncate, False, "ends before"),
    ],
)
def test_check_finds_what_is_damaged(
    place: Place,
    ws: Workspace,
    kind: bytes,
    how: Callable[[Path, Any], None],
    read_data: bool,
    word: str,
) -> None:
    place.run(ws, random_file(100_000), "rm start")
    damage(place, ws, kind, how)
    problems = check(place.open().ctx, read_data=read_data).problems
    assert any(word in problem for problem in problems), problems


def test_check_finds_every_single_damaged_object(place: Place, ws: Workspace) -> None:
    place.run(ws, "echo a > a", "mkdir d; echo b > d/b", "rm start")
    other = place.open()
    for key, where, _ in list(ws.ctx.store.objects.all()):
        path = place.content / where.pack
        whole = path.read_bytes()
        flip(path, where)
        assert check(other.ctx, read_data=True).problems, key
        path.write_bytes(whole)
    assert check(other.ctx, read_data=True).problems == ()


def test_check_finds_content_that_the_index_lost(place: Place, ws: Workspace) -> None:
    place.run(ws, random_file(1000))
    with closing(sqlite3.connect(place.root / "store/store.db")) as db, db:
        db.execute("DELETE FROM objects WHERE substr(key, 1, 1) = x'62'")
    problems = check(place.open().ctx).problems
    assert any("missing" in problem for problem in problems)


@pytest.fixture
def damaged(agents: Agents) -> Agents:
    """A plan of two steps; the first version of one file is damaged."""
    docs = agents.work / "docs"
    docs.mkdir()
    (docs / "file").write_bytes(b"first version, unique in the store")
    (agents.work / "plan.yaml").write_text(
        "name: p\nresources: {docs: {kind: fs-directory, path: docs}}\n"
        "steps:\n  - {id: one, run: 'echo other > other', checkpoint: fine}\n"
        "  - {id: two, run: 'echo second > file; rm other', checkpoint: end}\n"
        "  - {id: three, run: 'echo third > file'}\n"
    )
    agents.run("plan", "run", "plan.yaml").expect(0)
    for pack in Path(agents.env["CLEVERAGENTS_HOME"], "content").iterdir():
        data = pack.read_bytes()
        assert data.count(b"unique in the store") == 1
        pack.write_bytes(data.replace(b"unique in the store", b"uniQue in the store"))
    return agents


def test_damage_is_exit_code_6(damaged: Agents) -> None:
    damaged.run("check").expect(0)
    found = damaged.run("check", "--read-data", "--json").expect(6)
    assert found.json["status"] == "error"
    (problem,) = found.data["problems"]
    assert found.data["error"]["type"] == "StoreError"
    shown = damaged.run("check", "--read-data").expect(6)
    assert (shown.stdout + shown.stderr).count(problem) == 1
    assert (found.data["damaged"], found.data["error"]["hint"]) == (True, "restore from a backup")
    damaged.run("plan", "list").expect(0)


@pytest.mark.parametrize("target", ["first", "fine"])
def test_a_rollback_that_needs_damaged_content_touches_nothing(
    damaged: Agents, target: str
) -> None:
    home = Path(damaged.env["CLEVERAGENTS_HOME"])
    [sandbox] = (home / "sandboxes").glob("*/docs")
    before = look(sandbox)
    status = damaged.run("plan", "status", "last", "--json").data
    refused = damaged.run("plan", "rollback", "last", target, "--yes", "--json").expect(6)
    assert refused.data["error"]["type"] == "ContentDamaged"
    require_same(look(sandbox), before)
    assert damaged.run("plan", "status", "last", "--json").data == status
    with closing(sqlite3.connect(home / "store.db")) as db:
        assert db.execute("SELECT count(*) FROM intents").fetchone() == (0,)
    assert list((home / "sandboxes").glob("*/.staging-*")) == []


def test_a_rollback_that_needs_only_what_is_whole_works(damaged: Agents) -> None:
    damaged.run("plan", "rollback", "last", "end", "--yes").expect(0)
    [sandbox] = Path(damaged.env["CLEVERAGENTS_HOME"], "sandboxes").glob("*/docs")
    assert (sandbox / "file").read_text() == "second\n"


def test_a_database_that_is_damaged_is_exit_code_6(agents: Agents) -> None:
    agents.run("plan", "list").expect(0)
    home = Path(agents.env["CLEVERAGENTS_HOME"])
    for side in ("-wal", "-shm"):
        Path(f"{home}/store.db{side}").unlink(missing_ok=True)
    data = bytearray((home / "store.db").read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    (home / "store.db").write_bytes(data)
    assert agents.run("check", "--json").rc == 6
    assert agents.run("plan", "list", "--json").rc == 6


def test_a_damaged_manifest_is_never_taken_for_an_empty_directory(
    place: Place, ws: Workspace
) -> None:
    plan = place.run(ws, "echo new > new", "mkdir d; echo x > d/x")
    before = look(Path(plan.sandboxes["docs"]))
    for key, where, _ in list(ws.ctx.store.objects.all()):
        if key[:1] == TREE:
            flip(place.content / where.pack, where)
    again = place.open().find("last")
    with pytest.raises(ContentDamaged):
        again.rollback("first")
    require_same(look(Path(plan.sandboxes["docs"])), before)


def test_a_collection_with_damaged_manifests_removes_nothing(place: Place, ws: Workspace) -> None:
    """What cannot be read cannot be known to be unused."""
    place.run(ws, "echo new > new")
    damage(place, ws, TREE, flip)
    place.run(ws, random_file(1000)).delete(force=True)
    fresh = place.open()
    before = place.stored()
    with pytest.raises(StoreError):
        collect(fresh)
    assert place.stored() == before


def test_a_store_that_is_full_refuses_and_works_again_after_a_collection(place: Place) -> None:
    settings = Settings(home=str(place.root / "store"), confine="off", content_budget=400_000)
    with open_workspace(settings=settings, now=place.clock) as small:
        place.run(small, random_file(300_000)).delete(force=True)
        with pytest.raises(StoreError, match="budget"):
            place.run(small, random_file(300_000))
        collect(small)
        small.find("last").delete(force=True)
        place.run(small, random_file(300_000))


def test_a_pruned_group_is_refused_by_name_and_its_content_freed(
    place: Place, ws: Workspace
) -> None:
    plan = place.run(ws, *[f"head -c 50000 /dev/urandom > f{n}" for n in range(4)])
    before = groups_of(plan)
    settings = Settings(home=str(place.root / "store"), max_checkpoints_per_plan=2)
    with open_workspace(settings=settings, now=place.clock) as strict:
        verdicts = checkpoints.prune_plan(strict.ctx, strict.find("last").plan)
    dropped = [v.group_id for v in verdicts if not v.keep]
    assert dropped
    assert set(groups_of(plan)) == set(before) - set(dropped)
    collect(ws)
    require_whole(ws)
