"""opencode 1.18: recorded payloads of our plugin, and sessions forked by its server."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cleveragents.errors import ConfigError, ConversationError
from cleveragents.integrations.events import Answer, Prompt, Quiet, StepBegins, StepEnded
from cleveragents.integrations.opencode import AGENT, end_of, plugin
from cleveragents.model.conversation import Anchor, Point
from tests.agents.recorded import HOSTILE, events, kinds, of_type
from tests.harness import Agents

HOOK = ("/usr/bin/python3", "-I", "-S", "/x/cleveragents/integrations/client.py", "S", "opencode")


class TestEvents:
    def test_a_prompt_with_an_edit_a_shell_and_parallel_calls(self):
        found = events(AGENT, "edit")
        assert kinds(found)[:2] == ["SessionStarted", "Prompt"]
        assert kinds(found)[-1] == "Quiet"
        begun = of_type(found, StepBegins)
        assert [(step.tool, step.writes, step.network) for step in begun] == [
            ("write", True, False),
            *[("bash", None, True)] * 4,
        ]
        ended = of_type(found, StepEnded)
        assert sorted(step.call for step in begun) == sorted(step.call for step in ended)
        assert [step.error for step in ended if not step.ok] == ["exit code 3"]
        assert of_type(found, Quiet)[0].said == "finished edit"

    def test_anchors_name_session_message_and_call(self):
        prompt = of_type(events(AGENT, "edit"), Prompt)[0]
        assert "SCRIPT:edit please" in prompt.text
        step = of_type(events(AGENT, "edit"), StepEnded)[0]
        assert step.anchor.message_id == prompt.anchor.message_id != ""
        assert step.anchor.transcript == "/home/ann/project"
        assert of_type(events(AGENT, "again"), Prompt)[0].anchor.session_id == (
            prompt.anchor.session_id
        )

    def test_a_sub_agent_is_a_session_below(self):
        payload = {
            "event": "tool.execute.before",
            "session_id": "root",
            "child": "c",
            "tool": "bash",
        }
        (step,) = AGENT.read(payload, "")
        assert (step.anchor.session_id, step.parent_call) == ("root", "c")

    @pytest.mark.parametrize("payload", [*HOSTILE, {"event": "tool.execute.after", "exit": "x"}])
    def test_anything_may_come(self, payload):
        assert isinstance(AGENT.read(payload, ""), tuple)
        assert AGENT.answer(payload, "", Answer()) == ""


class TestSetUp:
    def test_answers_are_for_our_own_plugin(self):
        refuse = AGENT.answer({"event": "tool.execute.before"}, "", Answer(refuse="no"))
        assert json.loads(refuse) == {"refuse": "no"}
        assert json.loads(AGENT.answer({"event": "chat.message"}, "", Answer(context="hi"))) == {
            "context": "hi"
        }
        assert AGENT.answer({"event": "session.idle"}, "", Answer(refuse="no", context="hi")) == ""

    def test_the_plugin_for_one_run(self, tmp_path, monkeypatch):
        monkeypatch.setenv("OPENCODE_CONFIG_CONTENT", '{"plugin": ["theirs"], "model": "m"}')
        launch = AGENT.launch(("opencode", "run", "x"), HOOK, str(tmp_path))
        config = json.loads(launch.env["OPENCODE_CONFIG_CONTENT"])
        assert config["model"] == "m"
        assert config["plugin"] == ["theirs", f"file://{tmp_path}/cleveragents.js"]
        assert json.dumps(list(HOOK)) in (tmp_path / "cleveragents.js").read_text()
        monkeypatch.setenv("OPENCODE_CONFIG_CONTENT", "{")
        with pytest.raises(ConfigError, match="OPENCODE_CONFIG_CONTENT is not JSON"):
            AGENT.launch(("opencode",), HOOK, str(tmp_path))

    def test_where_the_plugin_is_installed(self, tmp_path):
        (user,) = AGENT.settings("user", str(tmp_path), "/p", HOOK)
        (own,) = AGENT.settings("project", "/h", str(tmp_path), HOOK)
        assert user.path == f"{tmp_path}/.config/opencode/plugins/cleveragents.js"
        assert own.path == f"{tmp_path}/.opencode/plugins/cleveragents.js"
        assert user.after == plugin(HOOK).encode()


CALL = """
const made = await import(process.argv[2])
const hooks = await made.CleverAgents({ directory: "/p" })
const call = { tool: "bash", callID: "c1", sessionID: "s1" }
try { await hooks["tool.execute.before"](call, { args: {} }); console.log("it runs") }
catch (error) { console.log(`refused: ${error.message}`) }
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node to run the plugin")
@pytest.mark.parametrize(
    ("script", "flags", "said"),
    [
        ("", (), "it runs"),
        ("print('{}')", ("--fail-closed",), "it runs"),
        ("import sys; sys.exit('no room')", (), "it runs"),
        ("import sys; sys.exit('no room')", ("--fail-closed",), "refused: no room"),
        ("import sys; sys.exit(2)", ("--fail-closed",), "refused: no checkpoint could be made"),
    ],
)
def test_the_plugin_keeps_a_tool_from_running_only_where_it_fails_closed(
    tmp_path, script, flags, said
):
    (tmp_path / "own.mjs").write_text(plugin((sys.executable, "-c", script, *flags)))
    (tmp_path / "call.mjs").write_text(CALL)
    argv = ["node", tmp_path / "call.mjs", tmp_path / "own.mjs"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == f"{said}\n"


def message(own: str, role: str, *calls: str) -> dict:
    return {"info": {"id": own, "role": role}, "parts": [{"callID": call} for call in calls]}


MESSAGES = [
    message("m1", "user"),
    message("m2", "assistant", "c1"),
    message("m3", "assistant", "c2", "c3"),
    message("m4", "assistant"),
    message("m5", "user"),
    message("m6", "assistant", "c4"),
]


class TestEnd:
    """The first message that a fork leaves out."""

    @pytest.mark.parametrize(
        ("ids", "point", "end"),
        [
            ({"call_id": "c1"}, Point.AFTER, "m3"),
            ({"call_id": "c1"}, Point.BEFORE, "m2"),
            ({"call_id": "c2"}, Point.AFTER, "m4"),
            ({"call_id": "c3"}, Point.AFTER, "m4"),
            ({"call_id": "c4"}, Point.AFTER, ""),
            ({"message_id": "m1"}, Point.BEFORE, "m1"),
            ({"message_id": "m1"}, Point.AFTER, "m5"),
            ({"message_id": "m5"}, Point.BEFORE, "m5"),
            ({"message_id": "m5"}, Point.AFTER, ""),
            ({}, Point.AFTER, "m1"),
        ],
    )
    def test_of_a_point(self, ids, point, end):
        assert end_of(MESSAGES, Anchor(agent="opencode", **ids), point) == end

    @pytest.mark.parametrize(
        ("ids", "message"),
        [
            ({"call_id": "x"}, "call x is not in"),
            ({"message_id": "x"}, "message x is not in"),
            ({"call_id": "x", "turn_id": "child"}, "sub-agent"),
        ],
    )
    def test_what_is_not_there(self, ids, message):
        with pytest.raises(ConversationError, match=message):
            end_of(MESSAGES, Anchor(agent="opencode", **ids), Point.AFTER)


SERVER = """\
#!{python}
import json, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
mode = {mode!r}
if mode == "dead":
    sys.exit(1)
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def reply(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.reply({messages!r})
    def do_POST(self):
        for session in {created!r}:
            told = {{"event": "session.created", "session_id": session, "cwd": {folder!r}}}
            subprocess.run({hook!r}, input=json.dumps(told), text=True)
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        with open({log!r}, "w") as log:
            log.write(self.path + " " + body)
        self.reply({{"id": "" if mode == "odd" else "ses_new"}}, 404 if mode == "refuse" else 200)
server = HTTPServer(("127.0.0.1", 0), Handler)
print("starting", flush=True)
print(f"opencode server listening on http://127.0.0.1:{{server.server_port}}", flush=True)
server.serve_forever()
"""


def program(folder: Path, mode: str = "", created: tuple[str, ...] = (), hook=()) -> None:
    made = folder / "opencode"
    made.write_text(
        SERVER.format(
            python=sys.executable,
            mode=mode,
            messages=MESSAGES,
            log=str(folder / "asked"),
            folder=str(folder),
            created=created,
            hook=hook,
        )
    )
    made.chmod(0o755)


class TestFork:
    """With a program that answers as opencode's server does."""

    def fork(self, folder: Path, mode: str = "", transcript: str | None = None):
        program(folder, mode)
        where = str(folder) if transcript is None else transcript
        anchor = Anchor(agent="opencode", session_id="ses_old", transcript=where, call_id="c1")
        return AGENT.fork(anchor, Point.AFTER, {"PATH": str(folder)})

    def test_it_is_asked_for_a_fork_at_the_next_message(self, tmp_path):
        made = self.fork(tmp_path)
        assert made.continue_ == ("opencode", "-s", "ses_new")
        assert (made.session_id, made.forked_from) == ("ses_new", "ses_old")
        path, _, body = (tmp_path / "asked").read_text().partition(" ")
        assert path == f"/session/ses_old/fork?directory={tmp_path}"
        assert json.loads(body) == {"messageID": "m3"}

    @pytest.mark.parametrize(
        ("mode", "message"),
        [
            ("refuse", "opencode refused POST /session/ses_old/fork: 404"),
            ("dead", "server did not start"),
            ("odd", "did not name the session"),
        ],
    )
    def test_a_server_that_does_not_do_it(self, tmp_path, mode, message):
        with pytest.raises(ConversationError, match=message):
            self.fork(tmp_path, mode)

    def test_a_folder_that_is_gone(self, tmp_path):
        with pytest.raises(ConversationError, match="/nowhere is not there"):
            self.fork(tmp_path, transcript="/nowhere")

    def test_its_server_has_our_plugin_too_and_tells_of_the_fork(self, agents: Agents):
        """Before the rollback knew the new session's name, it had become a plan of its own."""
        agents.run("hook", "install", "opencode", "--set", "session.hook-budget=60s").expect(0)
        home = Path(agents.env["HOME"])
        made = (home / ".config/opencode/plugins/cleveragents.js").read_text()
        hook = json.loads(made.partition("const hook = ")[2].partition("\n")[0])
        program(agents.work, created=("ses_new",), hook=hook)
        where = {"session_id": "ses_old", "cwd": str(agents.work), "message_id": "m1"}
        for event in ({"event": "chat.message", "text": "go"}, {"event": "session.idle"}):
            told = json.dumps(where | event)
            subprocess.run(hook, input=told, text=True, env=agents.env, check=True)
        path = {"PATH": f"{agents.work}:{agents.env['PATH']}"}
        back = agents.run("plan", "rollback", "ses_old", "first", "--yes", "--json", env=path)
        assert back.expect(0).data["conversation"]["session_id"] == "ses_new"
        (plan,) = agents.run("plan", "list", "--json").expect(0).data["plans"]
        new = agents.run("plan", "status", "ses_new", "--json").expect(0).data
        assert new["plan_id"] == plan["plan_id"]
