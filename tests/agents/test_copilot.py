"""Copilot CLI 1.0: recorded payloads, a home for one run, and sessions cut at a moment."""

import json
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from cleveragents.errors import ConversationError
from cleveragents.integrations.copilot import AGENT
from cleveragents.integrations.events import Answer, Prompt, Quiet, StepBegins, StepEnded
from cleveragents.model.conversation import Anchor, Point
from tests.agents import recorded
from tests.agents.recorded import HOSTILE, events, is_resumed, kinds, of_type, rows

HOOK = ("/usr/bin/python3", "-I", "-S", "/x/cleveragents/integrations/client.py", "S", "copilot")
EVENTS = ("sessionStart", "userPromptSubmitted", "preToolUse", "postToolUse", "agentStop")


class TestEvents:
    def test_a_prompt_with_an_edit_a_shell_and_parallel_calls(self):
        found = events(AGENT, "edit")
        assert kinds(found)[:2] == ["SessionStarted", "Prompt"]
        assert kinds(found)[-2:] == ["Quiet", "SessionEnded"]
        begun = of_type(found, StepBegins)
        assert [(step.tool, step.writes, step.network) for step in begun] == [
            ("create", True, False),
            *[("bash", None, True)] * 4,
        ]
        ended = of_type(found, StepEnded)
        assert sorted(step.call for step in begun) == sorted(step.call for step in ended)
        assert [step.error for step in ended if not step.ok] == ["exit code 3"]

    def test_moments_are_written_as_in_its_log(self):
        (event,) = AGENT.read({"sessionId": "s", "timestamp": 1794948101276}, "agentStop")
        assert event.anchor.turn_id == "2026-11-17T20:41:41.276Z"

    def test_a_call_that_failed(self):
        payload = {"toolName": "edit", "toolResult": {"resultType": "failure"}}
        (ended,) = AGENT.read(payload, "postToolUse")
        assert (ended.ok, ended.error) == (False, "failed")
        (ended,) = AGENT.read({"toolName": "edit", "error": "no such file"}, "postToolUseFailure")
        assert (ended.ok, ended.error) == (False, "no such file")

    @pytest.mark.parametrize("event", EVENTS)
    @pytest.mark.parametrize("payload", HOSTILE)
    def test_anything_may_come(self, payload, event):
        assert isinstance(AGENT.read({**payload, "timestamp": -1}, event), tuple)
        assert AGENT.answer(payload, event, Answer()) == ""
        assert AGENT.read(payload, "nobodyKnows") == ()


def test_answers_have_only_keys_that_it_knows():
    said = json.loads(AGENT.answer({}, "preToolUse", Answer(refuse="no")))
    assert said == {"permissionDecision": "deny", "permissionDecisionReason": "no"}
    assert AGENT.answer({}, "postToolUse", Answer(refuse="no", notice="x")) == ""
    assert json.loads(AGENT.answer({}, "sessionStart", Answer(context="hi"))) == {
        "additionalContext": "hi"
    }


class TestSetUp:
    def test_a_home_for_one_run_has_all_and_our_hooks(self, tmp_path, monkeypatch):
        real, private = tmp_path / "home" / ".copilot", tmp_path / "private"
        (real / "hooks").mkdir(parents=True)
        private.mkdir()
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.delenv("COPILOT_HOME", raising=False)
        (real / "config.json").write_text("{}")
        (real / "hooks" / "theirs.json").write_text("{}")
        (real / "hooks" / "cleveragents.json").write_text("{}")
        launch = AGENT.launch(("copilot", "-p", "hi"), HOOK, str(private))
        home = Path(launch.env["COPILOT_HOME"])
        assert (home / "config.json").resolve() == real / "config.json"
        assert (home / "session-state").resolve() == real / "session-state"
        assert (home / "hooks" / "theirs.json").resolve() == real / "hooks" / "theirs.json"
        own = json.loads((home / "hooks" / "cleveragents.json").read_text())
        assert own["version"] == 1
        assert own["hooks"]["preToolUse"][0]["bash"].endswith("copilot preToolUse")
        assert (real / "hooks" / "cleveragents.json").read_text() == "{}"
        assert launch.state == (str(real), str(home))

    def test_where_hooks_are(self, tmp_path):
        home, project = str(tmp_path / "home"), str(tmp_path / "project")
        (user,) = AGENT.settings("user", home, project, HOOK)
        assert user.path == f"{home}/.copilot/hooks/cleveragents.json"
        assert json.loads(user.after)["version"] == 1
        (own,) = AGENT.settings("project", home, project, None)
        assert own.path == f"{project}/.github/hooks/cleveragents.json"


anchors = partial(recorded.anchors, AGENT)


@pytest.fixture
def state(tmp_path):
    """The folder with its sessions."""
    folder = tmp_path / "session-state" / anchors(Quiet)[0].session_id
    folder.mkdir(parents=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows("copilot", "session"))
    (folder / "events.jsonl").write_text(lines)
    (folder / "workspace.yaml").write_text(f"id: {folder.name}\ncwd: /home/ann/project\n")
    return folder


def fork(state: Path, anchor: Anchor, point: Point = Point.AFTER) -> list[str]:
    """What the new session says, in order."""
    made = AGENT.fork(anchor, point, {"COPILOT_HOME": str(state.parent.parent)})
    folder = state.with_name(made.session_id)
    if not is_resumed(AGENT, made, anchor.session_id):
        assert not folder.exists()
        return []
    assert (folder / "workspace.yaml").read_text().startswith(f"id: {made.session_id}\n")
    records = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert records[0]["data"]["sessionId"] == made.session_id
    above = [None, *(record["id"] for record in records[:-1])]
    assert [record["parentId"] for record in records] == above, "each hangs on the one before"
    said: list[str] = []
    for record in records:
        if record["type"] in {"user.message", "assistant.message"} and record["data"]["content"]:
            said.append(record["data"]["content"])
        said += [f"{call['name']} asked" for call in record["data"].get("toolRequests", ())]
        said += ["done"] if record["type"] == "tool.execution_complete" else []
    return said


WRITTEN = ["SCRIPT:edit please", "create asked", "done"]
RUN = [*WRITTEN, "bash asked", "done"]


class TestFork:
    def test_after_a_call_it_ends_with_the_result(self, state):
        before = (state / "events.jsonl").read_bytes()
        assert fork(state, anchors(StepEnded)[0]) == WRITTEN
        assert fork(state, anchors(StepEnded)[1]) == RUN
        assert (state / "events.jsonl").read_bytes() == before

    def test_before_a_call_it_was_not_asked_for(self, state):
        assert fork(state, anchors(StepBegins)[1], Point.BEFORE) == WRITTEN

    def test_parallel_calls_belong_together(self, state):
        said = fork(state, anchors(StepEnded)[-1])
        assert said == [*RUN, *["bash asked"] * 3, *["done"] * 3]

    def test_the_end_of_a_prompt_and_before_the_second(self, state):
        said = fork(state, anchors(Quiet)[0])
        assert (said[0], said[-1]) == ("SCRIPT:edit please", "finished edit")
        assert fork(state, anchors(Prompt, "again")[0], Point.BEFORE) == said
        assert fork(state, anchors(Quiet, "again")[0])[-1] == "finished again"

    def test_before_the_first_prompt_there_is_no_conversation(self, state):
        assert fork(state, anchors(Prompt)[0], Point.BEFORE) == []

    def test_what_is_not_there(self, state):
        anchor, log = anchors(StepEnded)[0], state / "events.jsonl"
        with pytest.raises(ConversationError, match="call nobody at"):
            fork(state, replace(anchor, call_id="nobody:1"))
        lines = log.read_text().splitlines(keepends=True)
        cut = next(n for n, line in enumerate(lines) if "tool.execution_complete" in line)
        log.write_text("".join(lines[:cut]))
        with pytest.raises(ConversationError, match="the result of create"):
            fork(state, anchor)
        (state / "workspace.yaml").unlink()
        log.write_text("".join(lines))
        with pytest.raises(ConversationError, match="cannot copy the session folder"):
            fork(state, anchor)
        assert list(state.parent.iterdir()) == [state]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ('{"type": "user.message"}\n', "does not begin with the start"),
            ('{"type": "session.start"}\n', "no id or no time"),
        ],
    )
    def test_a_log_of_another_format_is_refused(self, state, content, message):
        (state / "events.jsonl").write_text(content)
        with pytest.raises(ConversationError, match=message):
            fork(state, anchors(Quiet)[0])
