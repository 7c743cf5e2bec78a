"""Child plans: real plans in copies of their parent's sandboxes, merged back as a whole."""

import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Agents, command
from tests.rig import Shop, inodes
from tests.scratch import git, query, wait_until

INSERT = "tool: sql, on: db, with: {script: \"INSERT INTO users VALUES ('%s')\"}"


def child(name: str, *runs: str, on: str = "app", more: str = "") -> str:
    """A step whose work is a child plan with these commands as its steps."""
    steps = ", ".join(f'{{id: {name}{n}, on: {on}, run: "{run}"}}' for n, run in enumerate(runs))
    return f"- {{id: {name}, subplan: {{steps: [{steps}]{more}}}}}\n"


def three(group: str = "") -> str:
    more = f", group: {group}" if group else ""
    names = ("ann", "bob", "cy")
    return "".join(
        child(n, f"echo {n} > {n}.txt; echo ran >> SIGNALS/{n}", more=more) for n in names
    )


@pytest.fixture
def shop(agents: Agents) -> Shop:
    return Shop(agents, users=())


@contextmanager
def running(shop: Shop, *argv: str) -> Generator["subprocess.Popen[str]"]:
    """A command that is still at work; ended, with all it started, whatever happens."""
    process = subprocess.Popen(
        [command(), *argv, "--json"],
        cwd=shop.work,
        env=shop.agents.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def groups(shop: Shop, plan: str = "plan") -> list[str]:
    rows = shop.rows(
        "SELECT checkpoint_type FROM checkpoint_groups JOIN plans USING (plan_id)"
        " WHERE name = ? AND pruned_at IS NULL ORDER BY checkpoint_groups.seq",
        plan,
    )
    return [row[0] for row in rows]


def group_of(shop: Shop, kind: str, step: str, plan: str = "plan") -> str:
    """The newest group of that type at that step."""
    index = list(shop.steps(plan)).index(step)
    rows = shop.rows(
        "SELECT group_id FROM checkpoint_groups JOIN plans USING (plan_id) WHERE name = ?"
        " AND checkpoint_type = ? AND step_index = ? AND pruned_at IS NULL"
        " ORDER BY checkpoint_groups.seq",
        plan,
        kind,
        index,
    )
    return rows[-1][0]


def test_children_run_one_after_another_and_see_what_was_merged(shop: Shop) -> None:
    said = shop.ran(
        '- {id: start, on: app, run: "echo start > log.txt"}\n'
        + child("ann", "echo ann >> log.txt", "cat log.txt > seen.txt")
        + child("bob", "echo bob >> log.txt")
        + '- {id: end, on: app, run: "echo end >> log.txt"}\n'
    )
    assert said["state"] == "complete"
    assert shop.read("log.txt") == "start\nann\nbob\nend\n"
    assert shop.read("seen.txt") == "start\nann\n"
    kids = shop.children()
    assert {name: kid["state"] for name, kid in kids.items()} == dict.fromkeys(kids, "complete")
    assert shop.status()["execution"]["child_plans"] == 2
    assert shop.read("log.txt", kids["ann"]["id"]) == "start\nann\n"
    listed = {p["plan_id"]: p["parent_plan_id"] for p in shop.ok("plan", "list")["plans"]}
    assert listed[kids["ann"]["id"]] == said["plan_id"]
    shop.require_whole()


def test_a_child_changes_nothing_of_the_parent_before_it_is_merged(shop: Shop) -> None:
    file = shop.write(
        child(
            "ann",
            "echo ann > ann.txt; touch SIGNALS/at",
            "while [ ! -e SIGNALS/go ]; do sleep 0.05; done",
        )
    )
    with running(shop, "plan", "run", file) as process:
        wait_until((shop.signals / "at").exists, "the child's first step")
        assert shop.read("ann.txt") is None
        (shop.signals / "go").touch()
        process.communicate(timeout=600)
    assert process.returncode == 0
    assert shop.read("ann.txt") == "ann\n"


MEET = "cat SIGNALS/%s > /dev/null & echo here > SIGNALS/%s; wait; echo %s > %s.txt"


def meeting(me: str, other: str, group: str) -> str:
    """Two such steps end only if they run at the same time: each waits for the other's word."""
    return child(me, MEET % (me, other, me, me), more=f", group: {group}")


def test_children_of_a_group_run_at_the_same_time(shop: Shop) -> None:
    for name in ("ann", "bob"):
        os.mkfifo(shop.signals / name)
    said = shop.ran(meeting("ann", "bob", "g") + meeting("bob", "ann", "g"))
    assert said["state"] == "complete"
    assert (shop.read("ann.txt"), shop.read("bob.txt")) == ("ann\n", "bob\n")
    assert groups(shop).count("on_subplan_spawn") >= 1
    assert groups(shop).count("after_subplan") == 2


ALONE = (
    "mkdir SIGNALS/busy && sleep 0.3 && { ! test -e SIGNALS/wait || cat SIGNALS/wait; } &&"
    " rmdir SIGNALS/busy && echo %s > %s.txt"
    " || { test -e SIGNALS/wait && echo > SIGNALS/wait; echo together; exit 1; }"
)


def test_max_parallel_makes_the_others_wait(shop: Shop) -> None:
    """`mkdir` succeeds for one at a time only: with one at once none of three meets another."""
    steps = "".join(child(n, ALONE % (n, n), more=", group: g") for n in ("ann", "bob", "cy"))
    said = shop.ran(steps, policy="{max_parallel: 1}")
    assert said["state"] == "complete"
    os.mkfifo(shop.signals / "wait")  # the first stays until another comes, and is asked to go
    shop.run("plan", "run", shop.write(steps, "met.yaml", "{max_parallel: 3}")).expect(5)


def test_a_queue_lets_the_next_start_when_one_ends(shop: Shop) -> None:
    """Two at once, four children: the two that meet at the end were both queued."""
    for name in ("cy", "dee"):
        os.mkfifo(shop.signals / name)
    steps = "".join(child(n, f"echo {n} > {n}.txt", more=", group: g") for n in ("ann", "bob"))
    steps += meeting("cy", "dee", "g") + meeting("dee", "cy", "g")
    said = shop.ran(steps, policy="{max_parallel: 2}")
    assert said["state"] == "complete"
    assert [shop.read(f"{n}.txt") for n in ("ann", "bob", "cy", "dee")] == [
        f"{n}\n" for n in ("ann", "bob", "cy", "dee")
    ]


def test_needs_make_a_child_of_the_same_group_wait(shop: Shop) -> None:
    said = shop.ran(
        child("ann", "echo ann > ann.txt", more=", group: g")
        + child("bob", "cat ann.txt > bob.txt", more=", group: g, needs: [ann]")
        + child("cy", "test ! -e ann.txt; echo cy > cy.txt", more=", group: g")
    )
    assert said["state"] == "complete"
    assert shop.read("bob.txt") == "ann\n"


def write_child(shop: Shop, name: str, text: str) -> str:
    (shop.work / name).write_text(text.replace("SIGNALS", str(shop.signals)))
    return name


def test_a_child_from_a_file_with_its_own_tools_and_validation(shop: Shop) -> None:
    write_child(
        shop,
        "sub/child.yaml" if (shop.work / "sub").mkdir() is None else "",
        "name: the-child\n"
        'tools: {greet: {run: "echo hello > greeting.txt"}}\n'
        "steps:\n  - {id: greet, tool: greet, on: app}\n"
        "validate:\n  - {on: app, run: 'grep hello greeting.txt; echo dirt > dirt.txt'}\n",
    )
    shop.ran("- {id: ann, subplan: {file: sub/child.yaml}}")
    assert shop.read("greeting.txt") == "hello\n"
    assert shop.read("dirt.txt") is None
    [name] = shop.rows("SELECT name FROM plans WHERE parent_plan_id IS NOT NULL")
    assert name == ("the-child",)


def test_a_childs_validation_that_fails_keeps_its_work_out(shop: Shop) -> None:
    write_child(
        shop,
        "child.yaml",
        "name: the-child\nsteps:\n  - {id: make, on: app, run: 'echo made > made.txt'}\n"
        "validate:\n  - {on: app, run: 'test -e SIGNALS/good'}\n",
    )
    steps = "- {id: ann, subplan: {file: child.yaml}}"
    data = shop.run("plan", "run", shop.write(steps)).expect(5).data
    assert "validation" in data["error"]["message"]
    assert shop.read("made.txt") is None
    (shop.signals / "good").touch()
    assert shop.ok("plan", "resume", "plan")["state"] == "complete"
    assert shop.read("made.txt") == "made\n"


def test_a_child_with_its_own_resource_is_applied_by_itself(shop: Shop) -> None:
    (shop.work / "own").mkdir()
    write_child(
        shop,
        "child.yaml",
        "name: the-child\nresources:\n  app: {kind: git-checkout, path: app}\n"
        "  own: {kind: fs-directory, path: own}\n"
        "steps:\n  - {id: a, on: app, run: 'echo a > a.txt'}\n"
        "  - {id: o, on: own, run: 'echo o > o.txt'}\n",
    )
    shop.ran("- {id: ann, subplan: {file: child.yaml}}")
    kid = shop.children()["ann"]["id"]
    assert shop.read("a.txt") == "a\n"
    assert "own" not in shop.status()["sandboxes"]
    shop.ok("plan", "apply", kid, "--yes")
    assert (shop.work / "own/o.txt").read_text() == "o\n"
    assert not (shop.app / "a.txt").exists()
    which = shop.decision("ann")
    argv = ("plan", "correct", which, "--guidance", "x", "--yes")
    error = shop.refused(*argv, kind="CorrectionRefused")
    assert kid in error["message"]
    shop.ok("plan", "apply", "plan", "--yes")
    assert (shop.app / "a.txt").read_text() == "a\n"


def test_a_childs_work_on_the_parents_resources_is_applied_with_the_parent(shop: Shop) -> None:
    shop.ran(three("g"))
    kid = shop.children()["ann"]["id"]
    error = shop.refused("plan", "apply", kid, "--yes", kind="NotAllowed")
    assert "parent" in error["message"]
    shop.ok("plan", "apply", "plan", "--yes")
    assert sorted(p.name for p in shop.app.glob("*.txt")) == [
        "ann.txt",
        "base.txt",
        "bob.txt",
        "cy.txt",
        "greeting.txt",
        "old.txt",
    ]
    assert git(shop.agents, shop.app, "status", "--porcelain") == ""
    shop.require_whole()


def test_children_of_children(shop: Shop) -> None:
    inner = "{id: deep, subplan: {steps: [{id: leaf, on: app, run: 'echo leaf > leaf.txt'}]}}"
    shop.ran(
        f"- {{id: ann, subplan: {{steps: [{inner}, {{id: l, on: app, run: 'cat leaf.txt'}}]}}}}"
    )
    assert shop.read("leaf.txt") == "leaf\n"
    assert shop.rows("SELECT count(*) FROM plans") == [(3,)]
    shop.ok("plan", "rollback", "plan", "first", "--yes")
    assert shop.read("leaf.txt") is None
    assert set(shop.steps().values()) == {"queued"}
    shop.ok("plan", "resume", "plan")
    assert shop.read("leaf.txt") == "leaf\n"
    shop.ok("plan", "delete", "plan", "--yes")
    assert shop.rows("SELECT count(*) FROM plans") == [(0,)]
    assert list((shop.store.parent / "sandboxes").iterdir()) == []
    shop.require_whole()


def test_repository_directory_and_database_together(shop: Shop) -> None:
    shop.ran(
        "- {id: first, on: docs, run: 'echo first > first.txt'}\n"
        f"- {{id: zero, {INSERT % 'Zero'}}}\n"
        "- id: ann\n  subplan: {group: g, steps: ["
        "{id: a, on: app, run: 'echo a > a.txt'}, {id: d, on: docs, run: 'echo d >> first.txt'}]}\n"
        f"- id: bob\n  subplan: {{group: g, steps: [{{id: b, {INSERT % 'Bob'}}}]}}\n"
        f"- {{id: last, {INSERT % 'Last'}}}\n"
    )
    assert shop.read("a.txt") == "a\n"
    assert shop.read("first.txt", name="docs") == "first\nd\n"
    assert shop.users() == ["Zero", "Bob", "Last"]
    assert query(shop.db, "SELECT * FROM users") == []
    shop.ok("plan", "rollback", "plan", group_of(shop, "on_decision", "ann"), "--yes")
    assert (shop.read("a.txt"), shop.users()) == (None, ["Zero"])
    shop.ok("plan", "resume", "plan")
    assert (shop.read("a.txt"), shop.users()) == ("a\n", ["Zero", "Bob", "Last"])
    shop.ok("plan", "apply", "plan", "--yes")
    assert query(shop.db, "SELECT * FROM users") == [("Zero",), ("Bob",), ("Last",)]
    shop.require_whole()


def test_a_database_is_written_by_one_child_of_a_group(shop: Shop) -> None:
    both = "".join(
        f"- id: {n}\n  subplan: {{group: g, steps: [{{id: {n}0, {INSERT % n}}}]}}\n"
        for n in ("ann", "bob")
    )
    error = shop.run("plan", "run", shop.write(both)).expect(2).data["error"]
    assert "'db' is written by several child plans" in error["problems"][0]
    assert not shop.store.exists() or shop.rows("SELECT count(*) FROM plans") == [(0,)]
    shop.ran(both.replace("group: g, ", ""))
    assert shop.users() == ["ann", "bob"]


def test_different_lines_of_one_file_are_merged(shop: Shop) -> None:
    shop.ran(
        child("ann", "sed -i 's/line 2$/two/' base.txt", more=", group: g")
        + child("bob", "sed -i 's/line 17$/seventeen/' base.txt", more=", group: g")
    )
    text = shop.read("base.txt") or ""
    assert "two\n" in text
    assert "seventeen\n" in text
    assert len(text.splitlines()) == 20


CONFLICT = child("ann", "echo ann > who.txt; echo ann > ann.txt", more=", group: g") + child(
    "bob", "echo bob > who.txt; echo bob > bob.txt", more=", group: g"
)


def test_a_conflict_merges_nothing_and_has_both_sides_as_data(shop: Shop) -> None:
    data = shop.run("plan", "run", shop.write(CONFLICT)).expect(5).data
    error = data["error"]
    assert error["type"] == "MergeConflict"
    [conflict] = error["conflicts"]
    assert (conflict["resource"], conflict["path"], conflict["base"]) == (
        "app",
        "who.txt",
        "absent",
    )
    assert conflict["ours"] != conflict["theirs"]
    assert shop.status()["error"]["conflicts"] == error["conflicts"]
    for name in ("who.txt", "ann.txt", "bob.txt"):
        assert shop.read(name) is None, name
    kids = shop.children()
    assert (kids["ann"]["state"], kids["bob"]["state"]) == ("complete", "complete")


def test_a_conflict_is_resolved_in_a_childs_sandbox_and_resumed(shop: Shop) -> None:
    shop.run("plan", "run", shop.write(CONFLICT)).expect(5)
    bob = shop.children()["bob"]["id"]
    (shop.sandbox(bob) / "who.txt").write_text("ann\n")
    said = shop.ok("plan", "resume", "plan")
    assert said["state"] == "complete"
    assert [shop.read(n) for n in ("who.txt", "ann.txt", "bob.txt")] == ["ann\n", "ann\n", "bob\n"]
    shop.require_whole()


def test_a_conflict_that_nobody_resolved_is_there_again(shop: Shop) -> None:
    shop.run("plan", "run", shop.write(CONFLICT)).expect(5)
    error = shop.run("plan", "resume", "plan").expect(5).data["error"]
    assert error["type"] == "MergeConflict"
    assert shop.read("ann.txt") is None


def test_a_conflict_with_a_manual_edit_in_the_parent(shop: Shop) -> None:
    """The parent's sandbox is edited while the child works; nothing of the edit is lost."""
    file = shop.write(
        child(
            "ann",
            "echo ann > who.txt; touch SIGNALS/at; while [ ! -e SIGNALS/go ]; do sleep 0.05; done",
        )
    )
    with running(shop, "plan", "run", file) as process:
        wait_until((shop.signals / "at").exists, "the child's step")
        (shop.sandbox("plan") / "who.txt").write_text("mine\n")
        (shop.signals / "go").touch()
        process.communicate(timeout=600)
    assert process.returncode == 5
    assert shop.status()["error"]["conflicts"][0]["path"] == "who.txt"
    assert shop.read("who.txt") == "mine\n"


def failing(seconds: int = 600) -> str:
    """Ann fails; bob waits for that, then would take his time."""
    return child("ann", "touch SIGNALS/failed; exit 3", more=", group: g") + child(
        "bob",
        f"while [ ! -e SIGNALS/failed ]; do sleep 0.05; done; sleep {seconds}; echo bob > bob.txt",
        "echo second > second.txt",
        more=", group: g",
    )


def test_fail_fast_stops_the_others(shop: Shop) -> None:
    data = shop.run("plan", "run", shop.write(failing())).expect(5).data
    assert "ann" in data["error"]["message"] or "exit code 3" in data["error"]["message"]
    assert {s["id"]: s["state"] for s in data["steps"]} == {"ann": "errored", "bob": "queued"}
    kids = shop.children()
    assert kids["bob"]["state"] != "complete"
    assert shop.read("bob.txt") is None


def test_without_fail_fast_the_others_end(shop: Shop) -> None:
    shop.run("plan", "run", shop.write(failing(1), policy="{fail_fast: false}")).expect(5)
    assert shop.children()["bob"]["state"] == "complete"
    assert shop.read("bob.txt") is None  # a group is merged together
    (shop.signals / "failed").unlink()
    shop.run("plan", "resume", "plan").expect(5)


def test_a_child_is_tried_again(shop: Shop) -> None:
    """`retries` of the step that is a child plan: its own steps are continued."""
    once = "echo x >> SIGNALS/tried; test $(wc -l < SIGNALS/tried) -ge 3"
    step = child("ann", "echo ok > ok.txt; echo x >> SIGNALS/first", once)
    step = step.replace("{id: ann,", "{id: ann, retries: 2,")
    assert shop.ran(step)["state"] == "complete"
    assert (shop.times("tried"), shop.times("first")) == (3, 1)


WAITS = "echo ran >> SIGNALS/%s; while [ ! -e SIGNALS/go ]; do sleep 0.05; done; echo %s > %s.txt"


def waiting(*names: str) -> str:
    return "".join(
        child(
            n,
            f"echo first > {n}.first; echo ran >> SIGNALS/{n}.first",
            WAITS % (n, n, n),
            more=", group: g",
        )
        for n in names
    )


def no_processes_of(shop: Shop) -> None:
    def left() -> list[str]:
        found: list[str] = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(shop.signals) in words:
                found.append(pid)
        return found

    wait_until(lambda: not left(), "the tools' end", 10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_children_whose_parents_process_ends_are_resumed(shop: Shop, number: int) -> None:
    file = shop.write(waiting("ann", "bob"))
    with running(shop, "plan", "run", file) as process:
        wait_until(lambda: shop.times("ann") and shop.times("bob"), "both children's second step")
        process.send_signal(number)
        process.communicate(timeout=600)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    status = shop.status()
    assert (status["phase"], status["state"]) == ("execute", "errored")
    for kid in shop.children().values():
        assert (kid["phase"], kid["state"]) == ("execute", "errored")
    assert (shop.read("ann.first"), shop.read("bob.first")) == (None, None)
    (shop.signals / "go").touch()
    no_processes_of(shop)
    assert shop.ok("plan", "resume", "plan")["state"] == "complete"
    for name in ("ann", "bob"):
        assert shop.read(f"{name}.txt") == f"{name}\n"
        assert (shop.times(f"{name}.first"), shop.times(name)) == (1, 2)
    assert shop.rows("SELECT count(*) FROM plans") == [(3,)]
    shop.require_whole()


def test_a_child_that_was_complete_when_the_parent_died_is_not_repeated(shop: Shop) -> None:
    steps = child("ann", "echo ann > ann.txt; echo ran >> SIGNALS/ann", more=", group: g")
    file = shop.write(steps + waiting("bob"))
    with running(shop, "plan", "run", file) as process:
        wait_until(
            lambda: shop.times("bob") and shop.children()["ann"]["state"] == "complete",
            "one child's end",
        )
        process.kill()
        process.wait()
    (shop.signals / "go").touch()
    shop.ok("plan", "resume", "plan")
    assert (shop.times("ann"), shop.times("bob.first")) == (1, 1)
    assert (shop.read("ann.txt"), shop.read("bob.txt")) == ("ann\n", "bob\n")


def test_rollback_to_before_a_child_to_its_spawn_and_to_after_it(shop: Shop) -> None:
    shop.ran(three())
    kids = shop.children()
    after = group_of(shop, "after_subplan", "ann")
    spawn = group_of(shop, "on_subplan_spawn", "bob")
    before = group_of(shop, "on_decision", "bob")
    shop.ok("plan", "rollback", "plan", after, "--yes")
    assert [shop.read(f"{n}.txt") for n in ("ann", "bob", "cy")] == ["ann\n", None, None]
    states = {n: k["state"] for n, k in shop.children().items()}
    assert states == {"ann": "complete", "bob": "cancelled", "cy": "cancelled"}
    shop.ok("plan", "undo", "plan")
    assert [shop.read(f"{n}.txt") for n in ("ann", "bob", "cy")] == ["ann\n", "bob\n", "cy\n"]
    assert {n: k["state"] for n, k in shop.children().items()} == dict.fromkeys(kids, "complete")
    # What was there and back since, and is where it was, is no reason for anything.
    last = group_of(shop, "after_subplan", "cy")
    for group, number in ((last, 0), (after, 2)):
        impact = shop.ok("plan", "rollback", "plan", group, "--dry-run")["impact"]
        assert impact["child_plans_invalidated"] == number, group
    shop.ok("plan", "rollback", "plan", spawn, "--yes")
    now = shop.children()
    assert (now["bob"]["id"], now["bob"]["state"]) == (kids["bob"]["id"], "queued")
    assert shop.read("bob.txt", now["bob"]["id"]) is None
    assert now["cy"]["state"] == "cancelled"
    shop.ok("plan", "resume", "plan")
    assert [shop.read(f"{n}.txt") for n in ("ann", "bob", "cy")] == ["ann\n", "bob\n", "cy\n"]
    assert shop.children()["bob"]["id"] == kids["bob"]["id"]
    assert (shop.times("ann"), shop.times("bob"), shop.times("cy")) == (1, 2, 2)
    shop.ok("plan", "rollback", "plan", before, "--yes")
    assert shop.children()["bob"]["state"] == "cancelled"
    shop.ok("plan", "resume", "plan")
    assert shop.children()["bob"]["id"] != kids["bob"]["id"]
    assert shop.read("cy.txt") == "cy\n"
    shop.require_whole()


def test_undo_and_redo_of_a_run_with_children(shop: Shop) -> None:
    shop.ran(three("g"))
    kids = shop.children()
    shop.ok("plan", "undo", "plan")
    assert shop.read("ann.txt") is None
    assert {k["state"] for k in shop.children().values()} == {"cancelled"}
    shop.ok("plan", "redo", "plan")
    assert [shop.read(f"{n}.txt") for n in ("ann", "bob", "cy")] == ["ann\n", "bob\n", "cy\n"]
    assert {k["state"] for k in shop.children().values()} == {"complete"}
    assert shop.children() == kids
    assert shop.read("ann.txt", kids["ann"]["id"]) == "ann\n"
    assert shop.ok("plan", "resume", "plan")["state"] == "complete"
    assert shop.times("ann") == 1


@pytest.mark.parametrize("group", ["", "g"])
def test_correcting_one_of_three_children_leaves_the_others(shop: Shop, group: str) -> None:
    shop.ran(three(group))
    kids, app = shop.children(), shop.sandbox("plan")
    others = {n: inodes(shop.sandbox(kids[n]["id"])) for n in ("ann", "cy")}
    before = inodes(app)
    said = shop.ok("plan", "correct", shop.decision("bob"), "--guidance", "x", "--yes")
    assert said["child_plans_cancelled"] == [kids["bob"]["id"]]
    now = shop.children()
    assert (now["ann"], now["cy"]) == (kids["ann"], kids["cy"])
    assert now["bob"]["id"] != kids["bob"]["id"]
    assert shop.status(kids["bob"]["id"])["state"] == "cancelled"
    assert shop.read("bob.txt", kids["bob"]["id"]) is None
    assert {n: inodes(shop.sandbox(kids[n]["id"])) for n in ("ann", "cy")} == others
    after = inodes(app)
    for name in ("ann.txt", "cy.txt", "base.txt"):
        assert after[f"{app}/{name}"] == before[f"{app}/{name}"]
    assert (shop.times("ann"), shop.times("bob"), shop.times("cy")) == (1, 2, 1)
    shop.ok("plan", "undo", "plan")
    assert shop.status(kids["bob"]["id"])["state"] == "complete"
    assert shop.read("bob.txt", kids["bob"]["id"]) == "bob\n"
    shop.require_whole()


def test_a_merged_child_is_changed_only_through_its_parent(shop: Shop) -> None:
    shop.ran(three())
    kid = shop.children()["ann"]["id"]
    for argv in (("rollback", kid, "first", "--yes"), ("undo", kid)):
        shop.refused("plan", *argv, kind="NotAllowed")
    which = next(d["decision_id"] for d in shop.tree(kid))
    shop.refused("plan", "correct", which, "--guidance", "x", "--yes", kind="NotAllowed")


def test_cancelling_the_parent_cancels_its_children(shop: Shop) -> None:
    shop.run("plan", "run", shop.write(failing())).expect(5)
    shop.ok("plan", "cancel", "plan")
    assert {k["state"] for k in shop.children().values()} == {"cancelled"}
    for kid in shop.children().values():
        shop.refused("plan", "resume", kid["id"], kind="PlanCancelled")


def test_deleting_the_parent_deletes_its_children(shop: Shop) -> None:
    shop.ran(three("g"))
    shop.refused("plan", "delete", "plan", kind="UnappliedWork")
    shop.ok("plan", "delete", "plan", "--yes")
    for table in ("plans", "steps", "decisions", "checkpoints", "sandboxes", "correction_attempts"):
        assert shop.rows(f"SELECT count(*) FROM {table}") == [(0,)], table
    assert list((shop.store.parent / "sandboxes").iterdir()) == []
    assert git(shop.agents, shop.app, "for-each-ref", "refs/cleveragents") == ""
    shop.require_whole()


def test_deleting_a_child_that_the_parent_still_names(shop: Shop) -> None:
    shop.ran(three())
    kid = shop.children()["bob"]["id"]
    shop.refused("plan", "delete", kid, "--yes", kind="NotAllowed")
    shop.ok("plan", "rollback", "plan", "first", "--yes")
    shop.ok("plan", "resume", "plan")
    assert shop.read("bob.txt") == "bob\n"
    shop.require_whole()


def test_a_plan_file_that_is_its_own_child(shop: Shop) -> None:
    text = "name: %s\nsteps:\n  - {id: again, subplan: {file: %s}}\n"
    write_child(shop, "one.yaml", text % ("one", "two.yaml"))
    write_child(shop, "two.yaml", text % ("two", "one.yaml"))
    for steps in (
        "- {id: ann, subplan: {file: plan.yaml}}",
        "- {id: ann, subplan: {file: one.yaml}}",
    ):
        error = shop.run("plan", "run", shop.write(steps)).expect(2).data["error"]
        assert "is its own child plan" in str(error["problems"])


def test_a_child_file_that_is_wrong_is_named_before_anything_starts(shop: Shop) -> None:
    write_child(shop, "child.yaml", "name: c\nsteps:\n  - {id: x, on: app, runn: 'true'}\n")
    error = (
        shop.run("plan", "run", shop.write("- {id: ann, subplan: {file: child.yaml}}"))
        .expect(2)
        .data["error"]
    )
    assert any("child.yaml" in text and "runn" in text for text in error["problems"]), error
    missing = shop.write("- {id: ann, subplan: {file: nowhere.yaml}}")
    error = shop.run("plan", "run", missing).expect(2).data["error"]
    assert any("nowhere.yaml" in text for text in error["problems"]), error


def test_effects_of_triggers_around_children(shop: Shop) -> None:
    shop.ran(three("g"))
    kinds = groups(shop)
    assert kinds.index("on_subplan_spawn") < kinds.index("after_subplan")
    [spawned] = shop.rows(
        "SELECT children FROM checkpoint_groups JOIN plans USING (plan_id)"
        " WHERE name = 'plan' ORDER BY checkpoint_groups.seq DESC LIMIT 1"
    )
    assert all(kid["id"] in spawned[0] for kid in shop.children().values())


def test_a_child_without_the_parents_checkpoints(shop: Shop) -> None:
    said = shop.ran(three("g"), policy="{auto_create_on: []}")
    assert said["state"] == "complete"
    assert shop.read("cy.txt") == "cy\n"
    shop.ok("plan", "rollback", "plan", "first", "--yes")
    assert shop.read("cy.txt") is None
    shop.ok("plan", "resume", "plan")
    assert shop.read("cy.txt") == "cy\n"


@pytest.mark.parametrize("group", ["", "g"])
def test_rollback_enabled_false_with_children(shop: Shop, group: str) -> None:
    said = shop.ran(three(group), policy="{rollback_enabled: false}")
    assert said["state"] == "complete"
    assert [shop.read(f"{n}.txt") for n in ("ann", "bob", "cy")] == ["ann\n", "bob\n", "cy\n"]
    shop.ok("plan", "apply", "plan", "--yes")
    assert (shop.app / "cy.txt").read_text() == "cy\n"


def told(outcome: Any) -> str:
    return outcome.stdout + outcome.stderr


def test_progress_and_status_name_the_children_for_people(shop: Shop) -> None:
    outcome = shop.agents.run("plan", "run", shop.write(three())).expect(0)
    assert "ann" in told(outcome)
    conflict = shop.agents.run("plan", "run", shop.write(CONFLICT, "c.yaml")).expect(5)
    assert "who.txt" in told(conflict)
    assert "who.txt" in told(shop.agents.run("plan", "status", "c"))
