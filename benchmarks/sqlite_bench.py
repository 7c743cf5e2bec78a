"""One row changed in a large SQLite file, beside one run of SQLite's backup API in the same run.

`python -m benchmarks.sqlite_bench 1200` does it by hand with a file of 1,200 MB and prints figures.
"""

import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from cleveragents import open_workspace

ROUNDS = 5


def make_database(path, megabytes):
    """Random rows: nothing of it is equal, so nothing is stored once for twice."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("PRAGMA synchronous=OFF")
        db.execute("CREATE TABLE rows(id INTEGER PRIMARY KEY, turn INTEGER, body BLOB)")
        db.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO rows SELECT i, 0, randomblob(3600) FROM n",
            (megabytes * 256,),
        )


class LargeDatabase:
    """A plan over such a file; the measured thing and the backup take turns."""

    def __init__(self, megabytes):
        self.folder = Path(tempfile.mkdtemp())
        self.live = self.folder / "live.db"
        make_database(self.live, megabytes)
        self.rows, self.turn = megabytes * 256, 0
        self._opened = open_workspace(str(self.folder / "store"))
        self.workspace = self._opened.__enter__()
        begin = time.perf_counter()
        self.plan = self.workspace.plan("large", {"db": {"kind": "sqlite", "path": str(self.live)}})
        self.step()
        self.first = time.perf_counter() - begin
        self.file = self.plan.sandboxes["db"]

    def step(self):
        """One `sql` step with its groups, before and after."""
        self.turn += 1
        row = self.turn * 7919 % self.rows + 1
        with self.plan.decision(f"turn {self.turn}") as decision:
            decision.call("sql", script=f"UPDATE rows SET turn = {self.turn} WHERE id = {row}")

    def foreign_step(self):
        """The same by a program that tells nobody which pages it wrote, then a checkpoint."""
        self.turn += 1
        with closing(sqlite3.connect(self.file)) as db, db:
            db.execute("UPDATE rows SET turn = ? WHERE id = ?", (self.turn, self.turn))
        begin = time.perf_counter()
        self.plan.checkpoint()
        return time.perf_counter() - begin

    def backup(self):
        target = self.folder / "backup.db"
        target.unlink(missing_ok=True)
        begin = time.perf_counter()
        with closing(sqlite3.connect(self.live)) as live, closing(sqlite3.connect(target)) as copy:
            copy.execute("PRAGMA synchronous=OFF")
            live.backup(copy)
        return time.perf_counter() - begin

    def measured(self, what):
        begin = time.perf_counter()
        what()
        return time.perf_counter() - begin

    def rollback(self):
        """To the group before the last step."""
        groups = self.plan.checkpoints()
        self.plan.rollback(groups[-2].checkpoint_id)

    def close(self):
        self._opened.__exit__(None, None, None)
        shutil.rmtree(self.folder)


class ChangedRow:
    timeout = 600

    def setup(self):
        self.world = LargeDatabase(256)

    def teardown(self):
        self.world.close()

    def time_step_with_its_groups(self):
        self.world.step()

    def time_step_then_rollback(self):
        self.world.step()
        self.world.rollback()

    def track_times_faster_than_backup(self):
        world = self.world
        ratios = [world.backup() / world.measured(world.step) for _ in range(ROUNDS)]
        return statistics.median(ratios)

    track_times_faster_than_backup.unit = "x"


def main(megabytes):
    world = LargeDatabase(megabytes)
    print(f"{megabytes} MB: first sandbox with its first step {world.first:.2f} s")
    turns = {
        "backup": world.backup,
        "step": lambda: world.measured(world.step),
        "rollback": lambda: world.measured(world.rollback),
        "step of a program": world.foreign_step,
    }
    figures = {name: ([], []) for name in turns}
    for _ in range(ROUNDS):
        for name, turn in turns.items():
            before = time.process_time()
            figures[name][0].append(turn())
            figures[name][1].append(time.process_time() - before)
    bases = [statistics.median(taken) for taken in figures["backup"]]
    for name, clocks in figures.items():
        for clock, base, taken in zip(("wall", "CPU"), bases, clocks, strict=True):
            middle = statistics.median(taken)
            shown = " ".join(f"{value:.3f}" for value in taken)
            print(f"{name}, {clock}: {middle * 1000:.1f} ms, {base / middle:.1f}x ({shown})")
    world.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
