"""Large and wide directories: who is told, who is asked, what is never taken in."""

import os
from pathlib import Path

import pytest

from cleveragents.cli.terminal import progress as telling
from cleveragents.cli.terminal.progress import Progress
from tests.harness import Agents

PLAN = """
name: wide
resources: {all: {kind: fs-directory, path: %s}}
steps: [{id: a, run: 'echo a > a; ls -A'}]
"""


def write_plan(agents: Agents, path: Path) -> None:
    (agents.work / "plan.yaml").write_text(PLAN % path)


@pytest.mark.parametrize("where", ["/", "home", "store"])
def test_what_holds_everything_is_refused_with_the_setting_that_takes_it(
    agents: Agents, where: str
) -> None:
    home = Path(agents.env["HOME"])
    store = Path(agents.env["CLEVERAGENTS_HOME"])
    path = {"/": Path("/"), "home": home, "store": store.parent}[where]
    write_plan(agents, path)
    refused = agents.run("plan", "run", "plan.yaml").expect(2)
    assert f"agents config set sandbox.allow-wide {path}" in refused.stderr
    assert agents.run("plan", "list", "--json").data["plans"] == []


def test_home_is_sandboxed_if_one_says_so_and_the_store_is_never_part_of_it(
    agents: Agents, tmp_path: Path
) -> None:
    home = Path(agents.env["HOME"])
    (home / "notes.txt").write_text("notes\n")
    store = home / ".local/share/cleveragents"
    agents.env["CLEVERAGENTS_HOME"] = str(store)
    write_plan(agents, home)
    agents.run("config", "set", "sandbox.allow-wide", str(home)).expect(0)
    refused = agents.run("plan", "run", "plan.yaml").expect(2)
    assert "sandbox.dir" in refused.stderr
    agents.run("config", "set", "sandbox.dir", str(tmp_path / "sandboxes")).expect(0)
    ran = agents.run("plan", "run", "plan.yaml", "--json").expect(0).data
    sandbox = Path(ran["sandboxes"]["all"])
    assert (sandbox / "notes.txt").read_text() == "notes\n"
    assert not list(sandbox.rglob("store.db"))
    status = agents.run("plan", "status", "last", "--json").expect(0).data
    assert status["exclude"] == {"all": [".local/share/cleveragents"]}
    agents.run("plan", "rollback", "last", "first", "--yes").expect(0)
    agents.run("plan", "resume", "last").expect(0)
    agents.run("plan", "apply", "last", "--yes").expect(0)
    assert (home / "a").read_text() == "a\n"
    assert (store / "store.db").exists()
    agents.run("check", "--read-data").expect(0)


def test_a_project_cannot_widen_what_is_sandboxed(agents: Agents) -> None:
    (agents.work / ".cleveragents.toml").write_text('[sandbox]\nallow-wide = ["/"]\n')
    assert "allow-wide" in agents.run("plan", "list").expect(2).stderr


def test_a_long_copy_tells_how_far_it_is_for_each_resource(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(telling.time, "monotonic", lambda: clock[0])
    progress = Progress()
    for resource, size in (("app", 40_000_000), ("app", 2_000_000), ("data", 5_000_000)):
        progress.tell("copied", {"resource": resource, "bytes": size})
        clock[0] += 1.1
    progress.tell("copied", {"resource": "data", "bytes": 1_000_000})
    progress.tell("copied", {"resource": "data", "bytes": 1_000_000})
    assert capsys.readouterr().err.splitlines() == [
        "  copying app: 2 files, 42 MB so far",
        "  copying data: 1 file, 5 MB so far",
        "  copying data: 2 files, 6 MB so far",
    ]


def test_copying_a_directory_is_told_file_by_file(agents: Agents, tmp_path: Path) -> None:
    from cleveragents.context import Talk
    from cleveragents.model.settings import Settings
    from cleveragents.workspace import open_workspace

    source = tmp_path / "source"
    source.mkdir()
    for number in range(5):
        (source / str(number)).write_bytes(os.urandom(1000))
    (tmp_path / "plan.yaml").write_text(PLAN % source)
    told: list[tuple[str, int]] = []

    def tell(event: str, data: dict[str, object]) -> None:
        if event == "copied":
            told.append((str(data["resource"]), int(str(data["bytes"]))))

    settings = Settings(home=str(tmp_path / "store"), confine="off")
    with open_workspace(settings=settings, talk=Talk(tell=tell)) as ws:
        ws.run(str(tmp_path / "plan.yaml"))
    assert told == [("all", 1000)] * 5


def test_a_large_file_is_told_by_pieces_and_counted_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(telling.time, "monotonic", lambda: clock[0])
    progress = Progress()
    for event, size in (("copied", 1), ("copying", 30), ("copying", 20), ("copied", 50)):
        clock[0] += 1.1
        progress.tell(event, {"resource": "app", "bytes": size * 1_000_000})
    assert capsys.readouterr().err.splitlines() == [
        "  copying app: 1 file, 1 MB so far",
        "  copying app: 1 file, 31 MB so far",
        "  copying app: 1 file, 51 MB so far",
        "  copying app: 2 files, 51 MB so far",
    ]


def test_pieces_of_a_large_file_are_told_while_it_is_copied(tmp_path: Path) -> None:
    from cleveragents.context import Talk
    from cleveragents.model.settings import Settings
    from cleveragents.workspace import open_workspace

    source = tmp_path / "source"
    source.mkdir()
    (source / "large").write_bytes(b"." * 1_000_000)
    (tmp_path / "plan.yaml").write_text(PLAN % source)
    told: list[tuple[str, int]] = []

    def tell(event: str, data: dict[str, object]) -> None:
        if event in ("copying", "copied"):
            told.append((event, int(str(data["bytes"]))))

    settings = Settings(home=str(tmp_path / "store"), confine="off")
    with open_workspace(settings=settings, talk=Talk(tell=tell)) as ws:
        ws.run(str(tmp_path / "plan.yaml"))
    assert told[-1] == ("copied", 1_000_000)
    pieces = [size for event, size in told if event == "copying"]
    assert pieces in ([262144, 262144, 262144, 213568], [])  # none where blocks are shared
