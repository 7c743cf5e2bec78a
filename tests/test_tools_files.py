"""The file tools: what they do, and that they never leave the sandbox."""

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleveragents.errors import ToolFailed
from cleveragents.tools.builtin import BUILTINS, filled
from cleveragents.tools.files import Job, run_file_tool
from cleveragents.tools.limits import Capture, Deadline, OutOfTime
from cleveragents.tools.paths import Root


class Sandbox:
    def __init__(self, path: Path, outside: Path) -> None:
        self.path = path
        self.outside = outside
        self.links: dict[str, str] = {}

    def run(self, name: str, seconds: float = 60, limit: int = 10_000, /, **inputs: Any) -> str:
        out = Capture(limit)
        given = filled(BUILTINS[name], {key.rstrip("_"): each for key, each in inputs.items()})
        run_file_tool(name, Job(Root(str(self.path), self.links), given, out, Deadline(seconds)))
        return out.text()

    def fails(self, name: str, match: str, **inputs: Any) -> None:
        before = snapshot(self.outside)
        with pytest.raises(ToolFailed, match=match):
            self.run(name, **inputs)
        assert snapshot(self.outside) == before
        assert not [each for each in self.path.rglob("*") if each.name.startswith(".agents-")]


@pytest.fixture
def box(tmp_path: Path) -> Sandbox:
    (tmp_path / "sandbox").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret\n")
    return Sandbox(tmp_path / "sandbox", tmp_path / "outside")


def snapshot(root: Path) -> dict[str, Any]:
    return {
        str(each.relative_to(root)): (os.lstat(each).st_mode, each.is_file() and each.read_bytes())
        for each in root.rglob("*")
    }


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


# What they do


def test_a_file_is_written_with_its_directories_and_read_back(box: Sandbox) -> None:
    assert (
        box.run("file.write", path="a/b/c.txt", content="hé\r\n") == "wrote a/b/c.txt (5 bytes)\n"
    )
    assert (box.path / "a/b/c.txt").read_bytes() == "hé\r\n".encode()
    assert box.run("file.read", path="a/b/c.txt") == "hé\r\n"


def test_a_new_file_follows_the_umask_and_an_old_one_keeps_its_mode(box: Sandbox) -> None:
    umask = os.umask(0o027)
    try:
        box.run("file.write", path="new", content="x")
    finally:
        os.umask(umask)
    assert mode(box.path / "new") == 0o640
    (box.path / "new").chmod(0o751)
    box.run("file.write", path="new", content="y")
    box.run("file.edit", path="new", old="y", new="z")
    assert mode(box.path / "new") == 0o751
    box.run("file.write", path="new", content="z", mode="0600")
    assert mode(box.path / "new") == 0o600


def test_a_file_that_has_the_content_already_is_not_touched(box: Sandbox) -> None:
    box.run("file.write", path="a", content="same")
    before = os.stat(box.path / "a")
    assert box.run("file.write", path="a", content="same") == "unchanged a (4 bytes)\n"
    after = os.stat(box.path / "a")
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_hard_link_is_not_written_through(box: Sandbox) -> None:
    for name in ("written", "edited", "copied", "moved"):
        os.link(box.outside / "secret", box.path / name)
    box.run("file.write", path="written", content="x")
    box.run("file.edit", path="edited", old="secret", new="x")
    box.run("file.write", path="other", content="o")
    box.run("file.copy", from_="other", to="copied")
    box.run("file.move", from_="other", to="moved")
    assert (box.outside / "secret").read_text() == "secret\n"
    assert (box.path / "copied").read_text() == (box.path / "moved").read_text() == "o"


def test_content_may_be_any_bytes(box: Sandbox) -> None:
    box.run("file.write", path="raw", content="\udcff\0A")
    assert (box.path / "raw").read_bytes() == b"\xff\0A"
    box.run("file.edit", path="raw", old="\udcff", new="\udcfe")
    assert box.run("file.read", path="raw") == "\\xfe\0A"


def test_names_may_be_any_bytes(box: Sandbox) -> None:
    name = os.fsdecode(b"\xff\xfe d\nir")
    box.run("file.write", path=f"{name}/f", content="x")
    assert os.listdir(os.fsencode(box.path)) == [b"\xff\xfe d\nir"]
    assert box.run("file.list", recursive=True) == "\\xff\\xfe d\\nir/\n\\xff\\xfe d\\nir/f\n"
    box.run("file.move", from_=f"{name}/f", to=f"{name}/g")
    box.run("file.copy", from_=name, to="copy")
    assert box.run("file.read", path="copy/g") == "x"
    box.run("file.delete", path=name, recursive=True)
    assert os.listdir(box.path) == ["copy"]


def test_reading_a_large_file_is_bounded(box: Sandbox) -> None:
    (box.path / "big").write_bytes(b"a" * 1_000_000)
    text = box.run("file.read", 60, 100, path="big")
    assert text == f"{'a' * 50}\n[... 999900 bytes left out ...]\n{'a' * 50}"


def test_an_edit_replaces_the_one_place(box: Sandbox) -> None:
    box.run("file.write", path="a", content="one two one")
    assert box.run("file.edit", path="a", old="two", new="2") == "replaced 1 in a\n"
    box.fails("file.edit", "is in a 2 times", path="a", old="one", new="1")
    box.fails("file.edit", "the text to replace is not in a", path="a", old="two", new="1")
    box.fails("file.edit", "'old' of file.edit is empty", path="a", old="", new="1")
    assert box.run("file.edit", path="a", old="one", new="1", all=True) == "replaced 2 in a\n"
    assert box.run("file.read", path="a") == "1 2 1"


def test_what_is_missing_is_named(box: Sandbox) -> None:
    for name in ("file.read", "file.delete", "file.list"):
        box.fails(name, "no such file: none", path="none")
    box.fails("file.edit", "no such file: none", path="none", old="a", new="b")
    box.fails("file.read", "no such directory: none", path="none/a")
    box.fails("file.search", "no such file: none", pattern="x", path="none")
    box.fails("file.move", "no such file: none", from_="none", to="b")


def test_what_is_of_the_wrong_sort_is_refused(box: Sandbox) -> None:
    (box.path / "dir").mkdir()
    (box.path / "file").write_text("x")
    os.mkfifo(box.path / "fifo")
    box.fails("file.read", "dir is a directory", path="dir")
    box.fails("file.write", "dir is a directory", path="dir", content="x")
    box.fails("file.read", "fifo is no file", path="fifo")
    box.fails("file.write", "fifo is no file", path="fifo", content="x")
    box.fails("file.copy", "fifo is not a file, link or directory", from_="fifo", to="b")
    box.fails("file.list", "file is not a directory", path="file")
    box.fails("file.read", "file is not a directory", path="file/x")
    box.fails("file.mkdir", "file exists and is not a directory", path="file")
    assert box.run("file.search", pattern="x") == "file:1:x\n"


def test_a_name_that_is_too_long_is_a_failure_with_its_reason(box: Sandbox) -> None:
    box.fails("file.write", "file.write a+: file name too long", path="a" * 300, content="x")


def test_a_failed_copy_leaves_nothing_behind(box: Sandbox) -> None:
    (box.path / "tree").mkdir()
    (box.path / "tree/a").write_text("x")
    os.mkfifo(box.path / "tree/fifo")
    box.fails("file.copy", "cannot be copied", from_="tree", to="new")
    assert os.listdir(box.path) == ["tree"]


def test_directories_are_made_and_made_again(box: Sandbox) -> None:
    assert box.run("file.mkdir", path="a/b") == "made a/b\n"
    assert box.run("file.mkdir", path="a/b") == "unchanged a/b\n"
    assert box.run("file.mkdir", path=".") == "unchanged .\n"
    box.fails("file.mkdir", "no such directory: x", path="x/y", parents=False)


def test_only_a_recursive_delete_takes_a_full_directory(box: Sandbox) -> None:
    box.run("file.write", path="d/f", content="x")
    box.fails("file.delete", "d is not empty", path="d")
    box.run("file.delete", path="d/f")
    box.run("file.delete", path="d")
    box.run("file.write", path="d/e/f", content="x")
    assert box.run("file.delete", path="d", recursive=True) == "deleted d\n"
    assert os.listdir(box.path) == []


def test_listing_marks_directories_and_links_and_does_not_enter_git(box: Sandbox) -> None:
    box.run("file.write", path="src/a.py", content="")
    box.run("file.write", path=".git/config", content="")
    (box.path / "link").symlink_to("src")
    assert box.run("file.list") == ".git/\nlink -> src\nsrc/\n"
    assert box.run("file.list", recursive=True) == ".git/\nlink -> src\nsrc/\nsrc/a.py\n"
    assert box.run("file.list", path=".git") == ".git/config\n"
    assert box.run("file.list", path="src/../link/") == "src/a.py\n"


def test_a_search_gives_path_line_and_text(box: Sandbox) -> None:
    box.run("file.write", path="src/a.py", content="x = 1\r\nyes = 2\n")
    box.run("file.write", path="src/deep/b.txt", content=f"yes {'z' * 1000}")
    box.run("file.write", path="bin", content="yes\0")
    (box.path / "link").symlink_to("src/a.py")
    assert box.run("file.search", pattern=r"^y\w+ =") == "src/a.py:2:yes = 2\n"
    assert box.run("file.search", pattern="1", path="src/a.py") == "src/a.py:1:x = 1\n"
    assert box.run("file.search", pattern="nowhere") == ""
    long = box.run("file.search", pattern="yes z", glob="*.txt")
    assert long == f"src/deep/b.txt:1:yes {'z' * 496}\n"


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("*.py", ["a.py", "src/b.py", "src/x/c.py"]),
        ("src/**/*.py", ["src/b.py", "src/x/c.py"]),
        ("src/*", ["src/b.py", "src/x/c.py"]),
        ("**/c.py", ["src/x/c.py"]),
        ("*.txt", []),
    ],
)
def test_a_search_takes_only_what_the_glob_names(box: Sandbox, glob: str, found: list[str]) -> None:
    for name in ("a.py", "src/b.py", "src/x/c.py"):
        box.run("file.write", path=name, content="hit")
    lines = box.run("file.search", pattern="hit", glob=glob).splitlines()
    assert lines == [f"{name}:1:hit" for name in found]


def test_long_work_stops_at_the_time_limit(box: Sandbox) -> None:
    for index in range(20):
        box.run("file.write", path=f"d/{index}", content="x")
    for name, inputs in (
        ("file.list", {"path": "d"}),
        ("file.search", {"pattern": "x"}),
        ("file.copy", {"from_": "d", "to": "e"}),
        ("file.read", {"path": "d/1"}),
    ):
        with pytest.raises(OutOfTime):
            box.run(name, 0, **inputs)
    assert os.listdir(box.path) == ["d"]


def test_a_tree_is_copied_with_modes_and_links(box: Sandbox) -> None:
    box.run("file.write", path="a/run.sh", content="#!", mode="0755")
    box.run("file.mkdir", path="a/empty")
    (box.path / "a/empty").chmod(0o500)
    (box.path / "a/link").symlink_to("../nowhere")
    assert box.run("file.copy", from_="a", to="x/b") == "copied a to x/b\n"
    assert mode(box.path / "x/b/run.sh") == 0o755
    assert mode(box.path / "x/b/empty") == 0o500
    assert os.readlink(box.path / "x/b/link") == "../nowhere"
    box.run("file.copy", from_="a/link", to="b")
    assert os.readlink(box.path / "b") == "../nowhere"


def test_moving_and_copying_do_not_replace_a_directory(box: Sandbox) -> None:
    for name in ("a/f", "b/f", "c"):
        box.run("file.write", path=name, content=name)
    for name in ("file.move", "file.copy"):
        box.fails(name, "b already exists", from_="a", to="b")
        box.fails(name, "b already exists", from_="c", to="b")
        box.fails(name, "c already exists", from_="a", to="c")
        box.fails(name, "a/x is inside a", from_="a", to="a/x")


def test_a_file_is_moved_over_another(box: Sandbox) -> None:
    box.run("file.write", path="a", content="a")
    box.run("file.write", path="b", content="b")
    assert box.run("file.move", from_="a", to="b") == "moved a to b\n"
    assert snapshot(box.path).keys() == {"b"}
    assert box.run("file.move", from_="b", to="./b") == "moved b to b\n"
    os.link(box.path / "b", box.path / "c")
    box.run("file.move", from_="b", to="c")
    assert os.listdir(box.path) == ["c"]


def test_a_move_between_file_systems_copies_and_deletes(box: Sandbox) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as inner:
        if os.stat(inner).st_dev == os.stat(box.path).st_dev:
            pytest.skip("one file system only")
        box.links = {"inner": inner}
        box.run("file.write", path="d/f", content="x", mode="0711")
        box.run("file.move", from_="d", to="inner/d")
        assert mode(Path(inner) / "d/f") == 0o711
        assert os.listdir(box.path) == []


# Where they may not go


@pytest.mark.parametrize(
    "path", ["..", "../outside/secret", "a/../../outside/secret", "/etc/passwd"]
)
def test_a_path_that_leads_outside_is_refused(box: Sandbox, path: str) -> None:
    (box.path / "a").mkdir()
    why = "leads outside the sandbox$"
    box.fails("file.read", why, path=path)
    box.fails("file.write", why, path=path, content="x")
    box.fails("file.edit", why, path=path, old="a", new="b")
    box.fails("file.delete", why, path=path, recursive=True)
    box.fails("file.list", why, path=path)
    box.fails("file.search", why, pattern="x", path=path)
    box.fails("file.mkdir", why, path=path)
    for name in ("file.move", "file.copy"):
        box.fails(name, why, from_="a", to=path)
        box.fails(name, why, from_=path, to="b")


def test_an_absolute_path_inside_the_sandbox_is_accepted(box: Sandbox) -> None:
    box.run("file.write", path=f"{box.path}/a/b", content="x")
    assert box.run("file.read", path="a/b") == "x"
    assert box.run("file.list", path=str(box.path)) == "a/\n"
    box.fails("file.read", "leads outside", path=f"{box.path}-other/a")
    alias = box.outside.parent / "alias"
    alias.symlink_to(box.path)
    by_alias = Sandbox(alias, box.outside)
    assert by_alias.run("file.read", path=f"{box.path}/a/b") == "x"
    assert by_alias.run("file.read", path=f"{alias}/a/b") == "x"


@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_that_leads_outside_is_refused(box: Sandbox, absolute: bool) -> None:
    outside = str(box.outside) if absolute else "../outside"
    (box.path / "dir").symlink_to(outside)
    (box.path / "file").symlink_to(f"{outside}/secret")
    (box.path / "new").symlink_to(f"{outside}/new")
    (box.path / "hop").symlink_to("dir")
    (box.path / "x").write_text("x")
    why = "leads outside the sandbox by the link"
    for path in ("file", "dir/secret", "hop/secret"):
        box.fails("file.read", f"{why} (dir|file) -> ", path=path)
        box.fails("file.write", why, path=path, content="x")
        box.fails("file.edit", why, path=path, old="secret", new="x")
    box.fails("file.write", why, path="new", content="x")
    box.fails("file.write", why, path="dir/a/b", content="x")
    box.fails("file.mkdir", why, path="dir/a")
    box.fails("file.delete", why, path="dir/secret")
    box.fails("file.delete", why, path="hop/../secret")
    box.fails("file.list", why, path="dir")
    box.fails("file.search", why, pattern="secret", path="hop")
    for name in ("file.move", "file.copy"):
        box.fails(name, why, from_="dir/secret", to="y")
        box.fails(name, why, from_="x", to="dir/y")
    assert box.run("file.search", pattern="secret") == ""
    assert "secret" not in box.run("file.list", recursive=True).replace("/secret", "")


def test_a_directory_swapped_for_a_link_is_noticed(box: Sandbox) -> None:
    box.run("file.write", path="a/b/f", content="mine")
    os.rename(box.path / "a", box.path / "was")
    (box.outside / "b").mkdir()
    (box.outside / "b/f").write_text("theirs")
    (box.path / "a").symlink_to(box.outside)
    box.fails("file.read", "leads outside", path="a/b/f")
    box.fails("file.write", "leads outside", path="a/b/f", content="x")
    box.fails("file.delete", "leads outside", path="a/b", recursive=True)


def test_a_directory_swapped_between_the_look_and_the_open_is_not_entered(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.run("file.write", path="a/secret", content="mine")
    real = os.open

    def swapping(path: Any, flags: int, *rest: Any, **kw: Any) -> int:
        if path == "a":
            os.rename(box.path / "a", box.path / "was")
            (box.path / "a").symlink_to(box.outside)
        return real(path, flags, *rest, **kw)

    monkeypatch.setattr(os, "open", swapping)
    box.fails("file.read", "file.read a/secret: not a directory", path="a/secret")


def test_deleting_or_moving_a_link_leaves_what_it_points_at(box: Sandbox) -> None:
    (box.path / "dir").symlink_to(box.outside)
    (box.path / "file").symlink_to(box.outside / "secret")
    box.run("file.delete", path="dir", recursive=True)
    box.run("file.move", from_="file", to="moved")
    box.run("file.write", path="x", content="x")
    box.run("file.move", from_="x", to="moved")
    assert (box.path / "moved").read_text() == "x"
    assert (box.outside / "secret").read_text() == "secret\n"


def test_a_tree_that_holds_links_is_deleted_without_following_them(box: Sandbox) -> None:
    box.run("file.mkdir", path="d")
    (box.path / "d/out").symlink_to(box.outside)
    box.run("file.delete", path="d", recursive=True)
    assert (box.outside / "secret").exists()


def test_links_inside_the_sandbox_are_followed(box: Sandbox) -> None:
    box.run("file.write", path="real/f", content="x")
    (box.path / "dir").symlink_to("real")
    (box.path / "abs").symlink_to(box.path / "real/f")
    (box.path / "real/up").symlink_to("../dir/f")
    (box.path / "dangling").symlink_to("real/new")
    for path in ("dir/f", "abs", "dir/up", "dir/../real/f"):
        assert box.run("file.read", path=path) == "x"
    box.run("file.write", path="abs", content="y")
    box.run("file.write", path="dangling", content="n")
    assert (box.path / "abs").is_symlink()
    assert (box.path / "real/f").read_text() == "y"
    assert (box.path / "real/new").read_text() == "n"


def test_links_in_a_circle_end(box: Sandbox) -> None:
    (box.path / "a").symlink_to("b")
    (box.path / "b").symlink_to("a")
    box.fails("file.read", "too many links", path="a")
    box.fails("file.read", "too many links", path="a/x")


def test_the_sandbox_itself_stays(box: Sandbox) -> None:
    box.run("file.write", path="a/b", content="x")
    for path in (".", "a/..", str(box.path)):
        box.fails("file.delete", "the sandbox itself", path=path, recursive=True)
        box.fails("file.move", "the sandbox itself|is inside", from_=path, to="c")
        box.fails("file.write", "is a resource of its own", path=path, content="x")
    assert box.run("file.list", path="a/../a/.") == "a/b\n"


def test_a_missing_sandbox_is_named(box: Sandbox) -> None:
    gone = Sandbox(box.path / "gone", box.outside)
    with pytest.raises(ToolFailed, match=r"the sandbox .*/gone is missing"):
        gone.run("file.list")


# Where another resource is linked in


@pytest.fixture
def nested(box: Sandbox) -> Sandbox:
    inner = box.outside.parent / "inner"
    (inner / "sub").mkdir(parents=True)
    (inner / "f").write_text("inner\n")
    (box.outside.parent / "data").mkdir()
    (box.outside.parent / "data/app.db").write_text("db\n")
    (box.path / "vendor").mkdir()
    (box.path / "vendor/lib").symlink_to(inner)
    (box.path / "app.db").symlink_to(box.outside.parent / "data/app.db")
    box.links = {"vendor/lib": str(inner), "app.db": str(box.outside.parent / "data/app.db")}
    return box


def test_a_path_below_a_place_continues_in_the_other_sandbox(nested: Sandbox) -> None:
    inner = nested.outside.parent / "inner"
    assert nested.run("file.read", path="vendor/lib/f") == "inner\n"
    assert nested.run("file.read", path=f"{inner}/f") == "inner\n"
    assert nested.run("file.read", path="app.db") == "db\n"
    nested.run("file.write", path="vendor/lib/new/g", content="x")
    assert (inner / "new/g").read_text() == "x"
    assert nested.run("file.list", path="vendor/lib") == (
        "vendor/lib/f\nvendor/lib/new/\nvendor/lib/sub/\n"
    )
    assert nested.run("file.list", path="vendor/lib/sub/..").startswith("vendor/lib/f\n")
    assert nested.run("file.search", pattern="inner|db") == "app.db:1:db\nvendor/lib/f:1:inner\n"


def test_a_path_out_of_a_place_is_back_where_the_place_is(nested: Sandbox) -> None:
    nested.run("file.write", path="vendor/here", content="x")
    assert nested.run("file.read", path="vendor/lib/../here") == "x"
    nested.fails("file.read", "leads outside", path="vendor/lib/../../../outside/secret")


def test_a_link_in_the_inner_sandbox_cannot_lead_outside_either(nested: Sandbox) -> None:
    (nested.outside.parent / "inner/out").symlink_to("../outside/secret")
    (nested.outside.parent / "inner/abs").symlink_to(nested.outside / "secret")
    nested.fails("file.read", "no such directory: vendor/outside", path="vendor/lib/out")
    nested.fails("file.read", "leads outside", path="vendor/lib/abs")


def test_the_place_itself_is_not_to_be_taken_away(nested: Sandbox) -> None:
    for path in ("vendor/lib", "vendor", "app.db", "vendor/lib/sub/.."):
        nested.fails("file.delete", "another resource", path=path, recursive=True)
        nested.fails("file.move", "another resource", from_=path, to="elsewhere")
    nested.run("file.write", path="x", content="x")
    nested.fails("file.move", "is another resource", from_="x", to="app.db")
    nested.fails("file.copy", "is another resource", from_="x", to="app.db")
    nested.fails("file.write", "is a resource of its own", path="app.db", content="x")
    nested.fails("file.copy", "has another resource in it", from_="vendor", to="elsewhere")
    nested.run("file.copy", from_="vendor/lib", to="elsewhere")
    assert (nested.path / "elsewhere/f").read_text() == "inner\n"


def test_a_place_whose_sandbox_is_gone_is_left_out_of_a_listing(nested: Sandbox) -> None:
    nested.links["vendor/lib"] = str(nested.outside.parent / "gone")
    assert nested.run("file.list", path="vendor") == ""


NAMES = st.sampled_from(["a", "b", "..", ".", "", "in", "out", "up", "abs", "secret"])


@given(st.lists(NAMES, max_size=7), st.booleans(), st.sampled_from(["write", "mkdir", "delete"]))
def test_no_path_made_of_links_and_dots_reaches_outside(
    names: list[str], absolute: bool, tool: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        box = Sandbox(Path(folder) / "s", Path(folder) / "o")
        (box.path / "a/b").mkdir(parents=True)
        box.outside.mkdir()
        (box.outside / "secret").write_text("secret")
        for name, target in (("in", "a"), ("out", "../o"), ("a/up", ".."), ("a/b/abs", folder)):
            (box.path / name).symlink_to(target)
        before = snapshot(Path(folder))
        path = "/".join([str(box.path), *names] if absolute else names) or "."
        inputs = {"write": {"content": "x"}, "delete": {"recursive": True}}.get(tool, {})
        try:
            box.run(f"file.{tool}", path=path, **inputs)
        except ToolFailed:
            pass
        after = snapshot(Path(folder))
        changed = {name for name in before.keys() | after if before.get(name) != after.get(name)}
        assert all(name.startswith("s/") for name in changed)
