"""Databases of ours on a server: their names, and which there are."""

from cleveragents.sandbox.postgres import server
from cleveragents.sandbox.postgres.address import shown
from cleveragents.sandbox.traits import Left

__all__ = ["PREFIX", "drop", "ours", "shown", "working_name"]

PREFIX = "agents_"


def working_name(resource_id: str) -> str:
    return PREFIX + resource_id.lower()


def ours(address: str) -> list[Left]:
    with server.Server(address).maintenance() as db:
        return [Left(found.name, found.comment) for found in server.databases(db, PREFIX)]


def drop(address: str, name: str) -> None:
    with server.Server(address).maintenance() as db:
        server.drop(db, name)
