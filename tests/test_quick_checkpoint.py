"""`plan checkpoint create` without click: the same answers, and only the plainest forms of it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cleveragents.cli import quick
from cleveragents.cli.quick import Typed
from tests.harness import Agents

PLAN = """
name: quick
resources: {work: {kind: fs-directory, path: work}}
steps: [{id: one, run: "echo one > made"}]
"""


@pytest.fixture
def planned(tmp_path: Path) -> Agents:
    agents = Agents(tmp_path)
    (agents.work / "work").mkdir()
    (agents.work / "work" / "file").write_text("as it was\n")
    (agents.work / "plan.yaml").write_text(PLAN)
    agents.run("plan", "run", "plan.yaml").expect(0)
    return agents


def sandbox(agents: Agents) -> Path:
    (found,) = Path(agents.env["CLEVERAGENTS_HOME"], "sandboxes").glob("*/work")
    return found


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        (["last"], Typed("last")),
        (["last", "--json"], Typed("last", as_json=True)),
        (["--json", "last", "-q"], Typed("last", as_json=True, quiet=True)),
        (["last", "--label", "here"], Typed("last", label="here")),
        (["last", "--format", "yaml"], Typed("last", form="yaml")),
        ([], None),
        (["one", "two"], None),
        ([""], None),
        (["last", "--help"], None),
        (["last", "--label"], None),
        (["last", "--label", "--json"], None),
        (["last", "--label=here"], None),
        (["last", "--format", "xml"], None),
        (["last", "--format"], None),
        (["last", "--debug"], None),
        (["last", "--set", "a=b"], None),
        (["--", "last"], None),
    ],
)
def test_what_is_recognised(words: list[str], meaning: Typed | None) -> None:
    assert quick.parsed(["plan", "checkpoint", "create", *words]) == meaning


def test_other_commands_and_completion_are_for_click(monkeypatch: pytest.MonkeyPatch) -> None:
    assert quick.parsed(["plan", "checkpoint", "show", "last"]) is None
    monkeypatch.setenv("_AGENTS_COMPLETE", "bash_complete")
    assert quick.parsed(["plan", "checkpoint", "create", "last"]) is None


def shape(value: Any) -> Any:
    """Names and types, without what differs from one checkpoint to the next."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value).__name__


@pytest.mark.parametrize("options", [(), ("--json",), ("--format", "yaml"), ("--quiet",)])
def test_click_and_the_quick_way_answer_alike(planned: Agents, options: tuple[str, ...]) -> None:
    # `--set` is nothing the quick way knows; this one says what is so anyway.
    slow = ("--set", "sandbox.cleanup=on_apply")
    answers = [
        planned.run("plan", "checkpoint", "create", "last", *options, *extra)
        for extra in ((), slow)
    ]
    assert [answer.rc for answer in answers] == [0, 0]
    if "--json" in options:
        assert shape(answers[0].json) == shape(answers[1].json)
    else:
        lines = [[line.split()[:1] for line in answer.stdout.splitlines()] for answer in answers]
        assert lines[0] == lines[1]


@pytest.mark.parametrize("words", [["status"], ["plan", "status"], ["plan", "status", "last"]])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_status_is_the_same_either_way(
    planned: Agents, words: list[str], options: tuple[str, ...]
) -> None:
    assert quick.parsed([*words, *options]) is not None
    one, other = (
        planned.run(*words, *options, *extra)
        for extra in ((), ("--set", "sandbox.cleanup=on_apply"))
    )
    assert one.rc == other.rc == 0
    assert one.stderr == other.stderr
    if options:
        assert one.data == other.data
    else:
        assert one.stdout == other.stdout


def test_status_of_two_plans_or_with_another_option_is_for_click() -> None:
    assert quick.parsed(["status", "one", "two"]) is None
    assert quick.parsed(["status", "--label", "x"]) is None


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_both_fail_alike(planned: Agents, options: tuple[str, ...]) -> None:
    slow = ("--set", "sandbox.cleanup=on_apply")
    one, other = (
        planned.run("plan", "checkpoint", "create", "nobody", *options, *extra)
        for extra in ((), slow)
    )
    assert one.rc == other.rc == 3
    assert one.stderr == other.stderr
    if options:
        assert one.data == other.data


def test_click_is_not_imported(planned: Agents) -> None:
    # Measuring coverage would import modules of its own.
    bare = {name: text for name, text in planned.env.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cleveragents", *quick.CREATE, "last", "--json"],
        cwd=planned.work, env=bare, check=True, capture_output=True, text=True,
    )  # fmt: skip
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "cleveragents.cli.quick" in names
    unused = {"click", "rich", "yaml", "inspect", "cleveragents.execution.executor", "json"}
    slow = {"subprocess", "hashlib", "platform", "textwrap", "msgspec.inspect"}
    slow |= {"importlib.metadata", "cleveragents.content.copy.copying"}
    assert not names & (unused | slow)


SPARED = """
import sys
from cleveragents.cli import quick
quick.import_msgspec()
assert not {"platform", "textwrap", "msgspec.inspect", "typing_extensions"} & set(sys.modules)
import msgspec, uuid, platform
Told = msgspec.defstruct("Told", [("name", str)])
Told.__doc__ = "Told.\\n\\n  So."
assert msgspec.inspect.type_info(int) == msgspec.inspect.IntType()
assert msgspec.json.schema(Told)["$defs"]["Told"]["description"].startswith("Told.")
import string
stand_in = sys.modules["string"] = quick.Later("string")
assert stand_in.digits == "0123456789"
assert sys.modules["string"] is not stand_in
assert uuid._LINUX == (platform.system() == "Linux")
"""


def test_what_msgspec_was_spared_is_there_when_it_is_used() -> None:
    # Measuring coverage would import them.
    bare = {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE")}
    subprocess.run([sys.executable, "-c", SPARED], env=bare, check=True)


ENDING = """
import atexit, sys, threading, time
from cleveragents.cli.quick import program
atexit.register(sys.stderr.write, "at the end\\n")
if sys.argv.pop() == "thread":
    threading.Thread(target=lambda: (time.sleep(0.5), sys.stderr.write("thread\\n"))).start()
program()
"""


@pytest.mark.parametrize("words", [("plan", "checkpoint", "create", "last"), ("plan", "list")])
def test_the_end_is_short_and_still_an_end(planned: Agents, words: tuple[str, ...]) -> None:
    """What others asked to be done at the end is done, and a thread is waited for."""
    for thread, said in (("", "at the end\n"), ("thread", "thread\nat the end\n")):
        done = subprocess.run(
            [sys.executable, "-c", ENDING, *words, thread],
            cwd=planned.work, env=planned.env, check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stderr == said
        assert "quick" in done.stdout or "checkpoint" in done.stdout


def test_a_checkpoint_of_edits_can_be_undone_and_one_of_nothing_is_no_edit(planned: Agents) -> None:
    (sandbox(planned) / "file").write_text("edited\n")
    made = planned.run("plan", "checkpoint", "create", "last", "--json").data
    assert made["checkpoints"][0]["metadata"]["reason"] == "manual edit"
    again = planned.run("plan", "checkpoint", "create", "last", "--json").data
    assert again["checkpoints"][0]["metadata"]["reason"] == "asked for"
    assert again["checkpoints"][0]["state_hash"] == made["checkpoints"][0]["state_hash"]
    entries = planned.run("plan", "log", "last", "--json").data["entries"]
    assert [entry["operation"] for entry in entries][-2:] == ["external_edit", "checkpoint"]
    assert {entry["state"] for entry in entries} == {"done"}
    planned.run("plan", "undo", "last").expect(0)
    assert (sandbox(planned) / "file").read_text() == "as it was\n"


@pytest.mark.parametrize("options", [(), ("--json",), ("--set", "sandbox.cleanup=on_apply")])
def test_an_answer_that_cannot_be_written_is_an_error_and_the_work_is_done(
    planned: Agents, options: tuple[str, ...]
) -> None:
    before = len(planned.run("plan", "checkpoints", "last", "--json").data["checkpoints"])
    command = [sys.executable, "-m", "cleveragents", "plan", "checkpoint", "create", "last"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, *options], cwd=planned.work, env=planned.env, stdout=full, check=False,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: the answer cannot be written: No space left on device\n"
    after = planned.run("plan", "checkpoints", "last", "--json").data["checkpoints"]
    assert len(after) == before + 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_were_closed_are_not_needed(planned: Agents, closed: str) -> None:
    """The quick way and click's; nothing of the store gets the number of a stream."""
    for words in ("plan checkpoint create last", "plan list", "plan run plan.yaml"):
        command = f"exec {sys.executable} -m cleveragents {words} {closed}"
        done = subprocess.run(
            ["sh", "-c", command], cwd=planned.work, env=planned.env, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert planned.run("check", "--read-data", "--json").expect(0).data["problems"] == []


@pytest.mark.parametrize("buffered", [{"PYTHONUNBUFFERED": "1"}, {}])
def test_whoever_reads_us_may_go_away(planned: Agents, buffered: dict[str, str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "cleveragents", "plan", "checkpoint", "create", "last"],
        cwd=planned.work, env={**planned.env, **buffered}, stdout=write, check=False,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == b""


def test_a_tool_that_fails_has_failed_where_children_are_not_waited_for(planned: Agents) -> None:
    """With SIGCHLD ignored, as some programs start others, nobody would learn its exit code."""
    (planned.work / "plan.yaml").write_text(PLAN.replace("echo one > made", "exit 7"))
    command = f"trap '' CHLD; exec {sys.executable} -m cleveragents plan run plan.yaml"
    done = subprocess.run(
        ["bash", "-c", command], cwd=planned.work, env=planned.env, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 5, done.stdout
    assert "exit code 7" in done.stderr
