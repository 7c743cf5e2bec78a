"""Everything that can be done to a plan from the page: previewed by GET, done by POST."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from cleveragents.lease import holder, working_on
from cleveragents.model.plan import State
from cleveragents.web.forms import argv_of
from cleveragents.workspace import PlanHandle, Workspace, open_workspace
from tests.harness import PATIENCE
from tests.in_process import FAILING, PLAN, Yard, box, cli, edit, execute, files
from tests.scratch import wait_until
from tests.web.visitor import HERE, Visitor, rows, words


@pytest.fixture
def plan(yard: Yard) -> "Here":
    with open_workspace() as ws:
        made = ws.use(yard.plan(PLAN))
        execute(ws, made)
        return Here(made.plan_id)


@pytest.fixture
def visitor(yard: Yard) -> Generator[Visitor]:
    """Somebody with the page open; what they began has ended when the test has."""
    made = Visitor()
    yield made
    for job in made.commands.running():
        job.wait(30)


class Here:
    """A plan that each look opens anew, as other processes change it."""

    def __init__(self, plan_id: str) -> None:
        self.plan_id = plan_id

    @property
    def path(self) -> str:
        return f"/plans/{self.plan_id}"

    def state(self) -> State:
        with open_workspace() as ws:
            return self.of(ws).plan.state

    def files(self) -> set[str]:
        with open_workspace() as ws:
            return files(self.of(ws))

    def is_free(self) -> bool:
        with open_workspace() as ws:
            return holder(ws.ctx.store, self.plan_id) is None

    def of(self, ws: Workspace) -> PlanHandle:
        return PlanHandle(ws.ctx, self.plan_id)

    def group(self, name: str) -> str:
        with open_workspace() as ws:
            return self.of(ws).group(name).group_id

    def decision(self, step: str) -> str:
        with open_workspace() as ws:
            steps = ws.ctx.store.plans.steps(self.plan_id)
            return next(s.decision_id for s in steps if s.step_id == step) or ""


def test_roll_back_undo_and_redo(plan: Here, visitor: Visitor) -> None:
    first = plan.group("one")
    preview = words(visitor.get(f"{plan.path}/rollback?to={first}"))
    assert "Go back to “people”" in preview
    assert "1 decision is set aside" in preview
    assert "app old.txt and two.txt 0 1 1" in preview
    assert f"agents plan rollback shop {first[-6:]}" in preview
    assert plan.files() == {"one.txt", "two.txt"}

    answer = visitor.post(f"{plan.path}/rollback", to=first)
    assert answer.headers["location"] == f"{plan.path}?done=rollback"
    assert plan.files() == {"one.txt", "old.txt"}
    page = visitor.get(answer.headers["location"])
    assert "Rolled back. agents plan rollback" in words(page)
    assert "You rolled back to “people”" in rows(page)[-2]
    assert "Undo rollback" in words(page)

    assert "2 paths change; the plan is then execute/complete" in words(
        visitor.get(f"{plan.path}/undo")
    )
    visitor.post(f"{plan.path}/undo")
    assert plan.files() == {"one.txt", "two.txt"}
    assert "Redo rollback" in words(visitor.get(plan.path))
    assert "Redo rollback" in words(visitor.get(f"{plan.path}/redo"))
    visitor.post(f"{plan.path}/redo")
    assert plan.files() == {"one.txt", "old.txt"}
    assert plan.state() is State.QUEUED


def test_a_decision_is_corrected_and_its_steps_run_again(plan: Here, visitor: Visitor) -> None:
    decision = plan.decision("two")
    preview = words(visitor.get(f"{plan.path}/correct?decision={decision}"))
    assert "which file" in preview
    assert "It was: two" in preview
    assert "1 decision is done again" in preview
    assert "Runs again: two" in preview
    assert re.search(r"agents plan correct \w+ --guidance TEXT", preview)
    everything = words(visitor.get(f"{plan.path}/correct?decision={decision}&cascade=1"))
    assert re.search(r"agents plan correct \w+ --cascade --guidance TEXT", everything)
    visitor.post(f"{plan.path}/correct", decision=decision, guidance="say it\nbetter --yes")
    wait_until(plan.is_free, "the correction to end")
    page = visitor.get(plan.path)
    assert "You corrected: which file say it" in words(page)
    assert "Set aside by your correction" in words(page)
    with open_workspace() as ws:
        assert ws.ctx.store.plans.guidance(plan.plan_id) == ("say it\nbetter --yes",)
        assert plan.of(ws).plan.attempt == 2


def test_a_failed_plan_is_resumed_with_ones_edits(yard: Yard, visitor: Visitor) -> None:
    with open_workspace() as ws:
        made = ws.use(yard.plan(FAILING))
        execute(ws, made)
        plan = Here(made.plan_id)
        edit(made, "ok")
    preview = words(visitor.get(f"{plan.path}/resume"))
    assert "step three: exit code 1" in preview
    assert "Your edits stay and become a moment: ok" in preview
    visitor.post(f"{plan.path}/resume", edits="adopt")
    wait_until(lambda: plan.state() is State.COMPLETE, "the plan to be complete")
    assert {"ok", "half.txt"} <= plan.files()
    assert "You edited ok" in words(visitor.get(plan.path))


def test_resuming_what_fails_again_shows_the_plan_and_why(yard: Yard, visitor: Visitor) -> None:
    with open_workspace() as ws:
        made = ws.use(yard.plan(FAILING))
        execute(ws, made)
        plan = Here(made.plan_id)
    visitor.post(f"{plan.path}/resume")
    why = "three: exit code 1"
    wait_until(lambda: why in words(visitor.get(plan.path)), why)
    assert plan.state() is State.ERRORED


def test_apply_makes_it_real_once(yard: Yard, plan: Here, visitor: Visitor) -> None:
    preview = words(visitor.get(f"{plan.path}/apply"))
    assert "3 paths" in preview
    assert "old.txt" in preview
    assert not (yard.app / "one.txt").exists()
    visitor.post(f"{plan.path}/apply")
    assert (yard.app / "one.txt").read_text() == "one\n"
    assert plan.state() is State.APPLIED
    page = words(visitor.get(plan.path))
    assert "Applied to app as changes, 3 files" in page
    assert "Go back here" not in page
    refused = words(visitor.get(f"{plan.path}/rollback?to={plan.group('first')}", expect=409))
    assert "is applied" in refused


def test_a_conflict_is_shown_and_nothing_is_applied(
    yard: Yard, plan: Here, visitor: Visitor
) -> None:
    (yard.app / "one.txt").write_text("mine\n")
    preview = words(visitor.get(f"{plan.path}/apply"))
    assert "one.txt" in preview
    assert "nothing is applied" in preview
    refused = visitor.post(f"{plan.path}/apply", expect=409)
    assert "was changed by the plan and in the target" in words(refused.text)
    assert (yard.app / "one.txt").read_text() == "mine\n"
    assert "Apply stopped" in words(visitor.get("/"))


def test_a_moment_is_kept_under_a_name_and_a_plan_cancelled(plan: Here, visitor: Visitor) -> None:
    visitor.get(f"{plan.path}/keep")
    visitor.post(f"{plan.path}/keep", label="before lunch")
    assert "You marked this moment before lunch" in words(visitor.get(plan.path))
    assert "3 changes are never applied" in words(visitor.get(f"{plan.path}/cancel"))
    visitor.post(f"{plan.path}/cancel")
    assert plan.state() is State.CANCELLED
    assert "Cancelled. Its sandbox and its moments are kept" in words(visitor.get("/"))


def test_what_cannot_be_undone_is_asked_about_by_name(yard: Yard, visitor: Visitor) -> None:
    text = PLAN.replace(
        "steps:", 'tools: {mail: {run: "true", side_effects: [a letter to Ada]}}\nsteps:'
    )
    with open_workspace() as ws:
        made = ws.use(yard.plan(text + "  - {id: post, tool: mail, on: app}\n"))
        execute(ws, made)
        plan = Here(made.plan_id)
    first = plan.group("one")
    preview = words(visitor.get(f"{plan.path}/rollback?to={first}"))
    assert "1 thing outside cannot be undone" in preview
    assert "I know that this stays: a letter to Ada" in preview
    refused = visitor.post(f"{plan.path}/rollback", to=first, expect=409)
    assert "a letter to Ada" in words(refused.text)
    assert "--accept-loss" in words(refused.text)
    assert "two.txt" in plan.files()
    visitor.post(f"{plan.path}/rollback", to=first, accept_loss="1")
    assert "two.txt" not in plan.files()


def test_only_the_page_itself_may_send_its_forms(plan: Here, visitor: Visitor) -> None:
    first, before = plan.group("first"), plan.files()
    path, data = f"{plan.path}/rollback", {"to": first, "form": visitor.keys.form}
    for headers in (
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://localhost:4567"},
        {"Origin": HERE, "Sec-Fetch-Site": "cross-site"},
    ):
        assert visitor.client.post(path, data=data, headers=headers).status_code == 403
    for wrong in ({"to": first}, {"to": first, "form": "guess"}):
        assert visitor.client.post(path, data=wrong, headers={"Origin": HERE}).status_code == 403
    stranger = Visitor(enter=False)
    assert stranger.client.post(path, data=data, headers={"Origin": HERE}).status_code == 403
    assert plan.files() == before


def test_looking_changes_nothing(plan: Here, visitor: Visitor) -> None:
    first, before = plan.group("first"), plan.files()
    for verb in (
        "rollback",
        "undo",
        "redo",
        "correct",
        "resume",
        "apply",
        "keep",
        "cancel",
        "stop",
    ):
        visitor.client.get(f"{plan.path}/{verb}", params={"to": first, "form": visitor.keys.form})
        visitor.client.head(f"{plan.path}/{verb}", params={"to": first})
    assert visitor.client.get(f"{plan.path}/stop").status_code == 405
    assert plan.files() == before
    assert plan.state() is State.COMPLETE
    with open_workspace() as ws:
        assert len(plan.of(ws).log()) == 2


def test_a_form_that_says_too_little_is_refused(plan: Here, visitor: Visitor) -> None:
    for verb in ("rollback", "correct"):
        refused = visitor.post(f"{plan.path}/{verb}", expect=400)
        assert "does not say which" in words(refused.text)
        visitor.get(f"{plan.path}/{verb}", expect=409)
    visitor.post(f"{plan.path}/dance", expect=404)
    visitor.get(f"{plan.path}/dance", expect=404)
    long = visitor.client.post(
        f"{plan.path}/keep",
        data={"form": visitor.keys.form, "label": "x" * 2_000_000},
        headers={"Origin": HERE},
    )
    assert long.status_code in (403, 413)


def test_what_is_typed_never_becomes_an_option() -> None:
    fields = {"guidance": ["--yes"], "decision": ["01ABC"], "plan_file": ["--help"]}
    words = argv_of("correct", "01P", fields)
    assert words == ["plan", "correct", "01ABC", "--guidance=--yes", "--yes", "--plan-file=--help"]
    kept = argv_of("rollback", "01P", {"to": ["01G"], "clash-1": ["keep:--all"], "clash-2": ["x"]})
    assert kept == ["plan", "rollback", "01P", "01G", "--yes", "--keep-mine=--all"]


def test_a_plan_that_another_process_works_on_is_refused_as_in_a_terminal(
    plan: Here, visitor: Visitor
) -> None:
    first = plan.group("first")
    with open_workspace() as ws, working_on(ws.ctx.store, plan.plan_id, "plan resume", ws.ctx.now):
        page = words(visitor.get(plan.path))
        assert "Go back here" not in page
        assert "Working: plan resume" in page
        refused = visitor.post(f"{plan.path}/rollback", to=first, expect=409)
        assert f"is held by `plan resume` (process {os.getpid()}" in words(refused.text)
        # It is this process that holds it here, and no other is to be ended.
        own = visitor.post(f"{plan.path}/stop", expect=409)
        assert "kill" in words(own.text)
    nobody = visitor.post(f"{plan.path}/stop", expect=409)
    assert "nobody works on this plan now" in words(nobody.text).lower()


def test_stop_ends_a_running_step_and_the_plan_can_be_resumed(
    yard: Yard, tmp_path: Path, visitor: Visitor
) -> None:
    go = tmp_path / "go"
    text = PLAN.replace(
        "echo one > one.txt", f"echo begun; while [ ! -e {go} ]; do sleep 0.02; done"
    )
    with open_workspace() as ws:
        plan = Here(ws.use(yard.plan(text)).plan_id)
    visitor.post(f"{plan.path}/resume")

    def running() -> bool:
        with open_workspace() as ws:
            return bool(ws.ctx.store.calls.running(plan.plan_id))

    wait_until(running, "the step to run")
    page = visitor.get(plan.path)
    assert "Stop" in words(page)
    assert "Step 1 of 2, one" in words(page)
    visitor.post(f"{plan.path}/stop")
    with open_workspace() as ws:
        assert holder(ws.ctx.store, plan.plan_id) is None
    go.touch()
    visitor.post(f"{plan.path}/resume")
    wait_until(lambda: plan.state() is State.COMPLETE, "the plan to be complete")


def test_the_command_itself_prints_its_address_and_ends_with_ctrl_c(yard: Yard) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "cleveragents", "web", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    address = server.stdout.readline()
    assert address.startswith("http://127.0.0.1:")
    assert "/enter?token=" in address
    assert httpx.get(address.strip().replace("token=", "token=not-")).status_code == 403
    assert server.stderr is not None
    assert "Ctrl-C ends the page" in server.stderr.readline()
    server.send_signal(signal.SIGINT)
    out, err = server.communicate(timeout=PATIENCE)
    assert (server.returncode, out, err) == (0, "", "")


def test_edits_in_the_sandbox_are_what_undo_takes_first(plan: Here, visitor: Visitor) -> None:
    with open_workspace() as ws:
        (box(plan.of(ws)) / "mine.txt").write_text("mine\n")
    assert "mine.txt" in words(visitor.get(f"{plan.path}/undo"))
    visitor.post(f"{plan.path}/undo")
    assert "mine.txt" not in plan.files()


def test_steps_are_named_in_the_order_of_their_numbers(yard: Yard, visitor: Visitor) -> None:
    steps = ", ".join(f"{{id: s{n}, run: 'echo {n} > old.txt'}}" for n in (2, 10, 3))
    with open_workspace() as ws:
        yard.done(ws, f"steps: [{steps}]")
    back = words(visitor.get("/plans/yard/rollback?to=first"))
    assert "Steps s2, s3 and s10 had network and declared nothing" in back
    assert "1 path in 1 resource returns, 3 decisions are set aside" in back
    told = cli("plan", "rollback", "yard", "first", "--dry-run").stdout
    assert "what s2, s3 and s10 did: they had network" in told


def test_what_to_type_names_this_plan_also_if_a_newer_one_is_called_alike(
    plan: Here, visitor: Visitor, yard: Yard
) -> None:
    assert "agents plan undo shop" in words(visitor.get(f"{plan.path}/undo"))
    with open_workspace() as ws:
        ws.use(yard.plan(PLAN))
    first = plan.group("first")
    for verb in ("undo", "apply", f"rollback?to={first}"):
        shown = words(visitor.get(f"{plan.path}/{verb}"))
        assert f"agents plan {verb.partition('?')[0]} {plan.plan_id}" in shown
    assert f"agents plan rollback {plan.plan_id}" in words(visitor.get(plan.path))
    output = words(visitor.get(f"{plan.path}/output/one"))
    assert f"agents plan output {plan.plan_id} one" in output


def test_a_name_that_cannot_be_typed_is_not_what_to_type(visitor: Visitor, yard: Yard) -> None:
    with open_workspace() as ws:
        made = ws.use(yard.plan(PLAN.replace("name: shop", 'name: "pohs\\u202e"')))
        execute(ws, made)
        plan_id = made.plan_id
    assert f"agents plan undo {plan_id}" in words(visitor.get(f"/plans/{plan_id}/undo"))


TWICE = """
name: twice
resources: {app: {kind: fs-directory, path: app}}
steps:
  - {id: one, on: app, run: "echo 1 > one.txt"}
  - {id: two, decision: {question: how often, chosen: twice}, on: app, run: "echo 2 > two.txt"}
  - {id: more, decision: two, on: app, run: "echo 3 > three.txt"}
  - {id: last, on: app, run: "echo 4 > four.txt"}
"""


def test_a_rollback_says_where_on_the_rail_it_leads(visitor: Visitor, yard: Yard) -> None:
    with open_workspace() as ws:
        made = ws.use(yard.plan(TWICE))
        execute(ws, made)
        path = f"/plans/{made.plan_id}/rollback?to="
        groups = {one.group_id: one for one in made.checkpoints()}
        before = next(g for g, one in groups.items() if one.step_index == 1)

    def told(to: str) -> str:
        return words(visitor.get(f"{path}{to}"))

    middle = told("two")
    assert "Go back to the middle of “twice” The moment after step 2 of 4, " in middle
    assert "one twice You will be here up to step two last " in middle
    assert "Go back to “twice” The moment after step 3 of 4, " in told("more")
    assert "one twice You will be here last " in told("more")
    assert "Go back to before “twice” The moment before step 2 of 4, " in told(before)
    assert "one You will be here twice last " in told(before)
    assert "one twice last What is set aside" in told("first")
