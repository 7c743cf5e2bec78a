"""Files that run code when a person builds, tests, opens or commits, or that run as another user.

They are named before they are applied. Matched at any depth and in any case: a folder inside is a
project too, and some file systems do not tell cases apart.
"""

import functools
import re
import stat
from collections.abc import Iterable
from fnmatch import translate

from cleveragents.content import attributes
from cleveragents.content.entry import (
    Entry,
    EntryKind,
)
from cleveragents.content.tree_diff import (
    Difference,
)
from cleveragents.model.resource import show_path

FOLDERS = frozenset(
    (
        # git and its hooks, CI
        ".git", ".githooks", ".husky", ".github", ".gitea", ".forgejo", ".gitlab", ".circleci",
        ".buildkite", ".woodpecker", ".teamcity",
        # editors and containers
        ".vscode", ".idea", ".zed", ".devcontainer",
        # agents
        ".claude", ".cursor", ".codex", ".gemini", ".windsurf", ".continue", ".clinerules", ".roo",
        ".kiro", ".opencode", ".qwen", ".copilot", ".agents", ".amazonq", ".junie",
        # build tools
        ".cargo", ".mvn", ".yarn",
    )
)  # fmt: skip
"""What is in them, at any depth; of `.github` only what is in `GITHUB`."""
GITHUB = ("workflows", "actions", "hooks", "instructions", "prompts", "agents", "chatmodes")
FILES = (
    # git, hooks, CI
    ".gitattributes", ".gitmodules", ".pre-commit-config.y*ml", ".pre-commit-hooks.y*ml",
    "lefthook.y*ml", ".lefthook.y*ml", ".gitlab-ci.y*ml", ".travis.y*ml", ".drone.y*ml",
    "azure-pipelines.y*ml", "bitbucket-pipelines.y*ml", "appveyor.y*ml", "jenkinsfile",
    "cloudbuild.y*ml", "dependabot.y*ml",
    # agents
    "agents.md", "agents.override.md", "claude.md", "claude.local.md", "gemini.md",
    "copilot-instructions.md", ".cursorrules", ".windsurfrules", ".clinerules", ".mcp.json",
    "mcp.json", ".aider.conf.y*ml", "opencode.json*", "qwen.md", ".cleveragents.toml",
    # shells, editors, debuggers
    ".envrc", ".mise.toml", "mise.toml", ".tool-versions", ".exrc", ".vimrc", ".nvim.lua",
    ".nvimrc", ".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv",
    ".gdbinit", ".lldbinit", ".dir-locals.el", "*.code-workspace",
    # builds and tests
    "makefile", "gnumakefile", "*.mk", "cmakelists.txt", "justfile", ".justfile", "taskfile.y*ml",
    "rakefile", "dockerfile", "dockerfile.*", "containerfile", "compose.y*ml",
    "docker-compose*.y*ml", "vagrantfile", "conftest.py", "setup.py", "setup.cfg",
    "pyproject.toml", "tox.ini", "noxfile.py", "pytest.ini", "sitecustomize.py",
    "usercustomize.py", "*.pth", "package.json", ".npmrc", ".yarnrc", ".yarnrc.yml",
    ".pnpmfile.cjs", ".eslintrc*", "*.config.js", "*.config.[cm]js", "*.config.ts",
    "*.config.[cm]ts", "gulpfile.*", "gruntfile.*", "build.rs", "cargo.toml",
    "composer.json", "gemfile", "pom.xml", "*.gradle",
    "*.gradle.kts", "gradle-wrapper.*", "gradlew", "mvnw", ".bazelrc", "workspace.bazel",
    "module.bazel", "flake.nix", "shell.nix", "default.nix",
)  # fmt: skip


def control_files(paths: Iterable[bytes]) -> tuple[str, ...]:
    """The paths that make tools run or change how they run."""
    return tuple(show_path(path) for path in paths if _is_control(show_path(path).lower()))


def control_files_of(work: Iterable[Difference]) -> tuple[str, ...]:
    """The same for a plan's changes, and files that gain rights; folders by what is in them."""
    changed = [item for item in work if not _is_folder(item)]
    named = set(control_files(item.path for item in changed))
    shown = ((show_path(item.path), item) for item in changed)
    return tuple(path for path, item in shown if path in named or _gains_rights(item))


def _gains_rights(item: Difference) -> bool:
    """Whether a file becomes set-uid or set-gid, or gets capabilities that it did not have."""
    before, after = _rights(item.before), _rights(item.after)
    return bool(after[0] & ~before[0]) or after[1] not in (b"", before[1])


def _rights(entry: Entry | None) -> tuple[int, bytes]:
    if entry is None or entry.kind is not EntryKind.FILE:
        return 0, b""
    capabilities = attributes.unpacked(entry.xattrs).get(attributes.CAPABILITY, b"")
    return entry.mode & (stat.S_ISUID | stat.S_ISGID), capabilities


def _is_folder(item: Difference) -> bool:
    entry = item.after or item.before
    return entry is not None and entry.kind is EntryKind.DIRECTORY


def _is_control(path: str) -> bool:
    *folders, name = path.split("/")
    for depth, part in enumerate((*folders, name)):
        if part == ".github" and depth < len(folders):
            inside = (*folders, name)[depth + 1]
            if inside in GITHUB:
                return True
        elif part in FOLDERS:
            return True
    return _names().match(name) is not None


@functools.cache
def _names() -> re.Pattern[str]:
    return re.compile("|".join(translate(rule) for rule in FILES))
