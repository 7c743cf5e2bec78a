"""`agents store`: set up, migrate and copy the store's database."""

import click
import msgspec

from cleveragents.cli.common import Options, command
from cleveragents.cli.render import Block, Panel, Reply, Table, Text
from cleveragents.cluster.submit import install_queue
from cleveragents.maintenance import shared
from cleveragents.model.units import plural
from cleveragents.workspace import settings_here


@command("store init", context=False)
def init(options: Options) -> Reply:
    """Create the store's tables in the database that store.url names."""
    settings = settings_here(overrides=options.settings)
    found = shared.init(settings)
    workers = install_queue(settings)
    return _reply(found, Text(f"the store at {found.where} is ready{workers}"))


@command("store status", context=False)
def status(options: Options) -> Reply:
    """Show where the store's rows are, its schema, and who works on plans."""
    return _reply(shared.status(settings_here(overrides=options.settings)))


@command("store migrate", context=False)
def migrate(options: Options) -> Reply:
    """Bring the tables of a shared store up to date."""
    had, found = shared.migrate(settings_here(overrides=options.settings))
    text = f"schema {had} -> {found.schema}" if had < found.schema else "already up to date"
    return _reply(found, Text(text))


@command("store copy", context=False)
@click.option("--back", is_flag=True, help="Copy from the shared database into this home.")
def copy(options: Options, back: bool) -> Reply:
    """Copy all plans into the database that store.url names, and compare every row."""
    settings = settings_here(overrides=options.settings)
    done = shared.copy_back(settings) if back else shared.copy(settings)
    total = sum(done.rows.values())
    told = [
        Text(f"{plural(total, 'row')} copied from {done.source} to {done.target}, all equal"),
        Text(f"{plural(done.rows['plans'], 'plan')}; content and sandboxes stay where they are"),
    ]
    if back:
        told.append(Text("next: agents config unset store.url, or unset CLEVERAGENTS_STORE_URL"))
    return Reply(data=msgspec.to_builtins(done), blocks=tuple(told))


def _reply(found: shared.StoreStatus, *blocks: Block) -> Reply:
    ready = found.schema == found.needed
    state = f"{found.schema}"
    if found.schema > found.needed:
        state = f"{found.schema}, made by a newer version: upgrade cleveragents"
    elif not ready:
        word = "agents store init" if not found.schema else "agents store migrate"
        state = f"{found.schema}, and this version needs {found.needed}: {word}"
    rows = (
        ("rows in", found.where),
        ("content in", found.home),
        ("schema", state),
        *((("plans", str(found.plans)),) if ready else ()),
        *((("bucket", found.bucket),) if found.bucket else ()),
    )
    held = tuple(
        (one.plan_id, f"{one.verb} (process {one.pid} on {one.host})", f"{one.silent_for:.1f} s")
        for one in found.holders
    )
    shown: tuple[Block, ...] = (*blocks, Panel("store", rows))
    if held:
        title = plural(len(held), "plan is held", "plans are held")
        shown = (*shown, Table(("plan", "by", "heard of"), held, title))
    return Reply(data=msgspec.to_builtins(found), blocks=shown)
