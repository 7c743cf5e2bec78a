"""The diff of a plan: between groups, after apply, with ignored and control files."""

import os
import subprocess

import pytest

from cleveragents.errors import NotFound, PlanApplied
from cleveragents.workspace import open_workspace
from tests.in_process import PLAN, Yard, box, cli, edit


def test_a_diff_between_groups_shows_only_what_lies_between(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        plan.checkpoint("a")
        edit(plan, "hand.txt")
        plan.checkpoint("b")
        assert [f.path for f in plan.diff("a", "b").files] == ["hand.txt"]
        back = plan.diff("b", "a").files
        assert [(f.path, f.status, f.deletions) for f in back] == [("hand.txt", "removed", 1)]
        whole = plan.diff()
        assert {f.path for f in whole.files} == {"one.txt", "two.txt", "old.txt", "hand.txt"}
        assert (whole.insertions, whole.deletions) == (3, 1)


def test_after_apply_the_work_is_real_and_the_diff_still_shows_it(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        before = plan.diff()
        applied = plan.apply()
        assert applied["applied"][0]["files"] == 3
        assert set(os.listdir(yard.app)) == {"one.txt", "two.txt"}
        assert plan.diff().patch == before.patch
        for verb in (plan.resume, plan.undo, plan.checkpoint, plan.cancel):
            with pytest.raises(PlanApplied):
                verb()
        assert plan.delete() == 0
        assert ws.plans() == []


def test_a_conflict_names_the_file_that_both_changed(yard: Yard) -> None:
    text = PLAN.replace("echo one > one.txt", "echo plan > old.txt").replace("&& rm old.txt", "")
    cli("plan", "run", yard.plan(text), "-q")
    (yard.app / "old.txt").write_text("somebody else\n")
    said = cli("plan", "apply", "shop", "--yes", expect=4)
    assert "app: old.txt" in said.stderr
    told = cli("plan", "apply", "shop", "--yes", "--json", expect=4).data
    assert [c["path"] for c in told["conflicts"]] == ["old.txt"]
    assert "conflict: old.txt" in cli("plan", "apply", "shop", "--dry-run").stdout
    assert (yard.app / "old.txt").read_text() == "somebody else\n"


def test_ignored_files_are_counted_but_not_shown_and_control_files_are_pointed_out(
    yard: Yard,
) -> None:
    (yard.app / ".gitignore").write_text("*.log\n")
    for argv in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "start")):
        subprocess.run(["git", *argv], cwd=yard.app, check=True)
    below = yard.app / "below"
    below.mkdir()
    script = "echo x > x.log; echo y > y; echo '*.tmp' >> .gitattributes"
    script = f"cd .. && {script}"
    told = cli("run", "--on", str(below), "--json", "--", "sh", "-c", script).data
    assert list(told["sandboxes"]) == ["work"]
    shown = cli("plan", "diff", "last", "--stat").stdout
    assert "1 ignored path left out" in shown
    assert "x.log" not in shown
    assert "x.log" in cli("plan", "diff", "last", "--stat", "--ignored").stdout
    proposal = cli("plan", "apply", "last", "--dry-run", "--json").data["would_apply"][0]
    assert proposal["ignored"] == 1
    assert set(proposal["files"]) == {"y", ".gitattributes"}
    assert proposal["control_files"] == [".gitattributes"]
    plain = cli("plan", "apply", "last", "--dry-run").stdout
    assert "control files: .gitattributes" in plain
    assert "1 ignored path left out" in plain


def test_a_renamed_file_is_one_file_with_what_changed_in_it(yard: Yard) -> None:
    (yard.app / "users.txt").write_text("".join(f"line {n}\n" for n in range(30)))
    with open_workspace() as ws:
        plan = yard.done(ws, "steps: [{id: a, run: mv users.txt people.txt; echo x >> people.txt}]")
        whole = plan.diff()
        [file] = whole.files
        assert (file.path, file.status, file.renamed_from) == ("people.txt", "renamed", "users.txt")
        assert (file.insertions, file.deletions) == (1, 0)
        assert "\nrename from users.txt\nrename to people.txt\n" in whole.patch
    target = yard.top / "other"
    target.mkdir()
    (target / "users.txt").write_text((yard.app / "users.txt").read_text())
    subprocess.run(["git", "apply", "-"], cwd=target, input=whole.patch, text=True, check=True)
    assert os.listdir(target) == ["people.txt"]


def test_directories_are_no_files(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws, "steps: [{id: a, run: mkdir -p made/below; echo x > made/below/file}]")
        whole = plan.diff()
        assert whole.files_changed == 1
        assert {file.path: file.is_directory for file in whole.files} == {
            "made": True, "made/below": True, "made/below/file": False,
        }  # fmt: skip
    shown = cli("plan", "diff", "last").stdout
    assert "1 file, 2 directories changed, 1 insertion, 0 deletions" in shown
    (applied,) = cli("plan", "apply", "last", "--yes", "--json").data["applied"]
    assert applied["files"] == 1


def test_of_many_files_some_are_read_first_and_all_are_read_once(yard: Yard) -> None:
    with open_workspace() as ws:
        many = "mv old.txt new.txt; for n in $(seq 100); do echo $n > f$n; done"
        plan = yard.done(ws, f"steps: [{{id: a, run: '{many}'}}]")
        plan.checkpoint("made")
        for n in range(1, 101):
            edit(plan, f"f{n}", "other\n")
        (box(plan) / "new.txt").rename(box(plan) / "newer.txt")
        with plan.compare("made") as found:
            sizes = [len(piece.files) for piece in found.pieces()]
        assert sizes == [1, 4, 16, 64, 16]
        whole = plan.diff("made")
        assert whole.files_changed == 101
        assert {file.status for file in whole.files} == {"changed", "renamed"}
        assert (whole.insertions, whole.deletions) == (100, 100)
        assert plan.diff(on=("app",)).files_changed == 101
        with pytest.raises(NotFound, match="has no resource 'ap', did you mean 'app'"):
            plan.diff(on=("ap",))
