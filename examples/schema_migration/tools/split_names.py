"""Fill the two new columns from the one old."""

import sqlite3
import sys

with sqlite3.connect(sys.argv[1]) as db:
    for number, name in db.execute("SELECT id, name FROM people").fetchall():
        given, _, family = name.rpartition(" ")
        db.execute("UPDATE people SET given = ?, family = ? WHERE id = ?", (given, family, number))
