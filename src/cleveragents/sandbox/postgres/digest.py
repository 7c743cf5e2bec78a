"""Content of a database as names and hashes: equal databases have equal digests.

Each row adds two 64-bit hashes of its text, so the order of rows does not matter. The schema is one
hash over the system catalogs, without what VACUUM and ANALYZE change.
Clones keep object ids, so a clone has its origin's digest.
"""

from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from cleveragents import codec
from cleveragents.errors import CheckpointFailed
from cleveragents.sandbox.postgres.server import one, said

if TYPE_CHECKING:
    from psycopg import Connection

SCHEMA = "(schema)"
LARGE_OBJECTS = "(large objects)"
VOLATILE: dict[str, tuple[str, ...]] = {
    "pg_class": (
        "relfilenode", "relpages", "reltuples", "relallvisible", "relallfrozen", "relhasindex",
        "relhasrules", "relhastriggers", "relhassubclass", "relfrozenxid", "relminmxid",
    ),
    "pg_index": ("indcheckxmin",),
    "pg_attribute": ("attcacheoff",),
}  # fmt: skip
"""Columns that change by themselves."""
UNREAD = ("pg_statistic", "pg_statistic_ext_data", "pg_largeobject", "pg_user_mapping")
"""What ANALYZE fills is no state; what only a superuser may read is looked at in another way."""
BUILT_IN = ("pg_rewrite", "pg_operator", "pg_collation", "pg_amop", "pg_amproc", "pg_conversion")
"""Where what every database has by itself cannot be changed; only other rows count."""
FIRST_OWN_OID = 16384
_SETTINGS = (
    "SET LOCAL search_path = ''",
    "SET LOCAL row_security = off",
    "SET LOCAL extra_float_digits = 3",
    "SET LOCAL datestyle = 'ISO, YMD'",
    "SET LOCAL intervalstyle = 'postgres'",
    "SET LOCAL timezone = 'UTC'",
    "SET LOCAL bytea_output = 'hex'",
    "SET LOCAL xmloption = 'content'",
    "SET LOCAL lc_monetary = 'C'",
    "SET LOCAL jit = off",
    "SET LOCAL statement_timeout = 0",
)
_SUMS = (
    "SELECT count(*), coalesce(sum(hashtextextended(line, 0)), 0)::text,"
    " coalesce(sum(hashtextextended(line, 1)), 0)::text FROM ({}) AS lines"
)
_RELATIONS = """
SELECT c.oid::int8, c.relkind::text, quote_ident(n.nspname) || '.' || quote_ident(c.relname),
  (SELECT string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull),
     ',' ORDER BY a.attnum) FROM pg_attribute a
   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'm', 'S') AND c.relpersistence <> 't' AND c.relispopulated
  AND n.nspname NOT IN ('pg_catalog', 'pg_toast') AND c.oid >= 16384
ORDER BY 3
"""
_CATALOGS = """
SELECT c.relname, array_agg(quote_ident(a.attname) ORDER BY a.attnum)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind = 'r' AND NOT c.relisshared
  AND a.attnum > 0 AND NOT a.attisdropped AND c.relname <> ALL (%s)
GROUP BY c.relname ORDER BY c.relname
"""

Manifest = dict[str, str]
"""Name -> `rows:N:hash` of a table, `at:N` of a sequence, and the two entries in brackets."""


def encoded(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest, order="sorted")


def decoded(data: bytes) -> Manifest:
    return codec.from_json(data, Manifest)


def advanced_sequences(before: Manifest, after: Manifest) -> set[str]:
    """Sequences that only advanced.

    A server does that when it crashes, because it logs 32 values ahead; and a value taken and
    thrown away is no change of content either.
    """
    return {
        path
        for path, text in after.items()
        if (now := _place(text)) is not None
        and (then := _place(before.get(path, ""))) is not None
        and then < now
    }


def _place(text: str) -> tuple[int, bool] | None:
    """The position of a sequence, and whether that value was handed out."""
    kind, _, value = text.partition(":")
    number, _, unused = value.partition(" ")
    return (int(number), not unused) if kind == "at" else None


def set_sequences(db: "Connection[Any]", places: Manifest) -> None:
    """Set sequences to these positions."""
    for path, text in places.items():
        place = _place(text)
        assert place is not None
        db.execute(b"SELECT setval(%s::regclass, %s, %s)", (path, *place))


def digest(db: "Connection[Any]") -> Manifest:
    """The digest of this connection's database at one moment."""
    from psycopg import IsolationLevel, errors

    db.isolation_level = IsolationLevel.REPEATABLE_READ
    db.read_only = True
    try:
        with db.transaction():
            for statement in _SETTINGS:
                db.execute(statement.encode())
            return _read(db)
    except errors.InsufficientPrivilege as error:
        role = one(db, "SELECT current_user")[0]
        raise CheckpointFailed(
            f"role {role!r} cannot read all of database {db.info.dbname!r}: {said(error)}",
            f"GRANT pg_read_all_data TO {role}, or let it own what is in the database",
        ) from error


def _read(db: "Connection[Any]") -> Manifest:
    found: Manifest = {}
    for _, kind, name, shape in db.execute(_RELATIONS.encode()).fetchall():
        if kind == "S":
            value, called = one(db, f"SELECT last_value, is_called FROM {name}")
            found[name] = f"at:{value}{'' if called else ' not used yet'}"
        else:
            only = "ONLY " if kind == "r" else ""
            found[name] = _rows(db, f"SELECT (r.*)::text AS line FROM {only}{name} AS r", shape)
    found[SCHEMA] = _schema(db)
    return found | _large_objects(db)


def _rows(db: "Connection[Any]", lines: str, shape: str | None = "") -> str:
    count, first, second = one(db, _SUMS.format(f"{lines} OFFSET 0"))
    return f"rows:{count}:{blake3(f'{first} {second} {shape}'.encode()).hexdigest()[:32]}"


def _schema(db: "Connection[Any]") -> str:
    parts: list[str] = []
    for name, columns in db.execute(_CATALOGS.encode(), (list(UNREAD),)).fetchall():
        kept = ", ".join(column for column in columns if column not in VOLATILE.get(name, ()))
        # A temporary table leaves an empty namespace behind; that is no change.
        where = r"WHERE nspname !~ '^pg_(toast_)?temp_'" if name == "pg_namespace" else ""
        where = f"WHERE oid >= {FIRST_OWN_OID}" if name in BUILT_IN else where
        parts.append(_rows(db, f"SELECT ROW({kept})::text AS line FROM pg_catalog.{name} {where}"))
    parts.append(_rows(db, "SELECT (r.*)::text AS line FROM pg_catalog.pg_user_mappings AS r"))
    return f"schema:{blake3(' '.join(parts).encode()).hexdigest()[:32]}"


def _large_objects(db: "Connection[Any]") -> Manifest:
    if one(db, "SELECT 1 FROM pg_largeobject_metadata LIMIT 1") is None:
        return {}
    lines = (
        "SELECT concat_ws(' ', oid, lomowner, lomacl, sha256(lo_get(oid))) AS line"
        " FROM pg_largeobject_metadata"
    )
    return {LARGE_OBJECTS: _rows(db, lines)}
