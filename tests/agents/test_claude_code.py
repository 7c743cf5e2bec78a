"""Claude Code 2.1: recorded payloads, settings, and sessions cut at a point."""

import json
import os
from pathlib import Path

import pytest

from cleveragents.errors import ConfigError, ConversationError
from cleveragents.integrations.claude_code import AGENT
from cleveragents.integrations.events import (
    Answer,
    Prompt,
    Quiet,
    SessionEnded,
    SessionStarted,
    StepBegins,
    StepEnded,
)
from cleveragents.model.conversation import Anchor, Point
from tests.agents.recorded import HOSTILE, events, is_resumed, kinds, of_type, rows, session_file

HOOK = (
    "/usr/bin/python3",
    "-I",
    "-S",
    "/x/cleveragents/integrations/client.py",
    "S",
    "claude-code",
)


def texts(records: list[dict]) -> list[str]:
    """Who said what, and which calls were made and answered."""
    said: list[str] = []
    for record in records:
        content = record.get("message", {}).get("content", [])
        if isinstance(content, str):
            said.append(content)
            continue
        for part in content:
            value = part.get("text") or part.get("id") or part.get("tool_use_id")
            said.append(f"{part['type']}:{value}")
    return said


class TestEvents:
    def test_a_prompt_with_an_edit_a_shell_and_parallel_calls(self):
        found = events(AGENT, "edit")
        started, asked, *_ = found
        assert isinstance(started, SessionStarted)
        assert (started.source, started.cwd) == ("startup", "/home/ann/project")
        assert isinstance(asked, Prompt)
        assert (asked.text, asked.parent_call) == ("SCRIPT:edit please", "")
        begun = of_type(found, StepBegins)
        assert [(step.tool, step.writes) for step in begun] == [
            ("Write", True),
            *[("Bash", None)] * 4,
        ]
        assert begun[0].inputs == {"file_path": "/home/ann/project/new.txt", "content": "new\n"}
        assert [step.network for step in begun] == [False, True, True, True, True]
        assert isinstance(found[-2], Quiet)
        assert found[-2].said == "finished edit"
        assert isinstance(found[-1], SessionEnded)

    def test_every_call_that_begins_ends_first_with_its_own_outcome(self):
        found = events(AGENT, "edit")
        begun = [step.call for step in of_type(found, StepBegins)]
        first = {step.call: step for step in reversed(of_type(found, StepEnded))}
        assert sorted(first) == sorted(begun)
        failed = [step for step in first.values() if not step.ok]
        assert [(step.call, step.error) for step in failed] == [(begun[2], "Exit code 3")]

    def test_a_call_that_was_not_permitted_ends_with_its_batch(self):
        found = events(AGENT, "denied")
        refused, allowed = (step.call for step in of_type(found, StepBegins))
        outcomes = [(step.call, step.ok) for step in of_type(found, StepEnded)]
        assert outcomes == [(allowed, True), (refused, False), (allowed, False)]

    def test_a_sub_agent_is_asked_and_its_calls_name_it(self):
        found = events(AGENT, "agent")
        person, sub = of_type(found, Prompt)
        assert person.parent_call == ""
        assert sub.text == "sub-agent general-purpose"
        outer, inner = of_type(found, StepBegins)
        assert (outer.tool, outer.parent_call, outer.writes) == ("Agent", "", False)
        assert (inner.tool, inner.parent_call) == ("Write", sub.parent_call)

    def test_stop_while_something_runs_says_what(self):
        during, after = of_type(events(AGENT, "later"), Quiet)
        assert len(during.background) == 1
        assert after.background == ()

    def test_what_it_tells_itself_is_no_prompt_of_the_person(self):
        assert [one.text for one in of_type(events(AGENT, "later"), Prompt)] == [
            "SCRIPT:later please"
        ]

    def test_anchors_hold_ids_and_no_words(self):
        for row in rows("claude-code", "edit"):
            for event in AGENT.read(row["payload"], ""):
                payload = row["payload"]
                assert event.anchor.session_id == payload["session_id"]
                assert event.anchor.prompt_id == payload.get("prompt_id", "")
                assert event.anchor.transcript == payload["transcript_path"]

    @pytest.mark.parametrize("payload", HOSTILE)
    def test_anything_may_come(self, payload):
        assert isinstance(AGENT.read(payload, ""), tuple)
        assert AGENT.answer(payload, "", Answer()) == ""

    def test_the_event_may_be_named_by_the_hook(self):
        assert kinds(list(AGENT.read({"session_id": "s"}, "Stop"))) == ["Quiet"]

    @pytest.mark.parametrize(
        ("out", "err", "said"), [("", "", ""), ("did\n", "", "did\n"), ("", "bad", "bad")]
    )
    def test_of_a_shell_only_what_it_printed_is_output(self, out, err, said):
        response = {"stdout": out, "stderr": err, "interrupted": False}
        payload = {"session_id": "s", "tool_use_id": "c", "tool_response": response}
        (ended,) = AGENT.read(payload, "PostToolUse")
        assert ended.output == said


class TestAnswers:
    def test_words_for_the_agent_where_it_takes_them(self):
        for event in ("SessionStart", "UserPromptSubmit", "PostToolUse", "PostToolUseFailure"):
            said = json.loads(AGENT.answer({"hook_event_name": event}, "", Answer(context="hi")))
            assert said == {
                "hookSpecificOutput": {"hookEventName": event, "additionalContext": "hi"}
            }
        assert AGENT.answer({"hook_event_name": "Stop"}, "", Answer(context="hi")) == ""

    def test_a_notice_is_for_the_person(self):
        said = AGENT.answer({"hook_event_name": "Stop"}, "", Answer(notice="look"))
        assert json.loads(said) == {"systemMessage": "look"}

    def test_a_refusal_stops_the_tool_and_nothing_else(self):
        said = json.loads(AGENT.answer({"hook_event_name": "PreToolUse"}, "", Answer(refuse="no")))
        assert said["hookSpecificOutput"] == {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": "no",
        }
        assert AGENT.answer({"hook_event_name": "Stop"}, "", Answer(refuse="no")) == ""


class TestLaunch:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path, monkeypatch) -> Path:
        monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        return tmp_path / "home"

    def test_what_it_asked_its_person_once_is_kept_in_the_folder_that_it_may_write(
        self, tmp_path, home
    ):
        """It replaces ~/.claude.json as a whole, which a sandbox cannot let it do in a home."""

        def launched() -> dict:
            launch = AGENT.launch(("claude",), HOOK, str(tmp_path))
            assert launch.env == {"CLAUDE_CONFIG_DIR": str(home / ".claude")}
            assert launch.state == (str(home / ".claude"),)
            return json.loads(inside.read_text()) if inside.exists() else {}

        own, inside = home / ".claude.json", home / ".claude" / ".claude.json"
        home.mkdir()
        assert launched() == {}
        own.write_text(json.dumps({"account": 1, "projects": {"/a": 1}}))
        assert launched() == {"account": 1, "projects": {"/a": 1}}
        assert inside.stat().st_mode & 0o777 == 0o600
        inside.write_text(json.dumps({"account": 1, "tips": 3, "projects": {"/a": 2, "/b": 3}}))
        assert launched()["projects"] == {"/a": 2, "/b": 3}
        own.write_text(json.dumps({"account": 2, "projects": {"/a": 4}}))
        os.utime(own, (2**31, 2**31))
        assert launched() == {"account": 2, "tips": 3, "projects": {"/a": 4, "/b": 3}}
        assert json.loads(own.read_text()) == {"account": 2, "projects": {"/a": 4}}
        own.write_text("{half")
        os.utime(own, (2**31 + 9, 2**31 + 9))
        assert launched()["account"] == 2

    def test_a_folder_of_the_person_s_own_has_its_memory_in_it(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "mine"))
        launch = AGENT.launch(("claude",), HOOK, str(tmp_path))
        assert launch.state == (str(tmp_path / "mine"),)
        assert not (tmp_path / "mine").exists()

    def test_hooks_for_this_run_only(self, tmp_path):
        launch = AGENT.launch(("claude", "-p", "do it"), HOOK, str(tmp_path))
        name, option, file, *rest = launch.argv
        assert (name, option, rest) == ("claude", "--settings", ["-p", "do it"])
        hooks = json.loads(Path(file).read_text())["hooks"]
        assert Path(file).parent == tmp_path
        assert hooks["PreToolUse"][0]["hooks"][0]["command"].endswith("client.py S claude-code")
        assert "ANTHROPIC_*" in launch.pass_env

    @pytest.mark.parametrize("joined", [True, False])
    def test_the_person_s_own_settings_file_counts_too(self, tmp_path, joined):
        theirs = tmp_path / "theirs.json"
        stop = {"hooks": [{"type": "command", "command": "true"}]}
        theirs.write_text(json.dumps({"model": "opus", "hooks": {"Stop": [stop]}}))
        option = (f"--settings={theirs}",) if joined else ("--settings", str(theirs))
        launch = AGENT.launch(("claude", *option, "-c"), HOOK, str(tmp_path))
        assert launch.argv[3:] == ("-c",)
        settings = json.loads(Path(launch.argv[2]).read_text())
        assert settings["model"] == "opus"
        assert settings["hooks"]["Stop"][0] == stop
        assert len(settings["hooks"]["Stop"]) == 2

    def test_settings_as_text(self, tmp_path):
        launch = AGENT.launch(("claude", "--settings", '{"model": "x"}'), HOOK, str(tmp_path))
        assert json.loads(Path(launch.argv[2]).read_text())["model"] == "x"

    def test_settings_that_cannot_be_read_are_named(self, tmp_path):
        with pytest.raises(ConfigError, match=r"nowhere\.json"):
            AGENT.launch(("claude", "--settings", "nowhere.json"), HOOK, str(tmp_path))


class TestSettings:
    def test_where_they_are(self, tmp_path):
        home, project = str(tmp_path / "home"), str(tmp_path / "project")
        (user,) = AGENT.settings("user", home, project, HOOK)
        (shared,) = AGENT.settings("project", home, project, HOOK)
        assert user.path == f"{home}/.claude/settings.json"
        assert shared.path == f"{project}/.claude/settings.local.json"
        assert json.loads(user.after or b"")["hooks"]["Stop"]


@pytest.fixture
def transcript(tmp_path):
    return session_file(tmp_path / "old.jsonl", AGENT)


def fork(transcript: Path, point: Point = Point.AFTER, **ids: str) -> list[dict]:
    """What the new session holds; [] for a new conversation."""
    anchor = Anchor(agent="claude-code", session_id="s", transcript=str(transcript), **ids)
    made = AGENT.fork(anchor, point, {})
    if not is_resumed(AGENT, made, "s"):
        return []
    lines = (transcript.parent / f"{made.session_id}.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert {record["sessionId"] for record in records} == {made.session_id}
    return records


def call(number: int) -> str:
    begun = of_type(events(AGENT, "edit"), StepBegins)
    return begun[number].call


def prompt(scenario: str) -> str:
    return of_type(events(AGENT, scenario), Prompt)[0].anchor.prompt_id


class TestFork:
    def test_after_a_call_the_conversation_ends_with_its_result(self, transcript):
        before = transcript.read_bytes()
        said = texts(fork(transcript, prompt_id=prompt("edit"), call_id=call(0)))
        assert said == [
            "SCRIPT:edit please",
            f"tool_use:{call(0)}",
            f"tool_result:{call(0)}",
        ]
        assert transcript.read_bytes() == before

    def test_before_a_call_it_was_not_made(self, transcript):
        said = texts(fork(transcript, Point.BEFORE, prompt_id=prompt("edit"), call_id=call(1)))
        assert said[-1] == f"tool_result:{call(0)}"

    def test_between_parallel_calls_the_later_ones_are_not_there(self, transcript):
        said = texts(fork(transcript, prompt_id=prompt("edit"), call_id=call(3)))
        assert said[-4:] == [
            f"tool_use:{call(2)}",
            f"tool_use:{call(3)}",
            f"tool_result:{call(2)}",
            f"tool_result:{call(3)}",
        ]

    def test_the_end_of_a_prompt_has_all_results_and_the_last_words(self, transcript):
        said = texts(fork(transcript, prompt_id=prompt("edit")))
        assert [one for one in said if one.startswith("tool_result")] == [
            f"tool_result:{call(n)}" for n in range(5)
        ]
        assert said[-1] == "text:finished edit"

    def test_before_the_second_prompt_is_the_end_of_the_first(self, transcript):
        said = texts(fork(transcript, Point.BEFORE, prompt_id=prompt("again")))
        assert said == texts(fork(transcript, prompt_id=prompt("edit")))

    def test_before_the_first_prompt_there_is_no_conversation(self, transcript):
        assert fork(transcript, Point.BEFORE, prompt_id=prompt("edit")) == []
        assert fork(transcript) == []

    def test_a_call_that_the_file_does_not_have(self, transcript):
        with pytest.raises(ConversationError, match="call toolu_x is not in"):
            fork(transcript, prompt_id=prompt("edit"), call_id="toolu_x")
        with pytest.raises(ConversationError, match="prompt p-x is not in"):
            fork(transcript, prompt_id="p-x")

    def test_inside_a_sub_agent(self, transcript):
        with pytest.raises(ConversationError, match="sub-agent"):
            fork(transcript, prompt_id=prompt("edit"), call_id="toolu_x", turn_id="a1")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("[1]\n", "line 1 is not an object"),
            ("{\n{}\n", "line 1 is not JSON"),
            ('{"type": "user"}\n', "no messages"),
            ('{"uuid": "u"}\n', "no messages"),
        ],
    )
    def test_a_file_of_another_format_is_refused(self, transcript, content, message):
        transcript.write_text(content)
        with pytest.raises(ConversationError, match=message):
            fork(transcript, prompt_id=prompt("edit"))
        assert list(transcript.parent.iterdir()) == [transcript]

    def test_a_chain_with_a_gap_is_refused(self, transcript):
        lines = transcript.read_text().splitlines(keepends=True)
        records = [json.loads(line) for line in lines]
        first = next(n for n, one in enumerate(records) if one["type"] == "assistant")
        transcript.write_text("".join(lines[:first] + lines[first + 1 :]))
        with pytest.raises(ConversationError, match="is missing"):
            fork(transcript, prompt_id=prompt("edit"))

    def test_a_file_that_is_gone(self, transcript):
        transcript.unlink()
        with pytest.raises(ConversationError, match="cannot read the session file"):
            fork(transcript, prompt_id="p")

    def test_a_last_line_that_was_being_written(self, transcript):
        with transcript.open("a") as file:
            file.write('{"type": "assis')
        assert texts(fork(transcript, prompt_id=prompt("edit")))[-1] == "text:finished edit"


def test_a_call_that_was_interrupted_is_an_error_in_its_session_file():
    """As 2.1.325 wrote it after Escape, while a command ran; it called no hook."""
    told = [
        {"type": "tool_result", "tool_use_id": "done", "content": "did it"},
        {"type": "tool_result", "tool_use_id": "x", "content": "rejected", "is_error": True},
    ]
    records = [
        {"type": "user", "message": {"role": "user", "content": "SCRIPT:slow"}},
        {"type": "user", "message": {"role": "user", "content": told}},
        {"type": "mode", "mode": "normal"},
    ]
    assert AGENT.interrupted(records) == {"x"}
