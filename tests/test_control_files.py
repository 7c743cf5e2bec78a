"""Files by which a plan's work runs code of its own are named, whoever says yes to it."""

import pytest

from cleveragents.content import attributes
from cleveragents.content.entry import Entry, EntryKind
from cleveragents.content.tree_diff import Difference
from cleveragents.sandbox.control import control_files, control_files_of
from tests.harness import Agents
from tests.scratch import make_repository

CONTROL = (
    ".git/hooks/pre-commit", ".githooks/pre-push", ".husky/pre-commit", ".gitattributes",
    ".gitmodules", ".pre-commit-config.yaml", ".github/workflows/ci.yml",
    ".github/actions/x/action.yml", ".github/copilot-instructions.md", ".gitlab-ci.yml",
    "Jenkinsfile", ".vscode/tasks.json", ".idea/x.xml", ".devcontainer/devcontainer.json",
    ".envrc", ".claude/settings.json", ".cursor/rules/x.mdc", ".codex/config.toml",
    ".gemini/settings.json", "AGENTS.md", "CLAUDE.md", "GEMINI.md", ".mcp.json",
    ".cursorrules", ".cleveragents.toml", "Makefile", "GNUmakefile", "makefile", "conftest.py",
    "package.json", "setup.py", "setup.cfg", "pyproject.toml", "tox.ini", "noxfile.py",
    "Dockerfile", "docker-compose.dev.yml", "build.gradle.kts", ".npmrc", ".claude", ".github",
    ".opencode/plugin/x.js", "opencode.json", "opencode.jsonc", ".qwen/settings.json", "QWEN.md",
    ".copilot/mcp-config.json", ".github/hooks/x.json", ".agents/skills/x/SKILL.md",
    "vite.config.ts", "jest.config.js", "webpack.config.mjs", "gulpfile.js", "Cargo.toml",
    "composer.json", ".bashrc",
)  # fmt: skip
HARMLESS = (
    "README.md", "src/main.py", "github/workflows/ci.yml", ".github/CODEOWNERS",
    ".github/ISSUE_TEMPLATE/bug.md", "gitconfig", "mymakefile", "package.json.md",
    "notes/claude.txt", "test_conftest.py", ".gitignore", "docs/setup.python",
    "src/config.ts", "app.config.json", "opencode.md", "cargo.lock",
)  # fmt: skip


@pytest.mark.parametrize("path", CONTROL)
def test_a_control_file_is_one_in_any_folder(path: str) -> None:
    paths = [path, f"sub/{path}", f"a/b/c/{path.upper()}"]
    assert control_files(each.encode() for each in paths) == tuple(paths)


@pytest.mark.parametrize("path", HARMLESS)
def test_another_file_is_none(path: str) -> None:
    assert control_files([path.encode(), b"sub/" + path.encode()]) == ()


WORK = (
    "mkdir -p sub/.claude pkg && echo x > sub/.claude/settings.json && echo x > pkg/Makefile"
    " && echo x > pkg/conftest.py && echo x > plain"
)
NAMED = {"pkg/Makefile", "pkg/conftest.py", "sub/.claude/settings.json"}


def run(agents: Agents) -> None:
    app = agents.work / "app"
    app.mkdir()
    (app / "own").write_text("own\n")
    make_repository(agents, app)
    (agents.work / "plan.yaml").write_text(
        "name: control\nresources: {app: {kind: git-checkout, path: app}}\n"
        f"steps:\n  - {{id: work, run: {WORK}}}\n"
    )
    agents.run("plan", "run", "plan.yaml").expect(0)


def test_they_are_named_before_and_after_and_to_programs(agents: Agents) -> None:
    run(agents)
    asked = agents.run("plan", "apply", "last").expect(4)
    assert all(name in asked.stderr for name in NAMED), asked
    told = agents.run("plan", "apply", "last", "--yes", "--json").expect(0)
    assert set(told.data["applied"][0]["control_files"]) == NAMED
    assert any("control files" in text for text in told.json["messages"])
    again = agents.run("plan", "apply", "last", "--yes").expect(0)
    assert all(name in again.stderr for name in NAMED), again


def test_a_plan_of_a_program_names_them_too(agents: Agents) -> None:
    """As a branch, where nothing of the work tree changes."""
    run(agents)
    told = agents.run("plan", "apply", "last", "--yes", "--as", "branch", "--json").expect(0)
    assert set(told.data["applied"][0]["control_files"]) == NAMED


def test_a_file_that_becomes_set_uid_is_named_and_its_mode_is_shown(agents: Agents) -> None:
    """It was applied without a word, and the diff showed it as 100755."""
    app = agents.work / "app"
    app.mkdir()
    for name in ("gains", "keeps"):
        (app / name).write_text("x\n")
    (app / "keeps").chmod(0o4755)
    (agents.work / "plan.yaml").write_text(
        "name: rights\nresources: {app: {kind: fs-directory, path: app}}\nsteps:\n"
        "  - {id: a, run: 'cp gains new && chmod 6755 new && chmod 2755 gains && touch plain'}\n"
        "  - {id: b, run: 'echo y > own && chmod 4755 keeps && mkdir inner'}\n"
    )
    agents.run("plan", "run", "plan.yaml").expect(0)
    shown = agents.run("plan", "diff", "rights").expect(0).stdout
    assert "  new: mode 6755\n" in shown
    assert "  gains: mode 644 -> 2755\n" in shown
    assert "added, mode 6755" in agents.run("plan", "diff", "rights", "--stat").stdout
    files = agents.run("plan", "diff", "rights", "--json").data["files"]
    modes = {file["path"]: file["modes"] for file in files}
    assert modes["new"] == ["", "6755"]
    assert modes["plain"] is None
    asked = agents.run("plan", "apply", "rights").expect(4)
    assert "It changes control files: gains, new." in asked.stderr
    told = agents.run("plan", "apply", "rights", "--yes", "--json").expect(0)
    assert told.data["applied"][0]["control_files"] == ["gains", "new"]
    assert (app / "new").stat().st_mode & 0o7777 == 0o6755


CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")
"""`cap_net_raw+ep`"""


@pytest.mark.parametrize("before", [b"", CAPABILITY])
def test_a_file_that_gets_capabilities_is_named(before: bytes) -> None:
    had = attributes.packed({b"security.capability": before} if before else {})
    gets = attributes.packed({b"security.capability": CAPABILITY, b"user.note": b"x"})
    sides = [Entry(b"x", EntryKind.FILE, 0o755, state=state) for state in (had, gets)]
    assert control_files_of([Difference(b"x", *sides)]) == (() if before else ("x",))
