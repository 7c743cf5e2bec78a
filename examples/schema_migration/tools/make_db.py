"""The database as it was before: two people share an address, written differently."""

import sqlite3
import sys

db = sqlite3.connect(sys.argv[1])
db.executescript("""
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL);
INSERT INTO people (name, email) VALUES
  ('Ada Lovelace', 'ada@example.org'),
  ('Grace Brewster Hopper', 'grace@example.org'),
  ('A. Lovelace', ' Ada@Example.org');
""")
