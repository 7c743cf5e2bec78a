"""Captures of trees with mount points, closed directories, hard links and lost events."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cleveragents.content import fsio
from cleveragents.content.capture.tracker import Tracker
from cleveragents.content.native import walker
from cleveragents.content.scope import Scope
from cleveragents.errors import (
    CheckpointFailed,
    SandboxError,
)
from cleveragents.sandbox.tree_states import require_links
from tests.test_capture import bench


def test_a_directory_made_while_the_tree_is_walked_is_followed_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, follow=True) as one:
        walk, late = one.engine.walk, one.root / "late"

        def walk_and_meet() -> walker.Found:
            found = walk()
            late.mkdir(exist_ok=True)
            return found

        monkeypatch.setattr(one.engine, "walk", walk_and_meet)
        one.capture()
        (late / "unseen").write_text("x")
        one.check()


def test_known_content_that_was_collected_is_read_anew(tmp_path: Path) -> None:
    with bench(tmp_path, follow=False) as one:
        (one.root / "sub").mkdir()
        (one.root / "sub/file").write_text("x")
        one.capture()
        one.index.clear()
        (one.root / "sub/more").write_text("y")
        tree = one.capture()
        assert tree.state == one.truth().state
        assert tree.key in one.index


def test_an_event_about_an_excluded_directory_does_no_harm(tmp_path: Path) -> None:
    with bench(tmp_path, follow=True, scope=Scope(exclude=(b"build",))) as one:  # type: ignore[arg-type]
        (one.root / "build").mkdir()
        (one.root / "file").write_text("x")
        before = one.capture()
        (one.root / "build").chmod(0o711)
        assert one.capture().state == before.state
        (one.root / "file").write_text("y")
        one.check()


def test_a_hard_link_that_appears_is_followed_through_its_other_name(tmp_path: Path) -> None:
    with bench(tmp_path, follow=True) as one:
        (one.root / "file").write_text("x")
        one.capture()
        os.link(one.root / "file", tmp_path / "outside")
        (one.root / "file").chmod(0o600)
        one.capture()
        (tmp_path / "outside").write_text("written elsewhere")
        one.check()


def test_a_directory_that_is_gone_is_gone_when_only_a_file_in_it_was_named(
    tmp_path: Path,
) -> None:
    with bench(tmp_path, follow=False) as one:
        (one.root / "sub").mkdir()
        (one.root / "sub/file").write_text("x")
        (one.root / "kept").write_text("k")
        one.capture()
        shutil.rmtree(one.root / "sub")
        with one.packs.batch() as batch:
            tree = one.engine.capture(batch, touched=[b"sub/file"])
            assert tree.state == one.truth().state


def test_what_is_excluded_in_a_directory_does_not_change_its_state(tmp_path: Path) -> None:
    with bench(tmp_path, follow=False, scope=Scope(exclude=(b"*.log",))) as one:  # type: ignore[arg-type]
        (one.root / "logs").mkdir()
        before = one.capture()
        (one.root / "logs/a.log").write_text("x")
        assert one.capture().state == before.state
        (one.root / "logs/a.txt").write_text("x")
        assert one.capture().state != before.state


@pytest.mark.parametrize(
    ("code", "said"), [(errno.EXDEV, "mount point"), (errno.EACCES, "cannot be read")]
)
def test_what_cannot_be_captured_must_be_excluded(
    code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, follow=False, scope=Scope(exclude=(b"out*",))) as one:  # type: ignore[arg-type]
        walk = one.engine.walk
        for name in (b"outside", b"gone", b"sub/dir"):
            told = errno.ENOENT if name == b"gone" else code

            def finding(name: bytes = name, told: int = told) -> walker.Found:
                return [*walk(), (name, told)]

            monkeypatch.setattr(one.engine, "walk", finding)
            if name != b"sub/dir":
                one.capture()
                continue
            with pytest.raises(CheckpointFailed, match=f"sub/dir .*{said}") as caught:
                one.capture()
            assert "'sub/dir' to the resource's exclude" in caught.value.hint


def test_a_new_directory_that_is_a_mount_point_or_closed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, follow=False) as one:
        (one.root / "sub").mkdir()
        inode, fstat = (one.root / "sub").stat().st_ino, os.fstat

        def foreign(fd: int) -> Any:
            found = fstat(fd)
            return SimpleNamespace(st_dev=-1) if found.st_ino == inode else found

        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", foreign)
            with pytest.raises(CheckpointFailed, match="sub is a mount point"):
                one.capture()
        opening = fsio.directory

        def closed(path: str | bytes, dir_fd: int | None = None) -> Any:
            if path == b"sub":
                raise PermissionError(errno.EACCES, "closed")
            return opening(path, dir_fd)

        with monkeypatch.context() as patch:
            patch.setattr(fsio, "directory", closed)
            with pytest.raises(CheckpointFailed, match="sub cannot be read"):
                one.capture()
        one.check()


def test_the_link_to_an_inner_resource_must_stay_what_it_is(tmp_path: Path) -> None:
    links = {b"in/db": b"/elsewhere"}
    (tmp_path / "in").mkdir()
    link = tmp_path / "in/db"
    for make in (
        lambda: None,
        lambda: link.write_text("a file now"),
        lambda: link.symlink_to("/another"),
    ):
        link.unlink(missing_ok=True)
        make()
        with pytest.raises(SandboxError, match="in/db is no longer the link"):
            require_links(os.fspath(tmp_path), links)
    link.unlink()
    link.symlink_to("/elsewhere")
    require_links(os.fspath(tmp_path), links)


def test_an_engine_without_anything_known_learns_nothing_from_events(tmp_path: Path) -> None:
    with bench(tmp_path, follow=True) as one:
        one.capture()
        (one.root / "file").write_text("x")
        with one.packs.batch() as batch:
            one.engine.capture(batch)
            one.engine.known = None
            for learned in batch.after_commit:
                learned()
        assert one.engine.known is None


def test_a_tracker_at_its_limit_is_given_up_and_every_capture_walks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, follow=True) as one:
        (one.root / "sub").mkdir()
        monkeypatch.setattr(Tracker, "watch_only", lambda self, _paths: self.distrust())
        one.capture()
        assert one.engine.tracker is None
        (one.root / "sub/file").write_text("x")
        one.check()


def test_an_overflow_or_an_order_to_doubt_makes_the_next_capture_walk(tmp_path: Path) -> None:
    with bench(tmp_path, follow=True) as one:
        (one.root / "file").write_text("x")
        one.capture()
        assert one.engine.tracker is not None
        one.engine.tracker.distrust()
        (one.root / "file").write_text("lost in the overflow")
        one.check()
        one.engine.doubt()
        (one.root / "file").write_text("again")
        one.check()


def test_a_hard_linked_file_whose_folder_is_gone_is_gone(tmp_path: Path) -> None:
    with bench(tmp_path, follow=True) as one:
        (one.root / "sub").mkdir()
        (one.root / "sub/a").write_text("x")
        os.link(one.root / "sub/a", one.root / "b")
        one.capture()
        assert set(one.engine.linked) == {b"sub/a", b"b"}
        shutil.rmtree(one.root / "sub")
        one.check()
