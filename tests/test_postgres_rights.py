"""A role that can do more on the server than a clone holds back is refused, or noted."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from tests.harness import Agents
from tests.pgserver import PASSWORD, Shop
from tests.test_postgres import ADD, Project, project

FIXTURES = (project,)
PROGRAM = "COPY users TO PROGRAM 'cat >/dev/null'"


@contextmanager
def role(shop: Shop, attributes: str, *granted: str) -> Generator[str]:
    """A role of the server that may clone the shop and has something more."""
    pg = shop.pg
    pg.sql("postgres", f"CREATE ROLE mighty LOGIN CREATEDB {attributes} PASSWORD '{PASSWORD}'")
    try:
        for name in ("app", *granted):
            pg.sql("postgres", f"GRANT {name} TO mighty")
        yield pg.url(shop.name, "mighty", PASSWORD)
    finally:
        pg.sql("postgres", "DROP ROLE mighty")


@pytest.mark.parametrize(
    ("attributes", "granted", "why"),
    [
        ("SUPERUSER", (), "role 'mighty' is a superuser"),
        ("", ("pg_execute_server_program",), "is in the role pg_execute_server_program"),
        ("NOINHERIT", ("pg_read_server_files",), "is in the role pg_read_server_files"),
        ("", ("pg_write_server_files",), "is in the role pg_write_server_files"),
        ("", ("postgres",), "is in the role postgres"),
    ],
)
def test_a_role_that_reaches_the_servers_machine_is_refused(
    project: Project, attributes: str, granted: tuple[str, ...], why: str
) -> None:
    with role(project.shop, attributes, *granted) as url:
        project.env["DATABASE_URL"] = url
        project.plan(ADD)
        said = project.error("plan", "run", "plan.yaml", rc=2)
        assert why in said
        assert "can run programs and reach files on the server" in said
        assert project.ours() == []


def test_a_role_that_may_call_what_reads_files_is_refused(project: Project) -> None:
    sql = project.shop.pg.sql
    with role(project.shop, "") as url:
        sql(project.shop.name, "GRANT EXECUTE ON FUNCTION pg_read_file(text) TO mighty")
        try:
            project.env["DATABASE_URL"] = url
            project.plan(ADD)
            said = project.error("plan", "run", "plan.yaml", rc=2)
            assert "role 'mighty' may call pg_read_file(text)" in said
        finally:
            sql(project.shop.name, "REVOKE EXECUTE ON FUNCTION pg_read_file(text) FROM mighty")


def test_a_role_that_logs_in_as_another_is_judged_by_who_logged_in(project: Project) -> None:
    with role(project.shop, "SUPERUSER") as url:
        project.shop.pg.sql("postgres", "ALTER ROLE mighty SET role = app")
        project.env["DATABASE_URL"] = url
        project.plan('id: out, tool: sql, with: {script: "RESET ROLE; ' + PROGRAM + '"}')
        assert "'mighty' is a superuser" in project.error("plan", "run", "plan.yaml", rc=2)


def test_every_tool_that_gets_the_address_has_to_say_that_it_is_unsafe(project: Project) -> None:
    tools = f'tools:\n  out: {{sql: "{PROGRAM}", unsafe: true}}\n'
    allowed = "policy: {allow_unsafe: true}\n"
    with role(project.shop, "SUPERUSER") as url:
        project.env["DATABASE_URL"] = url
        project.plan("id: a, tool: out", "id: b, run: 'true'", ADD, more=tools + allowed)
        assert "unsafe: true for 'b', 'add'" in project.error("plan", "run", "plan.yaml", rc=2)
        project.plan("id: a, tool: out", more=tools)
        assert "tool 'out' is unsafe" in project.error("plan", "run", "plan.yaml", rc=2)
        project.plan("id: child, subplan: {steps: [{" + ADD + "}]}", more=tools + allowed)
        assert "unsafe: true for 'add'" in project.error("plan", "run", "plan.yaml", rc=2)
        project.plan("id: a, tool: out", more=tools + allowed)
        project.run("plan", "run", "plan.yaml")
        [effect] = project.data("plan", "effects")["effects"]
        assert (effect["step"], effect["class"]) == ("a", "unknown")
        assert project.data("plan", "status")["effects"]["unknown"] == 1
        project.run("plan", "delete", "last", "--yes")


def test_an_actor_gets_no_such_role(project: Project, agents: Agents) -> None:
    with role(project.shop, "SUPERUSER") as url:
        project.env["DATABASE_URL"] = url
        (agents.work / "plan.yaml").write_text(
            "name: p\nresources: {db: {kind: postgres, url: $DATABASE_URL}}\n"
            "actor: {kind: command, command: ['true']}\npolicy: {allow_unsafe: true}\n"
        )
        said = project.error("plan", "run", "plan.yaml", rc=2)
        assert "what an actor will ask for cannot be declared unsafe" in said


def test_a_database_of_a_child_plan_alone_is_looked_at_too(
    project: Project, agents: Agents
) -> None:
    (agents.work / "app").mkdir()
    (agents.work / "child.yaml").write_text(
        f"name: c\nresources: {{db: {{kind: postgres, url: $DATABASE_URL}}}}\nsteps: [{{{ADD}}}]\n"
    )
    (agents.work / "plan.yaml").write_text(
        "name: p\nresources: {app: {kind: fs-directory, path: app}}\n"
        "steps: [{id: below, subplan: {file: child.yaml}}]\n"
    )
    with role(project.shop, "SUPERUSER") as url:
        project.env["DATABASE_URL"] = url
        said = project.error("plan", "run", "plan.yaml", rc=2)
        assert "step 'below': resource 'db': role 'mighty' is a superuser" in said
