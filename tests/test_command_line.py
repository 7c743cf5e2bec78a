"""Every command answers people and programs, in this process."""

import json
import os
import re
import signal
import sys

import pytest

from cleveragents.cli import entry
from cleveragents.errors import (
    NotFound,
)
from cleveragents.workspace import open_workspace
from tests.in_process import FAILING, Yard, cli, edit, loose


@pytest.mark.parametrize("way", [(), ("--json",)])
def test_looking_at_a_plan_works_for_people_and_for_programs(
    yard: Yard, way: tuple[str, ...]
) -> None:
    if not way:
        assert "no plan yet" in cli("plan", "list").stdout
    failed = cli("plan", "run", yard.plan(FAILING), *way, expect=5)
    assert ("x 3/3 three" in failed.stderr) is (not way)
    expected = {
        ("plan", "list"): "shop",
        ("plan", "status"): "three",
        ("plan", "tree"): "which name",
        ("plan", "checkpoints"): "pre_execute",
        ("plan", "checkpoint", "show", "shop", "first"): "group",
        ("plan", "diff", "--stat"): "one.txt",
        ("plan", "log"): "execute",
        ("plan", "errors"): "half.txt",
        ("plan", "prune", "shop", "--dry-run"): "first",
        ("plan", "resume", "shop", "--dry-run"): "three",
        ("plan", "rollback", "shop", "first", "--dry-run"): "one.txt",
        ("check",): "checkpoints",
        ("check", "--read-data"): "objects",
        ("gc", "--dry-run"): "removed",
        ("du",): "shop",
        ("config", "list"): "sandbox.cleanup",
        ("config", "get", "sandbox.cleanup"): "on_apply",
    }
    for argv, text in expected.items():
        said = cli(*argv, *way)
        assert text in said.stdout, argv
        if way:
            told = json.loads(said.stdout)
            assert told["status"] == "ok"
            assert told["exit_code"] == 0
            words = [w for w in argv if w.isalpha() and w not in ("shop", "first")]
            assert told["command"].split()[1:] == words[: len(told["command"].split()) - 1]


@pytest.mark.parametrize("way", [(), ("--json",)])
def test_working_on_a_plan_works_for_people_and_for_programs(
    yard: Yard, way: tuple[str, ...]
) -> None:
    with open_workspace() as ws:
        group = loose(ws, ws.run(yard.plan()))[0].group_id
    for argv, text in (
        (("checkpoint", "create", "shop", "--label", "good"), "checkpoint"),
        (("checkpoint", "pin", "shop", group), group[-6:]),
        (("checkpoint", "pin", "shop", group, "--off"), group[-6:]),
        (("checkpoint", "delete", "shop", group, "--yes"), group[-6:]),
        (("prune", "shop"), "newest"),
        (("undo", "shop"), "execute"),
        (("redo", "shop"), "execute"),
        (("rollback", "shop", "first", "--yes"), "one.txt"),
        (("resume", "shop"), "shop"),
        (("apply", "shop", "--dry-run"), "two.txt"),
        (("apply", "shop", "--yes"), "app"),
        (("delete", "shop"), "shop"),
    ):
        assert text in cli("plan", *argv, *way).stdout, argv
    assert set(os.listdir(yard.app)) == {"one.txt", "two.txt"}


def test_used_then_executed_then_cancelled_on_the_command_line(yard: Yard) -> None:
    used = cli("plan", "use", yard.plan())
    assert "next: agents plan execute" in used.stdout
    assert cli("plan", "execute", "shop", "--json").data["state"] == "complete"
    cancelled = cli("plan", "cancel", "shop", "--json").data
    assert cancelled["state"] == "cancelled"
    assert "is cancelled" in cli("plan", "resume", "shop", "--dry-run", expect=4).stderr
    assert "3 files changed" in cli("plan", "diff", "shop", "--from", "first").stdout


def test_one_command_runs_in_a_sandbox_of_a_directory(yard: Yard) -> None:
    said = cli("run", "--on", str(yard.app), "--json", "--", "sh", "-c", "rm old.txt; echo hi")
    assert said.data["output"].strip() == "hi"
    assert said.data["exit_code"] == 0
    assert said.data["name"] == "sh"
    assert os.listdir(yard.app) == ["old.txt"]
    named = cli("run", "--name", "named", "--on", "app", "--json", "--", "echo", "hi")
    assert named.data["name"] == "named"
    assert cli("run", "--on", "app", "--json", "--", "false", expect=1).data["exit_code"] == 1
    assert "no such directory" in cli("run", "--on", "nowhere", "--", "true", expect=125).stderr


def test_a_wrong_grace_and_a_wrong_override_are_wrong_use() -> None:
    said = cli("gc", "--grace", "soon", "--json", expect=2)
    assert said.data["error"]["message"].startswith("--grace:")
    assert cli("gc", "--grace", "0s", "--json").data["removed"] == 0
    said = cli("plan", "list", "--set", "no.such=1", expect=2)
    assert "no.such" in said.stderr


def test_doctor_answers_in_both_forms() -> None:
    assert cli("doctor").stdout
    assert json.loads(cli("doctor", "--json").stdout)["command"] == "agents doctor"


def enter(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    """As the installed command does it, in this process."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "argv", ["agents", *argv])
    try:
        with pytest.raises(SystemExit) as stop:
            entry.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_wrong_use_is_told_in_the_form_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enter(monkeypatch, "plan", "explain", "--json") == 2
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == 2
    assert told["data"]["error"]["type"] == "UsageError"
    assert told["data"]["error"]["hint"] == "agents plan explain --help"
    assert enter(monkeypatch, "plan", "rolback") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no such command: rolback" in said.err
    assert "rollback" in said.err
    assert enter(monkeypatch, "plan", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)["data"] == {"plans": []}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rolback", "agents rollback"),
        ("tree", "agents plan tree"),
        ("plan revert", "agents plan revert-applied"),
        ("plan statsu", "agents plan status"),
        ("plan doctr", "agents doctor"),
        ("plan checkpoint rolback", "agents plan rollback"),
        ("config show", ""),
        ("hook evnt", ""),
        ("event", ""),
        ("restore", ""),
        ("x", ""),
    ],
)
def test_only_a_command_that_is_near_is_suggested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, meant: str
) -> None:
    words = typed.split()
    assert enter(monkeypatch, *words) == 2
    near = f", did you mean {meant!r}?" if meant else ""
    assert f"error: no such command: {words[-1]}{near}\n" in capsys.readouterr().err


def test_a_schema_of_another_name_is_suggested_only_if_it_is_near(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enter(monkeypatch, "schema", "nope") == 3
    assert "error: no schema 'nope'\n" in capsys.readouterr().err
    assert enter(monkeypatch, "schema", "plan", "statsu") == 3
    assert "did you mean 'plan status'?" in capsys.readouterr().err


def test_a_plan_where_a_checkpoint_is_expected_is_said_to_be_one(yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    told = cli("plan", "open", "shop", expect=3).stderr
    assert "error: 'shop' is a plan, and no checkpoint of plan 'shop'" in told
    assert "hint: name one behind it: agents plan checkpoints shop lists them" in told


def test_a_checkpoint_has_one_id_for_people(yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    said = cli("plan", "checkpoint", "create", "shop").stdout
    listed = cli("plan", "checkpoints", "shop").stdout.splitlines()
    short = next(line.split()[1] for line in listed if line.startswith(">"))
    assert said == f"checkpoint {short}\n"
    assert f"last checkpoint  {short}\n" in cli("plan", "status", "shop").stdout
    assert f"checkpoint  {short}\n" in cli("plan", "rollback", "shop", "last", "--dry-run").stdout
    assert short in cli("plan", "log", "shop").stdout
    assert cli("plan", "checkpoint", "pin", "shop", short).stdout == f"checkpoint {short} pinned\n"


def test_a_failed_runs_messages_have_the_errors_text(yard: Yard) -> None:
    told = cli("plan", "run", yard.plan(FAILING), "--json", expect=5).json
    assert told["messages"] == [told["data"]["error"]["message"]]
    said = cli("plan", "resume", "shop", expect=5).stderr
    assert said.count(told["data"]["error"]["message"]) == 1


def test_a_child_plan_that_failed_has_no_exit_code_of_its_own(yard: Yard) -> None:
    yard.plan(FAILING, "child.yaml")
    head = "name: parent\nresources: {app: {kind: fs-directory, path: app}}\n"
    cli(
        "plan", "run", yard.plan(f"{head}steps: [{{id: one, subplan: {{file: child.yaml}}}}]"),
        expect=5,
    )  # fmt: skip
    assert "exit code 1" in cli("plan", "errors", "parent").stdout
    assert "exit code  " not in cli("plan", "errors", "parent").stdout
    assert cli("plan", "errors", "parent", "--json").data["exit_code"] is None
    assert "exit code     1" in cli("plan", "errors", "shop").stdout


def test_a_plan_that_is_over_says_what_cannot_be_done_with_it(yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    cli("plan", "cancel", "shop")
    for verb, told in {
        "cancel": "is cancelled already",
        "undo": "is cancelled and cannot be undone",
        "redo": "is cancelled and cannot be redone",
        "rollback": "is cancelled and cannot be rolled back",
    }.items():
        more = ("first",) if verb == "rollback" else ()
        said = cli("plan", verb, "shop", *more, expect=4).stderr
        assert f"error: plan 'shop' {told}\n" in said
    assert "redone" in cli("plan", "redo", "shop", "--dry-run", expect=4).stderr


def test_what_is_undone_has_a_name_for_people(yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    cli("plan", "rollback", "shop", "first", "--only", "app:one.txt", "--yes")
    for words in (("--dry-run",), ()):
        assert "undone: rollback --only; " in cli("plan", "undo", "shop", *words).stdout
    with open_workspace() as ws:
        edit(ws.find("shop"), "mine.txt")
    for words in (("--dry-run",), ()):
        assert "undone: manual edits; 1 change" in cli("plan", "undo", "shop", *words).stdout
    assert "redone: manual edits; 1 change" in cli("plan", "redo", "shop").stdout


def test_clicks_own_errors_are_in_our_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enter(monkeypatch, "status", "--nope") == 2
    assert "error: no such option '--nope'\n" in capsys.readouterr().err
    assert enter(monkeypatch, "diff", "--form", "x") == 2
    assert "error: no such option '--form', did you mean '--from'?\n" in capsys.readouterr().err
    assert enter(monkeypatch, "--jsn", "status") == 2
    assert "error: no such option '--jsn', did you mean '--json'?\n" in capsys.readouterr().err
    assert enter(monkeypatch, "do", "x", "--max-steps", "foo") == 2
    assert "'--max-steps': 'foo' is not a valid integer\n" in capsys.readouterr().err
    assert enter(monkeypatch, "completion") == 2
    assert "choose from: bash, zsh, fish\n" in capsys.readouterr().err.lower()


def test_a_question_that_nobody_can_be_asked_is_plain(yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    told = cli("plan", "rollback", "shop", "last", expect=4).stderr
    assert "error: not done without a yes: roll back 0 changes?\n" in told


def test_a_question_names_the_plan_that_was_left_out(yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    for argv in (("rollback", "first"), ("apply",), ("checkpoint", "delete", "last")):
        told = cli("plan", *argv, expect=4).stderr
        assert "error: not done without a yes: shop: " in told, told


def test_what_is_neither_a_plan_nor_a_step_is_called_so(yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    told = cli("plan", "output", "tow", expect=3).stderr
    assert "error: no plan 'tow', and plan 'shop' has no step 'tow', did you mean 'two'?\n" in told


def test_a_checkpoint_says_when_it_was_made_in_local_time(yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    (made,) = re.findall(r" made +(.*)", cli("plan", "checkpoint", "show", "shop", "last").stdout)
    assert re.fullmatch(r"(just now|\d+[sm] ago), \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", made)


def test_what_is_typed_is_utf_8_or_refused(yard: Yard) -> None:
    cli("plan", "run", yard.plan())
    label = ("--label", os.fsdecode(b"l\xff"))
    assert "not UTF-8: 'l\\udcff'" in cli("plan", "checkpoint", "create", *label, expect=2).stderr


def test_debug_lets_the_error_itself_through(yard: Yard) -> None:
    with pytest.raises(NotFound, match="no plan"):
        cli("plan", "status", "nowhere", "--debug")


def test_help_lists_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enter(monkeypatch, "plan", "--help") == 0
    shown = capsys.readouterr().out
    for name in ("rollback", "resume", "apply", "checkpoint"):
        assert f"  {name} " in shown


def test_a_group_without_a_command_shows_its_help_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for group in ((), ("plan",), ("hook",)):
        assert enter(monkeypatch, *group) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"Usage: {' '.join(('agents', *group))} ")
        assert "error:" not in said.err
