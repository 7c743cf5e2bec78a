"""Settings: which layer wins, where each value came from, and what is said about a wrong one."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cleveragents.config import (
    ConfigValue,
    explain,
    load_settings,
    set_value,
    tomledit,
    unset_value,
)
from cleveragents.errors import (
    ConfigError,
    NotFound,
)
from cleveragents.model.settings import KEYS, Settings
from cleveragents.workspace import settings_here
from tests.harness import Agents
from tests.in_process import Yard, cli


class Place:
    """A home with a project in it, and the layers one can write."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.project = self.home / "code" / "project"
        self.cwd = self.project / "src" / "deep"
        self.cwd.mkdir(parents=True)
        self.environ = {"HOME": str(self.home)}
        self.user_file = self.home / ".config" / "cleveragents" / "config.toml"
        self.project_file = self.project / ".cleveragents.toml"

    def user(self, text: str) -> None:
        self.user_file.parent.mkdir(parents=True, exist_ok=True)
        self.user_file.write_text(text)

    def load(self, **overrides: str) -> Settings:
        return load_settings(str(self.cwd), self.environ, overrides)

    def flags(self, overrides: dict[str, str]) -> Settings:
        return load_settings(str(self.cwd), self.environ, overrides)

    def set(self, key: str, value: str, *, project: bool = False) -> str:
        return set_value(key, value, project=project, cwd=str(self.cwd), environ=self.environ)

    def unset(self, key: str, *, project: bool = False) -> str:
        return unset_value(key, project=project, cwd=str(self.cwd), environ=self.environ)

    def source(self, key: str, overrides: dict[str, str] | None = None) -> ConfigValue:
        found = explain(str(self.cwd), self.environ, overrides)
        return next(each for each in found if each.key == key)

    def error(self) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            self.load()
        assert caught.value.exit_code == 2
        return caught.value


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


CARRY = "sandbox.carry-limit-files"


# layers


def test_without_anything_the_defaults_hold(place: Place) -> None:
    home = str(place.home / ".local" / "share" / "cleveragents")
    assert place.load() == Settings(home=home)
    assert place.source(CARRY) == ConfigValue(CARRY, 100_000, "default")


def test_each_layer_wins_over_the_one_before(place: Place) -> None:
    place.user("[sandbox]\ncarry-limit-files = 1\n")
    assert place.source(CARRY) == ConfigValue(CARRY, 1, str(place.user_file))
    place.project_file.write_text("[sandbox]\ncarry-limit-files = 2\n")
    assert place.source(CARRY) == ConfigValue(CARRY, 2, str(place.project_file))
    place.environ["CLEVERAGENTS_SANDBOX_CARRY_LIMIT_FILES"] = "3"
    assert place.source(CARRY) == ConfigValue(CARRY, 3, "CLEVERAGENTS_SANDBOX_CARRY_LIMIT_FILES")
    assert place.source(CARRY, {CARRY: "4"}) == ConfigValue(CARRY, 4, "flag")
    assert place.flags({CARRY: "4"}).carry_limit_files == 4
    assert place.load().carry_limit_files == 3


def test_layers_mix_key_by_key(place: Place) -> None:
    place.user('[sandbox]\ncleanup = "manual"\nconfine = "off"\n')
    place.project_file.write_text('[sandbox]\nconfine = "required"\n')
    settings = place.load()
    assert (settings.sandbox_cleanup, settings.confine) == ("manual", "required")


def test_everything_that_can_be_set_is_listed(place: Place) -> None:
    found = explain(str(place.cwd), place.environ)
    assert [each.key for each in found] == [key.name for key in KEYS]
    # The specification's own words.
    assert place.source("sandbox.checkpoint.auto-create-on").value == (
        "before_tool_execute",
        "after_tool_execute",
        "on_decision",
        "on_subplan_spawn",
        "after_subplan",
        "on_error",
    )


def test_xdg_variables_move_the_files(place: Place, tmp_path: Path) -> None:
    place.environ |= {
        "XDG_CONFIG_HOME": str(tmp_path / "conf"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    file = tmp_path / "conf" / "cleveragents" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[sandbox]\ncarry-limit-files = 9\n")
    assert place.load().carry_limit_files == 9
    assert place.load().home == str(tmp_path / "data" / "cleveragents")


@pytest.mark.parametrize("value", ["", "relative"])
def test_an_xdg_variable_that_is_not_absolute_does_not_count(place: Place, value: str) -> None:
    place.environ |= {"XDG_CONFIG_HOME": value, "XDG_DATA_HOME": value}
    place.user("[sandbox]\ncarry-limit-files = 9\n")
    assert place.load().carry_limit_files == 9
    assert place.load().home.startswith(str(place.home))


def test_the_store_may_be_put_anywhere(place: Place) -> None:
    place.environ["CLEVERAGENTS_HOME"] = "/somewhere/store"
    assert place.load().home == "/somewhere/store"
    assert place.load().sandboxes == "/somewhere/store/sandboxes"
    place.environ["CLEVERAGENTS_HOME"] = "~/store"
    assert place.load().home == str(place.home / "store")
    place.environ["CLEVERAGENTS_HOME"] = "store"
    assert place.load().home == str(place.cwd / "store")
    place.environ["CLEVERAGENTS_HOME"] = ""
    assert place.load().home == str(place.home / ".local" / "share" / "cleveragents")


# the project file


def test_the_nearest_project_file_is_taken(place: Place) -> None:
    place.project_file.write_text("[sandbox]\ncarry-limit-files = 1\n")
    near = place.cwd.parent / ".cleveragents.toml"
    near.write_text("[sandbox]\ncarry-limit-files = 2\n")
    assert place.source(CARRY) == ConfigValue(CARRY, 2, str(near))


def test_the_search_stops_at_the_git_root(place: Place) -> None:
    (place.project.parent / ".cleveragents.toml").write_text("[sandbox]\ncarry-limit-files = 1\n")
    assert place.load().carry_limit_files == 1
    (place.project / ".git").mkdir()
    assert place.load().carry_limit_files == 100_000
    place.project_file.write_text("[sandbox]\ncarry-limit-files = 2\n")
    assert place.load().carry_limit_files == 2


def test_the_git_root_of_a_linked_worktree_counts(place: Place) -> None:
    (place.project.parent / ".cleveragents.toml").write_text("[sandbox]\ncarry-limit-files = 1\n")
    (place.project / ".git").write_text("gitdir: elsewhere\n")
    assert place.load().carry_limit_files == 100_000


def test_the_search_stops_at_home(place: Place) -> None:
    (place.home.parent / ".cleveragents.toml").write_text("[sandbox]\ncarry-limit-files = 1\n")
    assert place.load().carry_limit_files == 100_000
    (place.home / ".cleveragents.toml").write_text("[sandbox]\ncarry-limit-files = 2\n")
    assert place.load().carry_limit_files == 2


def test_outside_of_home_the_search_goes_to_the_top(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "deep"
    outside.mkdir(parents=True)
    (outside.parent / ".cleveragents.toml").write_text("[sandbox]\ncarry-limit-files = 5\n")
    assert load_settings(str(outside), place.environ).carry_limit_files == 5
    assert load_settings("/", place.environ).carry_limit_files == 100_000


# what a value may be


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ('[sandbox.checkpoint]\nauto-create-on = ["on_error"]', "auto_create_on", ("on_error",)),
        (
            '[sandbox.checkpoint]\nauto-create-on = "on_error, on_tool_write"',
            "auto_create_on",
            ("on_error", "before_tool_execute"),
        ),
        ("[sandbox.checkpoint]\nauto-create-on = []", "auto_create_on", ()),
        (
            "[sandbox]\ncheckpoint.max-checkpoints-per-plan = 7",
            "max_checkpoints_per_plan",
            7,
        ),
        ("max_checkpoints_per_plan = 7", "max_checkpoints_per_plan", 7),
        (
            "[sandbox.checkpoint]\nmax_checkpoints_per_plan = 7",
            "max_checkpoints_per_plan",
            7,
        ),
        ('[sandbox]\ncarry-limit = "2GB"', "carry_limit_bytes", 2_000_000_000),
        ("[sandbox]\ncarry-limit = 12", "carry_limit_bytes", 12),
        ('[sandbox]\nconfine = "landlock"', "confine", "landlock"),
        ('[sandbox]\ncleanup = "on_terminal"', "sandbox_cleanup", "on_terminal"),
        ('[sandbox]\ndir = "/boxes"', "sandbox_dir", "/boxes"),
        ('[sandbox]\ndir = ""', "sandbox_dir", ""),
        ('[sandbox]\nwritable = ["/a", "/b"]', "writable", ("/a", "/b")),
        ('[store]\ngc-grace = "2h"', "gc_grace", 7200),
        ("[store]\ngc-grace = 1.5", "gc_grace", 1.5),
        ('[store]\nbudget = "1TB"', "content_budget", 10**12),
        ("[tools]\noutput-limit = 1", "output_limit", 1),
        ("[sandbox]\n", "confine", "auto"),
    ],
)
def test_a_file_sets_a_field(place: Place, text: str, field: str, value: object) -> None:
    place.user(text)
    assert getattr(place.load(), field) == value


@pytest.mark.parametrize(
    ("name", "raw", "field", "value"),
    [
        ("CHECKPOINT_AUTO_CREATE_ON", "on_error,on_decision", "auto_create_on", None),
        ("SANDBOX_CHECKPOINT_AUTO_CREATE_ON", "on_error,on_decision", "auto_create_on", None),
        ("CHECKPOINT_AUTO_CREATE_ON", "", "auto_create_on", ()),
        ("CHECKPOINT_MAX_CHECKPOINTS_PER_PLAN", "5", "max_checkpoints_per_plan", 5),
        ("MAX_CHECKPOINTS_PER_PLAN", "5", "max_checkpoints_per_plan", 5),
        ("STORE_GC_GRACE", "1d", "gc_grace", 86400),
        ("SANDBOX_DIR", "/x", "sandbox_dir", "/x"),
        ("CARRY_LIMIT", "1kb", "carry_limit_bytes", 1000),
        ("SANDBOX_WRITABLE", "/a, /b,", "writable", ("/a", "/b")),
        ("CONFINE", "off", "confine", "off"),
    ],
)
def test_a_variable_sets_a_field(
    place: Place, name: str, raw: str, field: str, value: object
) -> None:
    place.environ[f"CLEVERAGENTS_{name}"] = raw
    expected = ("on_error", "on_decision") if value is None else value
    assert getattr(place.load(), field) == expected


def test_relative_paths_start_where_they_were_written(place: Place) -> None:
    place.user('[sandbox]\ndir = "../boxes"\nwritable = ["out", "~/cache"]\n')
    own = place.user_file.parent
    assert place.load().sandbox_dir == str(own.parent / "boxes")
    assert place.load().writable == (str(own / "out"), str(place.home / "cache"))
    assert place.flags({"sandbox.dir": "boxes"}).sandbox_dir == str(place.cwd / "boxes")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[sandbox.checkpoint]\nauto-create-on = ["on_eror"]',
            (
                "sandbox.checkpoint.auto-create-on: unknown trigger 'on_eror', "
                "did you mean 'on_error'?"
            ),
        ),
        (
            "[sandbox.checkpoint]\nauto-create-on = [1]",
            "sandbox.checkpoint.auto-create-on: has to be a list of texts, not [1]",
        ),
        (
            "[sandbox.checkpoint]\nauto-create-on = 1",
            "sandbox.checkpoint.auto-create-on: has to be a list of texts, not 1",
        ),
        (
            "max_checkpoints_per_plan = 0",
            "sandbox.checkpoint.max-checkpoints-per-plan: has to be 1 or more, not 0",
        ),
        (
            "max_checkpoints_per_plan = true",
            "sandbox.checkpoint.max-checkpoints-per-plan: has to be a whole number, not True",
        ),
        ("[sandbox]\ncarry-limit-files = -1", f"{CARRY}: has to be 0 or more, not -1"),
        ("[sandbox]\ncarry-limit-files = 1.5", f"{CARRY}: has to be a whole number, not 1.5"),
        (
            '[sandbox]\ncarry-limit = "much"',
            "sandbox.carry-limit: 'much' is not a size: write it like '500MB', '2GB' or '1GiB'",
        ),
        (
            "[sandbox]\ncarry-limit = true",
            "sandbox.carry-limit: has to be a size such as '2GB', not True",
        ),
        (
            "[store]\ngc-grace = []",
            "store.gc-grace: has to be a time such as '30s', not []",
        ),
        (
            "[sandbox]\nconfine = 'landlok'",
            "sandbox.confine: unknown value 'landlok', did you mean 'landlock'?",
        ),
        (
            "[sandbox]\ncleanup = 'zz'",
            "sandbox.cleanup: unknown value 'zz', valid: on_apply, on_terminal, manual",
        ),
        ("[sandbox]\ncleanup = ['manual']", "sandbox.cleanup: unknown value ['manual']"),
        ("[sandbox]\ndir = 3", "sandbox.dir: has to be a path, not 3"),
        ("[sandbox.dir]\na = 3", "sandbox.dir: has to be a path, not {'a': 3}"),
    ],
)
def test_a_wrong_value_names_the_file_and_the_key(place: Place, text: str, message: str) -> None:
    place.user(text)
    assert place.error().message.startswith(f"{place.user_file}: {message}")


@pytest.mark.parametrize("name", ["STORE_URL", "CONTENT_URL"])
@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("mysql://me:s3cret@host/db", ", not mysql://"),
        ("me:s3cret@host/db", ""),
        ("me:s3cret@host://db", ""),
    ],
)
def test_a_url_that_begins_otherwise_is_not_shown(
    place: Place, name: str, url: str, instead: str
) -> None:
    place.environ[f"CLEVERAGENTS_{name}"] = url
    error = place.error()
    assert "has to begin with" in error.message
    assert error.message.endswith(instead or ("://", ":///"))
    assert "s3cret" not in error.message + error.hint


def test_the_url_of_a_bucket_has_no_password(place: Place) -> None:
    place.environ["CLEVERAGENTS_CONTENT_URL"] = "s3://key:s3cret@bucket/plans"
    error = place.error()
    assert error.message.endswith("the URL contains a password")
    assert "s3cret" not in error.message + error.hint
    assert "AWS_SECRET_ACCESS_KEY" in error.hint


def test_an_unknown_trigger_lists_the_valid_ones(place: Place) -> None:
    place.environ["CLEVERAGENTS_CHECKPOINT_AUTO_CREATE_ON"] = "on_eror"
    error = place.error()
    assert error.message == (
        "CLEVERAGENTS_CHECKPOINT_AUTO_CREATE_ON: sandbox.checkpoint.auto-create-on: "
        "unknown trigger 'on_eror', did you mean 'on_error'?"
    )
    assert "before_step" in error.hint


def test_a_wrong_value_in_a_weaker_layer_is_still_an_error(place: Place) -> None:
    place.user("[sandbox]\ncarry-limit-files = -1\n")
    place.environ["CLEVERAGENTS_CARRY_LIMIT_FILES"] = "3"
    assert "has to be 0 or more" in place.error().message


@pytest.mark.parametrize("raw", ["", "x", "-1", "1.5", "9" * 40, "²"])
def test_a_whole_number_from_the_outside_is_digits(place: Place, raw: str) -> None:
    place.environ["CLEVERAGENTS_CARRY_LIMIT_FILES"] = raw
    assert f"CLEVERAGENTS_CARRY_LIMIT_FILES: {CARRY}: has to be" in place.error().message


# unknown names


@pytest.mark.parametrize(
    ("text", "name", "near"),
    [
        ("[sandbox]\nconfin = 1", "sandbox.confin", "sandbox.confine"),
        ("[sanbox]\nconfine = 'off'", "sanbox", "sandbox"),
        ("[sanbox]\n", "sanbox", "sandbox"),
        (
            "[sandbox.checkpoint]\nauto_create_on = []",
            "sandbox.checkpoint.auto_create_on",
            "sandbox.checkpoint.auto-create-on",
        ),
        ("sandbox = 1", "sandbox", ""),
    ],
)
def test_an_unknown_key_names_the_file_and_the_nearest(
    place: Place, text: str, name: str, near: str
) -> None:
    place.project_file.write_text(text)
    error = place.error()
    meant = f", did you mean {near!r}?" if near else ""
    assert error.message == f"{place.project_file}: unknown setting '{name}'{meant}"
    assert str(place.project_file) in error.hint


def test_a_key_and_its_alias_together_are_refused(place: Place) -> None:
    place.user("max_checkpoints_per_plan = 1\n[sandbox.checkpoint]\nmax-checkpoints-per-plan = 2\n")
    assert "is set twice" in place.error().message


def test_an_unknown_flag_names_the_nearest(place: Place) -> None:
    with pytest.raises(ConfigError, match=r"^unknown setting 'sandbox.confin', did you mean"):
        place.flags({"sandbox.confin": "off"})


def test_a_wrong_flag_names_the_key(place: Place) -> None:
    with pytest.raises(ConfigError, match=r"^sandbox.confine: unknown value 'x'"):
        place.flags({"sandbox.confine": "x"})


def test_an_unknown_variable_names_the_nearest(place: Place) -> None:
    place.environ["CLEVERAGENTS_CHECKPOINT_AUTOCREATE_ON"] = "x"
    error = place.error()
    assert error.message == (
        "unknown environment variable 'CLEVERAGENTS_CHECKPOINT_AUTOCREATE_ON', "
        "did you mean 'CLEVERAGENTS_CHECKPOINT_AUTO_CREATE_ON'?"
    )
    assert error.hint == "unset CLEVERAGENTS_CHECKPOINT_AUTOCREATE_ON"
    del place.environ["CLEVERAGENTS_CHECKPOINT_AUTOCREATE_ON"]
    place.environ["CLEVERAGENTS_HOM"] = "x"
    assert "did you mean 'CLEVERAGENTS_HOME'?" in place.error().message


def test_variables_of_tests_and_of_others_are_left_alone(place: Place) -> None:
    place.environ |= {"CLEVERAGENTS_TEST_FAULT": "x", "PATH": "x", "AGENTS_PLAN_ID": "x"}
    assert place.load().confine == "auto"


def test_two_variables_for_one_setting_must_agree(place: Place) -> None:
    place.environ |= {"CLEVERAGENTS_CONFINE": "off", "CLEVERAGENTS_SANDBOX_CONFINE": "off"}
    assert place.load().confine == "off"
    place.environ["CLEVERAGENTS_CONFINE"] = "auto"
    assert place.error().message == (
        "CLEVERAGENTS_SANDBOX_CONFINE and CLEVERAGENTS_CONFINE contradict each other"
    )


# files that cannot be read


def test_broken_toml_names_the_file_and_the_line(place: Place) -> None:
    place.user("[sandbox]\nconfine = \n")
    assert place.error().message.startswith(f"{place.user_file}: not valid TOML: ")
    assert "line 2" in place.error().message


def test_hostile_toml_is_an_error_and_no_crash(place: Place) -> None:
    place.user(f"a = {'[' * 100_000}")
    assert "not valid TOML" in place.error().message


def test_a_file_that_is_not_utf8_or_no_file_is_an_error(place: Place) -> None:
    place.user("")
    place.user_file.write_bytes(b"a = '\xff'")
    assert place.error().message.startswith(f"cannot read {place.user_file}: ")
    place.project_file.mkdir()
    place.user_file.unlink()
    assert place.error().message.startswith(f"cannot read {place.project_file}: ")


def test_loading_settings_imports_neither_yaml_nor_tomlkit() -> None:
    code = (
        "import sys; from cleveragents.config import load_settings; load_settings('/', {}); "
        "print(sorted({'yaml', 'tomlkit', 'click', 'tomllib'} & set(sys.modules)))"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert found.stdout == "[]\n"


# writing


@pytest.mark.parametrize(
    ("key", "raw", "line"),
    [
        ("sandbox.checkpoint.auto-create-on", "on_tool_write,on_error", '"before_tool_execute"'),
        ("sandbox.checkpoint.auto-create-on", "", "auto-create-on = []"),
        ("sandbox.checkpoint.max-checkpoints-per-plan", "7", "max-checkpoints-per-plan = 7"),
        ("max_checkpoints_per_plan", "7", "max-checkpoints-per-plan = 7"),
        ("sandbox.carry-limit", "2GB", 'carry-limit = "2GB"'),
        ("sandbox.carry-limit", "12", "carry-limit = 12"),
        ("store.gc-grace", "2h", 'gc-grace = "2h"'),
        ("sandbox.confine", "off", 'confine = "off"'),
        ("sandbox.dir", "~/boxes", 'dir = "~/boxes"'),
        ("sandbox.writable", "/a,/b", 'writable = ["/a", "/b"]'),
    ],
)
@pytest.mark.parametrize("project", [False, True])
def test_a_value_that_was_set_is_in_force(
    place: Place, key: str, raw: str, line: str, project: bool
) -> None:
    before = place.flags({key: raw})
    if project and key.startswith(("store.", "sandbox.confine", "sandbox.dir", "sandbox.writable")):
        with pytest.raises(ConfigError, match="cannot be set by a project"):
            place.set(key, raw, project=True)
        assert not place.project_file.exists()
        return
    path = place.set(key, raw, project=project)
    expected = place.cwd / ".cleveragents.toml" if project else place.user_file
    assert path == str(expected)
    assert line in expected.read_text()
    assert place.load() == before


def test_setting_keeps_comments_order_and_other_keys(place: Place) -> None:
    text = "# mine\n[sandbox] # boxes\nconfine = 'off' # for now\n\n[store]\n# bytes\nbudget = 5\n"
    place.user(text)
    place.set("sandbox.confine", "auto")
    assert place.user_file.read_text() == text.replace("'off'", '"auto"')
    place.set("sandbox.checkpoint.max-checkpoints-per-plan", "9")
    assert "# for now" in place.user_file.read_text()
    settings = place.load()
    assert (settings.confine, settings.max_checkpoints_per_plan) == ("auto", 9)
    assert settings.content_budget == 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[sandbox]\n",
        "[sandbox.checkpoint]\n",
        "sandbox.confine = 'off'\n",
        "sandbox = {confine = 'off'}\n",
        "sandbox = {checkpoint = {auto-create-on = []}}\n",
        "[sandbox.checkpoint]\nauto-create-on = []\n[store]\n[sandbox]\nconfine = 'off'\n",
        "max_checkpoints_per_plan = 3\n",
        "[sandbox.checkpoint]\nmax_checkpoints_per_plan = 3\n[tools]\n",
    ],
)
@pytest.mark.parametrize("key", ["sandbox.checkpoint.max-checkpoints-per-plan", CARRY])
def test_any_form_of_toml_can_be_changed(place: Place, text: str, key: str) -> None:
    place.user(text)
    before = place.load()
    place.set(key, "12")
    after = {each.key: each.value for each in explain(str(place.cwd), place.environ)}
    assert after.pop(key) == 12
    assert place.load().confine == before.confine
    place.unset(key)
    assert place.source(key).source == "default"


def test_the_nearest_project_file_is_written(place: Place) -> None:
    place.project_file.write_text("# ours\n")
    assert place.set("sandbox.confine", "required", project=True) == str(place.project_file)
    assert place.project_file.read_text().startswith("# ours\n")


def test_a_new_project_file_goes_to_the_git_root(place: Place) -> None:
    (place.project / ".git").mkdir()
    assert place.set("sandbox.confine", "required", project=True) == str(place.project_file)


def test_a_relative_path_is_written_so_that_it_stays_right(place: Place) -> None:
    (place.project / ".git").mkdir()
    place.set("sandbox.dir", "boxes")
    assert place.load().sandbox_dir == str(place.cwd / "boxes")
    assert str(place.cwd / "boxes") in place.user_file.read_text()


@pytest.mark.parametrize(
    "text",
    [
        '[sandbox]\nconfine = "off"\n',
        '[sandbox]\nwritable = ["/"]\n',
        '[sandbox]\ndir = "here"\n',
        "[store]\nbudget = 1\n",
    ],
)
def test_a_cloned_project_cannot_loosen_what_protects_whoever_runs_it(
    place: Place, text: str
) -> None:
    place.project_file.write_text(text)
    with pytest.raises(ConfigError, match="cannot be set by a project"):
        place.load()


@pytest.mark.parametrize(
    ("key", "raw"),
    [("sandbox.confine", "x"), ("sandbox.nope", "1"), ("store.gc-grace", "soon")],
)
def test_a_wrong_value_is_not_written(place: Place, key: str, raw: str) -> None:
    place.user("# mine\n")
    with pytest.raises(ConfigError):
        place.set(key, raw)
    assert place.user_file.read_text() == "# mine\n"


@pytest.mark.parametrize("text", ["nope = 1\n", "[sandbox]\nconfine = 3\n", "not toml"])
def test_a_file_that_is_wrong_already_is_not_written(place: Place, text: str) -> None:
    place.user(text)
    with pytest.raises(ConfigError, match=str(place.user_file)):
        place.set(CARRY, "1")
    assert place.user_file.read_text() == text


def test_a_wrong_value_is_repaired_by_setting_it(place: Place) -> None:
    place.user("[sandbox]\nconfine = 3\n")
    place.set("sandbox.confine", "off")
    assert place.load().confine == "off"


def test_unset_takes_a_key_out_and_leaves_the_rest(place: Place) -> None:
    place.user("# mine\n[sandbox]\nconfine = 'off'\ncarry-limit-files = 3 # why\n")
    assert place.unset("sandbox.confine") == str(place.user_file)
    assert place.user_file.read_text() == "# mine\n[sandbox]\ncarry-limit-files = 3 # why\n"


def test_unset_leaves_nothing_of_a_file_that_set_made(place: Place) -> None:
    for key, value in {"sandbox.confine": "bwrap", "sandbox.checkpoint.auto-create-on": ""}.items():
        for project in (False, True):
            file = Path(place.set(key, value, project=project))
            assert file.read_text().startswith("# made by agents config set\n")
            place.unset(key, project=project)
            assert not file.exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("\n", "\n"),
        ("# mine\n", "# mine\n"),
        ("[sandbox]\ndir = 'x'\n", "[sandbox]\ndir = 'x'\n"),
        ("[sandbox]\n# mine\n", "[sandbox]\n# mine\n"),
        ("[sandbox] # mine\n", "[sandbox] # mine\n"),
        ("sandbox.confine = 'auto'\n", ""),
        ("[sandbox]\nconfine = 'auto'\n", ""),
        ("sandbox = {confine = 'auto'}\n", ""),
    ],
)
def test_unset_keeps_a_file_that_was_there_and_drops_empty_tables(
    place: Place, before: str, after: str
) -> None:
    place.user(before)
    place.set("sandbox.confine", "off")
    place.unset("sandbox.confine")
    assert place.user_file.read_text().rstrip() == after.rstrip()


@pytest.mark.parametrize(
    "name", ["max_checkpoints_per_plan", "sandbox.checkpoint.max-checkpoints-per-plan"]
)
def test_unset_finds_an_alias(place: Place, name: str) -> None:
    place.user("max_checkpoints_per_plan = 3\n")
    place.unset(name)
    assert place.load().max_checkpoints_per_plan == 50


def test_unset_takes_out_what_nobody_knows(place: Place) -> None:
    place.user("[sandbox]\nnope = 1\n")
    place.unset("sandbox.nope")
    assert place.load().confine == "auto"


@pytest.mark.parametrize("key", ["sandbox.confine", "nope", "sandbox.dir.deep", "a.b"])
def test_unset_of_what_is_not_set_is_not_found(place: Place, key: str) -> None:
    place.user("[sandbox]\ndir = '/x'\n")
    with pytest.raises(NotFound, match="is not set in"):
        place.unset(key)
    with pytest.raises(NotFound):
        place.unset(key, project=True)
    assert not place.project_file.exists()


def test_a_written_file_keeps_its_mode_and_its_link(place: Place, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("# real\n")
    real.chmod(0o640)
    place.user_file.parent.mkdir(parents=True)
    place.user_file.symlink_to(real)
    place.set("sandbox.confine", "off")
    assert place.user_file.is_symlink()
    assert "off" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.user("# mine\n")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"cannot write .*No space left on device"):
        place.set("sandbox.confine", "off")
    assert [each.name for each in place.user_file.parent.iterdir()] == ["config.toml"]
    assert place.user_file.read_text() == "# mine\n"


def test_the_content_is_on_disk_before_the_name(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace, fsync = os.replace, os.fsync

    def noted_fsync(fd: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    def noted_replace(source: str, target: str) -> None:
        done.append("replace")
        assert os.path.dirname(source) == os.path.dirname(target)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    place.set("sandbox.confine", "off")
    assert done == ["file", "replace", "folder"]


def test_a_folder_that_cannot_be_made_is_an_error(place: Place) -> None:
    (place.home / ".config").write_text("a file")
    with pytest.raises(ConfigError, match="cannot"):
        place.set("sandbox.confine", "off")


def test_an_edit_that_toml_does_not_allow_is_an_error() -> None:
    def change(table: tomledit.Table) -> None:
        tomledit.insert(table, ["sandbox", "dir"], "x")

    with pytest.raises(ConfigError, match="cannot change this file"):
        tomledit.edited("sandbox = 3\n", change)


def test_settings_can_be_read_where_the_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert settings_here(str(tmp_path / "store")).home == str(tmp_path / "store")


def test_settings_are_set_and_unset_for_oneself_and_for_the_project(yard: Yard) -> None:
    key = "sandbox.cleanup"
    cli("config", "set", key, "manual")
    assert cli("config", "get", key).stdout == "manual\n"
    cli("config", "set", key, "on_terminal", "--project", "--json")
    told = cli("config", "get", key, "--json").data
    assert told["value"] == "on_terminal"
    assert (yard.top / ".cleveragents.toml").exists()
    assert cli("config", "get", key, "--set", f"{key}=on_apply").stdout == "on_apply\n"
    cli("config", "unset", key, "--project")
    assert cli("config", "get", key).stdout == "manual\n"
    cli("config", "unset", key, "--json")
    assert cli("config", "get", key).stdout == "on_apply\n"
    said = cli("config", "get", "sandbox.claenup", expect=2)
    assert "unknown setting" in said.stderr
    assert key in said.stderr


def test_a_pipe_in_place_of_the_settings_is_told_and_not_waited_for(agents: Agents) -> None:
    os.mkfifo(agents.work / ".cleveragents.toml")
    assert "it is not a file" in agents.run("plan", "list", timeout=600).expect(2).stderr


def test_the_resources_of_sessions_are_a_table_or_one_text(tmp_path: Path) -> None:
    file = tmp_path / ".cleveragents.toml"
    file.write_text('[session.resources]\ndb = "data/app.db"\ndocs = "/docs"\n')
    found = load_settings(str(tmp_path), {"HOME": str(tmp_path)})
    assert found.session_resources == {"db": f"{tmp_path}/data/app.db", "docs": "/docs"}
    text = {"HOME": str(tmp_path), "CLEVERAGENTS_SESSION_RESOURCES": "a=x.db, b = /y"}
    assert load_settings(str(tmp_path), text).session_resources == {
        "a": f"{tmp_path}/x.db",
        "b": "/y",
    }
    for wrong in ("resources = 7", 'resources = "db"', "resources = {db = 7}"):
        file.write_text(f"[session]\n{wrong}\n")
        with pytest.raises(ConfigError, match="names with a path each"):
            load_settings(str(tmp_path), {"HOME": str(tmp_path)})
