"""Plans whose steps an agent performs: what it tells becomes steps, decisions and groups."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from cleveragents.errors import NotAllowed, PlanBusy
from cleveragents.integrations.events import (
    Answer,
    Event,
    Prompt,
    Quiet,
    SessionEnded,
    SessionStarted,
    StepBegins,
    StepEnded,
)
from cleveragents.integrations.observer import Observer
from cleveragents.integrations.session import session_plan
from cleveragents.model.conversation import Anchor, Point, anchor_in
from cleveragents.model.effect import EffectClass
from cleveragents.model.plan import StepState
from cleveragents.model.tool import CallState
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace, open_workspace
from tests.harness import Agents


class Rig:
    """An agent that works in a sandbox of a small folder, event by event."""

    def __init__(self, agents: Agents, ws: Workspace, session: str = "sess-1") -> None:
        self.agents = agents
        self.ws = ws
        self.session = session
        self.prompts = self.calls = 0
        make = partial(session_plan, strategy=None, extra={})
        self.observer = Observer(ws.ctx, make, wait=0.2)

    def anchor(self, call: str = "") -> Anchor:
        return Anchor(
            agent="claude-code",
            session_id=self.session,
            prompt_id=f"p{self.prompts}",
            call_id=call,
        )

    def tell(self, event: Event, pid: int = 0) -> Answer:
        return self.observer.handle(event, pid=pid)

    def start(self, source: str = "startup") -> Answer:
        cwd = str(self.agents.work)
        return self.tell(SessionStarted(anchor=self.anchor(), cwd=cwd, source=source))

    def prompt(self, text: str, parent: str = "") -> Answer:
        self.prompts += 1
        cwd = str(self.agents.work)
        return self.tell(Prompt(anchor=self.anchor(), cwd=cwd, text=text, parent_call=parent))

    def begin(
        self, tool: str = "Write", parent: str = "", writes: bool | None = True, **inputs: str
    ) -> str:
        self.calls += 1
        call = f"c{self.calls}"
        self.tell(
            StepBegins(
                anchor=self.anchor(call),
                cwd=str(self.agents.work),
                call=call,
                tool=tool,
                inputs=dict(inputs),
                writes=writes,
                parent_call=parent,
            )
        )
        return call

    def end(self, call: str, ok: bool = True, error: str = "") -> None:
        self.tell(StepEnded(anchor=self.anchor(call), call=call, ok=ok, error=error))

    def write(self, name: str, text: str, tool: str = "Write") -> str:
        call = self.begin(tool, path=name)
        self.path(name).write_text(text)
        self.end(call)
        return call

    def quiet(self, said: str = "", background: tuple[str, ...] = ()) -> None:
        self.tell(Quiet(anchor=self.anchor(), said=said, background=background))

    @property
    def plan(self) -> PlanHandle:
        return self.ws.find(self.session)

    def path(self, name: str) -> Path:
        return Path(self.plan.sandboxes["work"]) / name

    def files(self) -> dict[str, str]:
        root = Path(self.plan.sandboxes["work"])
        return {
            str(path.relative_to(root)): path.read_text()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    def group(self, kind: str) -> str:
        """The newest group of a kind."""
        return [c.group_id for c in self.plan.checkpoints() if c.checkpoint_type == kind][-1]

    def kinds(self) -> list[str]:
        seen = dict.fromkeys((c.group_id, str(c.checkpoint_type)) for c in self.plan.checkpoints())
        return [kind for _, kind in seen]


@pytest.fixture
def rig(agents: Agents) -> Iterator[Rig]:
    (agents.work / "a.txt").write_text("a\n")
    with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as ws:
        rig = Rig(agents, ws)
        yield rig
        rig.observer.close()


def test_a_prompt_is_a_decision_and_its_calls_are_steps(rig: Rig) -> None:
    rig.start()
    rig.prompt("add b\nand say so")
    rig.write("b.txt", "b\n")
    rig.quiet("I added b.txt")
    plan = rig.plan
    (step,) = rig.ws.ctx.store.plans.steps(plan.plan_id)
    assert (step.tool, step.state) == ("Write", StepState.COMPLETE)
    decisions = rig.ws.ctx.store.plans.decisions(plan.plan_id)
    assert [d.question for d in decisions[1:]] == ["add b\nand say so"]
    assert decisions[1].chosen == "I added b.txt"
    assert step.decision_id == decisions[1].decision_id
    assert rig.kinds() == ["pre_execute", "on_decision", "after_tool_execute", "post_execute"]
    (write,) = rig.ws.ctx.store.calls.writes(plan.plan_id)
    assert (write.path, write.step_id) == (b"b.txt", step.step_id)
    assert (rig.agents.work / "b.txt").exists() is False


def test_every_group_has_the_place_in_the_conversation(rig: Rig) -> None:
    rig.prompt("one")
    call = rig.write("b.txt", "b\n")
    rig.quiet("done")
    found = {
        str(rig.plan.group(group).checkpoint_type): anchor_in(rig.plan.group(group).actor_state)
        for group in {c.group_id for c in rig.plan.checkpoints()}
    }
    assert found["pre_execute"] is None
    assert found["on_decision"] == (rig.anchor(), Point.BEFORE)
    assert found["after_tool_execute"] == (rig.anchor(call), Point.AFTER)
    assert found["post_execute"] == (rig.anchor(), Point.AFTER)


def test_undo_undoes_the_last_prompt_as_a_whole(rig: Rig) -> None:
    rig.prompt("one")
    rig.write("b.txt", "b\n")
    rig.quiet()
    rig.prompt("two")
    rig.write("c.txt", "c\n")
    rig.write("b.txt", "changed\n")
    rig.quiet()
    rig.plan.undo()
    assert rig.files() == {"a.txt": "a\n", "b.txt": "b\n"}
    rig.plan.undo()
    assert rig.files() == {"a.txt": "a\n"}
    rig.plan.redo()
    rig.plan.redo()
    assert rig.files() == {"a.txt": "a\n", "b.txt": "changed\n", "c.txt": "c\n"}


def test_a_rollback_goes_to_a_point_inside_a_prompt(rig: Rig) -> None:
    rig.prompt("one")
    rig.write("b.txt", "b\n")
    inside = rig.group("after_tool_execute")
    rig.write("c.txt", "c\n")
    rig.quiet()
    rig.plan.rollback(inside)
    assert rig.files() == {"a.txt": "a\n", "b.txt": "b\n"}
    explained = rig.agents.run("plan", "explain", "s1").expect(0).stdout
    assert "steps         s1 (complete), s2 (rolled back)\n" in explained
    answer = rig.prompt("now something else")
    assert f"returned to checkpoint {inside}" in answer.context
    rig.write("d.txt", "d\n")
    assert rig.prompt("next").context == ""
    assert rig.files() == {"a.txt": "a\n", "b.txt": "b\n", "d.txt": "d\n"}


def test_the_agent_is_told_at_its_start_that_its_files_were_rolled_back(rig: Rig) -> None:
    rig.prompt("one")
    rig.write("b.txt", "b\n")
    rig.quiet()
    assert rig.start("resume").context == ""
    rig.plan.rollback("first")
    assert "read them again" in rig.start("resume").context


def test_a_failed_call_is_a_step_that_errored_and_the_plan_continues(rig: Rig) -> None:
    rig.prompt("one")
    call = rig.begin("Bash", command="false")
    rig.path("half.txt").write_text("half\n")
    rig.end(call, ok=False, error="exit code 1")
    rig.write("b.txt", "b\n")
    rig.quiet()
    failed, good = rig.ws.ctx.store.plans.steps(rig.plan.plan_id)
    assert (failed.state, failed.error) == (StepState.ERRORED, "exit code 1")
    assert good.done
    assert rig.files() == {"a.txt": "a\n", "b.txt": "b\n", "half.txt": "half\n"}
    assert rig.plan.plan.state == "queued"


def test_a_call_that_failed_stays_so_where_a_rollback_leads_behind_it(rig: Rig) -> None:
    def shown() -> list[tuple[str, str, str | None]]:
        data = rig.agents.run("plan", "status", rig.session, "--json").expect(0).data
        steps = {step.step_id: step for step in rig.ws.ctx.store.plans.steps(rig.plan.plan_id)}
        return [(one["step"], one["status"], steps[one["step"]].error) for one in data["progress"]]

    failed = ("s1", "errored", "exit code 1")
    rig.prompt("one")
    rig.end(rig.begin("Bash", command="false"), ok=False, error="exit code 1")
    behind = rig.group("after_tool_execute")
    rig.write("b.txt", "b\n")
    rig.quiet()
    rig.plan.rollback(behind)
    assert shown() == [failed]
    rig.prompt("two")
    rig.end(rig.begin("Bash", command="false"), ok=False, error="exit code 2")
    rig.quiet()
    assert shown() == [failed, ("s3", "errored", "exit code 2")]
    rig.plan.undo()
    assert shown() == [failed]
    rig.plan.redo()
    assert shown() == [failed, ("s3", "errored", "exit code 2")]
    rig.plan.rollback("first")
    assert shown() == []


def test_parallel_calls_make_one_group_and_share_what_they_wrote(rig: Rig) -> None:
    rig.prompt("one")
    first, second = rig.begin("Bash", command="x"), rig.begin("Bash", command="y")
    rig.path("b.txt").write_text("b\n")
    rig.end(first)
    assert "after_tool_execute" not in rig.kinds()
    rig.path("c.txt").write_text("c\n")
    rig.end(second)
    assert rig.kinds().count("after_tool_execute") == 1
    writes = rig.ws.ctx.store.calls.writes(rig.plan.plan_id)
    assert sorted((w.step_id, w.path) for w in writes) == [
        ("s1", b"b.txt"),
        ("s1", b"c.txt"),
        ("s2", b"b.txt"),
        ("s2", b"c.txt"),
    ]


def test_what_a_person_edits_between_calls_is_not_the_agents(rig: Rig) -> None:
    rig.prompt("one")
    rig.write("b.txt", "b\n")
    rig.path("mine.txt").write_text("mine\n")
    rig.write("c.txt", "c\n")
    rig.quiet()
    assert rig.kinds().count("external_edit") == 1
    writes = {w.path for w in rig.ws.ctx.store.calls.writes(rig.plan.plan_id)}
    assert writes == {b"b.txt", b"c.txt"}


def test_an_edit_between_prompts_is_an_operation_of_its_own(rig: Rig) -> None:
    rig.prompt("one")
    rig.write("b.txt", "b\n")
    rig.quiet()
    rig.path("mine.txt").write_text("mine\n")
    rig.prompt("two")
    rig.write("c.txt", "c\n")
    rig.quiet()
    rig.plan.undo()
    assert rig.files() == {"a.txt": "a\n", "b.txt": "b\n", "mine.txt": "mine\n"}


def test_a_tool_that_only_reads_makes_no_group(rig: Rig) -> None:
    rig.prompt("one")
    before = rig.kinds()
    rig.end(rig.begin("Read", writes=False, path="a.txt"))
    assert rig.kinds() == before
    (step,) = rig.ws.ctx.store.plans.steps(rig.plan.plan_id)
    assert step.done


def test_a_sub_agents_calls_belong_to_a_decision_below_the_prompts(rig: Rig) -> None:
    rig.prompt("one")
    task = rig.begin("Task", description="look around")
    inner = rig.begin("Write", parent=task, path="b.txt")
    rig.path("b.txt").write_text("b\n")
    rig.end(inner)
    assert rig.kinds()[-1] == "after_tool_execute", "a point inside of the sub-agent's work"
    rig.prompts -= 1
    rig.prompt("sub-agent review", parent="agent-7")
    rig.write("c.txt", "c\n")
    rig.end(rig.begin("Write", parent="agent-7"))
    rig.end(task)
    rig.quiet()
    root, asked, below, other = rig.ws.ctx.store.plans.decisions(rig.plan.plan_id)
    assert (asked.parent_id, below.parent_id) == (root.decision_id, asked.decision_id)
    assert (below.question, other.question) == ("look around", "sub-agent review")
    assert other.parent_id == asked.decision_id
    by_tool = rig.ws.ctx.store.plans.steps(rig.plan.plan_id)
    assert by_tool[1].decision_id == below.decision_id
    assert by_tool[3].decision_id == other.decision_id


def test_a_shell_may_have_done_anything_outside(rig: Rig) -> None:
    rig.prompt("one")
    rig.end(rig.begin("Bash", writes=None, command="curl example.invalid"))
    rig.write("b.txt", "b\n")
    (effect,) = rig.plan.effects()
    assert (effect.effect_class, effect.tool) == (EffectClass.UNKNOWN, "Bash")


def test_a_call_that_never_ended_is_interrupted_and_keeps_what_it_did(rig: Rig) -> None:
    rig.prompt("one")
    rig.begin("Bash", command="sleep 1000")
    rig.path("b.txt").write_text("b\n")
    rig.prompt("two")
    (call,) = rig.plan.tool_calls()
    assert call.state is CallState.INTERRUPTED
    (write,) = rig.ws.ctx.store.calls.writes(rig.plan.plan_id)
    assert write.path == b"b.txt"
    assert rig.files() == {"a.txt": "a\n", "b.txt": "b\n"}
    rig.plan.undo()
    assert rig.files() == {"a.txt": "a\n", "b.txt": "b\n"}, "prompt two did nothing"
    rig.plan.undo()
    assert rig.files() == {"a.txt": "a\n"}


def test_the_end_of_a_call_that_nobody_knows_changes_nothing(rig: Rig) -> None:
    rig.prompt("one")
    before = rig.plan.plan.version
    rig.end("never begun")
    assert rig.plan.plan.version == before


def test_while_a_call_is_open_other_commands_are_told_which(rig: Rig) -> None:
    rig.prompt("one")
    rig.write("b.txt", "b\n")
    call = rig.begin("Bash", command="make all")
    done = rig.agents.run("plan", "rollback", rig.session, "first", "--yes").expect(4)
    assert "claude-code is running Bash" in done.stderr
    assert "hint: wait until it has ended, or interrupt the agent" in done.stderr
    shown = rig.agents.run("plan", "status", rig.session, "--json").expect(0).data["progress"]
    assert [step["status"] for step in shown] == ["complete", "processing"]
    rig.end(call)
    rig.agents.run("plan", "rollback", rig.session, "first", "--yes").expect(0)
    assert rig.files() == {"a.txt": "a\n"}


def test_a_live_agent_without_a_sidecar_also_keeps_its_open_call(rig: Rig) -> None:
    rig.prompt("one")
    rig.begin("Bash", command="make all")
    rig.tell(Prompt(anchor=rig.anchor(), cwd="", text="sub", parent_call="x"), pid=os.getpid())
    rig.observer.close()
    with pytest.raises(PlanBusy, match="claude-code is running Bash: make all"):
        rig.plan.rollback("first")
    assert "[s1: processing]" in rig.agents.run("plan", "tree", rig.session).expect(0).stdout


def test_what_an_agent_that_is_gone_left_open_ends_before_a_rollback(rig: Rig) -> None:
    rig.prompt("one")
    rig.begin("Bash", command="make all")
    rig.path("b.txt").write_text("b\n")
    rig.observer.close()
    assert "[s1: interrupted]" in rig.agents.run("plan", "tree", rig.session).expect(0).stdout
    rig.plan.rollback("first")
    assert rig.files() == {"a.txt": "a\n"}
    rig.plan.undo()
    assert rig.files() == {"a.txt": "a\n", "b.txt": "b\n"}
    assert rig.plan.tool_calls()[0].state is CallState.INTERRUPTED


def test_tasks_in_the_background_are_named_and_no_rollback_pulls_files_away(rig: Rig) -> None:
    rig.prompt("one")
    rig.write("b.txt", "b\n")
    rig.tell(Quiet(anchor=rig.anchor(), background=("npm run dev",)), pid=os.getpid())
    with pytest.raises(PlanBusy, match="has left running: npm run dev"):
        rig.plan.rollback("first")
    rig.plan.checkpoint("still-allowed")
    rig.path("built.txt").write_text("by the task\n")
    rig.quiet(background=("npm run dev",))
    assert b"built.txt" in {w.path for w in rig.ws.ctx.store.calls.writes(rig.plan.plan_id)}
    rig.quiet()
    rig.plan.rollback("first")
    assert rig.files() == {"a.txt": "a\n"}


def test_another_process_may_handle_every_event(agents: Agents) -> None:
    """As when no sidecar can be had: the store has all that is to be known."""
    (agents.work / "a.txt").write_text("a\n")
    home = agents.env["CLEVERAGENTS_HOME"]
    calls: list[str] = []

    def then(act: Callable[[Rig], object]) -> object:
        with open_workspace(home) as ws:
            rig = Rig(agents, ws)
            rig.prompts, rig.calls = 1, len(calls)
            result = act(rig)
            rig.observer.close()
            return result

    def begin(rig: Rig) -> None:
        calls.append(rig.begin("Write", path="b.txt"))

    def write(rig: Rig) -> None:
        rig.path("b.txt").write_text("b\n")

    then(lambda rig: rig.prompt("one"))
    then(begin)
    then(write)
    then(lambda rig: rig.end(calls[-1]))
    then(lambda rig: rig.quiet("done"))
    assert then(lambda rig: rig.kinds()) == [
        "pre_execute",
        "on_decision",
        "after_tool_execute",
        "post_execute",
    ]
    then(lambda rig: rig.plan.undo())
    assert then(lambda rig: rig.files()) == {"a.txt": "a\n"}


def test_recovery_rolls_nothing_of_an_observed_plan_back(rig: Rig) -> None:
    """A sidecar that was killed between begin and end leaves its lease and an open call."""
    rig.prompt("one")
    call = rig.begin("Write", path="b.txt")
    rig.path("b.txt").write_text("b\n")
    store = rig.ws.ctx.store
    lease = store.leases.get(rig.plan.plan_id)
    assert lease is not None
    assert lease.held
    with store.transaction():
        store.leases.take(msgspec.structs.replace(lease, pid=2**22 - 1, started="1"), lease)
    rig.agents.run("plan", "list").expect(0)
    assert rig.files() == {"a.txt": "a\n", "b.txt": "b\n"}
    again = Rig(rig.agents, rig.ws)
    again.prompts = 1
    again.end(call)
    assert rig.plan.tool_calls()[0].state is CallState.OK
    again.quiet()
    rig.plan.undo()
    assert rig.files() == {"a.txt": "a\n"}


def test_two_sessions_on_one_tree_have_a_plan_each(rig: Rig) -> None:
    other = Rig(rig.agents, rig.ws, "sess-2")
    rig.prompt("one")
    other.prompt("uno")
    rig.write("b.txt", "b\n")
    other.write("c.txt", "c\n")
    assert rig.plan.plan_id != other.plan.plan_id
    assert rig.files() == {"a.txt": "a\n", "b.txt": "b\n"}
    assert other.files() == {"a.txt": "a\n", "c.txt": "c\n"}
    other.observer.close()


def test_a_manual_checkpoint_does_not_end_the_prompt(rig: Rig) -> None:
    rig.prompt("one")
    rig.write("b.txt", "b\n")
    rig.plan.checkpoint("here")
    rig.write("c.txt", "c\n")
    rig.quiet()
    rig.plan.undo()
    assert rig.files() == {"a.txt": "a\n"}


def test_the_end_of_a_session_that_did_nothing_makes_no_plan(rig: Rig) -> None:
    rig.tell(SessionEnded(anchor=rig.anchor()))
    assert rig.ws.plans() == []


def test_the_end_of_a_session_closes_its_operation(rig: Rig) -> None:
    rig.prompt("one")
    rig.begin("Bash", command="x")
    rig.path("b.txt").write_text("b\n")
    rig.tell(SessionEnded(anchor=rig.anchor(), reason="exit"))
    assert [entry.shown_state for entry in rig.plan.log()] == ["done", "done"]
    assert rig.plan.tool_calls()[0].state is CallState.INTERRUPTED


def test_an_observed_plan_is_applied_like_any_other(rig: Rig) -> None:
    rig.prompt("one")
    rig.write("b.txt", "b\n")
    call = rig.begin("Bash", command="false")
    rig.end(call, ok=False)
    rig.quiet()
    rig.agents.run("plan", "apply", rig.session, "--yes").expect(0)
    assert (rig.agents.work / "b.txt").read_text() == "b\n"
    assert rig.prompt("two").context == ""
    assert rig.ws.find("sess-1").plan.state == "queued", "a session goes on in a new plan"


@pytest.mark.parametrize("where", ["/", "~"])
def test_what_is_too_wide_is_refused(rig: Rig, where: str) -> None:
    event = SessionStarted(anchor=rig.anchor(), cwd=os.path.expanduser(where))
    with pytest.raises(NotAllowed, match="too wide"):
        rig.tell(event)


def test_every_reading_command_shows_an_observed_plan(rig: Rig) -> None:
    rig.prompt("add b\nin two lines")
    rig.write("b.txt", "b\n")
    rig.end(rig.begin("Bash", writes=None, command="curl example.invalid"))
    rig.quiet("I added it")
    run = rig.agents.run
    status = run("plan", "status", rig.session, "--json").expect(0).data
    assert [item["status"] for item in status["progress"]] == ["complete", "complete"]
    tree = run("plan", "tree", rig.session, "--json").expect(0).data["tree"]
    assert "add b" in str(tree)
    assert "add b" in run("plan", "tree", rig.session).expect(0).stdout
    assert "prompt" in run("plan", "log", rig.session).expect(0).stdout
    diff = run("plan", "diff", rig.session, "--json").expect(0).data
    assert [item["path"] for item in diff["files"]] == ["b.txt"]
    assert "not known" in run("plan", "effects", rig.session).expect(0).stdout
    run("plan", "checkpoints", rig.session).expect(0)
    decision = rig.ws.ctx.store.plans.decisions(rig.plan.plan_id)[1].decision_id
    assert "I added it" in run("plan", "explain", decision).expect(0).stdout


class TestFromPython:
    """`plan.step(...)` around whatever a program does itself."""

    @pytest.fixture
    def plan(self, agents: Agents) -> Iterator[PlanHandle]:
        (agents.work / "a.txt").write_text("a\n")
        with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as ws:
            yield ws.plan("report", {"work": agents.work})

    def write(self, plan: PlanHandle, name: str, text: str) -> None:
        Path(plan.sandboxes["work"], name).write_text(text)

    def names(self, plan: PlanHandle) -> list[str]:
        return sorted(os.listdir(plan.sandboxes["work"]))

    def test_the_block_is_a_step_with_what_it_wrote(self, plan: PlanHandle) -> None:
        with plan.step("write_report", {"n": 1}) as step:
            self.write(plan, "b.txt", "b\n")
            step.output("one ")
            step.output("page")
            step.keep_state({"page": 1})
        (call,) = plan.tool_calls()
        assert (call.tool, call.inputs, call.output) == ("write_report", {"n": 1}, "one page")
        assert call.step_id == step.step_id
        assert plan.actor_state == {"page": 1}
        plan.undo()
        assert self.names(plan) == ["a.txt"]
        assert plan.actor_state is None

    def test_an_exception_fails_the_step_and_the_plan_continues(self, plan: PlanHandle) -> None:
        def divide() -> None:
            with plan.step("divide"):
                self.write(plan, "half.txt", "half\n")
                raise ZeroDivisionError("by nought")

        with pytest.raises(ZeroDivisionError):
            divide()
        (call,) = plan.tool_calls()
        assert (call.state, call.error) == (CallState.FAILED, "ZeroDivisionError: by nought")
        assert self.names(plan) == ["a.txt", "half.txt"]
        with plan.step("next"):
            self.write(plan, "b.txt", "b\n")
        assert self.names(plan) == ["a.txt", "b.txt", "half.txt"]

    def test_blocks_may_overlap(self, plan: PlanHandle) -> None:
        with plan.step("outer"):
            with plan.step("inner"):
                self.write(plan, "b.txt", "b\n")
            self.write(plan, "c.txt", "c\n")
        groups = {c.group_id for c in plan.checkpoints() if c.checkpoint_type != "pre_execute"}
        assert len(groups) == 1

    def test_a_prompt_takes_its_steps_with_it(self, plan: PlanHandle) -> None:
        plan.prompt("make b and c", {"messages": 1})
        for name in ("b.txt", "c.txt"):
            with plan.step("write", {"name": name}):
                self.write(plan, name, name)
        plan.undo()
        assert self.names(plan) == ["a.txt"]

    def test_an_answer_for_the_world_outside_is_not_known(self, plan: PlanHandle) -> None:
        with plan.step("look", writes=False):
            pass
        with plan.step("send", outside=True):
            pass
        assert [effect.tool for effect in plan.effects()] == ["send"]

    def test_decisions_and_steps_of_ours_work_side_by_side(self, plan: PlanHandle) -> None:
        with plan.step("own"):
            self.write(plan, "b.txt", "b\n")
        with plan.decision("where to", "c.txt") as decision:
            decision.call("file.write", path="c.txt", content="c\n")
        with plan.step("own again"):
            self.write(plan, "d.txt", "d\n")
        assert self.names(plan) == ["a.txt", "b.txt", "c.txt", "d.txt"]
        assert plan.apply()["applied"][0]["files"] == 3

    def test_the_steps_of_a_plan_file_are_its_own(self, agents: Agents) -> None:
        file = agents.work / "plan.yaml"
        file.write_text(
            "name: x\nresources: {w: {kind: fs-directory, path: data}}\n"
            "steps: [{id: one, tool: file.write, with: {path: a, content: b}}]\n"
        )
        (agents.work / "data").mkdir()
        with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as ws:
            plan = ws.use(str(file))
            with pytest.raises(NotAllowed, match="come from its actor"), plan.step("mine"):
                pass


def test_nobody_executes_the_steps_of_an_agent(rig: Rig) -> None:
    rig.prompt("one")
    rig.end(rig.begin("Bash", command="false"), ok=False)
    rig.quiet()
    done = rig.agents.run("plan", "execute", rig.session).expect(4)
    assert "are its agent's" in done.stderr
    assert "agents plan resume" in done.stderr
