"""Qwen Code 0.24: recorded payloads, a home for one run, and sessions cut at a call or a moment."""

import json
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from cleveragents.errors import ConversationError
from cleveragents.integrations.events import Answer, Prompt, Quiet, StepBegins, StepEnded
from cleveragents.integrations.qwen import AGENT
from cleveragents.model.conversation import Anchor, Point
from tests.agents import recorded
from tests.agents.recorded import HOSTILE, events, is_resumed, kinds, of_type, session_file

HOOK = ("/usr/bin/python3", "-I", "-S", "/x/cleveragents/integrations/client.py", "S", "qwen")


class TestEvents:
    def test_a_prompt_with_an_edit_a_shell_and_several_calls(self):
        found = events(AGENT, "edit")
        assert kinds(found)[:2] == ["SessionStarted", "Prompt"]
        assert len(of_type(found, Prompt)) == 1, "what it asks the model again is no prompt"
        begun = of_type(found, StepBegins)
        assert [(step.tool, step.writes, step.network) for step in begun] == [
            ("write_file", True, False),
            *[("run_shell_command", None, True)] * 4,
        ]
        ended = of_type(found, StepEnded)
        assert [step.call for step in begun] == [step.call for step in ended]
        assert ["Exit Code: 3" in step.error for step in ended if not step.ok] == [True]
        assert of_type(found, Quiet)[0].said == "finished edit"

    def test_the_end_of_a_session(self):
        (event,) = AGENT.read({"hook_event_name": "SessionEnd", "reason": "exit"}, "")
        assert event.reason == "exit"

    def test_a_folder_of_one_run_is_not_remembered(self, tmp_path):
        (tmp_path / "real").mkdir()
        (tmp_path / "qwen-home").mkdir()
        (tmp_path / "qwen-home" / "projects").symlink_to(tmp_path / "real")
        path = f"{tmp_path}/qwen-home/projects/s.jsonl"
        (event,) = AGENT.read({"hook_event_name": "Stop", "transcript_path": path}, "")
        assert event.anchor.transcript == f"{tmp_path}/real/s.jsonl"

    @pytest.mark.parametrize("payload", HOSTILE)
    def test_anything_may_come(self, payload):
        assert isinstance(AGENT.read(payload, ""), tuple)
        assert AGENT.answer(payload, "", Answer()) == ""


class TestSetUp:
    def test_a_home_for_one_run_has_all_but_the_settings(self, tmp_path, monkeypatch):
        real, private = tmp_path / "home" / ".qwen", tmp_path / "private"
        real.mkdir(parents=True)
        private.mkdir()
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.delenv("QWEN_HOME", raising=False)
        (real / "settings.json").write_text('{"model": {"name": "x"}}')
        (real / "oauth_creds.json").write_text("{}")
        launch = AGENT.launch(("qwen", "-p", "hi"), HOOK, str(private))
        assert launch.argv == ("qwen", "-p", "hi")
        home = Path(launch.env["QWEN_HOME"])
        assert (home / "oauth_creds.json").resolve() == real / "oauth_creds.json"
        assert (home / "projects").resolve() == real / "projects"
        settings = json.loads((home / "settings.json").read_text())
        assert settings["model"] == {"name": "x"}
        assert set(settings["hooks"]) >= {"PreToolUse", "PostToolUse", "Stop"}
        assert json.loads((real / "settings.json").read_text()) == {"model": {"name": "x"}}
        assert launch.state == (str(real), str(home))

    def test_where_settings_are(self, tmp_path):
        home, project = str(tmp_path / "home"), str(tmp_path / "project")
        (user,) = AGENT.settings("user", home, project, HOOK)
        assert user.path == f"{home}/.qwen/settings.json"
        (own,) = AGENT.settings("project", home, project, None)
        assert own.path == f"{project}/.qwen/settings.json"


@pytest.fixture
def transcript(tmp_path):
    return session_file(tmp_path / "session.jsonl", AGENT)


def fork(transcript: Path, anchor: Anchor, point: Point = Point.AFTER) -> list[str]:
    """What the new session says, in order."""
    made = AGENT.fork(replace(anchor, transcript=str(transcript)), point, {})
    if not is_resumed(AGENT, made, anchor.session_id):
        return []
    path = transcript.with_name(f"{made.session_id}.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert {record["sessionId"] for record in records} == {made.session_id}
    above = [None, *(record["uuid"] for record in records[:-1])]
    assert [record["parentUuid"] for record in records] == above, "each hangs on the one before"
    said: list[str] = []
    for part in (p for r in records for p in r.get("message", {}).get("parts", [])):
        if "functionCall" in part:
            said.append(f"{part['functionCall']['name']} asked")
        elif "functionResponse" in part:
            said.append(f"{part['functionResponse']['name']} done")
        else:
            said.append(part["text"])
    return said


anchors = partial(recorded.anchors, AGENT)
WRITTEN = ["SCRIPT:edit please", "write_file asked", "write_file done"]
RUN = [*WRITTEN, "run_shell_command asked", "run_shell_command done"]


class TestFork:
    def test_after_a_call_it_ends_with_the_result(self, transcript):
        before = transcript.read_bytes()
        assert fork(transcript, anchors(StepEnded)[0]) == WRITTEN
        assert fork(transcript, anchors(StepEnded)[1]) == RUN
        assert transcript.read_bytes() == before

    def test_before_a_call_it_was_not_asked_for(self, transcript):
        assert fork(transcript, anchors(StepBegins)[1], Point.BEFORE) == WRITTEN

    @pytest.mark.parametrize("made", [1, 2, 3])
    def test_between_calls_of_one_message_the_later_ones_are_not_there(self, transcript, made):
        shells = [*["run_shell_command asked"] * made, *["run_shell_command done"] * made]
        assert fork(transcript, anchors(StepEnded)[1 + made]) == [*RUN, *shells]
        if made < 3:
            before = fork(transcript, anchors(StepBegins)[2 + made], Point.BEFORE)
            assert before == [*RUN, *shells]

    def test_the_end_of_a_prompt(self, transcript):
        said = fork(transcript, anchors(Quiet)[0])
        assert (said[0], said[-1]) == ("SCRIPT:edit please", "finished edit")

    def test_before_the_second_prompt_is_the_end_of_the_first(self, transcript):
        before = fork(transcript, anchors(Prompt, "again")[0], Point.BEFORE)
        assert before == fork(transcript, anchors(Quiet)[0])
        assert fork(transcript, anchors(Quiet, "again")[0])[-1] == "finished again"

    def test_before_the_first_prompt_there_is_no_conversation(self, transcript):
        assert fork(transcript, anchors(Prompt)[0], Point.BEFORE) == []
        assert fork(transcript, Anchor(agent="qwen", session_id="s")) == []

    def test_what_is_not_there(self, transcript):
        anchor = anchors(StepEnded)[0]
        with pytest.raises(ConversationError, match="call nobody is not in"):
            fork(transcript, replace(anchor, call_id="nobody"))
        lines = transcript.read_text().splitlines(keepends=True)
        cut = next(n for n, line in enumerate(lines) if "functionResponse" in line)
        transcript.write_text("".join(lines[:cut]))
        with pytest.raises(ConversationError, match="the result of call"):
            fork(transcript, anchor)
        transcript.write_text('{"type": "user"}\n')
        with pytest.raises(ConversationError, match="no id or no time"):
            fork(transcript, anchor)
