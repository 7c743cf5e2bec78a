"""Groups and rows of checkpoints, read from the store's own tables."""

import json
import re
import sqlite3
from datetime import datetime, timedelta

from behave import step, then, when

from tests.scratch import git

ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
COLUMNS = {
    "checkpoint_id",
    "group_id",
    "plan_id",
    "resource_id",
    "sandbox_ref",
    "decision_id",
    "checkpoint_type",
    "step_index",
    "state_hash",
    "label",
    "filesystem_path",
    "size_bytes",
    "created_at",
    "metadata_json",
}


@then("its checkpoint groups are")
def groups_are(context):
    found = [
        {
            "type": group["checkpoint_type"],
            "step": str(group["step_index"]),
            "found by": ", ".join(group["triggers"]),
            "rows": ", ".join(row["resource"] for row in group["rows"]),
            "label": group["label"] or "",
        }
        for group in context.shop.groups(context.name)
    ]
    wanted = [dict(zip(row.headings, row.cells, strict=True)) for row in context.table]
    found = [{key: group[key] for key in context.table.headings} for group in found]
    assert found == wanted, "\n".join(map(str, found))


@then("it has no checkpoint")
def no_checkpoint(context):
    assert context.shop.groups(context.name) == []
    assert context.shop.run("plan", "checkpoints", context.name).data["checkpoints"] == []


@then("every group names a state of both resources")
def groups_are_whole(context):
    for group in context.shop.groups(context.name):
        members = context.shop.records(
            "SELECT r.name FROM group_members m JOIN checkpoints c USING (checkpoint_id)"
            " JOIN resources r ON r.resource_id = c.resource_id WHERE m.group_id = ?",
            group["group_id"],
        )
        assert sorted(row["name"] for row in members) == ["app", "db"], group


@then('the group of the decision of "{name}" adds nothing and has the state before it')
def view_only_group(context, name):
    groups = context.shop.groups(context.name)
    wanted = context.shop.checkpoint(context.name, f'the decision of "{name}"')
    [(number, row)] = [
        (number, row)
        for number, group in enumerate(groups)
        for row in group["rows"]
        if row["checkpoint_id"] == wanted
    ]
    earlier = [r for group in groups[:number] for r in group["rows"]]
    before = [r["state_hash"] for r in earlier if r["resource"] == row["resource"]]
    assert (row["size_bytes"], row["state_hash"]) == (0, before[-1]), row
    assert len(groups[number]["rows"]) == 1


@then("groups that hold something new say how much they added")
def sizes_are_measured(context):
    for group in context.shop.groups(context.name):
        if group["checkpoint_type"] in ("pre_execute", "after_tool_execute"):
            assert all(row["size_bytes"] > 0 for row in group["rows"]), group


@then("the newest checkpoint of the plan is the one its status names")
def last_checkpoint(context):
    status = context.shop.run("plan", "status", context.name).expect(0).data
    rows = context.shop.groups(context.name)[-1]["rows"]
    assert status["last_checkpoint_id"] in [row["checkpoint_id"] for row in rows]


@then("every row of checkpoints is complete")
def rows_are_complete(context):
    shop = context.shop
    known = set(shop.records("SELECT * FROM checkpoints LIMIT 1")[0])
    assert known >= COLUMNS, COLUMNS - known
    sandboxes = {row["sandbox_id"]: row for row in shop.records("SELECT * FROM sandboxes")}
    plan = shop.plan_id(context.name)
    for group in shop.groups(context.name):
        for row in group["rows"]:
            place = sandboxes[row["sandbox_ref"]]
            assert ULID.fullmatch(row["checkpoint_id"])
            assert (row["plan_id"], row["group_id"]) == (plan, group["group_id"])
            assert row["resource_id"] == place["resource_id"]
            assert row["filesystem_path"] == place["path"]
            assert re.fullmatch(r"[0-9a-f]{64}", row["state_hash"])
            assert datetime.fromisoformat(row["created_at"]).utcoffset() == timedelta(0)


@then('the row after "{name}" of "{resource}" says')
def row_says(context, name, resource):
    shop = context.shop
    wanted = shop.checkpoint(context.name, f'the group after "{name}"')
    [row] = [
        r for g in shop.groups(context.name) for r in g["rows"] if r["checkpoint_id"] == wanted
    ]
    assert row["resource"] == resource
    metadata = json.loads(row["metadata_json"])
    [decision] = shop.records(
        "SELECT question FROM decisions WHERE decision_id = ?", row["decision_id"]
    )
    found = metadata | {
        "type": row["checkpoint_type"],
        "index": str(row["step_index"]),
        "decision": decision["question"],
        "base_commit": "HEAD"
        if metadata.get("base_commit") == git(shop.agents, shop.app, "rev-parse", "HEAD")
        else metadata.get("base_commit"),
    }
    for cells in context.table:
        assert found[cells["field"]] == cells["value"], (cells["field"], found)


@then('the table refuses a checkpoint of type "{kind}"')
def table_refuses(context, kind):
    [row] = context.shop.records("SELECT * FROM checkpoints LIMIT 1")
    del row["seq"]  # the store gives the number
    row["checkpoint_id"] = "0" * 26
    insert = f"INSERT INTO checkpoints ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
    refused = None
    try:
        context.shop.rows(insert, *(row | {"checkpoint_type": kind}).values())
    except sqlite3.IntegrityError as error:
        refused = str(error)
    assert refused is not None, "it was taken"
    assert "CHECK" in refused.upper(), refused
    context.shop.rows(insert, *row.values())  # a known type is taken: the row itself is right


@then('"{label}" is among the labels that "plan checkpoints" shows')
def label_shown(context, label):
    rows = context.shop.run("plan", "checkpoints", context.name).expect(0).data["checkpoints"]
    assert label in [row["label"] for row in rows]


@step("a dry run says what pruning would drop, and why")
def prune_dry_run(context):
    context.remembered = context.shop.everything()
    said = context.shop.run("plan", "prune", context.name, "--dry-run").expect(0).data
    assert all(item["reason"] for item in (*said["keep"], *said["drop"]))
    groups = {group["group_id"] for group in context.shop.groups(context.name)}
    assert {item["group_id"] for item in (*said["keep"], *said["drop"])} == groups
    context.would_drop = {item["group_id"] for item in said["drop"]}
    assert context.would_drop
    assert context.shop.everything() == context.remembered


@when("I prune it")
def prune(context):
    context.before_pruning = {group["group_id"] for group in context.shop.groups(context.name)}
    context.shop.run("plan", "prune", context.name).expect(0)


@then("exactly these are gone")
def pruned(context):
    now = {group["group_id"] for group in context.shop.groups(context.name)}
    assert context.before_pruning - now == context.would_drop


@then("nothing was created")
def nothing_created(context):
    shop = context.shop
    assert context.agents.run("plan", "list", "--json").expect(0).data["plans"] == []
    assert list((shop.home / "sandboxes").glob("*")) == []
    assert git(shop.agents, shop.app, "for-each-ref", "refs/cleveragents") == ""
