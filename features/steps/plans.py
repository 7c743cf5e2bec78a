"""A plan over a repository and a database: written, run, looked at."""

import json

from behave import given, step, then, when

from tests.rig import Shop
from tests.scratch import query

BOTH = ("app", "db")


@given('a git repository "app" and a database "shop.db"')
def build_shop(context):
    context.shop = Shop(context.agents)


@given("the policy {policy}")
def set_policy(context, policy):
    context.shop.policy = policy


@given('the environment has {name}="{value}"')
def set_environment(context, name, value):
    context.shop.env[name] = value


@given('the plan "{name}" with the steps')
def write_plan(context, name):
    context.name = name
    context.shop.write(context.text, f"{name}.yaml", resources=BOTH)


@step("the plan runs")
@step("the plan ran")
def run_plan(context):
    context.outcome = context.shop.run("plan", "run", f"{context.name}.yaml").expect(0)


@step("the plan runs and fails")
@step("the plan ran and failed")
def run_failing_plan(context):
    context.outcome = context.shop.run("plan", "run", f"{context.name}.yaml").expect(5)


@step("the plan is running")
def start_plan(context):
    context.shop.start_waiting(f"{context.name}.yaml")
    context.add_cleanup(context.shop.process.kill)


@then("the running plan ends well when it is let go on")
def finish_plan(context):
    assert context.shop.finish() == 0


@step('I write "{text}" into "{path}" of the sandbox "{name}"')
def edit_by_hand(context, text, path, name):
    (context.shop.sandbox(name=name) / path).write_text(text + "\n")


@step('I add a "{name}" to the database of the sandbox')
def edit_database(context, name):
    query(context.shop.sandbox(name="db"), "INSERT INTO users VALUES (?)", name)


@then('the sandbox has "{path}" with "{text}"')
def sandbox_file(context, path, text):
    found = (context.shop.sandbox() / path).read_text()
    assert found.split() == text.split(), f"{path} is {found!r}"


@then('the sandbox has no "{path}"')
def no_sandbox_file(context, path):
    assert not (context.shop.sandbox() / path).exists()


@then('the users in the sandbox are "{names}"')
def sandbox_users(context, names):
    assert users(context.shop.sandbox(name="db")) == names


@then('the users in my database are "{names}"')
def live_users(context, names):
    assert users(context.shop.db) == names


def users(database):
    return ", ".join(row[0] for row in query(database, "SELECT name FROM users"))


@then('the plan is "{phase}/{state}"')
def plan_state(context, phase, state):
    [row] = context.shop.records("SELECT phase, state FROM plans WHERE name = ?", context.name)
    assert (row["phase"], row["state"]) == (phase, state), row


@then('the step "{name}" is "{state}" after {attempts:d} attempts')
@then('the step "{name}" is "{state}" after {attempts:d} attempt')
def step_state(context, name, state, attempts):
    plan = context.shop.plan_id(context.name)
    [row] = context.shop.records(
        "SELECT * FROM steps WHERE plan_id = ? AND step_id = ?", plan, name
    )
    assert (row["state"], row["attempts"]) == (state, attempts), row


@then('the decisions in force are "{names}"')
def decisions_in_force(context, names):
    tree = context.shop.run("plan", "tree", context.name).data["tree"]
    assert ", ".join(item["question"] for item in tree[0]["children"]) == names


@then("no decision is in force")
def no_decision_in_force(context):
    decisions_in_force(context, "")


@then('the superseded decisions are "{names}"')
def superseded_decisions(context, names):
    tree = context.shop.run("plan", "tree", context.name, "--show-superseded").data["tree"]
    gone = [item for item in tree[0]["children"] if item["state"] == "superseded"]
    assert ", ".join(item["question"] for item in gone) == names


@when("I remember everything")
@given("I remember everything")
def remember(context):
    context.remembered = context.shop.everything()


@then("nothing has changed")
def nothing_changed(context):
    now = context.shop.everything()
    changed = [part for part, value in context.remembered.items() if now[part] != value]
    assert not changed, f"changed: {changed}"


@then("my own files have not changed")
def user_unchanged(context):
    assert context.shop.own_files() == context.remembered["user's files"]


@then('the error is "{kind}" with exit code {code:d}')
def error_is(context, kind, code):
    error = context.outcome.expect(code).data["error"]
    assert error["type"] == kind, error
    assert context.outcome.json["status"] == "error"
    assert context.outcome.json["exit_code"] == code


@then("the error says")
def error_says(context):
    error = context.outcome.data["error"]
    said = json.dumps(error.get("problems", error["message"]), ensure_ascii=False)
    for part in context.text.split("\n"):
        assert part in said.replace('\\"', '"'), f"no {part!r} in {said}"


@then('the hint says "{text}"')
def hint_says(context, text):
    assert text in context.outcome.data["error"]["hint"], context.outcome


@when("I try to run the plan")
def try_to_run(context):
    context.outcome = context.shop.run("plan", "run", f"{context.name}.yaml")


@when('the plan "{name}" runs and fails')
def run_named(context, name):
    context.outcome = context.shop.run("plan", "run", f"{name}.yaml").expect(5)
