"""Gemini CLI 0.61: recorded payloads, a home for one run, and sessions cut at a moment."""

import json
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from cleveragents.errors import ConversationError
from cleveragents.integrations.events import Answer, Prompt, Quiet, StepBegins, StepEnded
from cleveragents.integrations.gemini import AGENT
from cleveragents.model.conversation import Anchor, Point
from tests.agents import recorded
from tests.agents.recorded import HOSTILE, events, is_resumed, kinds, of_type, session_file

HOOK = ("/usr/bin/python3", "-I", "-S", "/x/cleveragents/integrations/client.py", "S", "gemini")


class TestEvents:
    def test_a_prompt_with_an_edit_a_shell_and_parallel_calls(self):
        found = events(AGENT, "edit")
        assert kinds(found)[:2] == ["SessionStarted", "Prompt"]
        assert kinds(found)[-2:] == ["Quiet", "SessionEnded"]
        begun = of_type(found, StepBegins)
        assert [(step.tool, step.writes, step.network) for step in begun] == [
            ("write_file", True, False),
            *[("run_shell_command", None, True)] * 4,
        ]
        ended = of_type(found, StepEnded)
        assert sorted(step.call for step in begun) == sorted(step.call for step in ended)
        assert [step.error for step in ended if not step.ok] == ["exit code 3"]
        assert of_type(found, Quiet)[0].said == "finished edit"

    def test_a_call_is_known_by_its_tool_and_input(self):
        begun = of_type(events(AGENT, "edit"), StepBegins)
        calls = {step.inputs["command"]: step.call for step in begun[2:]}
        assert sorted(calls) == ["echo more >> more.txt", "exit 3"]
        assert sorted(step.call for step in begun[2:]) == sorted(
            [calls["exit 3"], *[calls["echo more >> more.txt"]] * 2]
        )

    def test_a_folder_of_one_run_is_not_remembered(self, tmp_path):
        real = tmp_path / "real"
        real.mkdir()
        (tmp_path / "gemini-home").mkdir()
        (tmp_path / "gemini-home" / "tmp").symlink_to(real)
        path = f"{tmp_path}/gemini-home/tmp/s.jsonl"
        (event,) = AGENT.read({"hook_event_name": "AfterAgent", "transcript_path": path}, "")
        assert event.anchor.transcript == f"{real}/s.jsonl"

    @pytest.mark.parametrize("payload", HOSTILE)
    def test_anything_may_come(self, payload):
        assert isinstance(AGENT.read(payload, ""), tuple)
        assert AGENT.answer(payload, "", Answer()) == ""


class TestAnswers:
    def test_words_refusals_and_notices(self):
        def said(event: str, answer: Answer):
            return json.loads(AGENT.answer({"hook_event_name": event}, "", answer) or "null")

        assert said("BeforeAgent", Answer(context="hi")) == {
            "hookSpecificOutput": {"hookEventName": "BeforeAgent", "additionalContext": "hi"}
        }
        assert said("BeforeTool", Answer(refuse="no")) == {"decision": "deny", "reason": "no"}
        assert said("AfterAgent", Answer(refuse="no", context="x")) is None
        assert said("AfterAgent", Answer(notice="look")) == {"systemMessage": "look"}


class TestSetUp:
    def test_a_home_for_one_run_has_all_but_the_settings(self, tmp_path, monkeypatch):
        home, private = tmp_path / "home", tmp_path / "private"
        (home / ".gemini").mkdir(parents=True)
        private.mkdir()
        settings = '{"theme": "dark"} // mine\n'
        (home / ".gemini" / "settings.json").write_text(settings)
        (home / ".gemini" / "oauth_creds.json").write_text("{}")
        monkeypatch.setenv("HOME", str(home))
        launch = AGENT.launch(("gemini", "-p", "x"), HOOK, str(private))
        assert launch.argv == ("gemini", "-p", "x")
        own = Path(launch.env["GEMINI_CLI_HOME"]) / ".gemini"
        assert private in own.parents
        assert (own / "oauth_creds.json").resolve() == home / ".gemini" / "oauth_creds.json"
        assert (own / "tmp").resolve() == home / ".gemini" / "tmp"
        assert '"theme": "dark"' in (own / "settings.json").read_text()
        assert "client.py S gemini" in (own / "settings.json").read_text()
        assert (home / ".gemini" / "settings.json").read_text() == settings
        assert str(home / ".gemini") in launch.state

    def test_where_settings_are(self, tmp_path):
        (user,) = AGENT.settings("user", str(tmp_path), "/p", HOOK)
        (own,) = AGENT.settings("project", "/h", str(tmp_path), HOOK)
        assert user.path == own.path == f"{tmp_path}/.gemini/settings.json"
        entry = json.loads(user.after or b"")["hooks"]["BeforeTool"][0]["hooks"][0]
        assert entry["timeout"] == 30_000


@pytest.fixture
def transcript(tmp_path):
    return session_file(tmp_path / "session-2026-11-16T19-47-00000000.jsonl", AGENT)


def fork(transcript: Path, anchor: Anchor, point: Point = Point.AFTER) -> list[str]:
    """What the new session says, in order."""
    made = AGENT.fork(replace(anchor, transcript=str(transcript)), point, {})
    if not is_resumed(AGENT, made, anchor.session_id):
        return []
    (path,) = transcript.parent.glob(f"*-{made.session_id[:8]}.jsonl")
    head, *messages = (json.loads(line) for line in path.read_text().splitlines())
    assert head["sessionId"] == made.session_id
    said: list[str] = []
    for message in messages:
        content = message["content"]
        texts = [content] if isinstance(content, str) else [p.get("text") for p in content]
        said += [text for text in texts if text and not text.startswith("<")]
        said += [f"{c['name']}: {c['status']}" for c in message.get("toolCalls", [])]
        if isinstance(content, list):
            said += [
                f"result {p['functionResponse']['name']}"
                for p in content
                if "functionResponse" in p
            ]
    return said


anchors = partial(recorded.anchors, AGENT)
WRITTEN = ["SCRIPT:edit please", "write_file: success"]
RUN = [*WRITTEN, "run_shell_command: success"]


class TestFork:
    def test_after_a_call_it_ends_with_the_result(self, transcript):
        before = transcript.read_bytes()
        assert fork(transcript, anchors(StepEnded)[0]) == WRITTEN
        assert fork(transcript, anchors(StepEnded)[1]) == RUN
        assert transcript.read_bytes() == before

    def test_before_a_call_it_was_not_asked_for(self, transcript):
        assert fork(transcript, anchors(StepBegins)[1], Point.BEFORE) == WRITTEN

    def test_parallel_calls_belong_together(self, transcript):
        for anchor in anchors(StepEnded)[2:]:
            said = fork(transcript, anchor)
            assert said == [*RUN, *["run_shell_command: success"] * 3]

    def test_the_end_of_a_prompt(self, transcript):
        said = fork(transcript, anchors(Quiet)[0])
        assert said == [*RUN, *["run_shell_command: success"] * 3, "finished edit"]

    def test_before_the_second_prompt_although_all_was_written_anew(self, transcript):
        said = fork(transcript, anchors(Prompt, "again")[0], Point.BEFORE)
        assert said[0] == "SCRIPT:edit please"
        assert said[-1] == "finished edit"
        assert said.count("result write_file") <= 1

    def test_before_the_first_prompt_there_is_no_conversation(self, transcript):
        assert fork(transcript, anchors(Prompt)[0], Point.BEFORE) == []
        assert fork(transcript, Anchor(agent="gemini", session_id="s")) == []

    def test_a_call_without_a_result(self, transcript):
        lines = transcript.read_text().splitlines(keepends=True)
        cut = next(n for n, line in enumerate(lines) if "functionResponse" in line)
        transcript.write_text("".join(lines[:cut]))
        with pytest.raises(ConversationError, match="the result of write_file"):
            fork(transcript, anchors(StepEnded)[0])
        with pytest.raises(ConversationError, match="the result of write_file"):
            fork(transcript, anchors(StepEnded, "again")[0])

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ('{"sessionId": "s"}\n{"type": "user"}\n', "no id or no time"),
            ('{"sessionId": "s"}\n', "no header or no messages"),
            ("7\n", "line 1 is not an object"),
        ],
    )
    def test_a_file_of_another_format_is_refused(self, transcript, content, message):
        transcript.write_text(content)
        with pytest.raises(ConversationError, match=message):
            fork(transcript, anchors(Quiet)[0])
        assert list(transcript.parent.iterdir()) == [transcript]

    def test_what_the_person_rewound_is_not_there(self, transcript):
        records = [json.loads(line) for line in transcript.read_text().splitlines()]
        last = next(n for n, one in enumerate(records) if one.get("content") == "finished edit")
        undone = {"$rewindTo": records[last]["id"]}
        with transcript.open("w") as file:
            for record in (*records[: last + 1], undone):
                file.write(json.dumps(record) + "\n")
        assert "finished edit" not in fork(transcript, anchors(Quiet)[0])
