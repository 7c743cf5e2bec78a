"""Stores from before the scripts: their stamp, and the upgrade of versions 1 to 4 to the baseline.

Every changed table is recreated with the baseline's own statement and filled from the columns that
both have, so no definition is written twice. New columns are empty or have a default.

They had no `seq`. A table is numbered in the order in which its rows were written; between the
tables of a series by their ids, unless a clock stepped back.
"""

import re
import sqlite3

STAMP = "alembic_version"
IDS = {
    "decisions": "decision_id",
    "checkpoint_groups": "group_id",
    "tool_calls": "call_id",
    "effects": "effect_id",
}
"""Tables of one series: their rows are compared with each other."""
_NAMED = re.compile(r'CREATE TABLE "?(\w+)"?')
SOURCES = """
INSERT OR IGNORE INTO history (plan_id, kind, entity_id, version, body)
    SELECT plan_id, 'source', '', 0,
        json_object('spec', json(spec), 'source_path', source_path, 'source_text', source_text)
    FROM plans
"""


def stamped(connection: sqlite3.Connection) -> int | None:
    """The version of a store from before `user_version`; None if it has none."""
    if not _columns(connection, "main", STAMP):
        return None
    row = connection.execute(f"SELECT version_num FROM {STAMP}").fetchone()
    return int(row[0]) if row else None


def remove_stamp(connection: sqlite3.Connection) -> None:
    connection.execute(f"DROP TABLE IF EXISTS {STAMP}")


def rebuild(connection: sqlite3.Connection, number: int, baseline: list[str]) -> None:
    """Upgrade a store of version 1 to 4 with the baseline's statements."""
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
    old = dict(found.fetchall())
    created = {name: text for text in baseline if (name := _table_of(text))}
    changed = {name for name, text in created.items() if _plain(old.get(name, "")) != _plain(text)}
    moved = [name for name in changed if name in old]
    for name in moved:
        rowid = "" if "WITHOUT ROWID" in old[name] else "rowid AS old_row, "
        connection.execute(f"CREATE TEMP TABLE old_{name} AS SELECT {rowid}* FROM {name}")
    _number_series(connection, [name for name in IDS if name in old])
    for name in moved:
        connection.execute(f"DROP TABLE {name}")
    _drop_indexes(connection)
    for text in baseline:
        if _table_of(text) not in created.keys() - changed:
            connection.execute(text)
    for name in moved:
        _copy(connection, name)
        connection.execute(f"DROP TABLE temp.old_{name}")
    connection.execute("DROP TABLE temp.series")
    if number < 3:
        connection.execute(SOURCES)


def _number_series(connection: sqlite3.Connection, tables: list[str]) -> None:
    """Number rows by id, but never before the row written earlier (a clock may step back)."""
    written = " UNION ALL ".join(
        f"SELECT '{name}' AS name, old_row,"
        f" max({IDS[name]}) OVER (ORDER BY old_row) AS latest FROM temp.old_{name}"
        for name in tables
    )
    connection.execute(
        "CREATE TEMP TABLE series AS SELECT name, old_row,"
        f" row_number() OVER (ORDER BY latest, old_row) AS seq FROM ({written})"
    )


def _copy(connection: sqlite3.Connection, name: str) -> None:
    had = _columns(connection, "temp", f"old_{name}")
    both = had & _columns(connection, "main", name)
    columns = ", ".join(f'"{column}"' for column in sorted(both))
    if name in IDS:
        connection.execute(
            f"INSERT INTO {name} (seq, {columns}) SELECT seq, {columns} FROM temp.old_{name}"
            f" JOIN temp.series USING (old_row) WHERE series.name = '{name}' ORDER BY seq"
        )
        return
    order = " ORDER BY old_row" if "old_row" in had else ""
    connection.execute(
        f"INSERT INTO {name} ({columns}) SELECT {columns} FROM temp.old_{name}{order}"
    )


def _drop_indexes(connection: sqlite3.Connection) -> None:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql != ''")
    for (name,) in found.fetchall():
        connection.execute(f"DROP INDEX {name}")


def _columns(connection: sqlite3.Connection, side: str, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA {side}.table_info('{table}')")}


def _table_of(statement: str) -> str:
    found = _NAMED.search(statement)
    return found[1] if found else ""


def _plain(statement: str) -> str:
    """The statement without differences between a script and SQLite's own copy of it."""
    text = re.sub(r"--.*", "", statement).replace('"', "").rstrip().rstrip(";")
    return " ".join(re.sub(r"\s*([(),])\s*", r" \1 ", text).split())
