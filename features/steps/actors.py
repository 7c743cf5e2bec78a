"""A plan whose steps come from a Python callable."""

import json
import textwrap

from behave import given, step, then


@given('the plan "{name}" with the actor')
def write_actor(context, name):
    context.name = name
    (context.agents.work / "actor.py").write_text(textwrap.dedent(context.text) + "\n")
    actor = "actor: {python: 'actor:act'}"
    context.shop.write("", f"{name}.yaml", more=actor, resources=("app", "db"))


@step("the actor's state is {state}")
def actor_state(context, state):
    [row] = context.shop.records("SELECT actor_state FROM plans WHERE name = ?", context.name)
    assert json.loads(row["actor_state"]) == json.loads(state), row


@then('the steps done are "{names}"')
def steps_done(context, names):
    rows = context.shop.records('SELECT step_id, state FROM steps ORDER BY "index"')
    assert {row["state"] for row in rows} <= {"complete"}, rows
    assert ", ".join(row["step_id"] for row in rows) == names
