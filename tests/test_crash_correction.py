"""The process dies at any moment of a correction or of child plans: never a mixture.

See `test_crash.py`; CLEVERAGENTS_TEST_FULL=1 tries every point.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.databases import store_of
from tests.test_crash import FULL, SAMPLE, Crashes, World, crashes, nothing, numbers, rows

__all__ = ["crashes"]

CORRECTED = """
name: small
resources:
  app: {kind: git-checkout, path: repo}
  docs: {kind: fs-directory, path: docs}
  db: {kind: sqlite, path: app.db}
steps:
  - {id: code, on: app, run: "echo new > a; mkdir n; echo c > n/c; rm gone/x; rmdir gone"}
  - {id: apart, on: app, run: "echo apart >> apart"}
  - {id: text, on: docs, run: "echo text >> text", needs: [code]}
  - {id: rows, tool: sql, on: db, with: {script: "INSERT INTO t VALUES (2)"}, needs: [code]}
"""
CHILDREN = """
name: small
resources:
  app: {kind: git-checkout, path: repo}
  docs: {kind: fs-directory, path: docs}
  db: {kind: sqlite, path: app.db}
policy: {max_parallel: 1}
steps:
  - {id: apart, on: app, run: "echo apart >> apart"}
  - id: code
    subplan:
      group: g
      steps:
        - {id: c, on: app, run: "echo new > a; mkdir n; echo c > n/c; rm gone/x; rmdir gone"}
        - {id: r, tool: sql, on: db, with: {script: "INSERT INTO t VALUES (2)"}}
  - {id: text, subplan: {group: g, steps: [{id: t, on: docs, run: "echo text >> text"}]}}
"""


def place(world: World) -> Path:
    return Path(world.ok("plan", "status", "small")["sandboxes"]["app"]).parent


def parts(world: World) -> dict[str, bool]:
    """Step -> whether its work is in the plan's sandboxes; half of it is an error."""
    top = place(world)
    code = [
        (top / "repo/a").read_text() == "new\n",
        (top / "repo/n/c").exists(),
        not (top / "repo/gone").exists(),
    ]
    assert all(code) or not any(code), f"a mixture: {code}"
    found = {"code": code[0]}
    for name, path in (("apart", top / "repo/apart"), ("text", top / "docs/text")):
        text = path.read_text() if path.exists() else ""
        assert text in ("", f"{name}\n"), f"{name} was done twice: {text!r}"
        found[name] = bool(text)
    assert rows(top / "db/app.db") in ([(1,)], [(1,), (2,)])
    return found | {"rows": (2,) in rows(top / "db/app.db")}


def states(world: World) -> dict[str, str]:
    return {item["step"]: item["status"] for item in status_of(world)["progress"]}


def status_of(world: World) -> dict[str, Any]:
    return world.ok("plan", "status", "small")


def decision(world: World, question: str) -> str:
    [root] = world.ok("plan", "tree", "small")["tree"]
    return next(d["decision_id"] for d in root["children"] if d["question"] == question)


def prepared(world: World) -> None:
    world.run("plan", "run", "plan.yaml").expect(0)


def test_a_correction_that_dies_anywhere_is_whole_or_can_be_resumed(
    crashes: Crashes, subtests: pytest.Subtests
) -> None:
    again = crashes.start(prepared, CORRECTED)
    world = again()
    which = decision(world, "code")
    argv = ("plan", "correct", which, "--guidance", "again", "--yes")
    world.run(*argv).expect(0)
    total = world.points
    assert total > 0
    end = range(total - 4, total + 1)  # complete, and the correction not yet ended
    for number in sorted({*numbers(total, total if FULL else SAMPLE), *end}):
        with subtests.test(f"killed at {number} of {total}"):
            again()
            world.die(number, *argv)
            check_correction(world)


def check_correction(world: World) -> None:
    status = status_of(world)
    steps, found = states(world), parts(world)
    assert found["apart"]
    assert status["state"] != "processing"
    if status["attempt"] == 1:
        assert all(found.values()), found
        assert set(steps.values()) == {"complete"}
        return
    resumed = world.run("plan", "resume", "small", "--json").expect(0).data
    assert (resumed["state"], resumed["attempt"]) == ("complete", 2)
    assert all(parts(world).values())
    [row] = query_corrections(world)
    assert row == ("complete", 2)
    world.ok("plan", "undo", "small")
    world.require_tidy()
    world.require_whole()


def query_corrections(world: World) -> list[tuple[Any, ...]]:
    return store_of(world.env).query("SELECT state, attempt FROM correction_attempts")


def test_child_plans_that_die_anywhere_are_resumed(
    crashes: Crashes, subtests: pytest.Subtests
) -> None:
    again = crashes.start(nothing, CHILDREN)
    world = again()
    argv = ("plan", "run", "plan.yaml")
    world.run(*argv).expect(0)
    total = world.points
    for number in numbers(total, total if FULL else SAMPLE):
        with subtests.test(f"killed at {number} of {total}"):
            again()
            world.die(number, *argv)
            check_children(world)


def check_children(world: World) -> None:
    if world.run("plan", "status", "small").rc == 3:
        return  # it died before there was a plan
    status = status_of(world)
    if status["sandboxes"] and status["last_checkpoint_id"]:
        found = parts(world)
        assert found["rows"] == found["code"], found
    resumed = world.run("plan", "resume", "small", "--json").expect(0).data
    assert resumed["state"] == "complete"
    assert all(parts(world).values())
    plans = world.ok("plan", "list")["plans"]
    assert len(plans) == 3, [(p["name"], p["state"]) for p in plans]
    assert {p["state"] for p in plans} == {"complete"}
    world.require_tidy()
    world.require_whole()


def test_a_rollback_over_child_plans_that_dies_anywhere_is_whole(
    crashes: Crashes, subtests: pytest.Subtests
) -> None:
    again = crashes.start(prepared, CHILDREN)
    world = again()
    argv = ("plan", "rollback", "small", "first", "--yes")
    world.run(*argv).expect(0)
    total = world.points
    for number in numbers(total, total if FULL else SAMPLE):
        with subtests.test(f"killed at {number} of {total}"):
            again()
            world.die(number, *argv)
            check_rollback(world)


def check_rollback(world: World) -> None:
    steps, found = states(world), parts(world)
    assert len(set(found.values())) == 1, f"a mixture: {found}"
    done = found["code"]
    assert set(steps.values()) == {"complete" if done else "queued"}
    children = [p for p in world.ok("plan", "list")["plans"] if p["parent_plan_id"]]
    assert {p["state"] for p in children} == {"complete" if done else "cancelled"}
    world.run("plan", "resume", "small").expect(0)
    assert all(parts(world).values())
    world.require_tidy()
    world.require_whole()
