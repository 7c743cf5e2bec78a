"""Tools that do something outside the sandboxes: a folder that they may write stands for it."""

import textwrap

from behave import given, step, then, when

TOOLS = """\
tools:
  book:
    run: echo "booked $1" >> "$WORLD"
    side_effects: [booking]
    compensate: 'test ! -e "$WORLD.broken" && echo "cancelled $AGENTS_STEP_ID" >> "$WORLD"'
    env: {WORLD: %(world)s}
  mail:
    run: echo "mailed $1" >> "$WORLD"; test ! -e "$WORLD.down"
    side_effects: [email]
    env: {WORLD: %(world)s}
"""


@given("tools that book and mail in the world outside")
def prepare_world(context):
    folder = context.agents.work / "world"
    folder.mkdir()
    context.world = folder / "log"
    context.world.touch()
    context.shop.env["CLEVERAGENTS_SANDBOX_WRITABLE"] = str(folder)


@given('the plan "{name}" with these tools and the steps')
def write_plan_with_tools(context, name):
    context.name = name
    context.shop.write(context.text, f"{name}.yaml", resources=("app", "db"))
    file = context.agents.work / f"{name}.yaml"
    tools = textwrap.dedent(TOOLS % {"world": context.world})
    file.write_text(file.read_text().replace("steps:", f"{tools}steps:", 1))


@step("cancelling is broken")
def break_compensation(context):
    (context.world.parent / "log.broken").touch()


@step("cancelling works again")
def mend_compensation(context):
    (context.world.parent / "log.broken").unlink()


@step("the mail server is down")
def break_mail(context):
    (context.world.parent / "log.down").touch()


@step("the mail server is up again")
def mend_mail(context):
    (context.world.parent / "log.down").unlink()


@then('the world has seen "{events}"')
def world_has_seen(context, events):
    assert context.world.read_text().splitlines() == events.split(", "), context.world.read_text()


@when("I go back to the beginning and accept the loss")
def accept_loss(context):
    context.outcome = context.shop.run(
        "plan", "rollback", context.name, "first", "--yes", "--accept-loss"
    ).expect(0)


@when("I try to go back to the beginning")
def try_first(context):
    context.outcome = context.shop.run("plan", "rollback", context.name, "first", "--yes")


@when("I try the compensations once more")
def retry(context):
    context.outcome = context.shop.run("plan", "effects", context.name, "--retry").expect(0)


@when('I resume it and repeat "{name}"')
def resume_repeating(context, name):
    context.outcome = context.shop.run("plan", "resume", context.name, "--repeat", name).expect(0)


@then("its effects are")
def effects_are(context):
    found = context.shop.run("plan", "effects", context.name).expect(0).data["effects"]
    told = [(effect["step"], effect["class"], effect["state"]) for effect in found]
    assert told == [tuple(row) for row in context.table], told
