"""The kind keeps the contract, and does what it is for."""

import json
import os
from pathlib import Path

from json_file_kind import merge

from cleveragents.testing import Bench, Change, SandboxContract

SETTINGS = {"theme": "light", "size": 12, "editor": {"tabs": 4, "wrap": True}}


def changed(**values: object) -> Change:
    def change(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=2))

    return change


class TestJsonFile(SandboxContract):
    kind, strategy = "json-file", "by_key"
    keeps_mtime = False

    def make_source(self, folder: Path) -> Path:
        (folder / "settings.json").write_text(json.dumps(SETTINGS, indent=2))
        return folder / "settings.json"

    def changes(self) -> dict[str, Change]:
        return {
            "a value": changed(theme="dark"),
            "a new key": changed(new=[1, 2]),
            "another form of the same": lambda path: path.write_text(json.dumps(SETTINGS)),
            "mode": lambda path: os.chmod(path, 0o600),
        }

    def all_changes(self, path: Path) -> None:
        changed(theme="dark", size=json.loads(path.read_text())["size"] + 1)(path)

    def seen_of_target(self, source: Path) -> object:
        return source.read_bytes(), source.stat().st_mode

    def seen_of_result(self, path: Path) -> object:
        return path.read_bytes(), path.stat().st_mode

    def test_settings_on_both_sides_are_merged(self, made: Bench) -> None:
        origin = made.capture()
        changed(theme="dark")(made.path)
        changed(size=14)(made.source)
        staged = made.stage_apply(origin, made.capture(origin))
        made.sandbox.switch_apply(staged)
        assert json.loads(made.source.read_text()) == SETTINGS | {"theme": "dark", "size": 14}

    def test_one_setting_changed_twice_is_a_conflict_with_both_values(self, made: Bench) -> None:
        origin = made.capture()
        changed(editor={"tabs": 2, "wrap": True})(made.path)
        changed(editor={"tabs": 8, "wrap": False})(made.source)
        [found] = made.propose(origin, made.capture(origin), made.options()).conflicts
        assert (found.path, found.base, found.ours, found.theirs) == (
            "settings.json#/editor/tabs",
            "4",
            "2",
            "8",
        )


def test_merge_keeps_what_each_side_removed_and_added() -> None:
    base = {"a": 1, "b": 2, "c": 3}
    assert merge(base, {"a": 1, "c": 3, "d": 4}, {"a": 5, "b": 2, "c": 3}) == (
        {"a": 5, "c": 3, "d": 4},
        [],
    )
    assert merge(base, {"a": 9}, {"a": 8, "b": 2, "c": 3})[1] == ["/a"]
    assert merge([1], [2], [3]) == ([2], ["/"])
