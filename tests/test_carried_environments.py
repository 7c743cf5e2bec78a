"""Virtual environments that came along into a sandbox and name the original."""

from pathlib import Path

import pytest

from cleveragents.tools import carried
from tests.in_process import ordinary_user


def test_an_environment_is_named_by_the_file_that_does_the_most_harm(tmp_path: Path) -> None:
    def nothing(_path: str) -> bool:
        return False

    env = tmp_path / "app/.venv"
    (env / "bin").mkdir(parents=True)
    (env / "lib/python3.11/site-packages").mkdir(parents=True)
    (env / "pyvenv.cfg").write_text("command = python -m venv /own/app/.venv")
    assert carried.naming_files(str(tmp_path), "/own/app", nothing) == ["app/.venv/pyvenv.cfg"]
    (env / "bin/python").symlink_to("/own/app/python")
    (env / "bin/tool").write_text("#!/own/app/.venv/bin/python\n")
    assert carried.naming_files(str(tmp_path), "/own/app", nothing) == ["app/.venv/bin/tool"]
    path_file = env / "lib/python3.11/site-packages/app.pth"
    path_file.write_text("/own/app/src\n")
    assert carried.naming_files(str(tmp_path), "/own/app", nothing) == [
        "app/.venv/lib/python3.11/site-packages/app.pth"
    ]
    assert carried.naming_files(str(tmp_path), "/another", nothing) == []
    assert carried.naming_files(str(tmp_path), "/own/app", lambda path: path == "app") == []


def test_looking_for_environments_ends_early_in_a_huge_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "z"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyvenv.cfg").write_text("/own")
    monkeypatch.setattr(carried, "MOST_FOLDERS", 2)
    assert carried.naming_files(str(tmp_path), "/own", lambda _: False) == ["a/pyvenv.cfg"]


def test_files_that_cannot_be_read_name_nothing() -> None:
    with ordinary_user() as folder:
        (folder / "env").mkdir()
        (folder / "env/pyvenv.cfg").write_text("/own")
        (folder / "env/pyvenv.cfg").chmod(0)
        (folder / "closed").mkdir(mode=0)
        assert carried.naming_files(str(folder), "/own", lambda _: False) == []
