"""Frozen values to rows and back: a column per field, JSON for fields that are not scalars.

The store decides the order: ordered rows get a number at insert, `seq`, and ids are only names. A
clock that steps back changes no order.
"""

from enum import Enum
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from cleveragents import codec
from cleveragents.errors import StoreError
from cleveragents.store.database import Database

_encode = msgspec.json.Encoder().encode
RESTORE = "agents check shows what else is damaged; restore the store from a backup"
_SCALARS = (str, int, float, bool, bytes, NoneType)


SERIES = ("decisions", "checkpoint_groups", "tool_calls", "effects")
"""Tables whose rows are compared with each other take their numbers from one series."""
_LATEST = (f"coalesce((SELECT max(seq) FROM {table}), 0)" for table in SERIES)
NEXT = f"1 + max({', '.join(_LATEST)})"

T = TypeVar("T", bound=msgspec.Struct)

ALL: "list[Table[Any]]" = []
"""For reading every row."""


class Table(Generic[T]):
    """Reads and writes one Struct type as the rows of one table."""

    def __init__(self, name: str, model: type[T], keys: tuple[str, ...], skip: str = "") -> None:
        self.name = name
        self.model = model
        hints = get_type_hints(model)
        self.columns: tuple[str, ...] = tuple(f for f in model.__struct_fields__ if f != skip)
        self._hints = tuple(hints[field] for field in self.columns)
        self._json = tuple(not _is_scalar(hints[field]) for field in self.columns)
        pairs = zip(self.columns, self._json, strict=True)
        self._written = tuple(pair for pair in pairs if pair[0] != "seq")
        self.selected: str = ", ".join(f'"{column}"' for column in self.columns)
        quoted = [f'"{column}"' for column, _ in self._written]
        marks = ["?"] * len(quoted)
        updates = ", ".join(f"{q} = excluded.{q}" for q in quoted if q.strip('"') not in keys)
        if name in SERIES:
            quoted, marks = [*quoted, "seq"], [*marks, NEXT]
        self.insert: str = f'INSERT INTO "{name}" ({", ".join(quoted)}) VALUES ({", ".join(marks)})'
        self.upsert: str = f"{self.insert} ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {updates}"
        ALL.append(self)

    def row(self, value: T) -> tuple[Any, ...]:
        return tuple([_stored(getattr(value, name), js) for name, js in self._written])

    def changes(self, before: T | None, after: T) -> tuple[str, list[Any]]:
        """`SET` clause and values for the columns that differ; `before` None: for all."""
        changed = [
            (name, _stored(new, js))
            for name, js in self._written
            if (new := getattr(after, name)) is not getattr(before, name, self)
        ]
        return ", ".join([f'"{name}" = ?' for name, _ in changed]), [new for _, new in changed]

    def value(self, row: tuple[Any, ...], **extra: Any) -> T:
        try:
            data: dict[str, Any] = {
                column: msgspec.json.decode(item) if as_json else item
                for column, as_json, item in zip(self.columns, self._json, row, strict=True)
            }
            return codec.convert(data | extra, self.model, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            said = f"the store has a row that cannot be read: {self.name}: {error}"
            raise StoreError(said, RESTORE) from error

    def unreadable(self, db: Database) -> list[str]:
        """Rows that no command could read; only damage causes that."""
        found: dict[str, None] = {}
        for row in db.execute(f'SELECT {self.selected} FROM "{self.name}"'):
            columns = zip(self.columns, self._json, self._hints, row, strict=True)
            for column, as_json, hint, item in columns:
                try:
                    value = msgspec.json.decode(item) if as_json else item
                    if hint is bytes and not isinstance(item, bytes):
                        raise msgspec.ValidationError("Expected `bytes`")
                    codec.convert(value, hint, strict=False)
                except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
                    found[f"a row of {self.name} cannot be read: {column}: {error}"] = None
        return [*found]

    def select(self, db: Database, where: str, parameters: tuple[Any, ...] = ()) -> list[T]:
        found = db.execute(f'SELECT {self.selected} FROM "{self.name}" {where}', parameters)
        return [self.value(row) for row in found]


def _stored(item: Any, as_json: bool) -> Any:
    if as_json:
        return _encode(item).decode()
    if isinstance(item, Enum):
        return item.value
    return int(item) if isinstance(item, bool) else item


def _is_scalar(hint: Any) -> bool:
    if isinstance(hint, type):
        return issubclass(hint, (*_SCALARS, Enum))
    if get_origin(hint) is UnionType:
        return all(_is_scalar(part) for part in get_args(hint))
    return False
