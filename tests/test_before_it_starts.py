"""What can be known before a plan starts is said then, and nothing else is."""

import pytest

from tests.harness import Agents
from tests.plans import Shop
from tests.scratch import git


@pytest.fixture
def shop(agents: Agents) -> Shop:
    return Shop(agents)


@pytest.mark.parametrize(
    ("tool", "more"),
    [
        ("tool: sql, with: {script: SELECT 1}", ""),
        ("tool: own", "tools: {own: {sql: SELECT 1}}"),
    ],
)
@pytest.mark.parametrize("on", ["app", "docs"])
def test_sql_needs_a_database(shop: Shop, tool: str, more: str, on: str) -> None:
    file = shop.write(f"- {{id: one, on: {on}, {tool}}}", more=more)
    error = shop.agent("plan", "use", file).expect(2).data["error"]
    [problem] = error["problems"]
    assert "step 'one'" in problem
    assert f"resource '{on}' is no database" in problem
    assert shop.ok("plan", "list")["plans"] == []


def test_sql_of_a_child_plan_needs_a_database_too(shop: Shop) -> None:
    inner = "{id: in, on: docs, tool: sql, with: {script: SELECT 1}}"
    file = shop.write(f"- {{id: below, subplan: {{steps: [{inner}]}}}}")
    error = shop.agent("plan", "use", file).expect(2).data["error"]
    assert "is no database" in error["message"]


def test_sql_on_a_database_is_fine(shop: Shop) -> None:
    shop.ran('- {id: one, on: db, tool: sql, with: {script: "DELETE FROM users"}}')


MANY = ("--set", "sandbox.carry-limit-files=20")


def tracked(shop: Shop, number: int) -> None:
    (shop.app / "many").mkdir()
    for n in range(number):
        (shop.app / "many" / str(n)).write_text("x" * 100)
    git(shop.agents, shop.app, "add", "-A")
    git(shop.agents, shop.app, "commit", "-q", "-m", "many")


def test_files_of_the_commit_do_not_count_as_carried(shop: Shop) -> None:
    tracked(shop, 30)
    file = shop.write('- {id: one, run: "ls many | wc -l > count"}')
    shop.ok("plan", "run", file, *MANY)
    shop.ok("plan", "run", file, "--set", "sandbox.carry-limit=2kB")
    assert shop.read("count") == "30\n"


def test_what_comes_beyond_the_commit_counts(shop: Shop) -> None:
    tracked(shop, 30)
    (shop.app / "build").mkdir()
    for n in range(21):
        (shop.app / "build" / f"{n}.log").write_text("")
    file = shop.write('- {id: one, run: "true"}')
    error = shop.agent("plan", "run", file, *MANY).expect(4).data["error"]
    assert error["type"] == "CarryLimit"
    assert "21 files" in error["message"]
    assert "beyond its commit" in error["message"]
    assert "exclude: [build" in error["hint"]
    (shop.app / "many" / "0").write_text("x" * 5000)
    error = shop.agent("plan", "run", file, "--set", "sandbox.carry-limit=4kB").expect(4)
    assert "many" in error.data["error"]["hint"]


@pytest.mark.parametrize("carry", ["tracked", "committed"])
def test_what_is_not_carried_does_not_count(shop: Shop, carry: str) -> None:
    for n in range(30):
        (shop.app / f"{n}.log").write_text("")
    (shop.work / "plan.yaml").write_text(
        f"name: plan\nresources: {{app: {{kind: git-checkout, path: app, carry: {carry}}}}}\n"
        "steps: [{run: 'true'}]\n"
    )
    shop.ok("plan", "run", "plan.yaml", *MANY)
