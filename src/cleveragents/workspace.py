"""The Python API, and the only place where anything is wired to anything."""

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from cleveragents.checkpoints import CheckpointService
from cleveragents.config import load_settings
from cleveragents.content import fsio
from cleveragents.content.packs import Packs
from cleveragents.context import Context, Talk, utc_now
from cleveragents.recovery import recover
from cleveragents.settings import Settings
from cleveragents.snapshots import CheckpointManager
from cleveragents.store import open_store


@contextmanager
def open_context(
    settings: Settings, *, talk: Talk | None = None, now: Callable[[], str] = utc_now
) -> Generator[tuple[Context, tuple[str, ...]]]:
    """Store, content, manager, service: built here, passed on, closed at the end.

    Gives the context and what recovery did on the way.
    """
    store = open_store(settings.home)
    try:
        directory = f"{settings.home}/content"
        fsio.make_private_dir(directory)
        packs = Packs(directory, store.objects, settings.content_budget)
        manager = CheckpointManager(store, packs, settings)
        service = CheckpointService(store, manager, settings, now)
        ctx = Context(
            settings=settings,
            store=store,
            manager=manager,
            checkpoints=service,
            talk=talk or Talk(),
            now=now,
        )
        try:
            yield ctx, recover(ctx)
        finally:
            manager.close()
            packs.close()
    finally:
        store.close()


def settings_here(home: str | None = None, overrides: Mapping[str, str] | None = None) -> Settings:
    """The settings in force for this directory and environment."""
    environ = dict(os.environ)
    if home is not None:
        environ["CLEVERAGENTS_HOME"] = home
    return load_settings(os.getcwd(), environ, overrides)
