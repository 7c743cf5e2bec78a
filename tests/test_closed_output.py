"""Whoever reads our output may go away early, as `head` does: that is no failure."""

import os
import subprocess

import pytest

from tests.harness import Agents, command


@pytest.fixture
def large(agents: Agents) -> Agents:
    app = agents.work / "app"
    app.mkdir()
    script = "seq 100000 > new; echo x > second"
    agents.run("run", "-q", "--on", "app", "--", "sh", "-c", script).expect(0)
    return agents


def without_reader(agents: Agents, *argv: str, stream: str = "stdout") -> tuple[int, str]:
    """The exit code, and what came on the other stream."""
    reader, writer = os.pipe()
    other = "stderr" if stream == "stdout" else "stdout"
    process = subprocess.Popen(
        [command(), *argv],
        cwd=agents.work,
        env=agents.env,
        stdin=subprocess.DEVNULL,
        **{stream: writer, other: subprocess.PIPE},  # pyright: ignore
    )
    os.close(writer)
    os.close(reader)
    out, err = process.communicate(timeout=600)
    return process.returncode, (out or err or b"").decode()


@pytest.mark.parametrize("form", ["plain", "json", "yaml", "rich"])
def test_a_reader_that_is_gone_is_no_error(large: Agents, form: str) -> None:
    assert without_reader(large, "plan", "diff", "last", "--format", form) == (141, "")
    assert without_reader(large, "plan", "list", "--format", form) == (141, "")


@pytest.mark.parametrize("words", ["--help", "plan apply --help", "--version", "demo --remove"])
def test_nor_is_it_for_what_is_printed_before_the_end(agents: Agents, words: str) -> None:
    assert without_reader(agents, *words.split()) == (141, "")


def test_head_takes_one_line_and_nobody_complains(large: Agents) -> None:
    script = f"{command()} plan diff last | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=large.work, env=large.env, capture_output=True, check=True
    )
    first, code = done.stdout.decode().splitlines()
    assert first
    assert (int(code), done.stderr) == (141, b"")


def test_a_plan_continues_when_nobody_reads_its_progress(agents: Agents) -> None:
    (agents.work / "app").mkdir()
    (agents.work / "plan.yaml").write_text(
        "name: plan\nresources: {app: {kind: fs-directory, path: app}}\n"
        "steps: [{run: 'echo 1 > a'}, {run: 'echo 2 > b'}]\n"
    )
    without_reader(agents, "plan", "run", "plan.yaml", stream="stderr")
    assert agents.run("plan", "status", "plan", "--json").data["state"] == "complete"


def test_an_agent_that_is_gone_ends_its_server_without_a_word(agents: Agents) -> None:
    pytest.importorskip("mcp")
    first = (
        b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"capabilities": {},'
        b' "protocolVersion": "2025-03-26", "clientInfo": {"name": "test", "version": "1"}}}\n'
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [command(), "mcp"],
        cwd=agents.work,
        env=agents.env,
        input=first,
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        timeout=600,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
