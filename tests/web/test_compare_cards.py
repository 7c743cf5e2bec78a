"""Two moments compared: who did each line, a card for each table, large folders as one."""

import re
import sqlite3

import msgspec
import pytest

from cleveragents.history.diff import ByHand, FileDiff
from cleveragents.history.owners import Owner
from cleveragents.history.timeline import manual_lines, with_owners
from cleveragents.model.plan import StepState
from cleveragents.sandbox.sqlite.followed import rows_in
from cleveragents.sandbox.sqlite.rows import RowChange
from cleveragents.sandbox.sqlite.tables import TableChange, table_counts
from cleveragents.web.render import mode_words, shown_mode
from cleveragents.web.view.cards import FileView, TableView, Writers
from cleveragents.web.view.marks import Sign, mini
from cleveragents.web.view.patches import pieces_of, signed
from cleveragents.workspace import open_workspace
from tests.in_process import Yard, cli, die_while, edit, execute
from tests.web.visitor import Visitor, rows, words

TEXT = """
steps:
  - id: head
    run: "echo agent > a.txt; cat old.txt >> a.txt"
    decision: {question: where, chosen: top}
  - {id: end, run: "echo end >> a.txt"}
"""


def test_lines_are_followed_from_one_text_to_the_next() -> None:
    way = [
        (b"1\n2\n3\n", False),
        (b"1\nagent\n3\n", False),
        (b"hand\n1\nagent\n", True),
        (b"hand\n1\nagent\nagent\n", False),
    ]
    assert manual_lines(way) == ByHand(added=((1, 1),), removed=((3, 3),))
    assert manual_lines([(b"", False), (b"1\n2\n", True)]) == ByHand(added=((1, 2),))
    # What an edit wrote and the agent wrote over is the agent's.
    assert manual_lines([(b"1\n", False), (b"x\n", True), (b"y\n", False)]).added == ()


def test_a_diff_says_who_changed_each_file_and_of_those_of_both_each_line(yard: Yard) -> None:
    (yard.app / "old.txt").write_text("".join(f"{n}\n" for n in range(20)))
    with open_workspace() as ws:
        plan = yard.done(ws, TEXT)
        path = edit(plan, "a.txt", "by hand\n")
        path.write_text("agent\n0\nby hand\n" + "".join(f"{n}\n" for n in range(1, 20)) + "end\n")
        plan.checkpoint("kept")
        edit(plan, "mine.txt")
    told = {file["path"]: file for file in cli("plan", "diff", "yard", "--json").data["files"]}
    assert told["a.txt"]["owner"] == "both"
    assert told["a.txt"]["by_hand"] == {"added": [[3, 3]], "removed": []}
    assert (told["mine.txt"]["owner"], told["mine.txt"]["by_hand"]) == ("somebody else", None)
    page = Visitor().get("/plans/yard/diff")
    assert "1 + agent 2 + 0 3 + by hand you 4 + 1" in words(page)
    assert page.count('class="who"') == 2
    assert "a.txt agent: top , end , and you" in words(page)
    assert "1 + by hand you" in words(page)
    edited = {"del": False, "add": True}
    piece = pieces_of("diff --git a/x b/x\n@@ -1 +1 @@\n-old\n+new\n")[0]
    assert {line.kind: line.is_first for line in signed(piece, lambda _: True).lines[1:]} == edited
    side = Visitor().get("/plans/yard/diff?lines=side")
    assert re.search(r'class="add mine">3</td><td class="add mine">by hand <span', side)
    # Before the edit there is nothing of it.
    cut = cli("plan", "diff", "yard", "--to", "last", "--from", "kept", "--json").data["files"]
    assert cut == []
    early = cli("plan", "diff", "yard", "--to", "head", "--json").data["files"]
    assert [(one["path"], one["owner"]) for one in early] == [("a.txt", "agent")]


def test_what_a_step_left_whose_process_died_is_not_the_persons(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        edit(plan, "residue.txt")
        last = ws.ctx.store.plans.steps(plan.plan_id)[-1]
        running = msgspec.structs.replace(last, state=StepState.PROCESSING)
        die_while(ws, plan, steps=(running,))
        with plan.compare() as found:
            told = {file.path: file.owner for file in with_owners(found).files}
    assert told["residue.txt"] is Owner.AGENT


def database(yard: Yard) -> None:
    with sqlite3.connect(yard.top / "shop.db") as db:
        db.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
        db.execute("INSERT INTO users VALUES (1, 'Ada'), (2, 'Grace')")
        db.execute("CREATE TABLE post (id INTEGER PRIMARY KEY, title TEXT)")
        db.execute("INSERT INTO post VALUES (1, 'old'), (2, 'same')")
    db.close()


DATA = """
name: data
resources:
  db: {kind: sqlite, path: shop.db}
  app: {kind: fs-directory, path: app}
steps:
  - {id: rename, tool: sql, on: db, with: {script: "ALTER TABLE users RENAME TO people"}}
  - {id: emails, tool: sql, on: db, with: {script: "CREATE TABLE email (at TEXT);
      INSERT INTO email VALUES ('a'), ('b')"}}
"""


def test_each_table_has_a_card_with_who_changed_it(yard: Yard) -> None:
    database(yard)
    with open_workspace() as ws:
        plan = ws.use(yard.plan(DATA))
        execute(ws, plan)
        with sqlite3.connect(plan.sandboxes["db"]) as db:
            db.execute("UPDATE post SET title = 'mine' WHERE id = 1")
        db.close()
    page = words(Visitor().get("/plans/data/diff"))
    assert "db 3 tables email new, 2 rows people was users post , with your edits 1 row" in page
    assert "db table email agent: emails new, 2 rows Table email is new, 2 rows." in page
    assert "db table people agent: rename renamed Table users is now people." in page
    assert "db table post you 1 of 2 rows change id title ± 1 old mine" in page
    undo = words(Visitor().get("/plans/data/undo"))
    assert "db 1 row of post 1 0 0" in undo
    assert "Undo your edits You have edited since the last operation" in undo
    apply = words(Visitor().get("/plans/data/apply"))
    assert "db 1 path Table email is new, 2 rows Table users is now people Table post: 1" in apply
    assert "Repositories" not in apply
    assert "Undo does not revert this" in apply
    back = words(Visitor().get("/plans/data/rollback?to=first"))
    assert "db table email goes, with 2 rows, table people is users again, 1 row of post" in back


MIXED = """
name: data
resources: {db: {kind: sqlite, path: shop.db}}
steps:
  - {id: rename, tool: sql, on: db, with: {script: "ALTER TABLE users RENAME TO people;
      ALTER TABLE people ADD COLUMN active DEFAULT 1; INSERT INTO people VALUES (3, 'Edsger', 1);
      CREATE TABLE tag (name TEXT)"}}
  - {id: posts, tool: sql, on: db, with: {script: "UPDATE post SET title = 'new' WHERE id = 1;
      DELETE FROM log WHERE line = 'a'"}}
"""


def mixed(yard: Yard) -> None:
    """A person changed rows of tables between two steps that change them, and after these."""
    database(yard)
    with sqlite3.connect(yard.top / "shop.db") as db:
        db.execute("CREATE TABLE log (line TEXT)")
        db.execute("INSERT INTO log VALUES ('a'), ('b')")
    db.close()

    def by_hand(path: str, *statements: str) -> None:
        with sqlite3.connect(path) as db:
            for statement in statements:
                db.execute(statement)
        db.close()

    with open_workspace() as ws:
        plan = ws.use(yard.plan(MIXED))
        execute(ws, plan)
        where = str(plan.sandboxes["db"])
        plan.rollback("rename")
        by_hand(
            where,
            "UPDATE people SET name = 'Augusta' WHERE id = 1",
            "UPDATE people SET name = 'E. W.' WHERE id = 3",
            "INSERT INTO log VALUES ('c')",
        )
        plan.resume()
        by_hand(where, "UPDATE post SET title = title || '!' WHERE id = 2")


def test_of_a_table_that_both_changed_each_row_says_whose_it_is(yard: Yard) -> None:
    mixed(yard)
    (file,) = cli("plan", "diff", "data", "--json").data["files"]
    assert file["owner"] == "both"
    told = {
        table["name"]: [(row["after"] or row["before"], row["owner"]) for row in table["rows"]]
        for table in file["tables"]
    }
    assert told == {
        "people": [([1, "Augusta", 1], "somebody else"), ([3, "E. W.", 1], "both")],
        "post": [([1, "new"], "agent"), ([2, "same!"], "somebody else")],
        "log": [(["a"], "agent"), (["c"], "somebody else")],
        "tag": [],
    }
    page = words(Visitor().get("/plans/data/diff"))
    assert "change id name active ± 1 Ada Augusta 1 you + 3 E. W. 1 agent and you" in page
    assert "± 1 old new ± 2 same same! you" in page
    assert re.search(r"\W a \+ c you", page)
    line = words(Visitor().get("/plans/data?since=1"))
    assert "You edited shop.db since Table post: 1 row changed. Not in a checkpoint yet" in line
    # Before the edits there is nothing of them.
    early = cli("plan", "diff", "data", "--to", "rename", "--json").data["files"]
    owners = {row["owner"] for table in early[0]["tables"] for row in table["rows"]}
    assert owners == {"agent"}


def test_rows_that_cannot_be_followed_are_nobodys(yard: Yard) -> None:
    mixed(yard)
    with open_workspace() as ws, ws.find("data").compare() as found:
        (file,) = with_owners(found).files
        table = next(one for one in file.tables if one.name == "post")
        long = msgspec.structs.replace(
            table, rows=(RowChange(action="added", after=("x'00'", "y")),)
        )
        with ws.ctx.scratch() as scratch:
            assert rows_in(f"{scratch}/nothing", (table,)) == {}
            part = found.parts[0]
            part.sandbox.export(part.after, None, scratch)
            path = f"{scratch}/shop.db"
            assert rows_in(path, (table,))["post", 1] == {"id": 2, "title": "same!"}
            assert rows_in(path, (long,)) == {}
            other = msgspec.structs.replace(table, name="other", key=())
            assert rows_in(path, (other,)) == {}


def test_edits_are_a_persons_whatever_was_corrected_or_undone_around_them(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws, TEXT)
        edit(plan, "mine.txt")
        plan.rollback("head")
        plan.undo()
        decision = ws.ctx.store.plans.steps(plan.plan_id)[1].decision_id
        edit(plan, "later.txt")
        plan.correct(decision or "", "another end")
        with plan.compare() as found:
            told = {file.path: file.owner for file in with_owners(found).files}
    assert told == {
        "a.txt": Owner.AGENT,
        "mine.txt": Owner.OTHERS,
        "later.txt": Owner.OTHERS,
    }
    kept = next(row for row in rows(Visitor().get("/plans/yard")) if "mine.txt" in row)
    assert "Set aside" not in kept


def test_a_plan_says_how_much_it_began_with(yard: Yard) -> None:
    database(yard)
    with open_workspace() as ws:
        plan = ws.use(yard.plan(DATA))
        execute(ws, plan)
        first = ws.ctx.store.checkpoints.groups(plan.plan_id)[0].group_id
    held = "2 tables with 4 rows in db and 1 file in app, as you had them"
    visitor = Visitor()
    assert "db and app, as you had them" in rows(visitor.get("/plans/data"))[0]
    assert words(visitor.get(f"/plans/data/lines?rows={first}")) == held
    assert held in rows(visitor.get("/plans/data"))[0]
    shown = cli("plan", "checkpoint", "show", "data", "first", "--json").data["checkpoints"]
    assert {one["resource"]: one["contents"] for one in shown} == {
        "db": {"tables": 2, "rows": 4},
        "app": {"files": 1},
    }
    told = cli("plan", "checkpoint", "show", "data", "first").stdout
    assert "2 tables, 4 rows, " in told
    assert "1 file, " in told
    assert re.search(r"type +pre_execute$", told, re.M)


def table(**change: object) -> TableView:
    file = FileDiff(path="x.db", resource="db", status="changed", insertions=0, deletions=0)
    found = TableChange(**{"name": "t", "kind": "table", "status": "changed", **change})  # type: ignore[arg-type]
    return TableView(file=file, table=found, who=Writers())


@pytest.mark.parametrize(
    ("change", "short", "right"),
    [
        ({"status": "added", "rows_after": 2}, "new, 2 rows", "new, 2 rows"),
        ({"status": "added", "kind": "view"}, "new", "new"),
        ({"status": "removed", "rows_before": 2}, "gone", "gone"),
        ({"renamed_from": "u"}, "was u", "renamed"),
        (
            {"rows_added": 1, "rows_removed": 1, "rows_before": 4, "rows_after": 4},
            "1 row",
            "1 of 4 rows",
        ),
        (
            {"rows_added": 2, "rows_removed": 0, "rows_before": 4, "rows_after": 6},
            "2 rows",
            "+2 rows",
        ),
        ({"rows_removed": 1, "rows_before": 4, "rows_after": 3}, "1 row", "-1 row"),
        ({"definition_changed": True}, "definition", "definition"),
    ],
)
def test_what_stands_beside_a_table(change: dict[str, object], short: str, right: str) -> None:
    one = table(**change)
    assert (one.short, one.right) == (short, right)


def test_paths_and_modes_for_people() -> None:
    def view(path: str) -> FileView:
        file = FileDiff(path=path, resource="app", status="added", insertions=1, deletions=0)
        return FileView(file=file, piece=None, who=Writers(), pictures=None)

    assert view("a/b.py").short == "a/b.py"
    long = view("examples/tutorial/flaskr/templates/auth/register.html")
    assert long.short == "…/templates/auth/register.html"
    assert view("x" * 60).short == "x" * 60
    assert (shown_mode("100644"), shown_mode("100755")) == ("rw-r--r--", "rwxr-xr-x")
    assert mode_words(("100644", "100755")) == ": it may be executed"
    assert mode_words(("100755", "100644")) == ": it may not be executed any more"
    assert mode_words(("100644", "100600")) == ""


def test_what_is_no_database_holds_nothing_that_can_be_counted(yard: Yard) -> None:
    path = yard.top / "x"
    path.write_text("no database, but more than a hundred bytes of it: " * 3)
    assert table_counts(str(path)) == {}


def test_many_files_of_a_folder_are_one_card_but_for_those_of_a_person(yard: Yard) -> None:
    make = "mkdir -p docs src; for n in $(seq 30); do echo $n > docs/$n.rst; done; echo 1 > src/x"
    with open_workspace() as ws:
        plan = yard.done(ws, f'steps: [{{id: many, run: "{make}"}}]')
        edit(plan, "docs/7.rst")
    page = Visitor().get("/plans/yard/diff")
    assert '<details class="file sheet folder" id="d-app-docs-">' in page
    page = words(page)
    assert "docs/, 29 files +29" in page
    assert "app docs/ , 29 files agent: many +29" in page
    assert "added" not in page
    assert "All 31 paths , 1 with your edits app 31 files +31" in page
    assert "app docs/ 7.rst agent: many , and you +1" in page
    assert "app src/ x agent: many +1" in page


def test_the_small_line_shows_what_is_compared(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        early = plan.group("early").group_id
    visitor = Visitor()
    whole, part = (
        re.search(r'class="range" d="M([\d.]+) 22v4H([\d.]+)v-4"', visitor.get(address))
        for address in ("/plans/yard/diff", f"/plans/yard/diff?from={early}")
    )
    assert whole
    assert part
    assert float(whole[1]) < float(part[1])
    assert whole[2] == part[2]
    # A mark that there is no room for is where the cut is.
    line = mini([Sign("a")] * 40, span=(0, 20))
    assert line.count("<circle") == 14
    assert 'class="range" d="M6 22v4H' in line
