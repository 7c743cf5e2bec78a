"""Correct a decision: what hangs on it is done again, everything else stays, down to the inode."""

import json
import subprocess

import pytest

from tests.harness import Agents, command
from tests.rig import Shop, inodes
from tests.scratch import git, wait_until

THREE = """
- {id: one, on: app, run: "echo 1 > one.txt; echo ran >> one.count"}
- {id: two, on: app, run: "echo 2 > two.txt; rm -f base.txt; echo ran >> SIGNALS/two"}
- {id: three, on: docs, run: "echo 3 > three.txt"}
"""
CHANGED = THREE.replace("echo 2 > two.txt; rm -f base.txt", "echo better > two.txt")


@pytest.fixture
def shop(agents: Agents) -> Shop:
    return Shop(agents, users=())


def guided(shop: Shop, question: str, *flags: str) -> dict[str, object]:
    said = ("--guidance", "keep the base", "--yes")
    return shop.ok("plan", "correct", shop.decision(question), *said, *flags)


def test_one_of_three_siblings_is_done_again_and_the_others_stay_to_the_inode(shop: Shop) -> None:
    shop.ran(THREE)
    app, docs = shop.sandbox("plan"), shop.sandbox("plan", "docs")
    before, theirs = inodes(app), inodes(docs)
    user = inodes(shop.app)
    old = shop.decision("two")
    shop.write(CHANGED)
    said = guided(shop, "two", "--plan-file", "plan.yaml")
    assert (said["attempt"], said["state"], said["steps_again"]) == (2, "complete", ["two"])
    assert shop.read("two.txt") == "better\n"
    assert shop.read("base.txt") == (shop.app / "base.txt").read_text()
    after = inodes(app)
    for name in ("one.txt", "one.count", ".gitignore"):
        assert after[f"{app}/{name}"] == before[f"{app}/{name}"], name
    assert inodes(docs) == theirs
    assert inodes(shop.app) == user
    attempts = {row["id"]: row["attempts"] for row in said["steps"]}  # type: ignore[union-attr]
    assert attempts == {"one": 1, "two": 2, "three": 1}
    assert shop.times("two") == 2
    states = {d["decision_id"]: d["state"] for d in shop.tree("plan", "--show-superseded")}
    assert states[old] == "superseded"
    assert [d["question"] for d in shop.tree()] == ["one", "three", "correct: two", "two"]
    shop.require_whole()


def test_the_old_attempt_can_be_shown_and_diffed(shop: Shop) -> None:
    shop.ran(THREE)
    old = shop.decision("two")
    shop.write(CHANGED)
    said = guided(shop, "two", "--plan-file", "plan.yaml")
    told = shop.ok("plan", "explain", old)
    assert (told["state"], told["attempt"]) == ("superseded", 1)
    assert {item["path"] for item in told["wrote"]} == {"two.txt", "base.txt"}
    assert [(s["id"], s["tool"]) for s in told["steps"]] == [("two", "shell")]
    new = shop.ok("plan", "explain", shop.decision("two"))
    assert [item["path"] for item in new["wrote"]] == ["two.txt"]
    for name in ("last", str(said["correction_id"])):
        diff = shop.ok("plan", "diff", "plan", "--correction", name)
        found = {item["path"]: item["status"] for item in diff["files"]}
        assert found == {"two.txt": "changed", "base.txt": "added"}
        assert "-2\n+better" in diff["patch"]
    both = ("--correction", "last", "--from", "first")
    shop.run("plan", "diff", "plan", *both).expect(2)
    shop.run("plan", "diff", "plan", "--correction", "01ZZZZ").expect(3)


def test_the_row_of_a_correction(shop: Shop) -> None:
    shop.ran(THREE)
    old = shop.decision("two")
    said = guided(shop, "two")
    [row] = shop.rows(
        "SELECT correction_id, decision_id, mode, guidance, attempt, state, affected, snapshot,"
        " before_group_id, after_group_id FROM correction_attempts"
    )
    assert row[:6] == (said["correction_id"], old, "revert", "keep the base", 2, "complete")
    assert json.loads(row[6]) == [old]
    snapshot = json.loads(row[7])
    assert [step["step_id"] for step in snapshot["steps"]] == ["two"]
    wrote = {bytes.fromhex(item["path"]).decode() for item in snapshot["wrote"]}
    assert wrote == {"two.txt", "base.txt"}
    assert row[8] != row[9]
    intervention = shop.ok("plan", "explain", shop.decision("correct: two"))
    assert intervention["kind"] == "user_intervention"
    assert intervention["chosen"] == "keep the base"


def test_guidance_reaches_the_tools(shop: Shop) -> None:
    shop.ran('- {id: one, on: app, run: "printf %s \\"$AGENTS_GUIDANCE\\" > said"}')
    assert shop.read("said") == ""
    guided(shop, "one")
    assert "keep the base" in (shop.read("said") or "")


def affected(shop: Shop, question: str, *flags: str) -> dict[str, str]:
    """Question -> why it would go with it."""
    argv = ("plan", "correct", shop.decision(question), "--guidance", "x", "--dry-run", *flags)
    data = shop.ok(*argv)
    return {item["question"]: item["why"] for item in data["superseded"]}


def test_the_dependents_of_a_decision(shop: Shop) -> None:
    shop.ran("""
        - {id: root, on: app, run: "mkdir d; echo 1 > d/x"}
        - {id: below, on: docs, run: "echo 1 > b", decision: {question: q, chosen: c, parent: root}}
        - {id: shared, on: docs, run: "echo 1 > s", decision: root}
        - {id: needy, on: docs, run: "echo 1 > n", needs: [root]}
        - {id: more, on: docs, run: "echo 1 > m", needs: [needy]}
        - {id: led, on: docs, run: "echo 1 > l", decision:
            {question: led, chosen: c, influences: [root]}}
        - {id: same, on: app, run: "echo 2 > d/x"}
        - {id: inside, on: app, run: "rm -r d"}
        - {id: apart, on: app, run: "echo 1 > apart"}
    """)
    found = affected(shop, "root")
    assert found == {
        "root": "corrected",
        "q": "decided below it",
        "needy": "needs root",
        "more": "needs needy",
        "led": "influenced by it",
        "same": "wrote the same paths",
        "inside": "wrote the same paths",
    }
    assert list(affected(shop, "apart")) == ["apart"]
    assert list(affected(shop, "same")) == ["same", "inside"]
    later = affected(shop, "led", "--cascade")
    assert list(later) == ["led", "same", "inside", "apart"]
    assert later["apart"] == "later (--cascade)"


def test_a_decision_whose_later_step_wrote_the_same_goes_with_it(shop: Shop) -> None:
    """It was made earlier, and still its last step came after what is corrected."""
    shop.ran("""
        - {id: one, on: app, run: "echo 1 > x"}
        - {id: two, on: app, run: "echo 2 >> p"}
        - {id: three, on: app, run: "echo 3 >> p", decision: one}
        - {id: apart, on: app, run: "echo apart >> apart"}
    """)
    assert affected(shop, "two") == {"one": "wrote the same paths", "two": "corrected"}
    assert list(affected(shop, "apart")) == ["apart"]
    guided(shop, "two")
    assert [shop.read(n) for n in ("x", "p", "apart")] == ["1\n", "2\n3\n", "apart\n"]


@pytest.mark.parametrize(("triggers", "code"), [("", 4), ("after_step", 0)])
def test_without_a_group_at_every_decision_nothing_of_others_is_lost(
    shop: Shop, triggers: str, code: int
) -> None:
    shop.ran(
        """
        - {id: one, on: app, run: "echo 1 >> p"}
        - {id: two, on: app, run: "echo 2 >> p; echo 2 >> q"}
        - {id: apart, on: app, run: "echo apart >> apart"}
        """,
        policy=f"{{auto_create_on: [{triggers}]}}",
    )
    argv = ("plan", "correct", shop.decision("two"), "--guidance", "x", "--yes")
    shop.run(*argv).expect(code)
    found = [shop.read(n) for n in ("p", "q", "apart")]
    assert found == ["1\n2\n", "2\n", "apart\n"]


def test_one_database_is_one_thing(shop: Shop) -> None:
    insert = "with: {script: \"INSERT INTO users VALUES ('%s')\"}"
    shop.ran(f"""
        - {{id: ada, tool: sql, on: db, {insert % "Ada"}}}
        - {{id: file, on: app, run: "echo 1 > file"}}
        - {{id: mary, tool: sql, on: db, {insert % "Mary"}}}
    """)
    assert affected(shop, "ada") == {"ada": "corrected", "mary": "wrote the same paths"}
    assert list(affected(shop, "mary")) == ["mary"]
    guided(shop, "mary")
    assert shop.users() == ["Ada", "Mary"]
    guided(shop, "ada")
    assert shop.users() == ["Ada", "Mary"]
    assert shop.read("file") == "1\n"


def test_ignored_files_and_gits_own_do_not_tie_decisions(shop: Shop) -> None:
    commit = "git diff --cached --quiet || git -c user.name=a -c user.email=a@b.invalid commit -qm"
    shop.ran(f"""
        - {{id: one, on: app, run: "echo 1 > one; echo 1 >> build.log; git add one; {commit} one"}}
        - {{id: two, on: app, run: "echo 2 > two; echo 2 >> build.log; git add two; {commit} two"}}
    """)
    assert list(affected(shop, "one")) == ["one"]
    guided(shop, "one")
    assert (shop.read("one"), shop.read("two")) == ("1\n", "2\n")
    # What both wrote and nobody tracks stays; then the step adds to it again.
    assert shop.read("build.log") == "1\n2\n1\n"
    sandbox = shop.sandbox("plan")
    git(shop.agents, sandbox, "fsck", "--strict")
    assert git(shop.agents, sandbox, "log", "--format=%s").split() == ["two", "one", "start"]


def test_the_git_directory_is_rolled_back_with_the_only_decision_that_used_it(shop: Shop) -> None:
    commit = "git -c user.name=a -c user.email=a@b.invalid commit -qm"
    shop.ran(f"""
        - {{id: one, on: app, run: "echo 1 > one; git add one; {commit} one"}}
        - {{id: two, on: app, run: "echo 2 > two"}}
    """)
    guided(shop, "one")
    sandbox = shop.sandbox("plan")
    git(shop.agents, sandbox, "fsck", "--strict")
    assert git(shop.agents, sandbox, "log", "--format=%s").split() == ["one", "start"]
    assert git(shop.agents, sandbox, "status", "--porcelain") == "?? two"


def test_a_changed_plan_file_brings_changed_added_and_removed_steps(shop: Shop) -> None:
    shop.ran("""
        - {id: keep, on: app, run: "echo keep > keep; echo x >> SIGNALS/keep"}
        - {id: fix, on: app, run: "echo wrong > fix"}
        - {id: gone, on: app, run: "echo gone > gone"}
    """)
    shop.write("""
        - {id: new, on: app, run: "echo new > new"}
        - {id: keep, on: app, run: "echo keep > keep; echo x >> SIGNALS/keep"}
        - {id: fix, on: app, run: "echo right > fix"}
        - {id: added, on: app, run: "cat fix > added"}
    """)
    said = guided(shop, "fix", "--plan-file", "plan.yaml")
    assert [s["id"] for s in said["steps"]] == ["new", "keep", "fix", "added"]  # type: ignore[union-attr]
    assert set(shop.steps().values()) == {"complete"}
    found = [shop.read(name) for name in ("keep", "fix", "gone", "new", "added")]
    assert found == ["keep\n", "right\n", None, "new\n", "right\n"]
    assert shop.times("keep") == 1
    assert "gone" not in [d["question"] for d in shop.tree()]


def test_resume_with_a_changed_plan_file(shop: Shop) -> None:
    shop.run(
        "plan",
        "run",
        shop.write("""
        - {id: good, on: app, run: "echo good > good; echo x >> count"}
        - {id: bad, on: app, run: "echo half > bad; exit 1"}
    """),
    ).expect(5)
    shop.write("""
        - {id: good, on: app, run: "echo good > good; echo x >> count"}
        - {id: bad, on: app, run: "echo whole > bad"}
        - {id: more, on: app, run: "echo more > more"}
    """)
    said = shop.ok("plan", "resume", "plan", "--plan-file", "plan.yaml")
    assert (said["state"], said["attempt"]) == ("complete", 1)
    assert [shop.read(n) for n in ("count", "bad", "more")] == ["x\n", "whole\n", "more\n"]


def test_resume_with_a_done_step_changed_is_a_correction_of_its_decision(shop: Shop) -> None:
    shop.ran(THREE)
    shop.write(CHANGED)
    said = shop.ok("plan", "resume", "plan", "--plan-file", "plan.yaml")
    assert (said["attempt"], said["state"]) == (2, "complete")
    assert (shop.read("two.txt"), shop.read("one.count")) == ("better\n", "ran\n")
    again = shop.ok("plan", "resume", "plan", "--plan-file", "plan.yaml")
    assert again["attempt"] == 2  # nothing changed: nothing to do


def test_a_plan_file_with_other_resources_is_refused(shop: Shop) -> None:
    shop.ran(THREE)
    shop.write('- {id: one, on: app, run: "echo 1 > one.txt; echo ran >> one.count"}')
    argv = ("plan", "correct", shop.decision("two"), "--guidance", "x", "--yes")
    shop.refused(*argv, "--plan-file", "plan.yaml", kind="NotAllowed")
    shop.refused("plan", "resume", "plan", "--plan-file", "plan.yaml", kind="NotAllowed")


def test_a_dry_run_foretells_and_changes_nothing(shop: Shop) -> None:
    shop.ran(THREE)
    before = shop.everything()
    said = ("plan", "correct", shop.decision("two"), "--guidance", "x")
    foreseen = shop.ok(*said, "--dry-run")
    assert shop.everything() == before
    actions = {(c["file"], c["action"]) for c in foreseen["changes"]}
    assert actions == {("two.txt", "removed"), ("base.txt", "recreated")}
    done = shop.ok(*said, "--yes")
    for key in ("superseded", "kept", "steps_again", "changes", "from_group"):
        assert done[key] == foreseen[key], key
    assert (foreseen["dry_run"], done["dry_run"]) == (True, False)


def test_what_was_corrected_is_told_as_done(shop: Shop) -> None:
    shop.ran(THREE)
    said = ("plan", "correct", shop.decision("two"), "--guidance", "x", "--format", "plain")
    foreseen = shop.agents.run(*said, "--dry-run").expect(0).stdout
    assert "Files to roll back\n" in foreseen
    assert "  steps to run " in foreseen
    done = shop.agents.run(*said, "--yes").expect(0).stdout
    assert "Files rolled back\n" in done
    assert "  steps run " in done


def test_without_an_answer_nothing_is_corrected(shop: Shop) -> None:
    shop.ran(THREE)
    shop.refused("plan", "correct", shop.decision("two"), "--guidance", "x", kind="Declined")
    shop.run("plan", "correct", shop.decision("two"), "--guidance", " ", "--yes").expect(2)


def test_a_superseded_decision_is_not_corrected_again(shop: Shop) -> None:
    shop.ran(THREE)
    old = shop.decision("two")
    guided(shop, "two")
    error = shop.refused(
        "plan", "correct", old, "--guidance", "x", "--yes", kind="CorrectionRefused"
    )
    assert "superseded" in error["message"]


def test_the_root_decision_takes_everything(shop: Shop) -> None:
    shop.ran(THREE)
    [root] = shop.ok("plan", "tree", "plan")["tree"]
    said = shop.ok("plan", "correct", root["decision_id"], "--guidance", "all anew", "--yes")
    assert said["steps_again"] == ["one", "two", "three"]
    assert said["state"] == "complete"
    assert shop.read("one.count") == "ran\n"
    assert set(shop.steps().values()) == {"complete"}
    [top] = shop.ok("plan", "tree", "plan")["tree"]
    assert top["question"] == "correct: plan"
    assert [d["question"] for d in top["children"]] == ["one", "two", "three"]
    guided(shop, "two")
    assert len(shop.ok("plan", "tree", "plan")["tree"]) == 1
    again = shop.ok("plan", "correct", top["decision_id"], "--guidance", "once more", "--yes")
    assert again["steps_again"] == ["one", "two", "three"]
    assert shop.read("one.count") == "ran\n"


def test_a_pruned_way_back_is_refused_with_the_nearest_kept(shop: Shop) -> None:
    steps = "\n".join(f'- {{id: s{n}, on: app, run: "echo {n} > f{n}"}}' for n in range(8))
    shop.ran(steps, policy="{max_checkpoints_per_plan: 3}")
    error = shop.refused(
        "plan", "correct", shop.decision("s2"), "--guidance", "x", "--yes", kind="CorrectionRefused"
    )
    target = error["hint"].split()[-1]
    assert target in {row[0] for row in shop.rows("SELECT group_id FROM checkpoint_groups")}
    shop.ok("plan", "rollback", "plan", target, "--dry-run")


def test_an_applied_or_cancelled_plan_is_not_corrected(shop: Shop) -> None:
    shop.ran(THREE)
    which = shop.decision("two")
    shop.ok("plan", "apply", "plan", "--yes")
    shop.refused("plan", "correct", which, "--guidance", "x", "--yes", kind="PlanApplied")
    shop.ran(THREE, file="other.yaml")
    which = shop.decision("two", "other")
    shop.ok("plan", "cancel", "other")
    shop.refused("plan", "correct", which, "--guidance", "x", "--yes", kind="PlanCancelled")


def test_a_plan_that_has_not_run_has_nothing_to_correct(shop: Shop) -> None:
    shop.ok("plan", "use", shop.write(THREE))
    assert shop.rows("SELECT count(*) FROM decisions") == [(0,)]
    shop.run("plan", "correct", "01ZZZZ", "--guidance", "x", "--yes").expect(3)


def test_a_plan_without_checkpoints_is_not_corrected(shop: Shop) -> None:
    shop.ran(THREE, policy="{rollback_enabled: false}")
    which = shop.decision("two")
    shop.refused("plan", "correct", which, "--guidance", "x", "--yes", kind="RollbackDisabled")


def test_a_plan_that_a_live_process_works_on_is_not_corrected(shop: Shop) -> None:
    file = shop.write("""
        - {id: one, on: app, run: "echo 1 > one"}
        - {id: wait, on: app, run: "while [ ! -e $AGENTS_PLAN_DIR/go ]; do sleep 0.05; done"}
    """)
    argv = [command(), "plan", "run", file]
    env = shop.agents.env
    with subprocess.Popen(argv, cwd=shop.work, env=env, stdout=-1, stderr=-1) as process:
        wait_until(lambda: shop.store.exists() and _running(shop) == "wait", "the second step")
        said = ("plan", "correct", shop.decision("one"), "--guidance", "x", "--yes")
        error = shop.run(*said).expect(4).data["error"]
        assert error["type"] == "PlanBusy"
        (shop.work / "go").touch()
        process.communicate(timeout=600)
    assert process.returncode == 0
    shop.ok(*said)


def _running(shop: Shop) -> str | None:
    try:
        rows = shop.rows("SELECT step_id FROM tool_calls WHERE state = 'running'")
    except Exception:  # noqa: BLE001 - the tables are being made
        return None
    return rows[0][0] if rows else None


def test_undo_undoes_a_correction_and_redo_does_it_again(shop: Shop) -> None:
    shop.ran(THREE)
    first, tree = shop.sandbox("plan"), [d["decision_id"] for d in shop.tree()]
    shop.write(CHANGED)
    guided(shop, "two", "--plan-file", "plan.yaml")
    corrected = [d["decision_id"] for d in shop.tree()]
    shop.ok("plan", "undo", "plan")
    assert (shop.read("two.txt"), (first / "base.txt").exists()) == ("2\n", False)
    assert [d["decision_id"] for d in shop.tree()] == tree
    assert shop.status()["attempt"] == 1
    assert set(shop.steps().values()) == {"complete"}
    shop.ok("plan", "redo", "plan")
    assert (shop.read("two.txt"), (first / "base.txt").exists()) == ("better\n", True)
    assert [d["decision_id"] for d in shop.tree()] == corrected
    assert (shop.status()["attempt"], shop.status()["state"]) == (2, "complete")
    shop.ok("plan", "undo", "plan")
    shop.ok("plan", "resume", "plan")
    assert shop.read("two.txt") == "2\n"
    shop.require_whole()


def test_a_corrected_step_that_fails_leaves_the_rest_and_can_be_resumed(shop: Shop) -> None:
    shop.ran(THREE)
    flag = CHANGED.replace("echo better", "test -e $AGENTS_PLAN_DIR/flag || exit 1; echo better")
    shop.write(flag)
    which = shop.decision("two")
    said = ("plan", "correct", which, "--guidance", "x", "--yes", "--plan-file", "plan.yaml")
    data = shop.run(*said).expect(5).data
    assert (data["state"], data["attempt"]) == ("errored", 2)
    assert [shop.read(n) for n in ("one.txt", "two.txt")] == ["1\n", None]
    [(state,)] = shop.rows("SELECT state FROM correction_attempts")
    (shop.work / "flag").touch()
    assert shop.ok("plan", "resume", "plan")["state"] == "complete"
    assert shop.read("two.txt") == "better\n"
    [(ended,)] = shop.rows("SELECT state FROM correction_attempts")
    assert (state, ended) == ("errored", "complete")


def test_manual_edits_are_kept(shop: Shop) -> None:
    shop.ran(THREE)
    (shop.sandbox("plan") / "mine.txt").write_text("mine\n")
    (shop.sandbox("plan") / "one.txt").write_text("mine too\n")
    guided(shop, "two")
    assert (shop.read("mine.txt"), shop.read("one.txt")) == ("mine\n", "mine too\n")
    shop.ok("plan", "undo", "plan")
    assert shop.read("mine.txt") == "mine\n"
    shop.ok("plan", "undo", "plan")
    assert (shop.read("mine.txt"), shop.read("one.txt")) == (None, "1\n")


def test_an_edit_of_what_is_corrected_is_rolled_back_and_can_be_had_again(shop: Shop) -> None:
    shop.ran(THREE)
    (shop.sandbox("plan") / "two.txt").write_text("mine\n")
    guided(shop, "two")
    assert shop.read("two.txt") == "2\n"
    shop.ok("plan", "undo", "plan")
    assert shop.read("two.txt") == "mine\n"


def test_a_corrected_plan_is_applied_as_it_is(shop: Shop) -> None:
    shop.ran(THREE)
    shop.write(CHANGED)
    guided(shop, "two", "--plan-file", "plan.yaml")
    shop.ok("plan", "apply", "plan", "--yes")
    assert (shop.app / "two.txt").read_text() == "better\n"
    assert (shop.app / "base.txt").exists()
    assert (shop.docs / "three.txt").read_text() == "3\n"
    assert git(shop.agents, shop.app, "status", "--porcelain") == ""


def test_appended_work_is_a_child_plan_and_keeps_everything(shop: Shop) -> None:
    shop.ran(THREE)
    before = inodes(shop.sandbox("plan"))
    (shop.work / "extra.yaml").write_text(
        'name: extra\nsteps:\n  - {id: more, on: app, run: "cat two.txt > more.txt"}\n'
    )
    argv = ("plan", "correct", shop.decision("two"), "--mode", "append", "--guidance", "also")
    foreseen = shop.ok(*argv, "--plan-file", "extra.yaml", "--dry-run")
    assert foreseen["steps_again"] == ["more"]
    said = shop.ok(*argv, "--plan-file", "extra.yaml", "--yes")
    assert (said["attempt"], said["state"]) == (2, "complete")
    child = shop.status(str(said["child_plan_id"]))
    assert [(p["step"], p["status"]) for p in child["progress"]] == [("more", "complete")]
    assert shop.read("more.txt") == "2\n"
    after = inodes(shop.sandbox("plan"))
    kept = {path for path in before if "/.git" not in path}
    assert {p: after[p] for p in kept} == {p: before[p] for p in kept}
    shop.ok("plan", "undo", "plan")
    assert shop.read("more.txt") is None
    assert shop.status()["attempt"] == 1
    shop.ok("plan", "redo", "plan")
    assert shop.read("more.txt") == "2\n"
    shop.require_whole()


def test_appending_nothing_is_refused(shop: Shop) -> None:
    shop.ran(THREE)
    argv = ("plan", "correct", shop.decision("two"), "--mode", "append", "--guidance", "also")
    error = shop.refused(*argv, "--yes", kind="CorrectionRefused")
    assert "--plan-file" in error["hint"]
