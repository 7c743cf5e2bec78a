"""Two machines and one database: who takes a plan over, who cannot write any more, and a restart.

A machine is a name of its own (a UTS namespace): processes of another name are only heard of.
"""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

from cleveragents.content.pack_file import MAGIC
from cleveragents.errors import LeaseLost, MachineError, PlanBusy
from cleveragents.lease import LeasedPlan, hold, is_left_behind, working_on
from cleveragents.model.plan import State
from cleveragents.store.clock import utc_now
from cleveragents.store.database import connect
from cleveragents.store.own import OwnPart
from cleveragents.workspace import open_workspace
from tests import pgserver
from tests.databases import Where, shared_store
from tests.harness import Agents, command
from tests.in_process import Yard, cli, die_while, files
from tests.scratch import wait_until
from tests.test_store import add_plan

NAMED = ["unshare", "--uts", *(() if os.geteuid() == 0 else ("--map-root-user",))]
WAITING = """\
name: two
resources: {app: {kind: fs-directory, path: app}}
steps:
  - {id: one, run: touch one}
  - {id: wait, run: "touch waiting; while ! test -e $GO; do sleep 0.05; done; touch two"}
  - {id: three, run: touch three}
"""


def can_be_named() -> bool:
    words = [*NAMED, "hostname", "somewhere"]
    return bool(shutil.which("unshare")) and subprocess.run(words, check=False).returncode == 0


def on(host: str, agents: Agents, *argv: str) -> subprocess.Popen[str]:
    """The command on a machine of that name."""
    script = 'hostname "$0" && exec "$@"'
    return subprocess.Popen(
        [*NAMED, "sh", "-c", script, host, command(), *argv],
        cwd=agents.work,
        env=agents.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(not can_be_named(), reason="no UTS namespace here")
def test_of_two_machines_one_goes_on_and_the_paused_one_writes_nothing(
    on_postgres: str, agents: Agents
) -> None:
    go = agents.work / "go"
    (agents.work / "app").mkdir()
    (agents.work / "plan.yaml").write_text(WAITING.replace("$GO", str(go)))
    agents.env |= {"CLEVERAGENTS_STORE_LEASE": "600s", "CLEVERAGENTS_SANDBOX_CONFINE": "off"}
    first = on("first", agents, "plan", "run", "plan.yaml")
    where = Where(agents.env["CLEVERAGENTS_HOME"], on_postgres)
    try:
        boxes = Path(where.home) / "sandboxes"
        wait_until(lambda: list(boxes.glob("*/app/waiting")), "the step that waits")
        refused = on("second", agents, "plan", "resume", "two")
        assert "is held by `plan run`" in refused.communicate(timeout=600)[1]
        assert refused.returncode == 4
        first.send_signal(signal.SIGSTOP)
        where.query("UPDATE leases SET heard_at = heard_at - 1000")
        go.touch()
        second = on("second", agents, "plan", "resume", "two")
        said = second.communicate(timeout=600)
        assert second.returncode == 0, said
        assert "its process ended before it finished" in said[1]
        before = where.query("SELECT * FROM plans"), where.query("SELECT * FROM history")
        first.send_signal(signal.SIGCONT)
        out, err = first.communicate(timeout=600)
        assert first.returncode == 4, (out, err)
        assert "was taken over by another process" in err
        assert (where.query("SELECT * FROM plans"), where.query("SELECT * FROM history")) == before
    finally:
        first.kill()
        first.communicate()
    [(state, completed)] = where.query("SELECT state, last_completed_step FROM plans")
    assert (state, completed) == ("complete", 2)
    good = where.query(
        "SELECT step_id, count(*) FROM tool_calls WHERE state = 'ok' GROUP BY step_id"
    )
    assert dict(good) == {"one": 1, "wait": 1, "three": 1}


def seconds(where: Where) -> float:
    """The database's clock."""
    return where.query("SELECT ((julianday('now') - 2440587.5) * 86400.0)")[0][0]


def test_takers_at_the_same_moment_get_different_epochs(where: Where) -> None:
    """Each reads the lease, finds it free and takes it; one of them is told to look again."""
    store = where.open(lease_time=600.0)
    plan = add_plan(store)
    with hold(store, plan.plan_id, "x", utc_now):
        pass
    epochs: list[int] = []
    refused: list[int] = []

    def take() -> None:
        own = where.open(lease_time=600.0)
        for _ in range(10):
            try:
                with hold(own, plan.plan_id, "x", utc_now) as lease:
                    epochs.append(lease.epoch)
            except PlanBusy:
                refused.append(1)
        own.close()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(epochs) + len(refused) == 40
    assert len(set(epochs)) == len(epochs) > 0
    store.close()


def test_a_plan_of_a_machine_that_is_gone_is_finished_when_it_is_taken(
    yard: Yard, on_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_STORE_LEASE", "600s")
    with monkeypatch.context() as there, open_workspace() as ws:
        there.setattr("cleveragents.lease.host_name", lambda: "gone")
        plan = ws.run(yard.plan())
        other = yard.use(ws, "steps: [{id: a, run: touch one}]")
        die_while(ws, plan, state=State.PROCESSING)
        die_while(ws, other, state=State.PROCESSING)
    where = Where(os.environ["CLEVERAGENTS_HOME"], on_postgres)
    with open_workspace() as ws:
        assert ws.recovered == (), "what other machines do is none of ours"
        with pytest.raises(PlanBusy, match="on gone"):
            ws.find("shop").resume()
        where.query("UPDATE leases SET heard_at = heard_at - 1000")
        plan = ws.find("shop")
        plan.resume()
        assert plan.plan.state is State.COMPLETE
        assert ws.find("yard").plan.state is State.PROCESSING, "nobody asked for it"


def test_one_that_missed_a_sign_of_life_is_waited_for_until_it_is_dead_or_heard_of(
    yard: Yard, on_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_STORE_LEASE", "600s")
    with monkeypatch.context() as there, open_workspace() as ws:
        there.setattr("cleveragents.lease.host_name", lambda: "gone")
        die_while(ws, ws.run(yard.plan()), state=State.PROCESSING)
    where = Where(os.environ["CLEVERAGENTS_HOME"], on_postgres)
    with open_workspace() as ws:
        where.query("UPDATE leases SET heard_at = heard_at - 500")
        heard = threading.Thread(
            target=where.query, args=("UPDATE leases SET heard_at = ?", (seconds(where),))
        )
        heard.start()
        with pytest.raises(PlanBusy, match="on gone"):
            ws.find("shop").resume()
        heard.join()
        where.query("UPDATE leases SET heard_at = heard_at - 598")
        plan = ws.find("shop")
        plan.resume()
        assert plan.plan.state is State.COMPLETE


def test_two_homes_on_one_host_leave_each_others_plans_alone(
    yard: Yard, on_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(os.environ["CLEVERAGENTS_HOME"])
    monkeypatch.setenv("CLEVERAGENTS_STORE_LEASE", "600s")
    with open_workspace() as ws:
        die_while(ws, ws.run(yard.plan()), state=State.PROCESSING)
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(first.with_name("second")))
    with open_workspace() as ws:
        assert ws.recovered == (), "what other homes do is none of ours"
        with pytest.raises(PlanBusy, match="is held by"):
            ws.find("shop").resume()
        Where(str(first), on_postgres).query("UPDATE leases SET heard_at = heard_at - 1000")
        assert is_left_behind(ws.ctx.store, ws.find("shop").plan_id)
    with open_workspace() as ws:
        assert ws.recovered == (), "not even now"
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(first))
    with open_workspace() as ws:
        assert ws.recovered == ("plan 'shop': its process ended before it finished",)
        ws.find("shop").resume()
        assert ws.find("shop").plan.state is State.COMPLETE


def test_a_lease_from_before_homes_were_noted_counts_as_this_ones(
    yard: Yard, on_postgres: str
) -> None:
    where = Where(os.environ["CLEVERAGENTS_HOME"], on_postgres)
    with open_workspace() as ws:
        die_while(ws, ws.run(yard.plan()), state=State.PROCESSING)
        where.query("UPDATE leases SET home = ''")
    with open_workspace() as ws:
        assert ws.recovered == ("plan 'shop': its process ended before it finished",)


def test_what_was_opened_is_opened_anew_after_somebody_else_had_the_plan(
    yard: Yard, on_postgres: str
) -> None:
    with open_workspace() as ws, open_workspace(recover=False) as other:
        plan = yard.done(ws)
        mine = ws.ctx.manager.sandboxes(plan.plan_id)
        with working_on(ws.ctx.store, plan.plan_id, "again", utc_now):
            assert ws.ctx.manager.sandboxes(plan.plan_id) is mine
        with working_on(other.ctx.store, plan.plan_id, "another", utc_now):
            pass
        with working_on(ws.ctx.store, plan.plan_id, "again", utc_now):
            assert ws.ctx.manager.sandboxes(plan.plan_id) is not mine


@pytest.mark.parametrize("lost", ["offset > 500", "1 = 1"])
def test_where_content_lies_is_found_again_after_a_power_cut(
    yard: Yard, on_postgres: str, lost: str
) -> None:
    """The commit of a group waits for content and for the server, and not for the own part."""
    own = Where(os.environ["CLEVERAGENTS_HOME"])
    with open_workspace() as ws:
        yard.done(ws)
        before = own.query("SELECT key, offset, length FROM objects ORDER BY key")
    [pack] = Path(own.home, "content").glob("*.pack")
    torn = pack.read_bytes()[len(MAGIC) :][:100]
    with open(pack, "ab") as tail:
        tail.write(torn)
    with open_workspace() as ws:
        plan = ws.find("yard")
        Path(next(iter(plan.sandboxes.values())), "late.txt").write_text("late\n")
        plan.checkpoint("later")
    after = own.query("SELECT key, offset, length FROM objects ORDER BY key")
    own.query(f"DELETE FROM objects WHERE {lost}")
    assert own.query("SELECT key, offset, length FROM objects ORDER BY key") != after
    own.query("UPDATE store SET value = 'before' WHERE name = 'boot'")
    with open_workspace() as ws:
        assert own.query("SELECT key, offset, length FROM objects ORDER BY key") == after
        assert set(before) <= set(after)
        assert ws.check(read_data=True).problems == ()
        plan = ws.find("yard")
        plan.rollback("first")
        assert files(plan) == {"old.txt"}


def test_only_what_can_be_found_again_is_not_waited_for(tmp_path: Path) -> None:
    db = connect(str(tmp_path / "store.db"))
    own = OwnPart(db, lambda: None)
    with own.lock(), own.commit():
        own.begin()
        assert db.execute("PRAGMA synchronous").fetchone() == (1,)
    assert db.execute("PRAGMA synchronous").fetchone() == (2,)
    with own.collecting(exclusive=True):
        own.begin()
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
    db.close()


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Generator[pgserver.PgServer]:
    """A server that may be restarted; others have theirs."""
    with pgserver.running() as server, shared_store(server) as url:
        monkeypatch.setenv("CLEVERAGENTS_STORE_URL", url)
        yield server


def test_a_server_that_is_restarted_loses_nothing(
    yard: Yard, own_server: pgserver.PgServer
) -> None:
    with open_workspace() as ws:
        plan, store = yard.done(ws), ws.ctx.store
        before = plan.plan
        with working_on(store, plan.plan_id, "test", utc_now) as leased:
            interrupt(own_server, leased)
            assert leased.plan == before
            assert store.plans.get(plan.plan_id) == before, "connected again"
            leased.commit(state=State.ERRORED)
        assert store.plans.get(plan.plan_id).version == before.version + 1
        assert ws.check(read_data=True).problems == ()
        plan.rollback("first")
        assert files(plan) == {"old.txt"}
    assert cli("plan", "status", "yard").rc == 0


def interrupt(server: pgserver.PgServer, leased: LeasedPlan) -> None:
    def commit() -> None:
        with leased.transaction():
            leased.write(state=State.ERRORED)
            server.stop_hard()

    with pytest.raises(MachineError, match="does not answer") as failed:
        commit()
    assert "nothing is lost" in failed.value.hint
    with pytest.raises(MachineError, match="cannot connect to the store"):
        leased.store.plans.get(leased.plan.plan_id)
    server.start()


def test_a_lease_that_was_taken_over_ends_the_commit_of_whoever_had_it(where: Where) -> None:
    store = where.open(lease_time=600.0)
    plan = add_plan(store)
    with hold(store, plan.plan_id, "x", utc_now) as lease:
        leased = LeasedPlan(store, plan, lease, utc_now)
        with store.transaction(lasts=False, alone=False):
            known = store.leases.get(plan.plan_id)
            store.leases.take(msgspec.structs.replace(lease, epoch=lease.epoch + 1), known)
        with pytest.raises(LeaseLost, match="taken over"):
            leased.commit(state=State.ERRORED)
    assert store.plans.get(plan.plan_id) == plan
    store.close()


def test_without_a_bucket_another_machine_says_what_it_can_and_who_has_the_rest(
    yard: Yard, on_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_workspace() as ws:
        done = yard.done(ws)
    here = cli("plan", "status", done.plan_id, "--json").data
    first = Path(os.environ["CLEVERAGENTS_HOME"])
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(first.with_name("second")))
    there = cli("plan", "status", done.plan_id, "--json").data
    assert (here["content_on"], there["content_on"]) == (None, os.uname().nodename)
    assert there["execution"].pop("files_modified") is None
    assert here["execution"].pop("files_modified") > 0
    for same in ("state", "progress", "checkpoints", "last_checkpoint_id"):
        assert there[same] == here[same]
    assert f"only on {os.uname().nodename}" in cli("plan", "status", done.plan_id).stdout
    listed = cli("plan", "checkpoints", done.plan_id)
    assert f"what each of them changed is only on {os.uname().nodename}" in listed.stderr
    for verb, *more in (("diff",), ("apply", "--yes"), ("rollback", "first"), ("undo",)):
        refused = cli("plan", verb, done.plan_id, *more, expect=5)
        assert f"is only on {os.uname().nodename}" in refused.stderr, verb
    assert cli("plan", "status", done.plan_id, "--json").data["state"] == here["state"]


def test_without_a_bucket_each_home_cares_for_what_it_has(
    yard: Yard, on_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_workspace() as ws:
        first = yard.done(ws)
    home = Path(os.environ["CLEVERAGENTS_HOME"])
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(home.with_name("second")))
    with open_workspace() as ws:
        second = ws.run(yard.plan())
    for here, plan_id in (("second", second.plan_id), (home.name, first.plan_id)):
        monkeypatch.setenv("CLEVERAGENTS_HOME", str(home.with_name(here)))
        with open_workspace() as ws:
            assert ws.gc(grace=0).live > 0
            assert ws.check(read_data=True).problems == ()
            ws.find(plan_id).rollback("first")
        cli("du")
