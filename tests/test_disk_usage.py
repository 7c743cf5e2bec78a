"""Who holds what: `agents du` tells what is shared, and what deleting a plan would free."""

import random
import subprocess
from pathlib import Path

from tests.harness import Agents

PLAN = """
name: {name}
resources: {{work: {{kind: fs-directory, path: {name}}}}}
steps: [{{id: one, tool: file.write, with: {{path: own.txt, content: "{name}\\n"}}}}]
"""


def use(agents: Agents, name: str) -> None:
    (agents.work / name).mkdir()
    (agents.work / name / "shared.bin").write_bytes(random.Random(1).randbytes(300_000))
    (agents.work / f"{name}.yaml").write_text(PLAN.format(name=name))
    agents.run("plan", "run", f"{name}.yaml", "--json").expect(0)


def packed(store: Path) -> int:
    return sum(path.stat().st_size for path in (store / "content").glob("*.pack"))


def test_content_that_two_plans_share_is_stored_once_and_freed_with_the_last(
    agents: Agents,
) -> None:
    store = Path(agents.env["CLEVERAGENTS_HOME"])
    use(agents, "first")
    size = packed(store)
    use(agents, "second")
    assert packed(store) - size < 20_000
    shown = agents.run("du", "--json").expect(0).data
    assert shown["packs"] == packed(store)
    assert {plan["name"] for plan in shown["plans"]} == {"first", "second"}
    for plan in shown["plans"]:
        assert plan["bytes"] > 300_000
        assert 0 < plan["alone"] < 20_000
        assert plan["groups"] >= 3
    agents.run("plan", "delete", "first", "--yes").expect(0)
    [left] = agents.run("du", "--json").expect(0).data["plans"]
    assert left["alone"] > 300_000
    agents.run("plan", "delete", "second", "--yes").expect(0)
    gone = agents.run("du", "--json").expect(0).data
    assert gone["plans"] == []
    assert gone["unused"] > 300_000
    freed = agents.run("gc", "--grace", "0s", "--json").expect(0).data["freed_bytes"]
    assert freed > 300_000
    assert packed(store) < 1_000
    assert "0 B that no plan needs" in agents.run("du").expect(0).stdout


def test_every_part_of_the_store_is_counted_once(agents: Agents) -> None:
    store = Path(agents.env["CLEVERAGENTS_HOME"])
    use(agents, "first")
    (store / "opened").mkdir()
    (store / "opened" / "left.bin").write_bytes(bytes(50_000))
    [sandbox] = (store / "sandboxes").glob("*/first")
    (sandbox / "large.bin").write_bytes(bytes(700_000))
    (sandbox / "again.bin").hardlink_to(sandbox / "large.bin")
    (sandbox / "outside").symlink_to("/usr")
    shown = agents.run("du", "--json").expect(0).data
    disk = {part["name"]: part["bytes"] for part in shown["disk"]}
    assert 1_000_000 < disk["sandboxes"] < 1_300_000
    assert disk["sandboxes"] - shown["plans"][0]["sandbox"] < 20_000
    assert disk["content"] >= shown["packs"]
    assert disk["database"] >= (store / "store.db").stat().st_size
    kept = [store / "reserve", store / "reserve.files"]
    assert disk["reserve"] == sum(path.stat().st_blocks for path in kept) * 512
    assert 50_000 < disk["other"] < 100_000
    whole = int(subprocess.check_output(["du", "-s", "-B1", store]).split()[0])
    assert abs(sum(disk.values()) - whole) < 100_000  # the write-ahead log comes and goes
    said = agents.run("du").expect(0).stdout
    assert "total" in said
    assert str(store / "sandboxes") in said


def test_sandboxes_that_lie_elsewhere_are_counted_there(agents: Agents, tmp_path: Path) -> None:
    agents.run("config", "set", "sandbox.dir", str(tmp_path / "boxes")).expect(0)
    use(agents, "first")
    disk = {part["name"]: part for part in agents.run("du", "--json").expect(0).data["disk"]}
    assert disk["sandboxes"]["path"] == str(tmp_path / "boxes")
    assert disk["sandboxes"]["bytes"] > 300_000
    assert disk["other"]["bytes"] < 100_000


def test_the_database_gives_its_room_back_too(agents: Agents) -> None:
    for number in range(3):
        use(agents, f"p{number}")
        many = agents.work / f"p{number}" / "many"
        many.mkdir()
        for name in range(1500):
            (many / str(name)).write_text(f"{number} {name}")
        agents.run("plan", "run", f"p{number}.yaml").expect(0)
        agents.run("plan", "delete", "last", "--yes").expect(0)
        agents.run("plan", "delete", "last", "--yes").expect(0)
    database = Path(agents.env["CLEVERAGENTS_HOME"]) / "store.db"
    before = database.stat().st_size
    agents.run("gc", "--grace", "0s").expect(0)
    assert database.stat().st_size < before * 0.6
    agents.run("check", "--read-data").expect(0)
