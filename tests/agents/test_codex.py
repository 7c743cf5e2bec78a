"""Codex 0.166: recorded payloads, hooks on the command line, and threads forked at a point."""

import json
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from cleveragents.errors import ConversationError
from cleveragents.integrations.codex import AGENT
from cleveragents.integrations.events import Answer, Prompt, Quiet, StepBegins, StepEnded
from cleveragents.model.conversation import Anchor, Point
from tests.agents.recorded import HOSTILE, events, kinds, of_type, rows

HOOK = ("/usr/bin/python3", "-I", "-S", "/x/cleveragents/integrations/client.py", "S", "codex")


class TestEvents:
    def test_a_prompt_with_a_patch_a_shell_and_parallel_calls(self):
        found = events(AGENT, "edit")
        assert kinds(found)[:2] == ["SessionStarted", "Prompt"]
        assert kinds(found)[-2:] == ["Quiet", "SessionEnded"]
        begun = of_type(found, StepBegins)
        assert [(step.tool, step.writes, step.network) for step in begun] == [
            ("apply_patch", True, False),
            *[("Bash", None, True)] * 4,
        ]
        assert sorted(s.call for s in begun) == sorted(s.call for s in of_type(found, StepEnded))
        assert of_type(found, Quiet)[0].said == "finished edit"
        assert of_type(found, Prompt)[0].text == "SCRIPT:edit please"

    def test_anchors_name_thread_turn_and_call(self):
        first = of_type(events(AGENT, "edit"), StepEnded)[0].anchor
        second = of_type(events(AGENT, "again"), StepEnded)[0].anchor
        assert first.session_id == second.session_id
        assert first.turn_id != second.turn_id
        assert first.call_id.startswith("call_edit_p0_")
        assert first.transcript.endswith(f"{first.session_id}.jsonl")

    @pytest.mark.parametrize("payload", HOSTILE)
    def test_anything_may_come(self, payload):
        assert isinstance(AGENT.read(payload, ""), tuple)
        assert AGENT.answer(payload, "", Answer()) == ""


class TestAnswers:
    def test_only_keys_that_it_knows_because_one_more_makes_it_run_the_tool(self):
        said = json.loads(AGENT.answer({"hook_event_name": "PreToolUse"}, "", Answer(refuse="no")))
        assert said == {
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "permissionDecision": "deny",
                "permissionDecisionReason": "no",
            }
        }

    def test_words_and_notices(self):
        both = Answer(context="hi", notice="look")
        said = json.loads(AGENT.answer({"hook_event_name": "SessionStart"}, "", both))
        assert said == {
            "hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": "hi"},
            "systemMessage": "look",
        }

    def test_the_end_of_a_turn_is_never_refused_because_that_loops(self):
        for refused in ({}, {"stop_hook_active": True}):
            payload = {"hook_event_name": "Stop", **refused}
            assert AGENT.answer(payload, "", Answer(refuse="no", context="x")) == ""


class TestSetUp:
    def test_hooks_on_the_command_line_are_toml_and_trusted_for_this_run(self, tmp_path):
        launch = AGENT.launch(("codex", "exec", "do it"), HOOK, str(tmp_path))
        assert launch.argv[-3:] == ("--dangerously-bypass-hook-trust", "exec", "do it")
        options = [word for before, word in pairwise(launch.argv) if before == "-c"]
        hooks = tomllib.loads("\n".join(options))["hooks"]
        command = hooks["PreToolUse"][0]["hooks"][0]
        assert command["command"].endswith("client.py S codex")
        assert hooks["SessionEnd"][0]["hooks"][0]["timeout"] == 3
        assert list(tmp_path.iterdir()) == []

    def test_installed_hooks_have_to_be_trusted(self, tmp_path):
        (change,) = AGENT.settings("user", str(tmp_path), "/p", HOOK)
        assert change.path == f"{tmp_path}/.codex/hooks.json"
        assert "/hooks" in change.remark
        assert json.loads(change.after or b"")["hooks"]["Stop"]
        (gone,) = AGENT.settings("project", "/h", str(tmp_path), None)
        assert (gone.path, gone.after, gone.remark) == (f"{tmp_path}/.codex/hooks.json", None, "")


SERVER = """\
#!{python}
import json, sys
mode = {mode!r}
for line in sys.stdin:
    asked = json.loads(line)
    with open({log!r}, "a") as log:
        log.write(line)
    if "id" not in asked:
        continue
    print("not JSON", flush=True)
    print(json.dumps({{"method": "note"}}), flush=True)
    if asked["method"] == "thread/fork" and mode == "refuse":
        reply = {{"error": {{"code": 1, "message": "no such turn"}}}}
    elif asked["method"] == "thread/fork" and mode == "die":
        sys.exit(1)
    elif asked["method"] == "thread/fork" and mode == "odd":
        reply = {{"result": {{"thread": []}}}}
    else:
        reply = {{"result": {{"thread": {{"id": "new-thread"}}}}}}
    print(json.dumps({{"id": asked["id"], **reply}}), flush=True)
"""


class Thread:
    """A recorded session file, and a program that answers as codex's app server does."""

    def __init__(self, folder: Path, mode: str = "") -> None:
        self.file = folder / "rollout.jsonl"
        self.file.write_text("".join(json.dumps(row) + "\n" for row in rows("codex", "session")))
        self._log = folder / "asked.jsonl"
        program = folder / "codex"
        program.write_text(SERVER.format(python=sys.executable, mode=mode, log=str(self._log)))
        program.chmod(0o755)
        self.env = {"PATH": str(folder)}

    def fork(self, point: Point = Point.AFTER, **ids: str):
        anchor = Anchor(agent="codex", session_id="old", transcript=str(self.file), **ids)
        return AGENT.fork(anchor, point, self.env)

    @property
    def asked(self) -> list[dict]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [json.loads(line) for line in lines]

    def params(self, method: str) -> list[dict]:
        return [one["params"] for one in self.asked if one["method"] == method]


@pytest.fixture
def thread(tmp_path):
    return Thread(tmp_path)


def turn(scenario: str) -> str:
    return of_type(events(AGENT, scenario), Prompt)[0].anchor.turn_id


def call(place: str) -> str:
    found = of_type(events(AGENT, "edit"), StepBegins)
    return next(step.call for step in found if f"_{place}_" in step.call)


def types(items: list[dict]) -> list[str]:
    return [item["type"] for item in items]


class TestFork:
    def test_the_end_of_a_turn(self, thread):
        made = thread.fork(turn_id=turn("edit"))
        assert made.continue_ == ("codex", "resume", "new-thread")
        assert (made.session_id, made.forked_from) == ("new-thread", "old")
        assert thread.params("thread/fork") == [
            {"threadId": "old", "excludeTurns": True, "lastTurnId": turn("edit")}
        ]
        assert thread.asked[0]["params"]["capabilities"] == {"experimentalApi": True}

    def test_before_the_second_prompt(self, thread):
        thread.fork(Point.BEFORE, turn_id=turn("again"))
        assert thread.params("thread/fork")[0]["beforeTurnId"] == turn("again")

    def test_before_the_first_prompt_there_is_no_conversation(self, thread):
        for made in (thread.fork(Point.BEFORE, turn_id=turn("edit")), thread.fork()):
            assert (made.session_id, made.continue_) == ("", ("codex",))
        assert thread.asked == []

    def test_inside_a_turn_its_items_are_added_up_to_the_result(self, thread):
        thread.fork(turn_id=turn("edit"), call_id=call("p0_0"))
        assert thread.params("thread/fork")[0]["beforeTurnId"] == turn("edit")
        (added,) = thread.params("thread/inject_items")
        assert added["threadId"] == "new-thread"
        assert types(added["items"])[-2:] == ["custom_tool_call", "custom_tool_call_output"]
        assert added["items"][-1]["call_id"] == call("p0_0")
        assert not any("id" in item for item in added["items"])

    def test_after_one_of_parallel_calls_all_results_are_there(self, thread):
        for place in ("p2_0", "p2_1", "p2_2"):
            thread.fork(turn_id=turn("edit"), call_id=call(place))
        first, *others = (one["items"] for one in thread.params("thread/inject_items"))
        assert others == [first, first]
        assert types(first)[-6:] == ["function_call"] * 3 + ["function_call_output"] * 3

    def test_before_one_of_parallel_calls_none_was_made(self, thread):
        for place in ("p2_0", "p2_1", "p2_2"):
            thread.fork(Point.BEFORE, turn_id=turn("edit"), call_id=call(place))
        for one in thread.params("thread/inject_items"):
            assert one["items"][-1]["call_id"] == call("p1_0")

    def test_a_call_without_a_result(self, thread):
        lines = thread.file.read_text().splitlines(keepends=True)
        cut = next(n for n, line in enumerate(lines) if "_output" in line)
        thread.file.write_text("".join(lines[:cut]))
        with pytest.raises(ConversationError, match="the result of call"):
            thread.fork(turn_id=turn("edit"), call_id=call("p0_0"))

    def test_what_is_not_there(self, thread):
        with pytest.raises(ConversationError, match="call c is not in"):
            thread.fork(turn_id=turn("edit"), call_id="c")
        with pytest.raises(ConversationError, match="no items of turn t"):
            thread.fork(turn_id="t", call_id="c")
        thread.env["PATH"] = "/nowhere"
        with pytest.raises(ConversationError, match="cannot find the program codex"):
            thread.fork(turn_id=turn("edit"))

    @pytest.mark.parametrize(
        ("mode", "message"),
        [
            ("refuse", "codex refused thread/fork: no such turn"),
            ("die", "codex ended before it answered thread/fork"),
            ("odd", "did not name the thread"),
        ],
    )
    def test_a_server_that_does_not_do_it(self, tmp_path, mode, message):
        with pytest.raises(ConversationError, match=message) as caught:
            Thread(tmp_path, mode).fork(turn_id=turn("edit"))
        assert "--files-only" in caught.value.hint


def test_an_interrupted_command_is_over_when_it_has_ended_and_its_turn_was_aborted():
    """As 0.166 wrote it after Escape: the command ran on, and no hook was called at its end."""
    aborted = {"type": "event_msg", "payload": {"type": "turn_aborted", "turn_id": "t1"}}

    def ended(turn: str, call: str) -> dict:
        item = {"type": "CommandExecution", "id": call}
        return {
            "type": "event_msg",
            "payload": {"type": "item_completed", "turn_id": turn, "item": item},
        }

    assert AGENT.interrupted([ended("t1", "x")]) == set()
    assert AGENT.interrupted([aborted]) == set()
    assert AGENT.interrupted([ended("t0", "y"), aborted, ended("t1", "x")]) == {"x"}
