"""The real agents against the scripted model: files, rows and conversation go back together.

`nox -s agents` installs them and runs this; elsewhere it is skipped, and says so.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.live import (
    FOLDER,
    INSIDE,
    ONE,
    TWO,
    Boxed,
    Live,
    end_of,
    needs_agents,
    results_in,
    world_in,
)
from tests.agents.programs import PROGRAMS, Program, lab_for
from tests.agents.scripted_model import ScriptedModel

pytestmark = needs_agents


@pytest.fixture(params=list(PROGRAMS))
def program(request) -> Program:
    program = PROGRAMS[request.param]
    if not (Path(FOLDER) / "bin" / program.command).exists():
        pytest.skip(f"{program.name} {program.version} is not installed in {FOLDER}")
    return program


@pytest.fixture(params=[Live, Boxed], ids=["in place", "in a sandbox"])
def live(request, program, tmp_path) -> Iterator[Live]:
    with ScriptedModel() as model:
        lab = lab_for(program, Path(FOLDER), tmp_path / "lab", model.url)
        made = request.param(program, lab, model)
        made.prepare()
        yield made


class TestTogether:
    """Files, rows and conversation."""

    def test_all_of_it_goes_back_and_comes_again(self, live):
        plan = live.start("SCRIPT:one go")
        assert live.world(plan) == ONE
        first = live.agents("plan", "status", plan)["conversation"]
        assert len(results_in(live.resume(first, "SCRIPT:two go"))) == 3
        assert live.world(plan) == TWO
        assert live.newest == plan
        groups = live.groups(plan)

        self.to_the_end_of_prompt_one(live, plan, groups, first)
        self.to_a_point_inside_prompt_one(live, plan, groups, first)
        if isinstance(live, Boxed):
            live.agents("plan", "apply", plan, "--yes")
            assert world_in(live.lab.project, live.lab.project / "app.db") == TWO

    def to_the_end_of_prompt_one(self, live, plan, groups, first):
        done = live.agents("plan", "rollback", plan, end_of(groups, "SCRIPT:one"), "--yes")
        assert live.world(plan) == ONE
        made = done["conversation"]
        assert made["agent"] == live.program.name
        assert made["session_id"] != first["session_id"] == made["forked_from"]
        assert live.agents("plan", "status", plan)["conversation"] == made
        sent = live.resume(made, "SCRIPT:look please")
        assert "SCRIPT:one" in sent.said
        assert "finished one" in sent.said
        assert len(results_in(sent)) == 3
        assert "SCRIPT:two" not in sent.said
        assert "two.txt" not in sent.said
        assert live.newest == plan
        self.undone(live, plan, first)

    def to_a_point_inside_prompt_one(self, live, plan, groups, first):
        inside = next(g["group_id"] for g in groups if g["type"] == "after_tool_execute")
        made = live.agents("plan", "rollback", plan, inside, "--yes")["conversation"]
        assert live.world(plan) == INSIDE
        sent = live.resume(made, "SCRIPT:look please")
        assert "SCRIPT:one" in sent.said
        assert "finished one" not in sent.said
        assert "SCRIPT:two" not in sent.said
        assert len(results_in(sent)) == 1, results_in(sent)
        self.undone(live, plan, first)

    def undone(self, live, plan, first):
        """The prompt after the rollback and the rollback itself are undone: all is as it was."""
        live.agents("plan", "undo", plan)
        back = live.agents("plan", "undo", plan)
        assert back["undone"] == "rollback"
        assert live.world(plan) == TWO
        assert back["conversation"]["session_id"] == first["session_id"]
        assert back["conversation"]["continue"] == first["continue"]

    def test_one_part_alone(self, live):
        plan = live.start("SCRIPT:one go")
        first = live.agents("plan", "status", plan)["conversation"]
        live.resume(first, "SCRIPT:two go")
        end = end_of(live.groups(plan), "SCRIPT:one")
        alone = live.agents("plan", "rollback", plan, end, "--conversation-only")["conversation"]
        assert live.world(plan) == TWO
        assert alone["session_id"] != first["session_id"]
        files = live.agents("plan", "rollback", plan, end, "--files-only", "--yes")
        assert live.world(plan) == ONE
        assert files["conversation"]["session_id"] == first["session_id"]
        assert "SCRIPT:two" in live.resume(files["conversation"], "SCRIPT:look please").said
