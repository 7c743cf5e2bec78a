"""Our hooks in settings files of other programs: everything else stays, byte for byte."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleveragents.errors import ConfigError
from cleveragents.integrations.agent import SettingsChange
from cleveragents.integrations.files.json_edit import read_json
from cleveragents.integrations.files.settings_files import (
    is_ours,
    owned,
    shell_command,
    with_hooks,
    write_change,
)

CLIENT = "/opt/venv/lib/cleveragents/integrations/client.py"
OURS = {"type": "command", "command": f"/usr/bin/python3 -I -S {CLIENT} S claude-code"}
ENTRIES = {"PreToolUse": {"hooks": [OURS]}, "Stop": {"hooks": [OURS]}}
THEIRS = {"hooks": [{"type": "command", "command": "make lint"}]}

FILES = {
    "empty object": "{}",
    "empty object over two lines": "{\n}\n",
    "no hooks": '{\n  "model": "opus"\n}\n',
    "one line": '{"model": "opus", "env": {"A": "b"}}',
    "empty hooks": '{\n  "hooks": {},\n  "model": "opus"\n}',
    "empty list": '{"hooks": {"PreToolUse": [ ], "Stop": []}}',
    "foreign hooks": json.dumps({"hooks": {"PreToolUse": [THEIRS], "Notification": [THEIRS]}}),
    "foreign hooks, tabs": json.dumps({"hooks": {"Stop": [THEIRS, THEIRS]}}, indent="\t") + "\n",
    "comments": """\
// my settings
{
  "model": "opus", // the good one
  /* hooks { "a": [ */
  "hooks": {
    // before
    "PreToolUse": [
      {"matcher": "Bash", "hooks": [{"type": "command", "command": "x // \\" y"}]}, // mine
    ], /* trailing commas */
  },
}
""",
    "windows": '{\r\n    "model": "opus",\r\n    "hooks": {\r\n    }\r\n}\r\n',
    "byte order mark": '\ufeff{"a": 1}\n',
    "a name twice": '{"hooks": 1, "hooks": {"Stop": []}}',
    "not ASCII": '{"greeting": "Grüße \\u00e4 😀"}',
}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "settings.json"


def install(file) -> bytes:
    change = with_hooks(str(file), ENTRIES)
    write_change(change)
    return change.after or b""


def uninstall(file) -> None:
    write_change(with_hooks(str(file), None))


def loaded(data: bytes):
    return read_json(data.decode().removeprefix("\ufeff")).value


class TestRoundTrip:
    @pytest.mark.parametrize("name", FILES)
    def test_install_and_uninstall_leave_the_file_as_it_was(self, file, name):
        before = FILES[name].encode()
        file.write_bytes(before)
        after = install(file)
        hooks = loaded(after)["hooks"]
        for event, entry in ENTRIES.items():
            assert hooks[event].count(entry) == 1, event
        uninstall(file)
        assert file.read_bytes() == before

    @pytest.mark.parametrize("name", FILES)
    def test_what_is_theirs_is_there_with_ours(self, file, name):
        before = FILES[name].encode()
        file.write_bytes(before)
        theirs, now = loaded(before), loaded(install(file))
        hooks = theirs.pop("hooks", {})
        mixed = now.pop("hooks")
        assert now == theirs
        left = {event: [e for e in found if not is_ours(e)] for event, found in mixed.items()}
        assert {k: v for k, v in left.items() if v} == {k: v for k, v in hooks.items() if v}

    @pytest.mark.parametrize("name", FILES)
    def test_a_second_install_changes_nothing(self, file, name):
        file.write_bytes(FILES[name].encode())
        once = install(file)
        assert write_change(with_hooks(str(file), ENTRIES)) is False
        assert file.read_bytes() == once

    @given(
        st.dictionaries(
            st.text(max_size=4),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(max_size=3), inner, max_size=3)
                ),
                max_leaves=6,
            ),
            max_size=4,
        ),
        st.dictionaries(
            st.sampled_from(["PreToolUse", "Stop", "Other"]),
            st.lists(st.just(THEIRS), max_size=2),
            max_size=3,
        )
        | st.none(),
        st.sampled_from([None, 2, 4, "\t"]),
        st.booleans(),
    )
    def test_any_settings(self, tmp_path_factory, settings, hooks, indent, ascii_only):
        file = tmp_path_factory.mktemp("any") / "settings.json"
        settings.pop("hooks", None)
        if hooks is not None:
            settings["hooks"] = hooks
        before = json.dumps(settings, indent=indent, ensure_ascii=ascii_only).encode()
        file.write_bytes(before)
        after = with_hooks(str(file), ENTRIES).after or b""
        assert json.loads(after)["hooks"]["Stop"][-1] == ENTRIES["Stop"]
        file.write_bytes(after)
        assert with_hooks(str(file), None).after == before

    def test_a_file_that_was_not_there_goes_again(self, file):
        after = install(file)
        assert json.loads(after) == {"hooks": {k: [v] for k, v in ENTRIES.items()}}
        uninstall(file)
        assert not file.exists()

    def test_folders_that_were_made_for_it_go_again(self, tmp_path):
        there = tmp_path / "there"
        there.mkdir()
        file = there / "one" / "two" / "settings.json"
        for _ in range(2):
            install(file)
            assert not write_change(with_hooks(str(file), ENTRIES)), "a second time changes nothing"
            uninstall(file)
            assert list(there.iterdir()) == [], "and one that was there stays"

    @pytest.mark.parametrize("name", ["one/mine", "one/two/mine"])
    def test_a_folder_in_which_somebody_has_put_something_stays(self, tmp_path, name):
        file = tmp_path / "one" / "two" / "settings.json"
        install(file)
        (tmp_path / name).write_text("mine")
        uninstall(file)
        left = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
        assert [str(path) for path in left] == [name]
        assert (tmp_path / "one" / "two").exists() == (name == "one/two/mine")

    def test_an_empty_folder_that_somebody_had_stays(self, tmp_path):
        file = tmp_path / "one" / "settings.json"
        file.parent.mkdir()
        install(file)
        uninstall(file)
        assert list(tmp_path.iterdir()) == [file.parent]

    def test_folders_of_a_file_that_is_all_ours_go_too(self, tmp_path):
        path = tmp_path / "one" / "two" / "plugin.js"
        for number in range(2):
            write_change(owned(str(path), f"// {CLIENT} {number}\n"))
        assert not write_change(owned(str(path), f"// {CLIENT} 1\n"))
        write_change(owned(str(path), None))
        assert list(tmp_path.iterdir()) == []

    def test_a_file_of_ours_that_got_more_stays(self, file):
        install(file)
        settings = json.loads(file.read_bytes())
        file.write_text(json.dumps({**settings, "model": "opus"}, indent=2))
        uninstall(file)
        assert json.loads(file.read_bytes()) == {"model": "opus"}

    def test_an_empty_file_is_filled_and_is_empty_again(self, file):
        file.write_bytes(b"")
        for _ in range(2):
            assert "hooks" in json.loads(install(file))
            assert not write_change(with_hooks(str(file), ENTRIES)), "a second time changes nothing"
            uninstall(file)
            assert file.read_bytes() == b""

    def test_hooks_of_an_older_installation_are_replaced(self, file):
        old = {"hooks": [{**OURS, "command": OURS["command"].replace("/opt/venv", "/gone")}]}
        file.write_text(json.dumps({"hooks": {"PreToolUse": [THEIRS, old], "Gone": [old]}}))
        assert json.loads(install(file))["hooks"] == {
            "PreToolUse": [THEIRS, ENTRIES["PreToolUse"]],
            "Stop": [ENTRIES["Stop"]],
        }

    def test_only_our_entry_leaves_a_group_that_somebody_shares(self, file):
        shared = {"matcher": "Bash", "hooks": [THEIRS["hooks"][0], OURS]}
        file.write_text(json.dumps({"hooks": {"PreToolUse": [shared]}}))
        uninstall(file)
        assert json.loads(file.read_bytes()) == {
            "hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": THEIRS["hooks"]}]}
        }

    def test_a_comment_before_ours_stays(self, file):
        mine = json.dumps(ENTRIES["Stop"])
        text = '{"hooks": {"Stop": [1, // why\n %s]}}'
        file.write_text(text % mine)
        uninstall(file)
        assert file.read_text() == '{"hooks": {"Stop": [1 // why\n ]}}'

    def test_ours_in_front_of_others(self, file):
        mine = json.dumps(ENTRIES["Stop"])
        file.write_text(f'{{"hooks": {{"Stop": [{mine}, 1, {mine} // end\n, 2]}}}}')
        uninstall(file)
        assert read_json(file.read_text()).value == {"hooks": {"Stop": [1, 2]}}

    def test_a_comment_beside_ours_keeps_its_list(self, file):
        mine = json.dumps(ENTRIES["Stop"])
        file.write_text(f'{{"hooks": {{"Stop": [\n // why\n {mine}]}}}}')
        uninstall(file)
        assert read_json(file.read_text()).value == {"hooks": {"Stop": []}}
        assert "// why" in file.read_text()


class TestRefused:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b'{"a": 1', "line 1 is not JSON"),
            (b'{\n"a": 01}', "line 2 is not JSON"),
            (b'{"a" 1}', "not JSON"),
            (b'{"a": tru}', "not JSON"),
            (b'{"a": 1} x', "not JSON"),
            (b'{"a": 1 "b": 2}', "not JSON"),
            (b"[]", "does not hold an object"),
            (b'{"hooks": []}', "`hooks` is not an object"),
            (b'{"hooks": {"Stop": {}}}', r"`hooks\.Stop` is not a list"),
            (b'{"a": "\xff"}', "not UTF-8"),
            (b'{"a":' + b"[" * 50_000, "nested too deeply"),
        ],
    )
    def test_a_file_that_we_do_not_understand(self, file, content, message):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=message) as caught:
            with_hooks(str(file), ENTRIES)
        assert str(file) in str(caught.value)
        assert file.read_bytes() == content

    def test_a_read_only_file_even_for_root(self, file):
        file.write_text("{}")
        file.chmod(0o444)
        with pytest.raises(ConfigError, match="is read-only") as caught:
            install(file)
        assert f"chmod u+w {file}" in caught.value.hint
        assert file.read_text() == "{}"

    def test_a_file_that_changed_since_it_was_read(self, file):
        file.write_text("{}")
        change = with_hooks(str(file), ENTRIES)
        file.write_text('{"model": "new"}')
        with pytest.raises(ConfigError, match="was changed meanwhile"):
            write_change(change)
        assert file.read_text() == '{"model": "new"}'

    def test_a_folder_in_its_place(self, file):
        file.mkdir()
        with pytest.raises(ConfigError, match="cannot read"):
            with_hooks(str(file), ENTRIES)

    def test_somebody_else_s_file_of_our_name(self, file):
        file.write_text("export const theirs = 1\n")
        with pytest.raises(ConfigError, match="is not ours"):
            owned(str(file), f"// {CLIENT}\n")


class TestLinks:
    def test_a_linked_dotfile_is_written_through(self, tmp_path):
        dotfiles = tmp_path / "dotfiles"
        dotfiles.mkdir()
        target = dotfiles / "claude.json"
        target.write_text('{"model": "opus"}')
        target.chmod(0o640)
        link = tmp_path / "settings.json"
        link.symlink_to("dotfiles/claude.json")
        install(link)
        assert os.readlink(link) == "dotfiles/claude.json"
        assert "hooks" in json.loads(target.read_bytes())
        assert target.stat().st_mode & 0o777 == 0o640
        uninstall(link)
        assert target.read_text() == '{"model": "opus"}'
        assert link.is_symlink()

    def test_a_read_only_target_is_named(self, tmp_path):
        target = tmp_path / "real.json"
        target.write_text("{}")
        target.chmod(0o400)
        link = tmp_path / "settings.json"
        link.symlink_to(target)
        with pytest.raises(ConfigError, match=r"a link to .*real\.json\) is read-only"):
            install(link)

    def test_a_link_to_nothing_stays_a_link(self, tmp_path):
        link = tmp_path / "settings.json"
        link.symlink_to("not-yet.json")
        install(link)
        assert "hooks" in json.loads((tmp_path / "not-yet.json").read_bytes())
        uninstall(link)
        assert link.is_symlink()
        assert json.loads(link.read_bytes()) == {}


class TestOwned:
    def test_a_file_of_our_own_comes_and_goes(self, tmp_path):
        path = tmp_path / "plugins" / "ours.js"
        assert write_change(owned(str(path), f"// {CLIENT}\n"))
        assert path.read_text() == f"// {CLIENT}\n\n", "a line feed more for the folder"
        assert not write_change(owned(str(path), f"// {CLIENT}\n"))
        assert write_change(owned(str(path), None))
        assert not path.exists()
        assert not write_change(owned(str(path), None))

    def test_something_that_is_no_file_is_left_alone(self, tmp_path):
        fifo = tmp_path / "settings.json"
        os.mkfifo(fifo)
        change = SettingsChange(path=str(fifo), before=None, after=b"{}")
        with pytest.raises(ConfigError, match="is not a regular file"):
            write_change(change)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_hook_whose_program_was_removed_stops_no_tool(tmp_path, shell):
    """Python ends with 2 where its script is gone, and 2 means to agents: do not run the tool."""
    script = tmp_path / "with a space" / "cleveragents/integrations/client_start.py"
    script.parent.mkdir(parents=True)
    script.write_text("import sys; print(sys.argv[1:]); sys.exit(2)")
    text = shell_command((sys.executable, "-I", "-S", str(script), "S", "x y"), "Stop")
    there = subprocess.run([shell, "-c", text], capture_output=True, text=True, check=False)
    assert (there.returncode, there.stdout) == (2, "['S', 'x y', 'Stop']\n")
    script.unlink()
    gone = subprocess.run([shell, "-c", text], capture_output=True, text=True, check=False)
    assert (gone.returncode, gone.stdout, gone.stderr) == (0, "", "")
