"""What leaves the sandboxes: noted before the call, compensated on the way back, stated before."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cleveragents.checkpoints.effects import (
    class_of,
)
from cleveragents.cli.main import root
from cleveragents.content import fsio
from cleveragents.errors import LossNotAccepted, MayHaveHappened
from cleveragents.model.effect import Effect, EffectClass, EffectState
from cleveragents.model.tool import ToolSpec
from cleveragents.tools import BUILTINS
from cleveragents.workspace import open_workspace

TOOLS = """
  book:
    run: 'echo "book $1" >> "$OUT"; echo id-$1; echo $1 >> booked.txt'
    side_effects: [booking]
    compensate: 'echo cancel "$AGENTS_INPUT" $AGENTS_OUTPUT $AGENTS_STEP_ID >> "$OUT"'
    env: *env
  mail: {run: 'echo "mail $1" >> "$OUT"', side_effects: [email, "a log"], env: *env}
  put:
    run: 'echo "put $1" >> "$OUT"; test ! -e "$OUT.stop"'
    side_effects: [upload]
    idempotent: true
    env: *env
  pay: {run: 'echo "pay $1" >> "$OUT"; test ! -e "$OUT.stop"', side_effects: [payment], env: *env}
  rent:
    run: 'echo "rent $1" >> "$OUT"; test ! -e "$OUT.stop"'
    side_effects: [lease]
    compensate:
      [sh, -c, 'echo "tried $AGENTS_STEP_ID" >> "$OUT"; echo x > left; test ! -e "$OUT.broken"']
    env: *env
  quiet: {run: 'echo "quiet" >> "$OUT"', network: false, env: *env}
"""
JSON = "--json"


class Said:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def data(self) -> dict[str, Any]:
        return self.json["data"]


class Yard:
    """A folder to work on, and a file that stands for the world outside."""

    def __init__(self, top: Path) -> None:
        self.top = top
        (top / "app").mkdir(parents=True)
        self.out = top / "outside"
        self.out.touch()

    def plan(self, steps: str, policy: str = "{}") -> str:
        (self.top / "plan.yaml").write_text(
            f"name: trip\nresources:\n  app: {{kind: fs-directory, path: app}}\n"
            f"policy: {policy}\ntools:{TOOLS.replace('*env', f'{{OUT: {self.out}}}')}steps:\n"
            + "".join(f"  - {line}\n" for line in steps.strip().splitlines())
        )
        return "plan.yaml"

    @property
    def world(self) -> list[str]:
        return self.out.read_text().splitlines()

    def flag(self, name: str, on: bool = True) -> None:
        path = Path(f"{self.out}.{name}")
        path.touch() if on else path.unlink()


def agents(*argv: str, expect: int = 0) -> Said:
    result = CliRunner().invoke(root, list(argv), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert result.return_value == expect, (argv, result.output)
    return Said(result.return_value, result.stdout, result.stderr)


def dying(at: Callable[[str], bool], *argv: str) -> int:
    """The command in a process that kills itself at the point where `at(name)` says so."""
    child = os.fork()
    if child == 0:

        def point(name: str) -> None:
            if at(name):
                os.kill(os.getpid(), signal.SIGKILL)

        fsio.arm(point)
        try:
            agents(*argv)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def nth(wanted: str, number: int) -> Callable[[str], bool]:
    seen: list[str] = []

    def at(name: str) -> bool:
        seen.append(name)
        return seen.count(wanted) == number and name == wanted

    return at


def ledger(plan: str = "last") -> list[tuple[str, str, str]]:
    found = agents("plan", "effects", plan, JSON).data["effects"]
    return [(effect["step"], effect["class"], effect["state"]) for effect in found]


@pytest.fixture(autouse=True)
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEVERAGENTS_SANDBOX_CONFINE", "off")
    monkeypatch.setattr("cleveragents.execution.compensation.BACK_OFF", (0.0, 0.0))


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    made = Yard(tmp_path / "yard")
    monkeypatch.chdir(made.top)
    return made


TRIP = """
{id: flight, tool: book, with: {args: [flight]}}
{id: hotel, tool: book, with: {args: [hotel]}}
{id: note, tool: file.write, with: {path: note.txt, content: hi}}
"""
MAILED = TRIP + "{id: tell, tool: mail, with: {args: [done]}}\n"


# the ledger


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (ToolSpec(name="t", run="x", side_effects=("s",), compensate="y"), EffectClass.COMPENSABLE),
        (ToolSpec(name="t", run="x", side_effects=("s",)), EffectClass.IRREVERSIBLE),
        (
            ToolSpec(name="t", run="x", side_effects=("s",), network=False),
            EffectClass.IRREVERSIBLE,
        ),
        (ToolSpec(name="t", run="x"), EffectClass.UNKNOWN),
        (ToolSpec(name="t", python="m:f"), EffectClass.UNKNOWN),
        (ToolSpec(name="t", run="x", network=False), None),
        (ToolSpec(name="t", run="x", read_only=True, writes=False), None),
        (ToolSpec(name="t", sql="x"), None),
        (BUILTINS["shell"], EffectClass.UNKNOWN),
        (BUILTINS["file.write"], None),
        (BUILTINS["sql"], None),
    ],
)
def test_what_a_tool_declares_decides_what_is_noted(
    tool: ToolSpec, expected: EffectClass | None
) -> None:
    assert class_of(tool) == expected


def test_every_call_that_may_leave_the_sandbox_is_in_the_ledger(yard: Yard) -> None:
    steps = MAILED + "{id: sh, run: 'true'}\n{id: in, tool: quiet}\n"
    agents("plan", "run", yard.plan(steps))
    assert ledger() == [
        ("flight", "compensable", "happened"),
        ("hotel", "compensable", "happened"),
        ("tell", "irreversible", "happened"),
        ("sh", "unknown", "happened"),
    ]
    shown = agents("plan", "effects", "trip").out
    assert "not known" in shown
    assert "email, a log" in shown
    status = agents("plan", "status", "trip")
    assert "2 can be compensated, 1 cannot be undone, 1 not known" in status.out
    data = agents("plan", "status", "trip", JSON).data
    assert data["effects"] == {
        "compensable": 2,
        "irreversible": 1,
        "unknown": 1,
        "not_compensated": 0,
    }


def test_the_intent_is_there_before_the_call_and_stays_if_the_process_dies(yard: Yard) -> None:
    preview = f"{sys.executable} -c 'import os, signal; os.kill(os.getppid(), signal.SIGKILL)'"
    steps = "{id: pay, tool: kill}\n"
    file = Path(yard.plan(steps))
    text = file.read_text().replace(
        "steps:", f'  kill: {{run: "{preview}", side_effects: [shot]}}\nsteps:'
    )
    file.write_text(text.replace("os.getppid()", str(os.getpid())))
    child = os.fork()
    if child == 0:
        file.write_text(text.replace("os.getppid()", str(os.getpid())))
        try:
            agents("plan", "run", "plan.yaml")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert ledger() == [("pay", "irreversible", "intended")]
    assert "may have happened" in agents("plan", "effects", "trip").out


# going back


def test_the_way_back_says_what_it_compensates_before_it_does(yard: Yard) -> None:
    agents("plan", "run", yard.plan(TRIP + "{id: sh, run: 'true'}\n"))
    before = yard.world
    foreseen = agents("plan", "rollback", "trip", "first", "--dry-run", JSON).data
    assert [one["step"] for one in foreseen["effects"]["compensated"]] == ["hotel", "flight"]
    assert [one["step"] for one in foreseen["effects"]["unknown"]] == ["sh"]
    assert foreseen["effects"]["irreversible"] == []
    declined = agents("plan", "rollback", "trip", "first", expect=4)
    assert "compensate: step 'hotel', book: booking" in declined.err
    assert "not known: what sh did outside the sandboxes" in declined.err
    assert yard.world == before
    done = agents("plan", "rollback", "trip", "first", "--yes")
    assert yard.world == [
        *before,
        'cancel {"args": ["hotel"]} id-hotel hotel',
        'cancel {"args": ["flight"]} id-flight flight',
    ]
    assert "Outside the Sandboxes" in done.out
    assert "step 'flight', book: booking, compensated" in done.out
    assert ledger() == [
        ("flight", "compensable", "compensated"),
        ("hotel", "compensable", "compensated"),
        ("sh", "unknown", "accepted"),
    ]
    agents("plan", "resume", "trip")
    assert yard.world[-2:] == ["book flight", "book hotel"]


def test_only_what_came_after_the_checkpoint_is_compensated(yard: Yard) -> None:
    agents("plan", "run", yard.plan(TRIP.replace("[flight]}", "[flight]}, checkpoint: half")))
    data = agents("plan", "rollback", "trip", "half", "--yes", JSON).data
    assert [one["step"] for one in data["effects"]["compensated"]] == ["hotel"]
    assert [one["state"] for one in data["effects"]["compensated"]] == ["compensated"]
    assert ledger()[0] == ("flight", "compensable", "happened")


def test_what_cannot_be_undone_needs_to_be_accepted(yard: Yard) -> None:
    agents("plan", "run", yard.plan(MAILED))
    before, head = yard.world, agents("plan", "status", "trip", JSON).data
    foretold = agents("plan", "rollback", "trip", "first", "--dry-run", JSON).data
    for flags in (("--yes",), ()):
        refused = agents("plan", "rollback", "trip", "first", *flags, JSON, expect=4)
        assert refused.data["error"]["type"] == "LossNotAccepted"
        assert "step 'tell', mail: email, a log" in refused.data["error"]["message"]
        assert "--accept-loss" in refused.data["error"]["hint"]
        assert [one["step"] for one in refused.data["effects"]] == ["tell"]
        assert refused.data["effects"] == foretold["effects"]["irreversible"]
    assert yard.world == before
    after = agents("plan", "status", "trip", JSON).data
    assert after == head
    foreseen = agents("plan", "rollback", "trip", "first", "--dry-run")
    assert "cannot be undone  step 'tell', mail: email, a log" in foreseen.out
    declined = agents("plan", "rollback", "trip", "first", "--accept-loss", expect=4)
    assert "cannot be undone: step 'tell'" in declined.err
    assert "--accept-loss --yes" in declined.err
    agents("plan", "rollback", "trip", "first", "--accept-loss", "--yes")
    assert ledger()[-1] == ("tell", "irreversible", "accepted")
    agents("plan", "rollback", "trip", "first", "--yes")


def test_undo_obeys_the_same_rules_and_says_what_is_not_done_again(yard: Yard) -> None:
    agents("plan", "run", yard.plan(MAILED))
    refused = agents("plan", "undo", "trip", JSON, expect=4)
    assert refused.data["error"]["type"] == "LossNotAccepted"
    assert refused.data["error"]["hint"].startswith("agents plan undo")
    assert len(yard.world) == 3
    agents("plan", "undo", "trip", "--accept-loss")
    assert yard.world[-1] == 'cancel {"args": ["flight"]} id-flight flight'
    redone = agents("plan", "redo", "trip")
    assert "not done again  step 'hotel', book: booking, compensated" in redone.out
    assert agents("plan", "status", "trip", JSON).data["state"] == "complete"
    assert ledger() == [
        ("flight", "compensable", "compensated"),
        ("hotel", "compensable", "compensated"),
        ("tell", "irreversible", "happened"),
    ]
    # The mail belongs to the plan again: going back over it is a loss again.
    agents("plan", "undo", "trip", expect=4)
    agents("plan", "undo", "trip", "--accept-loss")
    assert sum(line.startswith("cancel") for line in yard.world) == 2


def test_from_python_the_same_is_refused_and_accepted(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan(MAILED))
        with pytest.raises(LossNotAccepted) as refused:
            plan.rollback("first")
        assert [found(one).step_id for one in refused.value.effects] == ["tell"]
        result = plan.rollback("first", accept_loss=True)
        assert [one.step_id for one in result.effects.irreversible] == ["tell"]
        assert {one.state for one in plan.effects()[:2]} == {EffectState.COMPENSATED}


def found(effect: object) -> Effect:
    assert isinstance(effect, Effect)
    return effect


# compensations that fail, and processes that die


def test_a_compensation_is_tried_three_times_and_failing_it_is_loud(yard: Yard) -> None:
    agents("plan", "run", yard.plan("{id: car, tool: rent}\n{id: bike, tool: book}\n"))
    yard.flag("broken")
    failed = agents("plan", "rollback", "trip", "first", "--yes", JSON, expect=5)
    assert failed.data["error"]["type"] == "CompensationFailed"
    assert failed.data["error"]["hint"].endswith("--retry")
    assert failed.data["post_rollback_state"]["state"] == "queued"
    assert yard.world.count("tried car") == 3
    # The one before it was compensated all the same, and nothing was left in the sandbox.
    assert ledger() == [("car", "compensable", "failed"), ("bike", "compensable", "compensated")]
    status = agents("plan", "status", "trip", JSON).data
    assert os.listdir(status["sandboxes"]["app"]) == []
    assert status["effects"]["not_compensated"] == 1
    assert "1 NOT COMPENSATED" in agents("plan", "status", "trip").out
    errors = agents("plan", "errors", "trip")
    assert "its compensation failed: exit code 1" in errors.out
    assert "--retry" in errors.out
    [one] = agents("plan", "errors", "trip", JSON).data["not_compensated"]
    assert (one["step"], one["attempts"]) == ("car", 3)
    agents("plan", "effects", "trip", "--retry", expect=5)
    yard.flag("broken", on=False)
    agents("plan", "effects", "trip", "--retry")
    assert yard.world.count("tried car") == 7
    assert ledger()[0] == ("car", "compensable", "compensated")
    agents("plan", "effects", "trip", "--retry")
    assert yard.world.count("tried car") == 7


@pytest.mark.parametrize("number", [1, 2])
def test_after_a_death_in_the_middle_the_next_command_continues(yard: Yard, number: int) -> None:
    agents("plan", "run", yard.plan(TRIP))
    argv = ("plan", "rollback", "trip", "first", "--yes")
    assert dying(nth("compensate", number), *argv) == -signal.SIGKILL
    notes = agents("plan", "status", "trip", JSON).json["messages"]
    assert any("compensated: step 'flight'" in note for note in notes)
    cancelled = [line.split()[-1] for line in yard.world if line.startswith("cancel")]
    # The one whose process died was run and not recorded: it is run again, no other is.
    assert (
        cancelled
        == {
            1: ["hotel", "hotel", "flight"],
            2: ["hotel", "flight", "flight"],
        }[number]
    )
    assert [state for _, _, state in ledger()] == ["compensated", "compensated"]
    assert not agents("plan", "status", "trip", JSON).json["messages"]


def test_a_restore_that_died_compensates_once_it_is_finished(yard: Yard) -> None:
    agents("plan", "run", yard.plan(TRIP))
    total = 0
    for number in range(1, 30):
        code = dying(nth("commit", number), "plan", "rollback", "trip", "first", "--yes")
        if code != -signal.SIGKILL:
            break
        total += 1
        agents("plan", "rollback", "trip", "first", "--yes")
        agents("plan", "resume", "trip")
        states = [state for _, _, state in ledger()]
        assert states[-2:] == ["happened", "happened"]
        assert set(states[:-2]) <= {"compensated"}
    assert total > 3
    booked = sum(line.startswith("book") for line in yard.world)
    cancelled = sum(line.startswith("cancel") for line in yard.world)
    # A death after the command and before its record runs it twice; one never run would be missed.
    assert booked - 2 <= cancelled <= booked + total


def test_without_its_sandbox_a_compensation_fails_and_says_so(yard: Yard) -> None:
    agents("plan", "run", yard.plan("{id: car, tool: rent}\n"))
    assert dying(nth("compensate", 1), "plan", "rollback", "trip", "first", "--yes") < 0
    with open_workspace(str(yard.top / "other")):
        pass
    sandbox = yard_sandbox()
    sandbox.rename(sandbox.parent / "moved")
    notes = agents("plan", "list", JSON).json["messages"]
    assert any("failed: step 'car'" in note for note in notes)
    assert ledger() == [("car", "compensable", "failed")]


def yard_sandbox() -> Path:
    [plan] = (Path(os.environ["CLEVERAGENTS_HOME"]) / "sandboxes").iterdir()
    return plan / "app"


# failures of steps


def test_a_failed_step_is_compensated_by_itself(yard: Yard) -> None:
    yard.flag("stop")
    failed = agents("plan", "run", yard.plan("{id: car, tool: rent}\n"), expect=5)
    assert yard.world == ["rent ", "tried car"]
    assert "compensate car" in failed.err
    assert ledger() == [("car", "compensable", "compensated")]
    yard.flag("stop", on=False)
    agents("plan", "resume", "trip")
    assert yard.world == ["rent ", "tried car", "rent "]


def test_what_a_failed_step_did_for_good_is_said_and_not_repeated_by_accident(yard: Yard) -> None:
    yard.flag("stop")
    failed = agents("plan", "run", yard.plan("{id: fee, tool: pay}\n"), expect=5)
    assert "cannot be undone: step 'fee', pay: payment (may have happened)" in failed.err
    assert ledger() == [("fee", "irreversible", "lost")]
    assert "could not be undone" in agents("plan", "errors", "trip").out
    yard.flag("stop", on=False)
    foreseen = agents("plan", "resume", "trip", "--dry-run")
    assert "asks before it repeats  step 'fee'" in foreseen.out
    refused = agents("plan", "resume", "trip", JSON, expect=4)
    assert refused.data["error"]["type"] == "MayHaveHappened"
    assert refused.data["error"]["hint"].endswith("--repeat fee")
    assert yard.world == ["pay "]
    with open_workspace() as ws, pytest.raises(MayHaveHappened):
        ws.find("trip").execute()
    agents("plan", "resume", "trip", "--repeat", "fee")
    assert yard.world == ["pay ", "pay "]


@pytest.mark.parametrize("verb", ["execute", "resume"])
def test_a_step_to_repeat_that_does_not_exist_is_an_error_and_nothing_runs(
    yard: Yard, verb: str
) -> None:
    yard.flag("stop")
    agents("plan", "run", yard.plan("{id: fees, tool: pay}\n"), expect=5)
    yard.flag("stop", on=False)
    for more in ((), ("--repeat", "fees")):
        refused = agents("plan", verb, "trip", JSON, "--repeat", "fee", *more, expect=3)
        problem = "plan 'trip' has no step 'fee', did you mean 'fees'?"
        assert refused.data["error"]["message"] == problem
    assert yard.world == ["pay "]


def test_an_idempotent_step_is_repeated_and_counts_once(yard: Yard) -> None:
    yard.flag("stop")
    agents("plan", "run", yard.plan("{id: up, tool: put, retries: 1}\n"), expect=5)
    assert yard.world == ["put ", "put "]
    assert ledger() == [("up", "irreversible", "lost")]
    yard.flag("stop", on=False)
    agents("plan", "resume", "trip")
    assert [row[2] for row in ledger()] == ["lost", "happened"]


def test_stop_leaves_everything_and_asks_before_it_repeats(yard: Yard) -> None:
    yard.flag("stop")
    file = yard.plan("{id: car, tool: rent}\n", policy="{on_failure: stop}")
    agents("plan", "run", file, expect=5)
    assert ledger() == [("car", "compensable", "intended")]
    yard.flag("stop", on=False)
    agents("plan", "resume", "trip", expect=4)
    agents("plan", "execute", "trip", "--repeat", "car")
    agents("plan", "rollback", "trip", "first", "--yes")
    # It may have happened twice, so it is compensated twice.
    assert yard.world == ["rent ", "rent ", "tried car", "tried car"]


def test_a_plan_that_is_rolled_back_whole_is_compensated_whole(yard: Yard) -> None:
    yard.flag("stop")
    steps = MAILED + "{id: fee, tool: pay}\n"
    agents("plan", "run", yard.plan(steps, policy="{on_failure: rollback_plan}"), expect=5)
    assert [line.split()[-1] for line in yard.world[-2:]] == ["hotel", "flight"]
    yard.flag("stop", on=False)
    refused = agents("plan", "resume", "trip", JSON, expect=4)
    assert refused.data["error"]["hint"].endswith("--repeat tell --repeat fee")


# processes that die while a step works


def die_in(yard: Yard, steps: str, policy: str = "{}", change: tuple[str, str] = ("", "")) -> None:
    """Run the plan in a process that is killed when the last step's tool has worked."""
    file = yard.plan(steps, policy)
    Path(file).write_text(Path(file).read_text().replace(*change))
    child = os.fork()
    if child == 0:
        from cleveragents.execution.steps import executor

        run = executor.run_tool

        def run_and_die(tool: Any, *rest: Any) -> Any:
            result = run(tool, *rest)
            if tool.name in ("rent", "pay", "put"):
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        executor.run_tool = run_and_die
        try:
            agents("plan", "run", file)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_what_a_dead_step_may_have_done_is_compensated_before_it_runs_again(yard: Yard) -> None:
    die_in(yard, "{id: car, tool: rent}\n")
    foreseen = agents("plan", "resume", "trip", "--dry-run", JSON).data
    assert [one["step"] for one in foreseen["compensated"]] == ["car"]
    assert foreseen["in_doubt"] == []
    agents("plan", "resume", "trip")
    assert yard.world == ["rent ", "tried car", "rent "]
    assert [row[2] for row in ledger()] == ["compensated", "happened"]


def test_a_dead_step_that_paid_is_not_repeated_without_being_asked(yard: Yard) -> None:
    die_in(yard, "{id: fee, tool: pay}\n")
    agents("plan", "resume", "trip", expect=4)
    assert yard.world == ["pay "]
    agents("plan", "resume", "trip", "--repeat", "fee")
    assert yard.world == ["pay ", "pay "]
    assert [row[2] for row in ledger()] == ["accepted", "happened"]


def test_a_dead_idempotent_step_just_runs_again(yard: Yard) -> None:
    die_in(yard, "{id: up, tool: put}\n")
    agents("plan", "resume", "trip")
    assert yard.world == ["put ", "put "]


def test_residue_and_effects_of_a_dead_step_go_together(yard: Yard) -> None:
    steps = "{id: first, tool: book}\n{id: car, tool: rent}\n"
    die_in(yard, steps, change=("'echo \"rent", "'touch half; echo \"rent"))
    resumed = agents("plan", "resume", "trip")
    assert "of an interrupted step rolled back" in resumed.err
    assert yard.world == ["book ", "rent ", "tried car", "rent "]
    assert [row[2] for row in ledger()] == ["happened", "compensated", "happened"]


def test_without_rollback_nothing_is_compensated_and_repeating_is_asked(yard: Yard) -> None:
    die_in(yard, "{id: car, tool: rent}\n", policy="{rollback_enabled: false}")
    agents("plan", "resume", "trip", expect=4)
    agents("plan", "resume", "trip", "--repeat", "car")
    assert yard.world == ["rent ", "rent "]


def test_in_a_terminal_it_asks(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.flag("stop")
    agents("plan", "run", yard.plan("{id: fee, tool: pay}\n"), expect=5)
    yard.flag("stop", on=False)
    monkeypatch.setattr("cleveragents.cli.common.Options.interactive", True)
    for answer, expected in (("n\n", 4), ("y\n", 0)):
        result = CliRunner().invoke(root, ["plan", "resume", "trip"], answer, standalone_mode=False)
        assert "repeat this? step 'fee', pay: payment" in result.stderr
        assert result.return_value == expected
    assert yard.world == ["pay ", "pay "]


def test_a_large_input_reaches_the_compensation_by_its_standard_input(yard: Yard) -> None:
    file = Path(yard.plan("{id: big, tool: long, with: {stdin: TEXT}}\n"))
    tool = (
        "  long: {run: 'cat > /dev/null', side_effects: [x], "
        f"compensate: 'wc -c >> {yard.out}; echo ${{AGENTS_INPUT-unset}} >> {yard.out}'}}\nsteps:"
    )
    text = file.read_text().replace("steps:", tool)
    file.write_text(text.replace("TEXT", "y" * 150_000))
    agents("plan", "run", "plan.yaml")
    agents("plan", "rollback", "trip", "first", "--yes")
    assert yard.world == [str(len(json.dumps({"stdin": "y" * 150_000}))), "unset"]


# corrections


def decision_of(step: str) -> str:
    tree = agents("plan", "tree", "trip", JSON).data["tree"][0]["children"]
    return next(node["decision_id"] for node in tree if node["steps"] == [step])


CORRECT = ("--guidance", "another one", JSON)


def test_a_correction_compensates_the_dependents_of_the_decision_and_nothing_else(
    yard: Yard,
) -> None:
    agents("plan", "run", yard.plan(TRIP.replace("tool: book", "tool: rent", 1)))
    foreseen = agents("plan", "correct", decision_of("hotel"), *CORRECT, "--dry-run").data
    assert [one["step"] for one in foreseen["effects"]["compensated"]] == ["hotel"]
    done = agents("plan", "correct", decision_of("hotel"), *CORRECT, "--yes").data
    assert [one["state"] for one in done["effects"]["compensated"]] == ["compensated"]
    assert yard.world[2:] == ['cancel {"args": ["hotel"]} id-hotel hotel', "book hotel"]
    assert [row[0::2] for row in ledger()] == [
        ("flight", "happened"),
        ("hotel", "compensated"),
        ("hotel", "happened"),
    ]


def test_a_correction_over_what_cannot_be_undone_needs_to_be_accepted(yard: Yard) -> None:
    agents("plan", "run", yard.plan(MAILED))
    before = yard.world
    refused = agents("plan", "correct", decision_of("tell"), *CORRECT, "--yes", expect=4)
    assert refused.data["error"]["type"] == "LossNotAccepted"
    with open_workspace() as ws, pytest.raises(LossNotAccepted):
        ws.find("trip").correct(decision_of("tell"), "again")
    assert yard.world == before
    agents("plan", "correct", decision_of("tell"), *CORRECT, "--yes", "--accept-loss")
    assert yard.world == [*before, "mail done"]
    assert [row[2] for row in ledger()[-2:]] == ["accepted", "happened"]


def test_a_correction_does_not_repeat_what_may_have_happened(yard: Yard) -> None:
    yard.flag("stop")
    agents("plan", "run", yard.plan(TRIP + "{id: fee, tool: pay}\n"), expect=5)
    yard.flag("stop", on=False)
    refused = agents("plan", "correct", decision_of("note"), *CORRECT, "--yes", expect=4)
    assert refused.data["error"]["type"] == "MayHaveHappened"
    assert refused.data["error"]["hint"].endswith("--accept-loss")
    agents("plan", "correct", decision_of("note"), *CORRECT, "--yes", "--accept-loss")
    assert yard.world[-2:] == ["pay ", "pay "]


def test_a_correction_says_that_a_compensation_failed(yard: Yard) -> None:
    agents("plan", "run", yard.plan("{id: car, tool: rent}\n"))
    yard.flag("broken")
    failed = agents("plan", "correct", decision_of("car"), *CORRECT, "--yes", expect=5)
    assert failed.data["error"]["type"] == "CompensationFailed"
    assert failed.data["state"] == "complete"
    assert [row[2] for row in ledger()] == ["failed", "happened"]


def test_a_changed_plan_file_obeys_the_same_rules(yard: Yard) -> None:
    agents("plan", "run", yard.plan(MAILED))
    yard.plan(MAILED.replace("[done]", "[changed]"))
    resume = ("plan", "resume", "trip", "--plan-file", "plan.yaml")
    refused = agents(*resume, JSON, expect=4)
    assert refused.data["error"]["type"] == "LossNotAccepted"
    agents(*resume, "--accept-loss")
    assert yard.world[-1] == "mail changed"


# what a tool says of itself


def plan_with(yard: Yard, tools: str, steps: str, policy: str = "{}") -> Path:
    (yard.top / "other").mkdir(exist_ok=True)
    (yard.top / "plan.yaml").write_text(
        "name: trip\nresources:\n  app: {kind: fs-directory, path: app}\n"
        "  other: {kind: fs-directory, path: other}\n"
        f"policy: {policy}\ntools:\n  t: {tools}\nsteps:\n{steps}\n"
    )
    return yard.top / "plan.yaml"


@pytest.mark.parametrize(
    ("says", "does", "wrong"),
    [
        ("write_scope: [src]", "mkdir -p src/deep; touch src/deep/a", ""),
        ("write_scope: ['*.md']", "mkdir -p a/b; touch a/b/x.md top.md", ""),
        ("write_scope: [src/gen/]", "mkdir -p src/gen; touch src/gen/a", ""),
        ("write_scope: [src]", "mkdir src; touch src/a; touch b", "app: b"),
        ("write_scope: [src]", "mkdir -p lib", "app: lib"),
        ("write_scope: [src]", "touch $AGENTS_SANDBOX_OTHER/c", "other: c"),
        ("write_scope: [src], checkpoint_scope: plan", "touch $AGENTS_SANDBOX_OTHER/c", ""),
        ("checkpoint_scope: resource", "touch a b", ""),
        ("checkpoint_scope: resource", "touch a $AGENTS_SANDBOX_OTHER/c", "other: c"),
        ("checkpoint_scope: plan", "touch $AGENTS_SANDBOX_OTHER/c", ""),
    ],
)
def test_a_tool_that_writes_out_of_its_scope_fails_and_is_rolled_back(
    yard: Yard, says: str, does: str, wrong: str
) -> None:
    file = plan_with(yard, f"{{run: '{does}', {says}}}", "  - {id: s, tool: t, on: app}")
    ran = agents("plan", "run", str(file), JSON, expect=5 if wrong else 0)
    if wrong:
        assert f"t says it stays in its scope and changed {wrong}" in ran.data["error"]["message"]
        assert not any(os.listdir(path) for path in ran.data["sandboxes"].values())


def test_a_tool_that_is_not_checkpointable_is_refused_where_checkpoints_are_required(
    yard: Yard,
) -> None:
    tool, step = "{run: 'touch a', checkpointable: false}", "  - {id: s, tool: t, on: app}"
    file = plan_with(yard, tool, step)
    refused = agents("plan", "run", str(file), JSON, expect=2)
    assert "step 's': checkpoints are required" in refused.data["error"]["message"]
    plan_with(yard, tool, step, "{require_checkpoints: false}")
    ran = agents("plan", "run", str(file), JSON).data
    kinds = [group["type"] for group in ran["checkpoints"]]
    assert "after_tool_execute" not in kinds
    assert "post_execute" in kinds


def test_a_reading_tool_may_ask_for_checkpoints_around_it(yard: Yard) -> None:
    tool = "{run: 'true', read_only: true, checkpointable: true}"
    file = plan_with(yard, tool, "  - {id: s, tool: t, on: app}")
    ran = agents("plan", "run", str(file), JSON).data
    assert "after_tool_execute" in [group["type"] for group in ran["checkpoints"]]


def test_everything_that_is_wrong_is_named_at_once(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    (yard.top / "plain").write_text("no database")
    (yard.top / "plan.yaml").write_text(
        "name: trip\nresources:\n  app: {kind: fs-directory, path: nowhere}\n"
        "  db: {kind: sqlite, path: plain}\n"
        "  raw: {kind: fs-directory, path: app, strategy: none, require_sandbox: false}\n"
        "tools:\n  t: {run: 'true', checkpointable: false}\n  u: {run: 'true', unsafe: true}\n"
        "  c: {run: 'true', checkpointable: true, compensate: 'true', checkpoint_scope: file}\n"
        "steps:\n  - {id: one, tool: t, on: app}\n  - {id: two, tool: missing, on: app}\n"
        "  - {id: three, tool: c, on: raw, needs: [four]}\n"
        "  - {id: four, tool: c, on: raw, needs: [three]}\n"
    )
    monkeypatch.setenv("CLEVERAGENTS_SANDBOX_DIR", "/proc/nowhere")
    monkeypatch.setattr("cleveragents.execution.preflight.LEAST_FREE", 1 << 62)
    told = agents("plan", "use", "plan.yaml", JSON, expect=2).data["error"]["problems"]
    for text in (
        "resource 'app': 'path': ",
        "resource 'db': not a SQLite database",
        "tool 'c': 'compensate' needs 'side_effects'",
        "unknown checkpoint_scope 'file'",
        "unknown tool 'missing'",
        "steps need each other: three -> four -> three",
        "step 'one': checkpoints are required, and tool 't' writes and says checkpointable: false",
        "step 'three': tool 'c' says checkpointable: true, and resource 'raw' has no sandbox",
        "tool 'u' is unsafe",
        "the sandboxes cannot be written at /proc/nowhere",
        "the disk of the store is full",
    ):
        assert sum(text in problem for problem in told) == 1, (text, told)
    assert agents("plan", "list", JSON).data["plans"] == []


@pytest.mark.parametrize("policy", ["rollback_step", "rollback_plan", "stop"])
def test_errors_show_the_step_its_output_what_it_had_done_and_the_way_to_it(
    yard: Yard, policy: str
) -> None:
    tool = "{run: 'echo said; echo half > half.txt; exit 3'}"
    steps = "  - {id: ok, on: app, run: 'echo ok > ok.txt'}\n  - {id: bad, tool: t, on: app}"
    file = plan_with(yard, tool, steps, f"{{on_failure: {policy}}}")
    agents("plan", "run", str(file), expect=5)
    data = agents("plan", "errors", "trip", JSON).data
    assert (data["step"], data["output"], data["exit_code"]) == ("bad", "said\n", 3)
    expected = {"half.txt"} | ({"ok.txt"} if policy == "rollback_plan" else set())
    assert {item["path"] for item in data["diff"]["files"]} == expected
    assert "+half" in data["diff"]["patch"]
    shown = agents("plan", "errors", "trip").out
    assert "+half" in shown
    assert data["get_back"] in shown
    agents(*data["get_back"].split()[1:], "--yes")
    status = agents("plan", "status", "trip", JSON).data
    assert set(os.listdir(status["sandboxes"]["app"])) == {"ok.txt", "half.txt"}


# child plans

FAMILY = """
{id: flight, tool: book, on: app, with: {args: [flight]}}
{id: stay, subplan: {steps: [{id: hotel, tool: book, on: app, with: {args: [hotel]}}, CHILD]}}
{id: car, tool: book, on: app, with: {args: [car]}}
"""
TELL = "{id: tell, tool: mail, on: app}"


def test_effects_of_child_plans_are_compensated_in_their_place(yard: Yard) -> None:
    agents("plan", "run", yard.plan(FAMILY.replace("CHILD", "{id: more, run: 'true'}")))
    foreseen = agents("plan", "rollback", "trip", "first", "--dry-run", JSON).data
    steps = [one["step"] for one in foreseen["effects"]["compensated"]]
    assert steps == ["car", "hotel", "flight"]
    assert [one["step"] for one in foreseen["effects"]["unknown"]] == ["more"]
    done = agents("plan", "rollback", "trip", "first", "--yes", JSON).data
    assert {one["state"] for one in done["effects"]["compensated"]} == {"compensated"}
    assert [line.split()[-1] for line in yard.world[-3:]] == ["car", "hotel", "flight"]
    assert [row[0] for row in ledger("trip")] == ["flight", "car"]


def test_what_a_child_plan_did_for_good_needs_to_be_accepted(yard: Yard) -> None:
    agents("plan", "run", yard.plan(FAMILY.replace("CHILD", TELL)))
    refused = agents("plan", "rollback", "trip", "first", "--yes", JSON, expect=4)
    assert refused.data["error"]["type"] == "LossNotAccepted"
    refused = agents("plan", "correct", decision_of("stay"), *CORRECT, "--yes", expect=4)
    assert refused.data["error"]["type"] == "LossNotAccepted"
    again = ("plan", "correct", decision_of("stay"), *CORRECT, "--yes", "--accept-loss")
    done = agents(*again).data
    assert "hotel" in [one["step"] for one in done["effects"]["compensated"]]
    assert yard.world.count("mail ") == 2
    assert sum(line.startswith("cancel") and line.endswith("hotel") for line in yard.world) == 1


def test_a_death_while_a_child_plans_effects_are_compensated(yard: Yard) -> None:
    agents("plan", "run", yard.plan(FAMILY.replace("CHILD", "{id: more, run: 'true'}")))
    argv = ("plan", "rollback", "trip", "first", "--yes")
    assert dying(nth("compensate", 2), *argv) == -signal.SIGKILL
    agents("plan", "list")
    cancelled = [line.split()[-1] for line in yard.world if line.startswith("cancel")]
    assert sorted(cancelled) == ["car", "flight", "hotel", "hotel"]


def test_a_wrong_child_plan_is_named_with_its_step(yard: Yard) -> None:
    steps = "  - {id: below, subplan: {steps: [{id: s, tool: t, on: app}]}}"
    file = plan_with(yard, "{run: 'true', checkpointable: false}", steps)
    told = agents("plan", "use", str(file), JSON, expect=2).data["error"]["problems"]
    assert "step 'below': step 's': checkpoints are required" in told[0]
    group = steps.replace("subplan: {", "subplan: {group: g, ").replace("tool: t", "tool: missing")
    file = plan_with(yard, "{run: 'true'}", group)
    told = agents("plan", "use", str(file), JSON, expect=2).data["error"]["problems"]
    assert any("unknown tool 'missing'" in text for text in told)
