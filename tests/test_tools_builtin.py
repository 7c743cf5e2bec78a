"""What a step may say to a tool, and what it is told when that is wrong."""

from typing import Any

import pytest

from cleveragents.errors import UsageError
from cleveragents.model.tool import ToolSpec
from cleveragents.tools import BUILTINS, INPUTS, check_inputs, resolve_tool
from cleveragents.tools.builtin import filled, parse_mode

GOOD: dict[str, dict[str, Any]] = {
    "file.read": {"path": "a"},
    "file.write": {"path": "a", "content": "", "mode": "0755"},
    "file.edit": {"path": "a", "old": "x", "new": "", "all": True},
    "file.delete": {"path": "a", "recursive": True},
    "file.list": {},
    "file.search": {"pattern": "a+", "glob": "*.py"},
    "file.move": {"from": "a", "to": "b"},
    "file.copy": {"from": "a", "to": "b"},
    "file.mkdir": {"path": "a", "parents": False},
    "shell": {"command": "true", "args": ["a", 1, 2.5], "stdin": "x"},
    "run": {"argv": ["echo", 1]},
    "sql": {"script": "SELECT ?", "params": [1]},
}


@pytest.mark.parametrize("name", list(BUILTINS))
def test_every_built_in_accepts_what_it_declares(name: str) -> None:
    assert BUILTINS[name].builtin == name
    assert check_inputs(BUILTINS[name], GOOD[name]) == []
    assert set(INPUTS) == set(BUILTINS)


@pytest.mark.parametrize("name", list(BUILTINS))
def test_every_required_input_is_missed(name: str) -> None:
    problems = check_inputs(BUILTINS[name], {})
    required = [each.name for each in INPUTS[name] if each.required]
    assert problems == [f"input '{each}' of {name} is missing" for each in required]


def test_only_reading_tools_are_read_only_and_in_process_tools_have_no_network() -> None:
    reading = {name for name, tool in BUILTINS.items() if tool.read_only}
    assert reading == {"file.read", "file.list", "file.search"}
    assert all(BUILTINS[name].writes == (name not in reading) for name in BUILTINS)
    assert {name for name, tool in BUILTINS.items() if tool.network} == {"shell", "run"}


def test_an_unknown_input_names_the_nearest_one() -> None:
    problems = check_inputs(BUILTINS["file.write"], {"pth": "a", "content": "x", "zzz": 1})
    assert problems == [
        "unknown input 'pth' for file.write, did you mean 'path'?",
        "unknown input 'zzz' for file.write",
        "input 'path' of file.write is missing",
    ]


@pytest.mark.parametrize(
    ("name", "wrong", "problem"),
    [
        ("file.write", {"content": 4}, "input 'content' of file.write must be text, not a number"),
        ("file.write", {"content": "\ud800"}, "cannot be written as bytes"),
        ("file.write", {"mode": "0999"}, "is not a file mode: '0999'"),
        ("file.write", {"mode": 755}, "is not a file mode: 755; write it as '0644'"),
        ("file.write", {"mode": True}, "must be a file mode like '0644', not true or false"),
        ("file.read", {"path": ""}, "input 'path' of file.read is empty"),
        ("file.read", {"path": "a\0b"}, "holds a NUL character"),
        ("file.read", {"path": ["a"]}, "must be text, not a list"),
        ("file.delete", {"recursive": "yes"}, "must be true or false, not text"),
        ("file.search", {"pattern": "("}, "is not a regular expression"),
        ("file.search", {"pattern": {}}, "must be text, not a mapping"),
        ("shell", {"args": "x"}, "input 'args' of shell must be a list, not text"),
        ("run", {"argv": []}, "input 'argv' of run is empty"),
        ("run", {"argv": ["a", None]}, "must hold texts and numbers only, not nothing"),
        ("run", {"argv": ["a", "\ud800"]}, "cannot be written as bytes"),
        ("run", {"argv": ["a", True]}, "must hold texts and numbers only, not true or false"),
        ("sql", {"params": 1}, "must be a list or a mapping, not a number"),
        ("sql", {"script": b"x"}, "must be text, not a bytes"),
    ],
)
def test_a_wrong_type_is_told_in_one_line(name: str, wrong: dict[str, Any], problem: str) -> None:
    (found,) = check_inputs(BUILTINS[name], GOOD[name] | wrong)
    assert problem in found


def test_a_declared_tool_takes_what_its_kind_takes() -> None:
    run = ToolSpec(name="codemod", run=("python", "x.py"))
    query = ToolSpec(name="count", sql="SELECT count(*) FROM t")
    call = ToolSpec(name="call", python="mod:fn")
    assert check_inputs(run, {"args": ["--from", 1], "stdin": "x"}) == []
    assert check_inputs(run, {"arg": []}) == [
        "unknown input 'arg' for codemod, did you mean 'args'?"
    ]
    assert check_inputs(query, {"params": {"a": 1}}) == []
    assert check_inputs(query, {"script": "x"}) == ["unknown input 'script' for count"]
    assert check_inputs(call, {"anything": object()}) == []


def test_defaults_stand_in_for_what_was_left_out_or_left_empty() -> None:
    assert filled(BUILTINS["file.list"], {}) == {"path": ".", "recursive": False}
    assert filled(BUILTINS["file.list"], {"path": None, "recursive": True})["path"] == "."
    assert filled(ToolSpec(name="p", python="m:f"), {"a": None}) == {"a": None}


def test_a_mode_is_octal_as_text_and_a_plain_number_otherwise() -> None:
    assert [parse_mode(each) for each in ("0755", "755", "0o755", 0o755)] == [0o755] * 4
    assert parse_mode(None) is None


def test_a_plans_own_tool_stands_before_a_built_in() -> None:
    own = ToolSpec(name="shell", run="echo mine")
    assert resolve_tool("shell", {"shell": own}) is own
    assert resolve_tool("shell", {}) is BUILTINS["shell"]


def test_an_unknown_tool_is_wrong_use_with_the_nearest_name() -> None:
    with pytest.raises(
        UsageError, match=r"no tool named 'file\.wirte', did you mean 'file\.write'"
    ):
        resolve_tool("file.wirte", {})
    with pytest.raises(UsageError, match="did you mean 'codemod'") as caught:
        resolve_tool("codmod", {"codemod": ToolSpec(name="codemod", run="x")})
    assert "codemod" in caught.value.hint
