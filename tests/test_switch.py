"""Staged files switched into place and back: nothing of anybody else is overwritten."""

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from cleveragents.content import files
from cleveragents.content.entry import (
    Entry,
    EntryKind,
)
from cleveragents.content.fsio import inode_of
from cleveragents.content.keys import (
    BLOB,
    key_of,
)
from cleveragents.content.restore import switch
from cleveragents.content.restore.staging import stage
from cleveragents.content.restore.switch import Switch
from cleveragents.content.tree_diff import (
    Difference,
)
from cleveragents.errors import (
    ApplyRefused,
    MachineError,
    SandboxError,
)
from tests.in_process import Arm, fail_with


def file_entry(name: bytes, data: bytes) -> Entry:
    return Entry(name, EntryKind.FILE, 0o644, len(data), files.NO_TIME, key_of(BLOB, data))


class Stage:
    """A root, and one or more differences to bring it over."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        self.staging = str(folder / "staging")
        self.contents: dict[bytes, bytes] = {}

    def file(self, name: bytes, data: bytes) -> Entry:
        self.contents[key_of(BLOB, data)] = data
        return file_entry(name, data)

    def switch(
        self,
        *differences: Difference,
        expected: dict[bytes, tuple[int, int, int]] | None = None,
        force: bool = False,
    ) -> Switch:
        self.ops = stage(self.contents.__getitem__, differences, self.staging, expected)
        return Switch(str(self.root), self.staging, self.ops, force=force)


@pytest.fixture
def staged(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def seen(path: Path) -> tuple[int, int, int]:
    return inode_of(path.lstat())


def test_a_file_that_appeared_or_was_edited_meanwhile_stops_an_apply(staged: Stage) -> None:
    new, old = staged.file(b"a", b"new"), staged.file(b"a", b"old")
    (staged.root / "a").write_text("somebody's")
    appeared = staged.switch(Difference(b"a", None, new), expected={})
    with pytest.raises(ApplyRefused, match="a changed while"):
        appeared.forward()
    shutil.rmtree(staged.staging)
    expected = {b"a": seen(staged.root / "a")}
    edited = staged.switch(Difference(b"a", old, new), expected=expected)
    (staged.root / "a").write_text("edited meanwhile")
    with pytest.raises(ApplyRefused, match="a changed while"):
        edited.forward()
    edited.backward()
    assert (staged.root / "a").read_text() == "edited meanwhile"


def test_an_exchange_is_undone_if_it_took_out_something_else(staged: Stage, arm: Arm) -> None:
    path = staged.root / "a"
    path.write_text("old")
    difference = Difference(b"a", staged.file(b"a", b"old"), staged.file(b"a", b"new"))
    one = staged.switch(difference, expected={b"a": seen(path)})
    times: list[str] = []

    def edit(point: str) -> None:
        if point == "exchange" and not times:
            path.write_text("a quick edit")
        times.append(point)

    arm(edit)
    with pytest.raises(ApplyRefused, match="a changed while"):
        one.forward()
    assert path.read_text() == "a quick edit"
    assert times.count("exchange") == 2


def test_a_file_that_was_replaced_just_before_it_goes_comes_back(staged: Stage, arm: Arm) -> None:
    path, other = staged.root / "a", staged.root / "other"
    path.write_text("old")
    other.write_text("somebody's")
    one = staged.switch(
        Difference(b"a", staged.file(b"a", b"old"), None), expected={b"a": seen(path)}
    )

    def replace(point: str) -> None:
        if point == "rename" and other.exists():
            other.rename(path)

    arm(replace)
    with pytest.raises(ApplyRefused, match="a changed while"):
        one.forward()
    assert not path.exists()
    one.backward()
    assert path.read_text() == "somebody's"


@pytest.mark.parametrize("goes", [True, False])
def test_what_somebody_had_open_and_wrote_meanwhile_comes_back(
    staged: Stage, arm: Arm, goes: bool
) -> None:
    path = staged.root / "a"
    path.write_text("old")
    after = None if goes else staged.file(b"a", b"new")
    one = staged.switch(
        Difference(b"a", staged.file(b"a", b"old"), after), expected={b"a": seen(path)}
    )
    with path.open("a") as file:

        def write(point: str) -> None:
            if point == "fsync":
                file.write(" and edited")
                file.flush()

        arm(write)
        with pytest.raises(ApplyRefused, match="a changed while"):
            one.forward()
        arm(None)
    one.backward()
    assert path.read_text().startswith("old and edited")


def test_undo_puts_what_went_beside_another_one_of_its_name(staged: Stage) -> None:
    path = staged.root / "a"
    path.write_text("old")
    one = staged.switch(
        Difference(b"a", staged.file(b"a", b"old"), None), expected={b"a": seen(path)}
    )
    one.forward()
    path.write_text("somebody's")
    one.backward()
    assert path.read_text() == "somebody's"
    assert (staged.root / "a.before-apply").read_text() == "old"


def test_undo_leaves_a_folder_that_somebody_filled_and_goes_on(staged: Stage) -> None:
    (staged.root / "a").write_text("old")
    (staged.root / "b").write_text("old")
    folder = Entry(b"a", EntryKind.DIRECTORY, 0o755)
    differences = (
        Difference(b"a", staged.file(b"a", b"old"), folder),
        Difference(b"b", staged.file(b"b", b"old"), staged.file(b"b", b"new")),
    )
    expected = {name: seen(staged.root / os.fsdecode(name)) for name in (b"a", b"b")}
    one = staged.switch(*differences, expected=expected)
    one.forward()
    (staged.root / "a" / "mine").write_text("somebody's")
    one.backward()
    assert (staged.root / "a" / "mine").read_text() == "somebody's"
    assert (staged.root / "a.before-apply").read_text() == "old"
    assert (staged.root / "b").read_text() == "old"


def test_undo_keeps_an_edit_and_puts_what_was_there_beside_it(staged: Stage) -> None:
    path = staged.root / "a"
    path.write_text("old")
    difference = Difference(b"a", staged.file(b"a", b"old"), staged.file(b"a", b"new"))
    one = staged.switch(difference, expected={b"a": seen(path)})
    one.forward()
    assert path.read_text() == "new"
    with path.open("a") as file:
        file.write(" and edited")
    one.backward()
    assert path.read_text() == "new and edited"
    assert (staged.root / "a.before-apply").read_text() == "old"


def test_a_directory_of_excluded_files_makes_way_and_keeps_them(staged: Stage) -> None:
    (staged.root / "a").mkdir()
    (staged.root / "a/x.log").write_text("kept")
    (staged.root / "a.kept-1").mkdir()
    one = staged.switch(Difference(b"a", None, staged.file(b"a", b"new")), force=True)
    one.forward()
    assert (staged.root / "a").read_text() == "new"
    assert (staged.root / "a.kept-2/x.log").read_text() == "kept"
    assert os.listdir(staged.root / "a.kept-1") == []


def test_a_directory_cannot_be_kept_under_a_thousand_names(
    staged: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (staged.root / "a").mkdir()
    one = staged.switch(Difference(b"a", None, staged.file(b"a", b"new")), force=True)
    there = (staged.root / "a").lstat()
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda *_given, **_options: there)
        with pytest.raises(SandboxError, match="a cannot be replaced"):
            one.forward()
    assert (staged.root / "a").is_dir()


def test_a_directory_of_the_user_that_is_not_empty_is_never_removed(staged: Stage) -> None:
    (staged.root / "a").mkdir()
    (staged.root / "a/theirs").write_text("x")
    gone = Difference(b"a", Entry(b"a", EntryKind.DIRECTORY, 0o755), None)
    with pytest.raises(OSError, match="not empty"):
        staged.switch(gone, expected={}).forward()
    shutil.rmtree(staged.staging)
    staged.switch(gone, force=True).forward()
    assert (staged.root / "a/theirs").read_text() == "x"


def test_a_read_only_root_is_opened_for_the_switch_and_closed_again(staged: Stage) -> None:
    staged.root.chmod(0o555)
    staged.switch(Difference(b"a", None, staged.file(b"a", b"new")), force=True).forward()
    assert stat.S_IMODE(staged.root.stat().st_mode) == 0o555
    assert (staged.root / "a").read_text() == "new"


def test_a_device_that_cannot_be_made_is_told_before_anything_moves(
    staged: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "mknod", fail_with(errno.EPERM))
    device = Entry(b"null", EntryKind.CHARACTER, 0o666, key=b"259")
    with pytest.raises(SandboxError, match="a device file cannot be made again"):
        staged.switch(Difference(b"null", None, device))
    assert os.listdir(staged.root) == []


def test_a_way_that_fails_for_another_reason_than_being_gone_is_not_passed_over(
    staged: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (staged.root / "sub").mkdir()
    (staged.root / "sub/a").write_text("old")
    one = staged.switch(Difference(b"sub/a", staged.file(b"a", b"old"), None), force=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail_with(errno.EIO))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            one.forward()
    assert (staged.root / "sub/a").exists()
    one.forward()
    assert not (staged.root / "sub/a").exists()
    one.backward()
    assert (staged.root / "sub/a").read_text() == "old"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_with(errno.EIO))
        with pytest.raises(MachineError, match=os.strerror(errno.EIO)):
            switch.sync_in_place(os.fspath(staged.root), staged.ops)


def test_a_removal_whose_directory_is_gone_as_well_is_already_done(staged: Stage) -> None:
    one = staged.switch(Difference(b"sub/a", staged.file(b"a", b"old"), None), force=True)
    one.forward()
    assert os.listdir(staged.root) == []


def test_a_directory_in_place_of_a_file_and_back_can_be_undone(staged: Stage) -> None:
    path = staged.root / "a"
    path.write_text("old")
    folder = Entry(b"a", EntryKind.DIRECTORY, 0o750)
    inner = staged.file(b"x", b"inner")
    one = staged.switch(
        Difference(b"a", staged.file(b"a", b"old"), folder), Difference(b"a/x", None, inner)
    )
    one.forward()
    assert (path / "x").read_text() == "inner"
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    one.backward()
    assert path.read_text() == "old"
    one.backward()
    assert path.read_text() == "old"
