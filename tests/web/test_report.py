"""A plan as one file, or as the text of a pull request; and names that try to be markup."""

import re
from pathlib import Path

from cleveragents.cli import common
from cleveragents.web.report import plain
from cleveragents.workspace import open_workspace
from tests.in_process import PLAN, Yard, cli, execute
from tests.web.visitor import Visitor, words

HOSTILE = "<script>alert(1)</script>"
NASTY = """
name: "<img src=x onerror=alert(1)>"
description: "{0} & co"
resources: {{app: {{kind: fs-directory, path: app}}}}
steps:
  - id: one
    decision: {{question: "{0}?", chosen: "{0}", alternatives: ["{0}"], rationale: "{0}"}}
    on: app
    run: "mkdir '<b>'; echo '{0}' | tee '<b>/<i>.txt'; rm old.txt"
  - {{id: bad, on: app, run: "echo '{0}' >&2; exit 1"}}
"""


def done(yard: Yard, text: str = PLAN) -> str:
    with open_workspace() as ws:
        plan = ws.use(yard.plan(text))
        execute(ws, plan)
        return plan.plan_id


def test_one_file_has_everything_and_loads_nothing(yard: Yard) -> None:
    plan_id = done(yard)
    said = cli("plan", "report", plan_id, "--html", "report.html", "--json").data
    assert said == {"plan_id": plan_id, "form": "html", "path": "report.html"}
    text = Path("report.html").read_text()
    assert "Both steps are done" in words(text)
    assert "one.txt is new +1" in words(text)
    assert "1 + one" in words(text)
    assert not re.search(r'(src|href)="(?!#)', text)
    assert "<script" not in text
    assert "url(" not in text
    again = cli("plan", "report", plan_id, "--html", "report.html", "--json", expect=4).data
    assert again["error"]["message"] == "report.html already exists"
    cli("plan", "report", plan_id, "--html", "report.html", "--force")


def test_the_text_of_a_pull_request(yard: Yard) -> None:
    plan_id = done(yard)
    text = cli("plan", "report", plan_id, "--markdown").stdout
    assert text.startswith("## shop\n\nBoth steps are done.")
    assert "- **people** (which name): one.txt is new +1\n" in text
    assert "| app: two.txt | 1 | 0 |" in text
    cli("plan", "report", plan_id, "--markdown", "pr.md")
    assert Path("pr.md").read_text() == text
    assert cli("plan", "report", plan_id, "--json", expect=2).data["error"]["hint"]


def test_of_a_step_whose_checkpoints_are_pruned_nothing_untrue_is_said(yard: Yard) -> None:
    plan_id = done(yard, PLAN + "policy: {max_checkpoints_per_plan: 2}\n")
    text = cli("plan", "report", plan_id, "--markdown").stdout
    assert "(which name): What it changed is pruned\n" in text
    assert "Changed nothing" not in text


def test_names_and_outputs_do_not_become_markup(yard: Yard) -> None:
    plan_id = done(yard, NASTY.format(HOSTILE))
    visitor = Visitor()
    for path in (
        "/",
        "/?q=" + HOSTILE,
        f"/plans/{plan_id}",
        f"/plans/{plan_id}/diff",
        f"/plans/{plan_id}/diff?lines=side",
        f"/plans/{plan_id}/output/one",
        f"/plans/{plan_id}/resume",
        f"/plans/{plan_id}/rollback?to=first",
        f"/plans/{plan_id}/undo",
        f"/plans/{plan_id}/cancel",
    ):
        text = visitor.client.get(path).text
        assert "<script>" not in text, path
        assert "<img" not in text, path
        assert "<i>.txt" not in text, path
    shown = visitor.get(f"/plans/{plan_id}")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    cli("plan", "report", plan_id, "--html", "nasty.html")
    assert "<script>" not in Path("nasty.html").read_text()
    markdown = cli("plan", "report", plan_id, "--markdown").stdout
    assert "<script>" not in markdown
    assert "\\<script\\>" in markdown


def test_a_report_says_times_that_stay_true(yard: Yard) -> None:
    plan_id = done(yard)
    cli("plan", "report", plan_id, "--html", "kept.html")
    said = words(Path("kept.html").read_text())
    assert not re.findall(r"today|yesterday|\bago\b|\bnow\b", said)
    assert re.search(r"Run, \d{4}-\d\d-\d\d \d\d:\d\d UTC", said)
    assert re.search(r"agent, \d{4}-\d\d-\d\d \d\d:\d\d", said)


def test_no_name_reads_as_another_by_turning_the_direction_of_text(yard: Yard) -> None:
    plan_id = done(yard, NASTY.format("exe\u202etxt\u2069"))
    visitor = Visitor()
    for path in ("", "/diff", "/output/one", "/rollback?to=first"):
        text = visitor.client.get(f"/plans/{plan_id}{path}").text
        assert not set(text) & set("\u202e\u2069"), path
        assert "exe\\u202etxt\\u2069" in text, path
    cli("plan", "report", plan_id, "--html", "turned.html")
    markdown = cli("plan", "report", plan_id, "--markdown").stdout
    assert not set(Path("turned.html").read_text() + markdown) & set("\u202e\u2069")


def test_markdown_of_others_stays_text() -> None:
    assert plain("a *b*\n# c | @me") == r"a \*b\* \# c \| \@me"


def test_a_report_goes_into_a_file_of_a_folder_that_is_there(yard: Yard) -> None:
    plan_id = done(yard)
    told = cli("plan", "report", plan_id, "--html", "nowhere/r.html", expect=2).stderr
    assert told == "error: no such directory: nowhere\nhint: choose another place\n"
    told = cli("plan", "report", plan_id, "--markdown", ".", "--force", expect=2).stderr
    assert told == "error: . is a directory\nhint: name a file: ./plan.md\n"


def test_without_the_extra_the_command_says_what_to_install(yard: Yard) -> None:
    plan_id = done(yard)
    import importlib.util

    known = importlib.util.find_spec
    try:
        importlib.util.find_spec = lambda name, *_: None if name == "uvicorn" else known(name)
        for argv in (("web",), ("plan", "report", plan_id, "--markdown")):
            error = cli(*argv, "--json", expect=2).data["error"]
            assert error["message"].endswith("needs the package uvicorn")
            assert error["hint"] == "pip install 'cleveragents[web]'"
    finally:
        importlib.util.find_spec = known
    assert common.require_web("agents web") is None
