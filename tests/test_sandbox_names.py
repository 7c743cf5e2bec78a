"""A sandbox has the name of the user's folder, which may be called like something of ours."""

from tests.harness import Agents


def test_a_folder_called_like_a_temporary_directory_of_ours_keeps_its_sandbox(
    agents: Agents,
) -> None:
    folder = agents.work / "agents-app"
    folder.mkdir()
    (folder / "f").write_text("x")
    (agents.work / "plan.yaml").write_text(
        "name: t\nresources: {app: {kind: fs-directory, path: agents-app}}\n"
        "steps:\n  - {id: a, run: 'echo made >made'}\n  - {id: b, run: 'test -e go'}\n"
    )
    agents.run("plan", "run", "plan.yaml", "--json").expect(5)
    data = agents.run("plan", "resume", "last", "--json").expect(5).data
    assert data["steps"][0]["state"] == "complete"
    agents.run("plan", "diff", "last", "--json").expect(0)
