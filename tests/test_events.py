"""What agents tell us, in the same few words for each, and the agents that are known."""

import msgspec
import pytest

from cleveragents import codec
from cleveragents.errors import NotFound
from cleveragents.integrations import agent, events
from cleveragents.model.conversation import Anchor, Conversation
from tests.agents.recorded import events as recorded
from tests.agents.recorded import of_type

HERE = Anchor(agent="claude-code", session_id="s1")


def test_an_event_names_itself_and_comes_back_as_it_was() -> None:
    told = events.StepBegins(
        anchor=HERE, cwd="/x", call="c1", tool="Bash", inputs={"command": "ls"}
    )
    sent = msgspec.json.encode(told)
    assert msgspec.json.decode(sent)["event"] == "StepBegins"
    assert codec.from_json(sent, events.Event) == told  # type: ignore[arg-type]


def test_an_anchor_keeps_only_what_the_agent_said() -> None:
    assert msgspec.to_builtins(HERE) == {"agent": "claude-code", "session_id": "s1"}


def test_short_inputs_are_kept_as_they_are() -> None:
    given = {"command": "ls", "nested": [{"text": "x" * 100}]}
    assert events.bounded_inputs(given) is given


@pytest.mark.parametrize(
    "given",
    [
        {"content": "x" * 1_000_000, "path": "a.txt"},
        {"edits": [{"old": "o" * 20_000, "new": ["n" * 20_000]}], "path": "a.txt"},
    ],
    ids=["one long text", "texts inside"],
)
def test_long_inputs_are_cut_and_say_how_long_they_were(given: dict[str, object]) -> None:
    kept = events.bounded_inputs(given)
    assert len(msgspec.json.encode(kept)) <= events.LARGEST_INPUTS
    assert kept["path"] == "a.txt"
    assert "0000 characters) ..." in str(kept)


def test_inputs_of_very_many_parts_are_cut_as_one_text() -> None:
    given = {str(number): "word" for number in range(100_000)}
    kept = events.bounded_inputs(given)
    assert len(msgspec.json.encode(kept)) <= events.LARGEST_INPUTS
    assert set(kept) == {"inputs"}


def test_a_command_line_is_known_by_its_program() -> None:
    assert agent.agent_of_command(["/usr/local/bin/claude", "-p", "hi"]) == "claude-code"
    assert agent.agent_of_command(["make", "claude"]) is None
    assert agent.agent_of_command([]) is None


def test_every_command_is_of_an_agent_that_has_a_module() -> None:
    assert set(agent.COMMANDS.values()) == set(agent.MODULES)


def test_an_unknown_agent_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        NotFound, match="no agent 'claud-code', did you mean 'claude-code'"
    ) as found:
        agent.agent_named("claud-code")
    assert "codex" in found.value.hint


def test_a_conversation_for_programs_says_continue() -> None:
    made = Conversation(
        agent="codex", session_id="n", forked_from="o", continue_=("codex", "resume")
    )
    assert msgspec.to_builtins(made) == {
        "agent": "codex",
        "session_id": "n",
        "forked_from": "o",
        "continue": ("codex", "resume"),
    }


PATCH = """*** Begin Patch
*** Add File: new.txt
+*** Update File: inside a line that is added
*** Update File: /abs/old.txt
*** Move to: sub/moved.txt
@@
-a
+b
*** Delete File: gone.txt
*** End Patch
"""


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({"file_path": "/p/a.txt", "content": PATCH}, ("/p/a.txt",)),
        ({"filePath": "sub/../a.txt", "oldString": "x"}, ("/p/a.txt",)),
        ({"notebook_path": "/p/n.ipynb", "new_source": "x"}, ("/p/n.ipynb",)),
        ({"command": PATCH}, ("/p/new.txt", "/abs/old.txt", "/p/sub/moved.txt", "/p/gone.txt")),
        ({"command": "rm -rf ."}, ()),
        ({"path": 7, "edits": [{"path": "x"}]}, ()),
        ({}, ()),
    ],
)
def test_an_editing_tool_says_which_files_it_writes(
    inputs: dict[str, object], named: tuple[str, ...]
) -> None:
    assert events.named_paths(inputs, "/p") == named


@pytest.mark.parametrize("name", sorted(set(agent.COMMANDS.values())))
def test_every_agents_editing_tool_says_it(name: str) -> None:
    """As recorded from the real programs."""
    found = of_type(recorded(agent.agent_named(name), "edit"), events.StepBegins)
    named = [events.named_paths(step.inputs, step.cwd) for step in found if step.writes]
    assert ("/home/ann/project/new.txt",) in named
