"""What is shown when a step fails: the error once, the last lines it printed, where the rest is."""

from tests.harness import Agents
from tests.in_process import Yard, cli
from tests.pseudo_terminal import PseudoTerminal

HEAD = "name: bad\nresources: {app: {kind: fs-directory, path: app}}\n"
FAILS = "for n in $(seq 20); do echo line $n; done; echo; echo wrong >&2; exit 3"
PLAN = f"{HEAD}steps: [{{id: 'a b', on: app, run: '{FAILS}'}}]\n".replace("'a b'", "a-b")
CHILD = (
    f"{HEAD}steps: [{{id: outer, subplan: {{steps: [{{id: inner, on: app, run: '{FAILS}'}}]}}}}]\n"
)


def test_an_error_is_told_once_with_the_last_lines_and_where_the_rest_is(yard: Yard) -> None:
    told = cli("plan", "run", yard.plan(PLAN), expect=5).stderr
    plan_id = cli("plan", "status", "bad", "--json").data["plan_id"]
    lines = told.splitlines()
    at = lines.index("error: step a-b: exit code 3: wrong")
    assert lines[at + 1 : at + 11] == [
        *(f"  | line {n}" for n in range(14, 21)),
        "  | wrong",
        f"  (all of it: agents plan output {plan_id} a-b)",
        f"hint: agents plan resume {plan_id}",
    ]
    assert told.count("exit code 3") == 1
    whole = cli("plan", "output", plan_id, "a-b").stdout
    assert "line 1\n" in whole
    assert whole.endswith("wrong\n")


def test_of_a_child_plan_the_lines_of_its_own_step_are_shown(yard: Yard) -> None:
    told = cli("plan", "run", yard.plan(CHILD), expect=5).stderr
    child = next(
        p for p in cli("plan", "list", "--json").data["plans"] if p["parent_plan_id"] is not None
    )
    assert f"  | wrong\n  (all of it: agents plan output {child['plan_id']} inner)\n" in told


def test_in_a_terminal_it_is_red(agents: Agents) -> None:
    (agents.work / "app").mkdir()
    (agents.work / "plan.yaml").write_text(PLAN)
    agents.env.pop("NO_COLOR")
    with PseudoTerminal(agents, "plan", "run", "plan.yaml") as terminal:
        assert terminal.ended() == 5
    assert "\x1b[1;31merror: step a-b: exit code 3: wrong\x1b[0m" in terminal.raw
    with PseudoTerminal(agents, "plan", "statuss") as terminal:
        assert terminal.ended() == 2
    assert "\x1b[1;31merror: no such command" in terminal.raw


def test_a_port_that_there_is_not_is_wrong_use(agents: Agents) -> None:
    told = agents.run("web", "--no-browser", "--port", "99999").expect(2).stderr
    assert "'--port': 99999 is not in the range" in told
