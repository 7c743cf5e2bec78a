"""Which class makes which sandbox: the built-in ones, and what others registered."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from cleveragents.errors import UsageError
from cleveragents.model.plan_spec import PlanSpec, ResourceSpec
from cleveragents.sandbox.protocol import Place, Sandbox

ENTRY_POINTS = "cleveragents.sandboxes"
"""Third parties register `kind:strategy = module:Class` here."""
BUILT_IN: dict[tuple[str, str], str] = {
    ("git-checkout", "git_worktree"): "cleveragents.sandbox.git.worktree:GitWorktree",
    ("git-checkout", "copy_on_write"): "cleveragents.sandbox.copy_on_write:GitCopy",
    ("git-checkout", "none"): "cleveragents.sandbox.none:NoSandbox",
    ("fs-directory", "copy_on_write"): "cleveragents.sandbox.copy_on_write:CopyOnWrite",
    ("fs-directory", "none"): "cleveragents.sandbox.none:NoSandbox",
    ("sqlite", "snapshot"): "cleveragents.sandbox.sqlite.snapshot:SqliteSnapshot",
    ("sqlite", "none"): "cleveragents.sandbox.none:NoSandbox",
    ("postgres", "snapshot"): "cleveragents.sandbox.postgres.snapshot:PostgresSnapshot",
    (
        "postgres",
        "transaction_rollback",
    ): "cleveragents.sandbox.postgres.transaction:TransactionRollback",
}
PREFLIGHTS = {"postgres": "cleveragents.sandbox.postgres.preflight:problems_of"}
"""Kinds that ask something of a plan before it starts: called with its specification and theirs."""
ALIASES = {"filesystem_copy": "copy_on_write"}


def open_sandbox(place: Place) -> Sandbox:
    return _factory(place.resource.kind, place.resource.strategy)(place)


def kinds() -> dict[str, tuple[str, ...]]:
    """Kind -> its strategies, the default first; third parties' included."""
    found: dict[str, tuple[str, ...]] = {}
    for kind, strategy in (*BUILT_IN, *_registered()):
        found[kind] = (*found.get(kind, ()), strategy)
    found["fs-directory"] = (*found["fs-directory"], *ALIASES)
    return found


def problems_of_kinds(spec: PlanSpec, resources: Sequence[ResourceSpec]) -> list[str]:
    """What keeps the plan from running, as the kinds of these resources see it."""
    problems: list[str] = []
    for kind, target in PREFLIGHTS.items():
        if own := [item for item in resources if item.kind == kind]:
            problems += _load(target)(spec, own)
    return problems


def _factory(kind: str, strategy: str) -> Callable[[Place], Sandbox]:
    target = BUILT_IN.get((kind, strategy)) or _registered().get((kind, strategy))
    if target is None:
        raise UsageError(f"no sandbox for {kind} with strategy {strategy!r}")
    return _load(target)


def _load(target: str) -> Callable[..., Any]:
    from importlib import import_module

    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


@functools.cache
def _registered() -> dict[tuple[str, str], str]:
    from importlib.metadata import entry_points

    found: dict[tuple[str, str], str] = {}
    for point in entry_points(group=ENTRY_POINTS):
        kind, _, strategy = point.name.partition(":")
        found[kind, strategy or "default"] = point.value
    return found
