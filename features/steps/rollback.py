"""Going back, undo, and everything that stands in the way."""

import os
import re
import shutil
import zlib

from behave import given, step, then, when

from tests.scratch import git


def checkpoint_named(context, target):
    """What to type for a target in the words of the features."""
    if target == "a checkpoint of the other plan":
        return context.shop.checkpoint("other", 'the decision of "other"')
    if target == "the oldest pruned group":
        return context.shop.oldest_pruned(context.name)
    if target == "the checkpoint of the oldest pruned group":
        return context.noted[context.shop.oldest_pruned(context.name)]
    return context.shop.checkpoint(context.name, target)


def roll_back(context, target, *flags):
    checkpoint = checkpoint_named(context, target)
    context.outcome = context.shop.run("plan", "rollback", context.name, checkpoint, *flags)


@step("I roll back to {target}")
def rolled_back(context, target):
    roll_back(context, target, "--yes")
    context.outcome.expect(0)


@when("I try to roll back to {target}")
def try_to_roll_back(context, target):
    roll_back(context, target, "--yes")


@when("I ask what rolling back to {target} would do")
def dry_run(context, target):
    roll_back(context, target, "--dry-run")
    context.outcome.expect(0)
    context.foreseen = context.outcome.data


@when("I do not say yes to rolling back to {target}")
def not_confirmed(context, target):
    roll_back(context, target)


@when("I undo it")
def undo(context):
    context.outcome = context.shop.run("plan", "undo", context.name)


@when("I redo it")
def redo(context):
    context.outcome = context.shop.run("plan", "redo", context.name)


@when("I resume it")
def resume(context):
    context.outcome = context.shop.run("plan", "resume", context.name)


@step("I apply it")
def applied(context):
    context.outcome = context.shop.run("plan", "apply", context.name, "--yes").expect(0)


@then('it says that "{text}"')
def it_says(context, text):
    assert any(text in line for line in context.outcome.json["messages"]), context.outcome


@then("these changes were reverted")
@then("these changes would be reverted")
def changes_reverted(context):
    wanted = {tuple(row.cells) for row in context.table}
    listed = context.outcome.data["changes_reverted"]
    found = {(item["resource"], item["file"], item["action"]) for item in listed}
    assert found == wanted, found
    summary = context.outcome.data["rollback_summary"]
    counted = summary["files_reverted"] + summary["directories_reverted"]
    assert counted + summary["git_internals_reverted"] == len(listed) == len(wanted)


@then("it reports that {decisions:d} decisions and {calls:d} tool calls came after")
def impact(context, decisions, calls):
    found = context.outcome.data["impact"]
    assert (found["decisions_after_cp"], found["tool_calls_after_cp"]) == (decisions, calls), found


@then("what was foreseen is what was done")
def as_foreseen(context):
    done = context.outcome.data
    for part in ("changes_reverted", "impact"):
        assert done[part] == context.foreseen[part], part
    assert (context.foreseen["dry_run"], done["dry_run"]) == (True, False)


@given("the plan was applied")
def apply_it(context):
    context.shop.run("plan", "apply", context.name, "--yes").expect(0)


@given("the plan was cancelled")
def cancel_it(context):
    context.shop.run("plan", "cancel", context.name).expect(0)


@given("its sandbox was removed from the disk")
def remove_sandbox(context):
    shutil.rmtree(context.shop.sandbox())


@given("its sandbox was replaced by another directory with the same files")
def replace_sandbox(context):
    ours = context.shop.sandbox()
    copy = ours.with_name("copy")
    shutil.copytree(ours, copy, symlinks=True)
    shutil.rmtree(ours)
    copy.rename(ours)


def compressed(content, text):
    """Where streams begin that have the text in them; the first byte tells of the window."""
    for found in re.finditer(rb"[\x48\x58\x68\x78].", content, re.DOTALL):
        try:
            data = zlib.decompressobj().decompress(content[found.start() :])
        except zlib.error:
            continue
        if text in data:
            yield found.start()


@given('the stored content "{text}" was damaged on the disk')
def damage_content(context, text):
    """One bit of it, in the one pack that has it."""
    hits = []
    for pack in (context.shop.home / "content").glob("*.pack"):
        content = pack.read_bytes()
        hits += [(pack, place) for place in [content.find(text.encode())] if place >= 0]
        hits += [(pack, place + 20) for place in compressed(content, text.encode())][:1]
    [(pack, place)] = hits
    fd = os.open(pack, os.O_RDWR)
    byte = os.pread(fd, 1, place)
    os.pwrite(fd, bytes([byte[0] ^ 1]), place)
    os.close(fd)


@given("another plan ran")
def another_plan(context):
    context.shop.write('- {id: other, on: app, run: "echo other > other.txt"}', "other.yaml")
    context.shop.run("plan", "run", "other.yaml").expect(0)


@given("I noted the ids of its checkpoints")
def note_checkpoints(context):
    groups = context.shop.groups(context.name)
    context.noted = {group["group_id"]: group["rows"][0]["checkpoint_id"] for group in groups}


@then("the hint names the nearest group that is kept")
def nearest_kept(context):
    kept = [group["group_id"] for group in context.shop.groups(context.name)]
    nearest = max(name for name in kept if name < context.shop.oldest_pruned(context.name))
    assert nearest in context.outcome.data["error"]["hint"], context.outcome


@then("my repository has the commit of the plan")
def committed(context):
    assert context.name in git(context.agents, context.shop.app, "log", "-1", "--format=%B")
