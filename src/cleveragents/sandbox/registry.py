"""The class for each kind and strategy: built in, or registered by others."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from cleveragents.errors import UsageError
from cleveragents.model.plan_spec import PlanSpec, ResourceSpec
from cleveragents.model.resource import Resource
from cleveragents.sandbox.protocol import Place, Sandbox
from cleveragents.sandbox.traits import Traits

ENTRY_POINTS = "cleveragents.sandboxes"
"""Third parties register `kind:strategy = module:Class` here."""
BUILT_IN: dict[tuple[str, str], str] = {
    ("git-checkout", "git_worktree"): "cleveragents.sandbox.git.worktree:GitWorktree",
    ("git-checkout", "copy_on_write"): "cleveragents.sandbox.copy_on_write:GitCopy",
    ("git-checkout", "in_place"): "cleveragents.sandbox.git.in_place:GitInPlace",
    ("git-checkout", "none"): "cleveragents.sandbox.none:NoSandbox",
    ("git-remote", "clone"): "cleveragents.sandbox.git.remote:GitRemote",
    ("fs-directory", "copy_on_write"): "cleveragents.sandbox.copy_on_write:CopyOnWrite",
    ("fs-directory", "in_place"): "cleveragents.sandbox.in_place:DirectoryInPlace",
    ("fs-directory", "none"): "cleveragents.sandbox.none:NoSandbox",
    ("sqlite", "snapshot"): "cleveragents.sandbox.sqlite.snapshot:SqliteSnapshot",
    ("sqlite", "in_place"): "cleveragents.sandbox.sqlite.in_place:SqliteInPlace",
    ("sqlite", "none"): "cleveragents.sandbox.none:NoSandbox",
    ("postgres", "snapshot"): "cleveragents.sandbox.postgres.snapshot:PostgresSnapshot",
    (
        "postgres",
        "transaction_rollback",
    ): "cleveragents.sandbox.postgres.transaction:TransactionRollback",
}
ALIASES = {"filesystem_copy": "copy_on_write"}


def open_sandbox(place: Place) -> Sandbox:
    return factory(place.resource.kind, place.resource.strategy)(place)


def kinds() -> dict[str, tuple[str, ...]]:
    """Kind -> its strategies, the default first; includes third parties'."""
    found: dict[str, tuple[str, ...]] = {}
    for kind, strategy in (*BUILT_IN, *registered()):
        found[kind] = (*found.get(kind, ()), strategy)
    found["fs-directory"] = (*found["fs-directory"], *ALIASES)
    return found


def problems_of_kinds(spec: PlanSpec, resources: Sequence[ResourceSpec]) -> list[str]:
    """Problems that keep the plan from running, found by the kinds of these resources."""
    problems: list[str] = []
    for kind in dict.fromkeys(item.kind for item in resources):
        if (ask := traits_of(kind).problems) is not None:
            problems += ask(spec, [item for item in resources if item.kind == kind])
    return problems


def traits_of(kind: str) -> Traits:
    """What a kind declares; defaults for one that is no longer installed."""
    return _declared(kind, _default_strategy(kind), "traits", Traits())


def has_copy(resource: Resource | ResourceSpec) -> bool:
    """Whether the sandbox is a private copy, which we mark and may remove."""
    return _declared(resource.kind, _strategy_of(resource), "has_copy", True)


def is_captured(resource: Resource | ResourceSpec) -> bool:
    """Whether it has checkpoints to roll back to."""
    return _declared(resource.kind, _strategy_of(resource), "is_captured", True)


def path_in(root: str, resource: Resource) -> str:
    """The path that tools get for a sandbox with that root."""
    own = _declared(resource.kind, resource.strategy, "path_in", None)
    if own is not None:
        return own(root, resource)
    is_file = traits_of(resource.kind).is_file_at(resource.path)
    return f"{root}/{os.path.basename(resource.path)}" if is_file else root


def _strategy_of(resource: Resource | ResourceSpec) -> str:
    given = resource.strategy or _default_strategy(resource.kind)
    return ALIASES.get(given, given)


def _default_strategy(kind: str) -> str:
    """The kind's first strategy. Entry points are slow to read: only for kinds not built in."""
    own = next((strategy for known, strategy in BUILT_IN if known == kind), None)
    return own or next((strategy for known, strategy in registered() if known == kind), "")


def _declared(kind: str, strategy: str, name: str, default: Any) -> Any:
    try:
        return getattr(factory(kind, strategy), name, default)
    except (UsageError, ImportError, AttributeError):
        return default  # opening its sandbox is what tells


def factory(kind: str, strategy: str) -> Callable[[Place], Sandbox]:
    target = BUILT_IN.get((kind, strategy)) or registered().get((kind, strategy))
    if target is None:
        raise UsageError(f"no sandbox for {kind} with strategy {strategy!r}")
    return _load(target)


def _load(target: str) -> Callable[..., Any]:
    from importlib import import_module

    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


@functools.cache
def registered() -> dict[tuple[str, str], str]:
    from importlib.metadata import entry_points

    found: dict[tuple[str, str], str] = {}
    for point in entry_points(group=ENTRY_POINTS):
        kind, _, strategy = point.name.partition(":")
        found[kind, strategy or "default"] = point.value
    return found
