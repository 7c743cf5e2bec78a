"""Corrections and child plans."""

from pathlib import Path

from behave import then, when


def decision(context, question):
    [root] = context.shop.run("plan", "tree", context.name).expect(0).data["tree"]
    found = [d["decision_id"] for d in root["children"] if d["question"] == question]
    return found[-1]


def correct(context, question, guidance, *flags):
    which = decision(context, question)
    context.outcome = context.shop.run("plan", "correct", which, "--guidance", guidance, *flags)


@when('I correct "{question}" with the guidance "{guidance}"')
def corrected(context, question, guidance):
    correct(context, question, guidance, "--yes")
    context.outcome.expect(0)


@when('I try to correct "{question}"')
def try_to_correct(context, question):
    correct(context, question, "otherwise", "--yes")


@when('I ask what correcting "{question}" would do')
def correction_dry_run(context, question):
    correct(context, question, "otherwise", "--dry-run")
    context.outcome.expect(0)


@then('it would run "{steps}" again and keep {number:d} decisions')
def would_run(context, steps, number):
    data = context.outcome.data
    assert ", ".join(data["steps_again"]) == steps, data
    assert len(data["kept"]) == number, data


@when('I append "{file}" to "{question}" with the guidance "{guidance}"')
def append(context, file, question, guidance):
    correct(context, question, guidance, "--mode", "append", "--plan-file", file, "--yes")
    context.outcome.expect(0)


def sandbox(context, plan):
    data = context.shop.run("plan", "status", plan).expect(0).data
    return Path(data["sandboxes"]["app"])


def child(context, step):
    """The newest child plan of a step."""
    return context.shop.records(
        "SELECT c.* FROM plans c JOIN plans p ON p.plan_id = c.parent_plan_id"
        " WHERE p.name = ? AND c.parent_step_id = ? ORDER BY c.plan_id",
        context.name,
        step,
    )[-1]


@then('the child plan of "{step}" is "{state}"')
def child_state(context, step, state):
    assert child(context, step)["state"] == state, child(context, step)["state"]


@then('the sandbox of the plan has "{path}" with "{text}"')
def plan_has(context, path, text):
    found = (sandbox(context, context.name) / path).read_text()
    assert found.split() == text.split(), f"{path} is {found!r}"


@then('the sandbox of the plan has no "{path}"')
def plan_has_not(context, path):
    assert not (sandbox(context, context.name) / path).exists()


@when('I write "{text}" into "{path}" of the sandbox of the child plan of "{step}"')
def edit_child(context, text, path, step):
    (sandbox(context, child(context, step)["plan_id"]) / path).write_text(text + "\n")


@then('the groups by trigger are "{groups}"')
def groups_by_trigger(context, groups):
    found = [
        f"{group['checkpoint_type']} {group['step_index']}"
        for group in context.shop.groups(context.name)
    ]
    assert ", ".join(found) == groups, found


@when('I roll back to the group "{kind}"')
def roll_back_to_kind(context, kind):
    groups = context.shop.groups(context.name)
    target = [g["group_id"] for g in groups if g["checkpoint_type"] == kind][-1]
    argv = ("plan", "rollback", context.name, target, "--yes")
    context.outcome = context.shop.run(*argv).expect(0)
