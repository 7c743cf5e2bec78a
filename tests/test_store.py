"""The store: what it promises to remember, who may write, which groups stay."""

import os
import re
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleveragents.errors import (
    LeaseLost,
    NotFound,
    PlanBusy,
    StoreError,
)
from cleveragents.lease import (
    LeasedPlan,
    hold,
    holder,
)
from cleveragents.model import ids
from cleveragents.model.checkpoint import Checkpoint, CheckpointGroup, CheckpointType
from cleveragents.model.decision import Decision, DecisionKind, DecisionState
from cleveragents.model.ids import new_id
from cleveragents.model.plan import Phase, Plan, State, Step, StepState
from cleveragents.model.resource import Resource, SandboxRecord, SandboxState
from cleveragents.model.retention import Candidate, CheckpointRetentionPolicy, judge
from cleveragents.store import Intent, Store, open_store
from cleveragents.store.database import connect
from cleveragents.store.schema import scripts, text_of
from cleveragents.workspace import open_workspace
from tests.databases import REFUSED, Where
from tests.in_process import Yard
from tests.scratch import query

NOW = "2026-01-02T03:04:05.000000+00:00"


@pytest.fixture
def home(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def store(where: Where) -> Generator[Store]:
    opened = where.open(lease_time=600.0)
    yield opened
    opened.close()


def add_plan(store: Store, **fields: Any) -> Plan:
    spec = {"name": "p", "resources": [], "steps": []}
    values = {"plan_dir": "/", "source_path": "", "source_text": "", "spec": spec, **fields}
    plan = Plan(plan_id=new_id(), name="p", created_at=NOW, updated_at=NOW, **values)
    with store.transaction():
        store.plans.add(plan, [])
    return plan


def add_sandbox(store: Store, plan: Plan, name: str = "") -> SandboxRecord:
    resource = Resource(
        resource_id=name or new_id(),
        plan_id=plan.plan_id,
        name=name or "app",
        kind="fs-directory",
        path="/x",
        strategy="copy_on_write",
    )
    record = SandboxRecord(
        sandbox_id=new_id(),
        plan_id=plan.plan_id,
        resource_id=resource.resource_id,
        strategy="copy_on_write",
        path="/s",
        root="/s",
        state=SandboxState.READY,
        identity="1:1",
        origin={},
        created_at=NOW,
    )
    with store.transaction():
        store.resources.add([resource])
        store.resources.put_sandbox(record)
    return record


def group_of(plan_id: str, **fields: Any) -> CheckpointGroup:
    values = {
        "group_id": new_id(),
        "decision_id": None,
        "checkpoint_type": CheckpointType.ON_DECISION,
        "triggers": ("on_decision",),
        "label": None,
        "step_index": 0,
        "version": 1,
        "view_mark": 1,
        "members": {},
        "created_at": NOW,
    }
    return CheckpointGroup(plan_id=plan_id, **{**values, **fields})


def add_group(store: Store, record: SandboxRecord, **fields: Any) -> CheckpointGroup:
    group = group_of(record.plan_id, **fields)
    row = Checkpoint(
        checkpoint_id=new_id(),
        group_id=group.group_id,
        plan_id=record.plan_id,
        resource_id=record.resource_id,
        sandbox_ref=record.sandbox_id,
        decision_id=None,
        checkpoint_type=group.checkpoint_type,
        step_index=0,
        state_hash="ab",
        label=group.label,
        filesystem_path="/s",
        size_bytes=10,
        created_at=NOW,
        metadata_json={"reason": "test"},
        root_key=b"t" + b"\1" * 32,
    )
    group = msgspec.structs.replace(group, members={record.resource_id: row.checkpoint_id})
    with store.transaction():
        store.checkpoints.add(group, [row])
    return group


# The database


@pytest.mark.parametrize(
    ("pragma", "wanted"), [("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)]
)
def test_what_was_acknowledged_survives_a_power_cut(home: str, pragma: str, wanted: object) -> None:
    os.makedirs(home)
    with closing(connect(f"{home}/store.db")) as opened:
        assert opened.execute(f"PRAGMA {pragma}").fetchone()[0] == wanted


def test_writers_wait_for_each_other_at_least_half_a_minute(home: str) -> None:
    os.makedirs(home)
    with closing(connect(f"{home}/store.db")) as opened:
        assert opened.execute("PRAGMA busy_timeout").fetchone()[0] >= 30_000


def test_a_setting_that_has_no_effect_is_an_error() -> None:
    with pytest.raises(StoreError, match="journal_mode"):
        connect(":memory:")


def test_a_file_that_is_no_database_is_an_error_of_the_store(home: str) -> None:
    os.makedirs(home)
    Path(home, "store.db").write_bytes(b"something else\n" * 1000)
    with pytest.raises(StoreError, match="damaged"):
        open_store(home)


def test_nobody_else_can_read_the_store(home: str) -> None:
    before = os.umask(0)
    try:
        with closing(open_store(home)) as opened:
            add_plan(opened)
            paths = [home, *(f"{home}/{name}" for name in os.listdir(home))]
            assert len(paths) > 1
            modes = {path: stat.S_IMODE(os.stat(path).st_mode) for path in paths}
            assert {path for path, mode in modes.items() if mode & 0o077} == set()
    finally:
        os.umask(before)


def test_two_processes_may_make_the_store_at_the_same_time(home: str) -> None:
    statuses = in_children([lambda: open_store(home).close() for _ in range(6)])
    assert statuses == [0] * 6
    with closing(open_store(home)) as opened:
        assert opened.integrity() == []


def commit_twice(store: Store, plan: Plan) -> None:
    with store.transaction():
        store.plans.commit(plan)
        store.plans.commit(plan)


def test_a_transaction_that_fails_leaves_nothing(store: Store, where: Where) -> None:
    plan = add_plan(store)
    changed = msgspec.structs.replace(plan, name="changed")
    with pytest.raises(LeaseLost):
        commit_twice(store, changed)
    assert store.plans.get(plan.plan_id) == plan
    assert where.query("SELECT max(version) FROM history")[0] == (0,)


PLAN = (
    "INSERT INTO plans VALUES (1, ?, 'n', ?, ?, 1, 1, NULL, '', '', '', '{}', -1,"
    " NULL, NULL, 0, 0, 'null', 'null', 'null', '', '', NULL)"
)
FINE = {"id": "P", "phase": "execute", "state": "queued"}


@pytest.mark.parametrize(
    ("field", "value"), [("phase", "later"), ("state", "stuck"), ("id", None), ("state", None)]
)
def test_the_table_refuses_a_plan_that_cannot_be(
    store: Store, where: Where, field: str, value: object
) -> None:
    with pytest.raises(REFUSED):
        where.query(PLAN, tuple({**FINE, field: value}.values()))
    where.query(PLAN, tuple(FINE.values()))
    with pytest.raises(REFUSED):
        where.query(PLAN, tuple(FINE.values()))


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("checkpoint_groups", "checkpoint_type", "whenever"),
        ("checkpoints", "checkpoint_type", "whenever"),
        ("checkpoints", "group_id", "nobody"),
        ("checkpoints", "sandbox_ref", "/a/path"),
        ("checkpoints", "plan_id", "nobody"),
        ("checkpoint_groups", "plan_id", "nobody"),
        ("group_members", "checkpoint_id", "nobody"),
        ("sandboxes", "state", "gone"),
        ("sandboxes", "resource_id", "nobody"),
        ("resources", "plan_id", "nobody"),
        ("intents", "kind", "guess"),
        ("intents", "state", "maybe"),
        ("intents", "plan_id", "nobody"),
    ],
)
def test_the_tables_refuse_what_is_not_in_the_closed_set_or_has_no_parent(
    store: Store, where: Where, table: str, column: str, value: str
) -> None:
    plan = add_plan(store)
    add_group(store, add_sandbox(store, plan))
    with store.transaction():
        store.intents.put(intent(plan.plan_id))
    assert where.query(f"SELECT count(*) FROM {table}")[0] == (1,)
    with pytest.raises(REFUSED):
        where.query(f"UPDATE {table} SET {column} = ?", (value,))


def intent(plan_id: str) -> Intent:
    return Intent(
        intent_id=new_id(), plan_id=plan_id, kind="restore", state="staged", body={}, created_at=NOW
    )


def test_the_model_refuses_an_unknown_type_of_checkpoint(store: Store, where: Where) -> None:
    with pytest.raises(ValueError, match="whenever"):
        CheckpointType("whenever")
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"checkpoint_type": "whenever"}, CheckpointGroup)


def test_every_type_of_checkpoint_is_known_to_the_tables(store: Store) -> None:
    record = add_sandbox(store, add_plan(store))
    made = [add_group(store, record, checkpoint_type=kind) for kind in CheckpointType]
    assert store.checkpoints.groups(record.plan_id) == made


def test_two_resources_of_a_plan_have_two_names(store: Store) -> None:
    plan = add_plan(store)
    add_sandbox(store, plan)
    with pytest.raises(REFUSED):
        add_sandbox(store, plan)


TABLES = [
    name
    for number in scripts()
    for name in re.findall(r'CREATE TABLE "?(\w+)', text_of(number))
    if name != "store"
]


def test_deleting_a_plan_leaves_no_row_of_it(store: Store, where: Where) -> None:
    plan = add_plan(store)
    add_group(store, add_sandbox(store, plan))
    with store.transaction():
        store.intents.put(intent(plan.plan_id))
    with hold(store, plan.plan_id, "plan delete", lambda: NOW), store.transaction():
        store.plans.delete(plan.plan_id)
    left = {t: where.query(f"SELECT count(*) FROM {t}")[0][0] for t in TABLES}
    assert {table for table, count in left.items() if count} == set()
    assert store.integrity() == []


def test_rows_of_checkpoints_never_change(store: Store, where: Where) -> None:
    record = add_sandbox(store, add_plan(store))
    first, second, third = (add_group(store, record) for _ in range(3))
    before = where.query("SELECT * FROM checkpoints ORDER BY 1")
    with store.transaction():
        store.checkpoints.add_trigger(first, "before_step")
        store.checkpoints.pin(first.group_id, True)
        store.checkpoints.prune(record.plan_id, [second.group_id], NOW)
    assert where.query("SELECT * FROM checkpoints ORDER BY 1") == before
    assert store.checkpoints.group(first.group_id).triggers == ("on_decision", "before_step")
    with pytest.raises(REFUSED), store.transaction():
        store.checkpoints.add(third, [])


def test_a_groups_resources_are_in_the_order_of_the_plan_whatever_their_ids_say(
    store: Store,
) -> None:
    plan = add_plan(store)
    own = [add_group(store, add_sandbox(store, plan, name)) for name in ("zebra", "ant", "newt")]
    group = group_of(plan.plan_id, members=dict(m for g in own[::-1] for m in g.members.items()))
    with store.transaction():
        store.checkpoints.add(group, [])
    assert list(store.checkpoints.group(group.group_id).members) == ["zebra", "ant", "newt"]


def test_a_checkpoint_that_a_kept_group_refers_to_outlives_its_own(store: Store) -> None:
    record = add_sandbox(store, add_plan(store))
    own = add_group(store, record)
    later = group_of(record.plan_id, members=own.members)
    with store.transaction():
        store.checkpoints.add(later, [])
        store.checkpoints.prune(record.plan_id, [own.group_id], NOW)
    assert [g.group_id for g in store.checkpoints.groups(record.plan_id)] == [later.group_id]
    assert store.checkpoints.of_members(later)[record.resource_id].group_id == own.group_id
    with store.transaction():
        store.checkpoints.prune(record.plan_id, [later.group_id], NOW)
    assert store.checkpoints.roots() == []


def test_values_come_back_from_rows_as_they_went_in(store: Store) -> None:
    plan = add_plan(
        store, actor_state={"deep": [1, None, "ü"]}, spec={"name": "x"}, rollback_enabled=False
    )
    record = add_sandbox(store, plan)
    group = add_group(store, record, label="l", actor_state=["a"], pinned=True)
    assert store.plans.get(plan.plan_id) == plan
    assert store.resources.sandboxes(plan.plan_id) == [record]
    assert store.checkpoints.group(group.group_id) == group


# History

STEPS = ("one", "two", "three")


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sets(st.sampled_from(STEPS)),
            st.sampled_from(list(StepState)),
            st.booleans(),
            st.sampled_from(list(State)),
            st.one_of(st.none(), st.integers(), st.text(max_size=3)),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_the_history_shows_every_earlier_view(
    changes: list[tuple[set[str], StepState, bool, State, Any]],
) -> None:

    with tempfile.TemporaryDirectory() as folder, closing(open_store(folder)) as store:
        plan = add_plan(store)
        steps = {name: step(plan.plan_id, name) for name in STEPS}
        decisions: dict[str, Decision] = {}
        seen: dict[int, tuple[State, Any, dict[str, Step], dict[str, Decision]]] = {}
        for names, step_state, decides, state, actor in changes:
            changed = [msgspec.structs.replace(steps[n], state=step_state) for n in sorted(names)]
            steps |= {item.step_id: item for item in changed}
            made = [decision(plan.plan_id)] if decides else []
            if decisions and not decides:
                made = [next(iter(decisions.values())).superseded()]
            decisions |= {item.decision_id: item for item in made}
            with store.transaction():
                wanted = msgspec.structs.replace(plan, state=state, actor_state=actor)
                plan = store.plans.commit(wanted, steps=changed, decisions=made)
            known = {s.step_id: s for s in store.plans.steps(plan.plan_id)}
            seen[plan.version] = (state, actor, known, dict(decisions))
        for version, (state, actor, known, decided) in seen.items():
            view = store.plans.view_at(plan.plan_id, version)
            assert (view.standing.state, view.standing.actor_state) == (state, actor)
            assert view.steps == known
            assert view.decisions == decided


def step(plan_id: str, name: str) -> Step:
    return Step(plan_id=plan_id, step_id=name, index=STEPS.index(name), tool="shell", resource=None)


def decision(plan_id: str) -> Decision:
    return Decision(
        decision_id=new_id(),
        plan_id=plan_id,
        kind=DecisionKind.STEP,
        question="q",
        chosen="c",
        state=DecisionState.ACTIVE,
        created_at=NOW,
    )


def test_the_view_is_marked_only_when_it_changed(store: Store) -> None:
    plan = add_plan(store)
    with store.transaction():
        same = store.plans.commit(plan)
        other = store.plans.commit(same, view_changed=True)
    assert same.view_mark == plan.view_mark
    assert other.view_mark == other.version > same.version


def test_whoever_writes_on_what_is_no_longer_newest_is_stopped(store: Store) -> None:
    plan = add_plan(store)
    with store.transaction():
        store.plans.commit(msgspec.structs.replace(plan, phase=Phase.EXECUTE))
    with pytest.raises(LeaseLost), store.transaction():
        store.plans.commit(msgspec.structs.replace(plan, phase=Phase.APPLY))
    assert store.plans.get(plan.plan_id).phase is Phase.EXECUTE


# Leases


def test_a_plan_in_use_is_refused_and_the_holder_named(store: Store) -> None:
    plan = add_plan(store)
    with hold(store, plan.plan_id, "plan execute", lambda: NOW):
        with pytest.raises(PlanBusy) as refused, hold(store, plan.plan_id, "x", lambda: NOW):
            pass
        assert f"`plan execute` (process {os.getpid()}" in refused.value.message
        assert str(os.getpid()) in refused.value.hint
    with hold(store, plan.plan_id, "plan rollback", lambda: NOW):
        pass


def test_a_plan_whose_process_is_gone_is_taken_over_at_once(where: Where, store: Store) -> None:
    plan = add_plan(store)
    store.close()

    def hold_and_die() -> None:
        with hold(where.open(), plan.plan_id, "plan execute", lambda: NOW):
            os.kill(os.getpid(), signal.SIGKILL)

    child = fork(hold_and_die)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    with closing(where.open()) as again:
        # Not even reaped: a zombie holds nothing.
        with hold(again, plan.plan_id, "plan resume", lambda: NOW) as lease:
            assert lease.epoch == 2
        os.waitpid(child, 0)


@pytest.mark.parametrize("field", ["started", "boot_id"])
def test_a_process_with_the_same_number_is_not_the_same_process(
    store: Store, where: Where, field: str
) -> None:
    plan = add_plan(store)
    with hold(store, plan.plan_id, "plan execute", lambda: NOW):
        where.query(f"UPDATE leases SET {field} = 'another'")
        with hold(store, plan.plan_id, "plan resume", lambda: NOW) as lease:
            assert lease.epoch == 2


def test_a_process_that_is_paused_still_holds(where: Where, store: Store) -> None:
    plan = add_plan(store)
    ready, write = os.pipe()

    def hold_and_wait() -> None:
        own = where.open()
        with hold(own, plan.plan_id, "plan execute", lambda: NOW):
            os.write(write, b"x")
            time.sleep(600)

    child = fork(hold_and_wait)
    try:
        os.read(ready, 1)
        os.kill(child, signal.SIGSTOP)
        with pytest.raises(PlanBusy), hold(store, plan.plan_id, "plan resume", lambda: NOW):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def elsewhere(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("cleveragents.lease.host_name", lambda: name)


def age_lease(where: Where, seconds: float) -> None:
    """As if the holder had been heard of so much earlier."""
    where.query("UPDATE leases SET heard_at = heard_at - ?", (seconds,))


def test_on_another_machine_only_time_tells(
    store: Store, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, now = add_plan(store), lambda: NOW
    elsewhere(monkeypatch, "first")
    with hold(store, plan.plan_id, "plan execute", now):
        elsewhere(monkeypatch, "second")
        age_lease(where, store.lease_time * 0.5)
        found = holder(store, plan.plan_id)
        assert found is not None
        assert found.host == "first"
        with pytest.raises(PlanBusy, match="first"), hold(store, plan.plan_id, "x", now):
            pass
        age_lease(where, store.lease_time)
        with hold(store, plan.plan_id, "plan resume", now) as lease:
            assert lease.epoch == 2


def test_a_holder_that_was_paused_while_another_took_over_writes_nothing(
    store: Store, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, clock = add_plan(store), lambda: NOW
    elsewhere(monkeypatch, "awake")
    with ExitStack() as stack:
        with ExitStack() as sleep:
            elsewhere(monkeypatch, "paused")
            old = sleep.enter_context(hold(store, plan.plan_id, "plan execute", clock))
            paused = LeasedPlan(store, plan, old, clock)
            elsewhere(monkeypatch, "awake")
            age_lease(where, 2 * store.lease_time)
            lease = stack.enter_context(hold(store, plan.plan_id, "plan resume", clock))
            awake = LeasedPlan(store, store.plans.get(plan.plan_id), lease, clock)
            with pytest.raises(LeaseLost):
                paused.commit(state=State.COMPLETE)
            awake.commit(state=State.ERRORED)
            with pytest.raises(LeaseLost):
                paused.commit(state=State.COMPLETE)
            with pytest.raises(LeaseLost), store.transaction(paused.lease):
                store.intents.put(intent(plan.plan_id))
        # The paused one has let go of what it does not hold: the other goes on.
        awake.commit(state=State.QUEUED)
    with pytest.raises(LeaseLost):
        awake.commit(state=State.COMPLETE)
    assert store.plans.get(plan.plan_id).state is State.QUEUED
    assert store.intents.all() == []


def test_eight_processes_lose_no_update_and_never_find_the_database_locked(
    where: Where, store: Store
) -> None:
    plan = add_plan(store, actor_state=0)
    store.close()

    def count() -> None:
        with closing(where.open()) as own:
            for _ in range(50):
                with own.transaction():
                    now = own.plans.get(plan.plan_id)
                    own.plans.commit(msgspec.structs.replace(now, actor_state=now.actor_state + 1))

    assert in_children([count] * 8) == [0] * 8
    with closing(where.open()) as again:
        assert again.plans.get(plan.plan_id).actor_state == 400
        assert again.plans.get(plan.plan_id).version == 400


def test_of_many_processes_that_want_a_plan_one_has_it(where: Where, store: Store) -> None:
    plan = add_plan(store, actor_state=0)
    store.close()

    def work() -> None:
        done = 0
        with closing(where.open()) as own:
            while done < 10:
                try:
                    with hold(own, plan.plan_id, "plan execute", lambda: NOW) as lease:
                        leased = LeasedPlan(own, own.plans.get(plan.plan_id), lease, lambda: NOW)
                        leased.commit(actor_state=leased.plan.actor_state + 1)
                        done += 1
                except PlanBusy:
                    time.sleep(0.001)

    assert in_children([work] * 4) == [0] * 4
    with closing(where.open()) as again:
        assert again.plans.get(plan.plan_id).actor_state == 40
        assert holder(again, plan.plan_id) is None


def fork(action: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    return child


def in_children(actions: list[Callable[[], None]]) -> list[int]:
    """Exit statuses of processes that did these at the same time."""
    children = [fork(action) for action in actions]
    return [os.waitpid(child, 0)[1] for child in children]


# Ids


def test_ten_thousand_ids_of_one_millisecond_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = time.time_ns() + 10**12
    monkeypatch.setattr(time, "time_ns", lambda: moment)
    made = [new_id() for _ in range(10_000)]
    assert len(set(made)) == 10_000
    assert {len(item) for item in made} == {26}
    assert all(ids.is_id(item) for item in made)


def test_ids_tell_when_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 10**14)
    earlier = new_id()
    monkeypatch.setattr(time, "time_ns", lambda: real() + 2 * 10**14)
    assert earlier[:10] < new_id()[:10]


def test_processes_of_one_parent_make_different_ids(tmp_path: Path) -> None:
    new_id()

    def write(name: str) -> None:
        (tmp_path / name).write_text("\n".join(new_id() for _ in range(2500)))

    assert in_children([lambda n=n: write(str(n)) for n in range(4)]) == [0] * 4  # type: ignore[misc]
    made = [line for file in tmp_path.iterdir() for line in file.read_text().split()]
    assert len(set(made)) == len(made) == 10_000


# Retention


def candidates_of(*marks: str) -> list[Candidate]:
    """One group per mark, oldest first: kind[!superseded][@pinned][+label][~reachable][*bytes]."""
    made: list[Candidate] = []
    for number, mark in enumerate(marks):
        kind = mark.rstrip("!@+~")
        made.append(
            Candidate(
                group=group_of(
                    "P",
                    group_id=f"{number:026}",
                    checkpoint_type=CheckpointType(kind),
                    pinned="@" in mark,
                    label="kept" if "+" in mark else None,
                    created_at=(
                        datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
                    ).isoformat(),
                ),
                size_bytes=100,
                superseded="!" in mark,
                reachable="~" in mark,
            )
        )
    return made


def judged(
    candidates: list[Candidate], **policy: Any
) -> tuple[list[int], dict[int, tuple[bool, str]]]:
    """Numbers of the dropped groups, and every verdict."""
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    verdicts = judge(CheckpointRetentionPolicy(**policy), candidates, moment)
    assert [v.group_id for v in verdicts] == [c.group.group_id for c in candidates]
    found = {number: (v.keep, v.reason) for number, v in enumerate(verdicts)}
    return [number for number, (keep, _) in found.items() if not keep], found


@pytest.mark.parametrize(
    ("marks", "limit", "dropped"),
    [
        ("on_decision on_decision", 1, []),
        ("on_decision on_decision on_decision", 2, [1]),
        ("on_decision on_decision on_decision", 3, []),
        ("pre_execute on_decision! after_step on_decision on_decision", 4, [1]),
        ("pre_execute on_decision after_step on_decision on_decision", 4, [2]),
        ("pre_execute on_decision on_error on_decision on_decision", 4, [2]),
        ("pre_execute on_decision on_decision on_decision on_decision", 3, [1, 2]),
        ("pre_execute before_step after_step on_decision! on_decision", 3, [1, 3]),
        ("pre_execute on_decision@ on_decision+ on_decision~ on_decision", 1, []),
        ("pre_execute pre_apply manual on_decision", 2, [2]),
        ("pre_execute after_tool_execute! before_tool_execute manual on_decision", 2, [1, 2, 3]),
        ("pre_execute after_step@! after_step!+ after_step!~ on_decision", 1, []),
        ("pre_execute after_subplan on_subplan_spawn on_decision on_decision", 4, [1]),
        ("pre_execute on_decision after_step on_quiet on_quiet on_decision", 5, [3]),
        ("pre_execute on_decision! on_quiet manual on_error on_decision", 4, [1, 2]),
    ],
)
def test_groups_go_in_the_order_of_the_specification(
    marks: str, limit: int, dropped: list[int]
) -> None:
    assert judged(candidates_of(*marks.split()), max_checkpoints=limit)[0] == dropped


def test_the_last_ones_and_recent_ones_may_also_be_kept() -> None:
    groups = candidates_of(*["on_decision"] * 20)
    assert judged(groups, max_checkpoints=5, keep_last=18)[0] == [1]
    assert judged(groups, max_checkpoints=5, keep_within=timedelta(hours=7))[0] == list(
        range(1, 16)
    )


def test_a_limit_on_bytes_drops_no_more_than_needed() -> None:
    groups = candidates_of("pre_execute", "after_step", "on_decision", "after_step", "on_decision")
    assert judged(groups, max_bytes=500)[0] == []
    assert judged(groups, max_bytes=499)[0] == [1]
    assert judged(groups, max_bytes=300)[0] == [1, 3]
    assert judged(groups, max_bytes=0)[0] == [1, 2, 3]


def test_every_verdict_says_why() -> None:
    marks = "pre_execute on_decision@ on_decision+ on_decision~ pre_apply after_step on_decision"
    _, found = judged(candidates_of(*marks.split()), max_checkpoints=6)
    words = ["first", "pinned", "labelled kept", "undo", "pre_apply", "over 6", "newest"]
    for number, word in enumerate(words):
        assert word in found[number][1]


MARKS = st.builds(
    lambda kind, extra: kind + extra,
    st.sampled_from([str(kind) for kind in CheckpointType]),
    st.sampled_from(["", "", "", "!", "!", "@", "+", "~", "!@", "!~"]),
)


def protected(number: int, candidates: list[Candidate]) -> bool:
    one = candidates[number]
    return (
        number in (0, len(candidates) - 1)
        or one.group.pinned
        or one.group.label is not None
        or one.group.checkpoint_type == "pre_apply"
        or one.reachable
    )


def order(number: int, candidates: list[Candidate]) -> tuple[int, int]:
    """The rule in words: superseded, within a command, around tools and steps, decisions last."""
    one = candidates[number]
    kind = str(one.group.checkpoint_type)
    if one.superseded:
        return 0, number
    if kind == "on_quiet":
        return 1, number
    if kind.startswith(("before_", "after_")):
        return 2, number
    return (4 if kind == "on_decision" else 3), number


@given(st.lists(MARKS, min_size=1, max_size=30), st.integers(1, 30))
def test_what_is_protected_stays_and_no_more_goes_than_must(marks: list[str], limit: int) -> None:
    candidates = candidates_of(*marks)
    dropped, found = judged(candidates, max_checkpoints=limit)
    loose = [n for n in range(len(candidates)) if not protected(n, candidates)]
    assert set(dropped) <= set(loose)
    assert len(dropped) == max(0, min(len(candidates) - limit, len(loose)))
    kept = [order(n, candidates) for n in loose if n not in dropped]
    assert all(order(n, candidates) < least for n in dropped for least in kept)
    assert all(reason for _, reason in found.values())


@given(
    st.lists(st.tuples(MARKS, st.integers(0, 50)), min_size=1, max_size=15),
    st.integers(1, 15),
    st.integers(0, 400),
    st.one_of(st.none(), st.integers(1, 10)),
)
def test_with_all_limits_together_what_is_protected_stays(
    sized: list[tuple[str, int]], limit: int, max_bytes: int, keep_last: int | None
) -> None:
    candidates = [
        msgspec.structs.replace(one, size_bytes=size)
        for one, (_, size) in zip(candidates_of(*(mark for mark, _ in sized)), sized, strict=True)
    ]
    policy = {"max_checkpoints": limit, "max_bytes": max_bytes, "keep_last": keep_last}
    dropped, _ = judged(candidates, **policy)
    spared = set(range(len(candidates))[-keep_last:]) if keep_last else set()
    loose = {n for n in range(len(candidates)) if not protected(n, candidates)} - spared
    assert set(dropped) <= loose
    left = loose - set(dropped)
    kept_bytes = sum(one.size_bytes for n, one in enumerate(candidates) if n not in dropped)
    assert kept_bytes <= max_bytes or not left
    assert len(candidates) - len(dropped) <= limit or not left
    if dropped:
        last = max(dropped, key=lambda n: order(n, candidates))
        too_many = len(candidates) - len(dropped) + 1 > limit
        too_large = kept_bytes + candidates[last].size_bytes > max_bytes
        assert too_many or too_large, "one more could have stayed"


@given(st.lists(MARKS, min_size=1, max_size=12), st.integers(1, 12))
def test_pruning_twice_drops_nothing_more(marks: list[str], limit: int) -> None:
    candidates = candidates_of(*marks)
    dropped, _ = judged(candidates, max_checkpoints=limit)
    left = [one for number, one in enumerate(candidates) if number not in dropped]
    assert judged(left, max_checkpoints=limit)[0] == []


def test_what_is_not_in_the_store_is_said_to_be_missing(yard: Yard) -> None:
    with open_workspace() as ws:
        with pytest.raises(NotFound, match="no checkpoint group X"):
            ws.ctx.store.checkpoints.group("X")
        with pytest.raises(NotFound, match="no checkpoint X"):
            ws.ctx.store.checkpoints.checkpoint("X")
        with pytest.raises(NotFound, match="no plan X"):
            ws.ctx.store.plans.get("X")


def test_a_store_is_not_begun_anew_over_content_or_where_there_is_no_place(
    tmp_path: Path,
) -> None:
    (tmp_path / "home/content").mkdir(parents=True)
    (tmp_path / "home/content/x.pack").write_text("x")
    with pytest.raises(StoreError, match="has content, but its database is gone"):
        open_store(str(tmp_path / "home"))
    assert os.listdir(tmp_path / "home") == ["content"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be made"):
        open_store(str(tmp_path / "file/home"))


def test_a_store_gives_back_the_pages_it_no_longer_uses(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "home"))
    try:
        file = tmp_path / "home/store.db"
        query(file, "CREATE TABLE filler (x)")
        query(file, "INSERT INTO filler VALUES (zeroblob(4000000))")
        query(file, "DROP TABLE filler")
        query(file, "PRAGMA wal_checkpoint(TRUNCATE)")
        before = file.stat().st_size
        store.compact()
        assert file.stat().st_size < before / 2
        assert store.integrity() == []
    finally:
        store.close()
