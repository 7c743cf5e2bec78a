"""What can be known before a plan starts is said then, and nothing else is."""

import pytest

from cleveragents.errors import (
    CarryLimit,
    PlanFileError,
    UsageError,
)
from cleveragents.execution.one_shot import one_step_plan
from cleveragents.execution.preflight import preflight
from cleveragents.execution.use import nest
from cleveragents.model.plan_spec import ActorSpec, PlanSpec, ResourceSpec, StepSpec
from cleveragents.model.resource import Resource
from cleveragents.workspace import Workspace, open_workspace, settings_here
from tests.harness import Agents
from tests.in_process import PLAN, Yard, cli
from tests.rig import Shop
from tests.scratch import git


@pytest.fixture
def shop(agents: Agents) -> Shop:
    return Shop(agents, users=())


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
    error = shop.run("plan", "use", file).expect(2).data["error"]
    [problem] = error["problems"]
    assert "step 'one'" in problem
    assert f"resource '{on}' is no database" in problem
    assert shop.ok("plan", "list")["plans"] == []


def test_sql_of_a_child_plan_needs_a_database_too(shop: Shop) -> None:
    inner = "{id: in, on: docs, tool: sql, with: {script: SELECT 1}}"
    file = shop.write(f"- {{id: below, subplan: {{steps: [{inner}]}}}}")
    error = shop.run("plan", "use", file).expect(2).data["error"]
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
    error = shop.run("plan", "run", file, *MANY).expect(4).data["error"]
    assert error["type"] == "CarryLimit"
    assert "21 files" in error["message"]
    assert "beyond its commit" in error["message"]
    assert "exclude: [build" in error["hint"]
    (shop.app / "many" / "0").write_text("x" * 5000)
    error = shop.run("plan", "run", file, "--set", "sandbox.carry-limit=4kB").expect(4)
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


def problems(ws: Workspace, *resources: ResourceSpec, steps: tuple[StepSpec, ...] = ()) -> str:
    spec = PlanSpec(name="x", resources=resources, steps=steps)
    with pytest.raises(PlanFileError) as caught:
        preflight(ws.ctx, spec, "plan.yaml")
    assert caught.value.hint == "correct that and run the same command again"
    return "\n".join(caught.value.problems)


def test_preflight_names_everything_that_is_wrong_at_once(yard: Yard) -> None:
    (yard.top / "text").write_text("this is no database")
    with open_workspace() as ws:
        told = problems(
            ws,
            ResourceSpec(name="odd", kind="fs-directory", path="/\udcff"),
            ResourceSpec(name="new", kind="bucket", path="/x"),
            ResourceSpec(name="none", kind="fs-directory", path=str(yard.top / "nowhere")),
            ResourceSpec(name="wide", kind="fs-directory", path="/"),
            ResourceSpec(name="repo", kind="git-checkout", path=str(yard.app)),
            ResourceSpec(name="db", kind="sqlite", path=str(yard.top / "text")),
            ResourceSpec(name="gone", kind="sqlite", path=str(yard.top / "gone.db")),
        )
        assert ws.plans() == []
    for text in (
        "'odd': its path is not UTF-8",
        "'new': kind 'bucket' is not available yet",
        "resource 'none':",
        "resource 'wide':",
        "resource 'repo':",
        "'db': not a SQLite database",
        f"'gone': cannot open {yard.top / 'gone.db'}: No such file or directory",
    ):
        assert text in told


def test_an_unsafe_tool_needs_the_policy_to_allow_it(yard: Yard) -> None:
    text = PLAN + "tools:\n  risky: {run: [touch, x], unsafe: true}\n"
    with open_workspace() as ws:
        with pytest.raises(PlanFileError, match="tool 'risky' is unsafe"):
            ws.use(yard.plan(text))
        ws.use(yard.plan(text + "policy: {allow_unsafe: true}\n"))


def test_one_step_plans_say_what_is_wrong_with_where_or_what(yard: Yard) -> None:
    spec = one_step_plan(str(yard.app), ("/bin/echo", "hi"), None)
    assert (spec.name, spec.resources[0].kind) == ("echo", "fs-directory")
    assert spec.resources[0].path == str(yard.app.resolve())
    with pytest.raises(UsageError, match="no such directory"):
        one_step_plan(str(yard.top / "nowhere"), ("true",), None)
    with pytest.raises(UsageError, match="not UTF-8"):
        one_step_plan(str(yard.app), ("echo", "\udcff"), None)


def test_nested_resources_know_the_nearest_one_around_them() -> None:
    def made(name: str, path: str) -> Resource:
        return Resource(
            resource_id=name, plan_id="p", name=name, kind="fs-directory", path=path,
            strategy="copy_on_write",
        )  # fmt: skip

    found = {r.name: r for r in nest([made("a", "/a"), made("b", "/a/b"), made("c", "/a/b/c/d")])}
    assert (found["b"].outer, found["b"].place) == ("a", "b")
    assert (found["c"].outer, found["c"].place) == ("b", "c/d")
    assert not found["a"].outer
    assert not nest([made("a", "/a"), made("ab", "/ab")])[1].outer


def test_a_strategy_that_a_kind_does_not_have_is_refused(yard: Yard) -> None:
    wrong = ResourceSpec(
        name="app", kind="fs-directory", path=str(yard.app), strategy="git_worktree"
    )
    spec = PlanSpec(name="x", resources=(wrong,), steps=())
    with open_workspace() as ws, pytest.raises(PlanFileError, match="no strategy 'git_worktree'"):
        ws.use_spec(spec, source="here", folder=str(yard.top))


def test_a_tree_above_the_limit_is_not_carried_unasked(yard: Yard) -> None:
    settings = settings_here(None, {"sandbox.carry-limit-files": "1"})
    (yard.app / "second").write_text("")
    with open_workspace(settings=settings) as ws:
        plan = ws.use(yard.plan())
        with pytest.raises(CarryLimit):
            plan.execute()


def test_every_problem_of_a_plan_file_has_a_line_of_its_own(yard: Yard) -> None:
    path = yard.plan("name: bad\nresources: {app: {kind: fs-directory, path: nowhere}}\nstep: []\n")
    said = cli("plan", "use", path, "--json", expect=2)
    found = said.data["error"]["problems"]
    assert len(found) > 1
    lines = cli("plan", "use", path, expect=2).stderr.splitlines()
    assert [f"error: {problem}" for problem in found] == lines[: len(found)]


def test_an_actor_that_is_not_there_yet_and_a_file_for_a_folder_are_refused(yard: Yard) -> None:
    path = str(yard.app / "old.txt")
    spec = PlanSpec(
        name="x",
        resources=(ResourceSpec(name="app", kind="fs-directory", path=path),),
        steps=(),
        actor=ActorSpec(kind="process", command=("true",)),
    )
    with open_workspace() as ws, pytest.raises(PlanFileError) as caught:
        preflight(ws.ctx, spec, "plan.yaml")
    first, second = caught.value.problems
    assert "old.txt" in first
    assert second == "plan.yaml: actor kind 'process' is not available yet"


@pytest.mark.parametrize(
    ("path", "needs", "wanted"),
    [
        pytest.param("app", "two", "'needs'", id="a cycle"),
        pytest.param("aapp", "", "'path'", id="a missing path"),
        pytest.param("aapp", "", "did you mean 'app'?", id="the path nearest to a missing one"),
    ],
)
def test_a_wrong_plan_file_names_key_and_nearest(
    shop: Shop, path: str, needs: str, wanted: str
) -> None:
    plan = f"""
name: wrong
resources: {{app: {{kind: git-checkout, path: {path}}}}}
steps: [{{id: one, run: "true", needs: [{needs}]}}, {{id: two, run: "true", needs: [one]}}]
"""
    (shop.work / "wrong.yaml").write_text(plan)
    problems = shop.run("plan", "run", "wrong.yaml").expect(2).data["error"]["problems"]
    assert wanted in problems[0]
