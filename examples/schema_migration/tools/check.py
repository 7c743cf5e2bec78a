"""What has to hold afterwards; a step, and it changes nothing."""

import sqlite3
import sys

db = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
columns = [row[1] for row in db.execute("PRAGMA table_info(people)")]
assert columns == ["id", "email", "given", "family"], columns
empty = db.execute("SELECT count(*) FROM people WHERE given = '' OR family = ''").fetchone()[0]
assert empty == 0, f"{empty} people without a name"
print("ok")
