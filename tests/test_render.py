"""A reply shown to people and to programs: panels, tables, escapes, every format."""

import io

import yaml

from cleveragents.cli import render
from cleveragents.cli.render import Panel, Reply, Table, Text
from tests.in_process import Yard, cli

REPLY = Reply(
    data={"name": "ünï"},
    blocks=(
        Panel("Plan", (("name", "shop"), ("odd", "a\x1b[31mb"))),
        Table(("file", "status"), (("a\nb", "added"),), "Files"),
        Table(("plain",), (("cell",),)),
        Text("stopped: [bold]no markup[/bold]", "red"),
    ),
)


def test_rich_output_shows_panels_tables_and_text_without_reading_markup_or_escapes() -> None:
    out = io.StringIO()
    render.write_rich(REPLY, out)
    shown = out.getvalue()
    assert "Plan" in shown
    assert "shop" in shown
    assert "Files" in shown
    assert "cell" in shown
    assert "a\\nb" in shown
    assert "[bold]no markup[/bold]" in shown
    assert "a\\x1b[31mb" in shown
    assert "\x1b[31mb" not in shown


def test_control_characters_are_shown_as_escapes_but_lines_and_tabs_stay() -> None:
    assert render.safe("a\x1b]0;x\x07\n\tü\u202e") == "a\\x1b]0;x\\x07\n\tü\\u202e"


def test_plain_output_has_one_line_per_row_and_no_escape() -> None:
    out = io.StringIO()
    render.write_plain(REPLY, out)
    lines = out.getvalue().splitlines()
    assert lines[:3] == ["Plan", "  name  shop", "  odd   a\\x1b[31mb"]
    assert lines[3:6] == ["Files", "file  status", "a\\nb  added"]


def test_every_format_says_the_same_of_a_plan(yard: Yard) -> None:
    cli("plan", "run", yard.plan(), "--quiet")
    as_json = cli("plan", "status", "shop", "--json").data
    as_yaml = yaml.safe_load(cli("plan", "status", "shop", "--format", "yaml").stdout)
    assert as_yaml["status"] == "ok"
    assert as_yaml["command"] == "agents plan status"
    assert as_yaml["data"] == as_json
    rich = cli("plan", "status", "shop", "--format", "rich").stdout
    plain = cli("plan", "status", "shop").stdout
    for text in ("execute/complete", "one", "two", as_json["plan_id"]):
        assert text in rich
        assert text in plain
    assert "╭" in rich
    assert "╭" not in plain
    assert cli("plan", "status", "shop", "--quiet").stdout == ""
