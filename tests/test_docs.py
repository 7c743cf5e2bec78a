"""The documents point at things that exist: files, commands, plan files, settings, tests."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from cleveragents import errors
from cleveragents.cli.main import root
from cleveragents.errors import AgentsError, PlanFileError
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.journal import Operation
from cleveragents.planfile import parse_plan
from cleveragents.planfile.schema import plan_schema
from cleveragents.sandbox.registry import kinds
from tests import reference
from tests import test_errors_page as errors_page
from tests.reference import all_commands

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
REFERENCE = ROOT / "docs/reference"
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"(?<![\w./-])agents(?= )")
each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)


def prose(text: str) -> str:
    return FENCE.sub("", text)


def anchors(document: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(document.read_text()), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in LINK.findall(prose(document.read_text())):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        found = document.parent / target if target else document
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), f"{target}{anchor}"


def test_the_first_screen_of_the_readme_shows_use_with_an_agent() -> None:
    seen = re.sub(r"<!--.*?-->\n", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    first = "\n".join(seen.splitlines()[:32])
    for command in ("pip install .", "agents hook install claude-code", "claude ", "agents undo"):
        assert command in first, command
    assert "![" not in first


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    names = sorted(path.name for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    listed = re.findall(r"\(([0-9]{4}-[^)]*)\)", (ROOT / "docs/decisions/README.md").read_text())
    assert listed == names


def test_contributing_names_all_sessions_and_runs_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    sessions = re.findall(r"^@nox\.session.*\ndef (\w+)", (ROOT / "noxfile.py").read_text(), re.M)
    assert len(sessions) > 8
    named = {name for part in re.findall(r"nox (?:-R )?-s ([\w ]+)", text) for name in part.split()}
    assert named == set(sessions)
    tests = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    for file in re.findall(r"\b(?:tests|benchmarks)/[\w/]+\.py", text):
        assert (ROOT / file).exists(), file
    for variable in re.findall(r"`?\b([A-Z_]{6,})=", text):
        assert any(variable in source for source in tests.values()), variable


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]

    def pages(entries: list[dict[str, Any]]) -> Iterator[str]:
        for entry in entries:
            for below in entry.values():
                yield from [below] if isinstance(below, str) else pages(below)

    written = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    records = {page for page in written if re.match(r"decisions/\d", page)}
    assert sorted(pages(site["nav"])) == sorted(written - records)


def named_commands(text: str) -> Iterator[list[str]]:
    """The words after each `agents` in fenced blocks and code spans."""
    code = [body for _, body in FENCE.findall(text)] + SPAN.findall(prose(text))
    for line in "\n".join(code).splitlines():
        for part in COMMAND.split(line.partition(" #")[0])[1:]:
            yield part.split()


def trouble_with(words: list[str]) -> str:
    """What is wrong with a command line; empty if nothing is."""
    command: click.Command = root
    options = {"--help", "--version"}
    for number, word in enumerate(words):
        if word == "--":
            break
        name = word.strip("[](),;:.\"'").partition("=")[0]
        if re.match(r"--?[a-z]", name):
            if any(each not in options for each in re.split(r"[|,/]", name)):
                return f"no option {name} in agents {' '.join(words[:number])}"
        elif isinstance(command, click.Group) and not name.isupper():
            found = command.get_command(click.Context(command), name)
            if found is None:
                return f"no command: agents {' '.join(words[: number + 1])}"
            command = found
            options = {"--help"} | {
                option for param in found.params for option in (*param.opts, *param.secondary_opts)
            }
    return ""


@each_document
def test_every_command_exists_with_its_options(document: Path) -> None:
    troubles = [trouble_with(words) for words in named_commands(document.read_text())]
    assert [text for text in troubles if text] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`agents plan rollback PLAN first --yes`", False),
        ("```sh\nX=1 agents run --on . -- make --anything\n```", False),
        ("`agents plan frobnicate PLAN`", True),
        ("`agents plan rollback PLAN first --hard`", True),
        ("```text\nhint: agents plann list\n```", True),
        ("`agents plan checkpoint craete`", True),
    ],
)
def test_a_wrong_command_is_noticed(text: str, wrong: bool) -> None:
    assert any(trouble_with(words) for words in named_commands(text)) is wrong


def test_every_command_is_documented() -> None:
    text = (REFERENCE / "commands.md").read_text()
    headings = re.findall(r"^### (agents .*)$", text, re.M)
    known = {path for path, _ in all_commands()}
    short = {name for name in known if name.replace("agents", "agents plan", 1) in known - {RUN}}
    assert sorted(headings) == sorted(known - short | {RUN})
    assert all(f"`{name.removeprefix('agents ')}`" in text for name in short - {RUN})


RUN = "agents run"
"""The one command that is not short for the plan's of the same name."""


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.stem)
def test_usage_options_and_settings_are_those_of_the_code(page: Path) -> None:
    text = page.read_text()
    assert reference.PAGES[page](text) == text, "python -m tests.test_pages --write"


def test_every_option_says_what_it_does() -> None:
    options = [(path, option) for path, command in all_commands() for option in command.params]
    silent = [
        f"{path} {o.name}" for path, o in options if isinstance(o, click.Option) and not o.help
    ]
    assert silent == []


def keys_of(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
    if isinstance(schema, dict | list):
        for below in schema.values() if isinstance(schema, dict) else schema:
            yield from keys_of(below)


def test_every_key_of_the_plan_file_is_documented() -> None:
    pages = (REFERENCE / "plan-file.md", REFERENCE / "child-plans.md")
    text = "".join(page.read_text() for page in pages)
    keys = set(keys_of(plan_schema()))
    assert len(keys) > 50
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []


def test_every_type_of_checkpoint_is_documented() -> None:
    text = (REFERENCE / "checkpointing.md").read_text()
    assert [name for name in CheckpointType if f"`{name}`" not in text] == []


def test_every_operation_is_documented() -> None:
    text = (REFERENCE / "commands.md").read_text()
    section = text.partition("### agents plan log\n")[2].partition("\n### ")[0]
    assert {str(one) for one in Operation} <= set(SPAN.findall(section))


def test_the_page_of_errors_is_as_the_source_is() -> None:
    written = errors_page.PAGE.read_text()
    assert written == errors_page.page(), "python -m tests.test_errors_page writes it anew"


def test_every_error_is_documented_with_its_exit_code() -> None:
    rows = re.findall(r"^\| (\d) \|.*$", (REFERENCE / "commands.md").read_text(), re.MULTILINE)
    assert rows == ["0", "1", "2", "3", "4", "5", "6"]
    table = {
        int(line.split("|")[1]): set(SPAN.findall(line))
        for line in (REFERENCE / "commands.md").read_text().splitlines()
        if re.match(r"\| \d \|", line)
    }
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, AgentsError):
            assert name in table[kind.exit_code], name


def plan_files() -> Iterator[tuple[str, str]]:
    for document in DOCUMENTS:
        for language, body in FENCE.findall(document.read_text()):
            if language == "yaml" and body.startswith("name:"):
                yield str(document.relative_to(ROOT)), body


def make_resources(text: str, folder: Path) -> None:
    """What the plan file names, so that only the file itself can be wrong."""
    for resource in yaml.safe_load(text).get("resources", {}).values():
        path = folder / resource.get("path", "")
        if resource.get("kind") == "sqlite":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        else:
            path.mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize(("source", "text"), list(plan_files()))
def test_every_plan_file_is_right(source: str, text: str, tmp_path: Path) -> None:
    make_resources(text, tmp_path)
    environ = {
        "DATABASE_URL": "postgresql://localhost/shop",
        "CODE_URL": "https://git.example/shop.git",
    }
    plan = parse_plan(text, source, str(tmp_path), kinds(), environ=environ)
    assert plan.steps or plan.actor.kind != "steps"


def test_there_are_plan_files_to_look_at_and_a_wrong_one_is_noticed(tmp_path: Path) -> None:
    texts = [text for _, text in plan_files()]
    assert len(texts) >= 3
    make_resources(texts[0], tmp_path)
    with pytest.raises(PlanFileError):
        parse_plan(texts[0].replace("steps:", "stepps:"), "x", str(tmp_path), kinds())


def test_the_design_names_modules_and_tests_that_exist() -> None:
    text = (ROOT / "docs/design.md").read_text()
    for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|\.sql|/))`", text):
        folders = (ROOT / "src/cleveragents", ROOT)
        assert any((folder / name).exists() for folder in folders), name
    for file, test in re.findall(r"`((?:tests|src/cleveragents)/\w+\.py)::(\w+)`", text):
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"
    for file, line in re.findall(r"`(features/\w+\.feature)`:\s+\"([^\"]+)\"", text):
        wanted, found = " ".join(line.split()), " ".join((ROOT / file).read_text().split())
        assert wanted in found, f"{file}: {wanted}"
