"""Roll back: files, steps, child plans and databases, also after a process died."""

import os

import msgspec
import pytest

from cleveragents.checkpoints.restoration import (
    rewound_steps,
)
from cleveragents.errors import (
    CheckpointFailed,
    RollbackDisabled,
)
from cleveragents.model.ids import new_id
from cleveragents.model.plan import State
from cleveragents.workspace import open_workspace
from tests.harness import Agents
from tests.in_process import PLAN, TWO, Arm, Yard, box, damage_store, files
from tests.rig import Shop
from tests.scratch import is_gone


def test_a_rollback_cancels_the_child_plans_that_came_later(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        children = {}
        with ws.ctx.store.transaction():
            for name, state in (("open", State.QUEUED), ("over", State.APPLIED)):
                child = msgspec.structs.replace(
                    plan.plan,
                    plan_id=new_id(),
                    name=name,
                    state=state,
                    version=0,
                    parent_plan_id=plan.plan_id,
                    created_at=ws.ctx.now(),
                    head_group_id=None,
                    last_checkpoint_id=None,
                )
                children[name] = ws.ctx.store.plans.add(child, ()).plan_id
        result = plan.rollback("early")
        assert result.child_plans_invalidated == 1
        get = ws.ctx.store.plans.get
        assert get(children["open"]).state is State.CANCELLED
        assert get(children["over"]).state is State.APPLIED


def test_a_sandbox_written_to_during_a_rollback_is_noticed_and_finished_later(
    yard: Yard, arm: Arm
) -> None:
    many = TWO.replace("touch two", "touch two three")
    with open_workspace() as ws:
        plan = yard.done(ws, many)

        def disturb(_point: str) -> None:
            """Between two of the names that are switched."""
            if not files(plan) >= {"two", "three"}:
                (box(plan) / "intruder").write_text("x")

        arm(disturb)
        with pytest.raises(CheckpointFailed, match="is not what its checkpoint says"):
            plan.rollback("early")
        arm(None)
    with open_workspace() as ws:
        assert ws.recovered == ("plan 'yard': an interrupted restore was finished",)
        assert set(os.listdir(box(ws.find("yard")))) == {"old.txt", "one"}


def test_a_checkpoint_whose_content_is_gone_is_not_offered(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        manager = ws.ctx.manager
        rows = ws.ctx.store.checkpoints.of_plan(plan.plan_id)
        assert manager.list_checkpoints(plan.plan_id) == [row.snapshot for row in rows]
        lost = rows[0].root_key
        damage_store("DELETE FROM objects WHERE key = ?", lost)
        offered = manager.list_checkpoints(plan.plan_id)
        assert offered == [row.snapshot for row in rows if row.root_key != lost]
        assert len(offered) < len(rows)


def test_a_plan_without_rollback_refuses_to_roll_back(yard: Yard) -> None:
    text = PLAN + "policy: {rollback_enabled: false}\n"
    with open_workspace() as ws:
        plan = ws.run(yard.plan(text))
        for verb in (plan.undo, plan.redo, plan.checkpoint):
            with pytest.raises(RollbackDisabled):
                verb()


def test_steps_that_did_not_exist_then_are_removed(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        one, two = ws.ctx.store.plans.steps(plan.plan_id)
        changed, removed = rewound_steps([one, two], {"one": one})
        assert (changed, removed) == ([], ["two"])


STEPS = """
- {id: first, on: app, run: "echo first >> first.txt"}
- {id: second, on: app, run: 'test -e "$AGENTS_PLAN_DIR/go"'}
"""


@pytest.fixture
def shop(agents: Agents) -> Shop:
    return Shop(agents)


def test_a_pruned_checkpoint_is_refused_by_its_own_id_too(shop: Shop) -> None:
    shop.write(STEPS)
    (shop.work / "go").touch()
    shop.run("plan", "run", "plan.yaml").expect(0)
    noted = {g["group_id"]: g["rows"][0]["checkpoint_id"] for g in shop.groups("plan")}
    shop.run("config", "set", "max_checkpoints_per_plan", "3").expect(0)
    shop.run("plan", "prune", "plan").expect(0)
    gone = noted[shop.oldest_pruned("plan")]
    error = shop.run("plan", "rollback", "plan", gone, "--yes").expect(4).data["error"]
    assert error["type"] == "CheckpointPruned"


def test_a_plan_without_rollback_says_that_it_has_none(shop: Shop) -> None:
    shop.policy = "{rollback_enabled: false}"
    shop.write(
        '- {id: greet, on: app, run: "echo again >> greeting.txt"}',
        "plan.yaml",
        resources=("app", "db"),
    )
    shop.run("plan", "run", "plan.yaml").expect(0)
    error = shop.run("plan", "rollback", "plan", "first", "--yes").expect(4).data["error"]
    assert error["type"] == "RollbackDisabled"


def test_a_tool_that_outlived_its_process_is_ended_before_a_rollback(shop: Shop) -> None:
    wait = 'echo $$ >pid; touch waiting; until test -e "$AGENTS_PLAN_DIR/go"; do sleep 0.02; done'
    child = f"timeout 600 sh -c '{wait}'"
    shop.env["CLEVERAGENTS_SANDBOX_CONFINE"] = "off"
    shop.write(
        f"- id: wait\n  on: app\n  run: |\n    {child}\n    true",
        "plan.yaml",
        resources=("app", "db"),
    )
    shop.start_waiting()
    assert shop.process is not None
    child_pid = int((shop.sandbox() / "pid").read_text())
    shop.process.kill()
    shop.process.communicate()
    assert not is_gone(child_pid)
    shop.run("plan", "rollback", "plan", "first", "--yes").expect(0)
    assert is_gone(child_pid)


def test_a_step_that_breaks_a_resource_is_rolled_back(shop: Shop) -> None:
    shop.write(
        """- {id: drop, on: db, run: 'rm "$AGENTS_SANDBOX_DB"'}""",
        "plan.yaml",
        resources=("app", "db"),
    )
    shop.run("plan", "run", "plan.yaml").expect(5)
    assert shop.sandbox(name="db").exists()
    [step] = shop.records("SELECT state FROM steps")
    assert step["state"] == "errored"


def test_a_database_that_comes_back_is_recreated(shop: Shop) -> None:
    shop.write('- {id: idle, on: db, run: "true"}')
    shop.run("plan", "run", "plan.yaml").expect(0)
    shop.sandbox(name="db").unlink()
    rolled = shop.run("plan", "rollback", "plan", "first", "--yes").expect(0).data
    assert [item["action"] for item in rolled["changes_reverted"]] == ["recreated"]


def test_the_mode_of_the_sandbox_itself_comes_back(shop: Shop) -> None:
    shop.write('- {id: open, on: app, run: "chmod 777 ."}')
    shop.run("plan", "run", "plan.yaml").expect(0)
    shop.run("plan", "rollback", "plan", "first", "--yes").expect(0)
    assert os.stat(shop.sandbox()).st_mode & 0o777 != 0o777
