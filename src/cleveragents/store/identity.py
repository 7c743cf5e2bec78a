"""The identity of a store, and whether it has been moved or copied.

A copy has its original's id and names the original's sandboxes in every row: only the place tells
them apart. A store in another place is opened read-only.
"""

import os

import msgspec

from cleveragents.model.resource import Owner


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    store_id: str
    home: str
    """Where it lies now."""
    made_at: str
    """Where it lay when it noted that; empty: it never did."""
    is_shared: bool = False
    """Several homes have its plans: its place is not what tells a copy."""

    @property
    def is_elsewhere(self) -> bool:
        if not self.made_at or self.made_at == self.home:
            return False
        try:
            return not os.path.samefile(self.made_at, self.home)
        except OSError:
            return True

    @property
    def owner(self) -> Owner:
        """What the marks of its sandboxes say; those of its original, until a copy is adopted."""
        home = "" if self.is_shared else self.made_at or self.home
        return Owner(store=self.store_id, home=home)

    @property
    def message(self) -> str:
        return f"this store was made at {self.made_at} and is now at {self.home}: it is only read"

    @property
    def hint(self) -> str:
        return (
            "if it was moved: agents doctor --adopt; if it is a copy: work with the original,"
            " whose sandboxes these are"
        )
