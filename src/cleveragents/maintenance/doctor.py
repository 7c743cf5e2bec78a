"""What this machine offers, what is not confined, and what earlier plans left behind."""

import os
import re
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import suppress
from shlex import quote

import msgspec

from cleveragents import machine
from cleveragents.apply.database_backups import Held, kept, looked_at
from cleveragents.content import fsio, removal
from cleveragents.content.native.filecopy import share_blocks
from cleveragents.context import Context
from cleveragents.errors import AgentsError, NotAllowed, StoreElsewhere
from cleveragents.maintenance.borrowed import Loose, find_loose, keep
from cleveragents.sandbox.git import command
from cleveragents.sandbox.marks import store_of
from cleveragents.sandbox.registry import traits_of
from cleveragents.tools.confinement import bwrap, landlock, syscalls
from cleveragents.tools.confinement.confine import BWRAP, LANDLOCK, OFF, cache_dir, mechanism
from cleveragents.tools.confinement.mounts import is_inside

INOTIFY = ("max_user_watches", "max_user_instances", "max_queued_events")
_PLAN_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    setting: str
    in_force: str
    """bwrap, landlock, off; or `refused`: tools are not run at all."""
    problem: str
    bwrap: bwrap.Found
    bwrap_version: str
    bwrap_cuts_network: bool
    landlock_abi: int
    landlock_cannot: tuple[str, ...]
    not_confined: tuple[str, ...]
    writable: tuple[str, ...]
    """What tools may write apart from the sandboxes; none of it is rolled back."""


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """Something of a plan that the store no longer knows."""

    kind: str
    """sandbox | ref | database"""
    name: str
    where: str
    kept_because: str = ""
    """Why `--fix` leaves it alone; empty: it does not."""
    removed: bool = False
    commit: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    git: str
    sqlite: str
    confinement: Confinement
    inotify: dict[str, int]
    store: str
    sandboxes: str
    free_bytes: int
    reflink: bool
    leftovers: tuple[Leftover, ...]
    databases: tuple[Held, ...] = ()
    """Kept on purpose: the earlier states of databases; `gone`: somebody else dropped it."""
    bucket: str = ""
    """What it answers; empty: there is none."""
    loose: tuple[Loose, ...] = ()
    """Plans whose base commit nothing of ours holds in the user's repository."""


def examine(ctx: Context, fix: bool = False) -> Report:
    """Look at everything; with `fix`, remove what no plan of this store refers to."""
    settings, identity = ctx.settings, ctx.store.identity
    if fix and identity.is_elsewhere:
        raise StoreElsewhere(identity.message, identity.hint)
    fsio.make_private_dir(settings.sandboxes)
    # First: a ref that is left over may be all that holds what another plan borrows.
    loose = tuple(keep(ctx, one) if fix else one for one in find_loose(ctx))
    return Report(
        git=_git_version(),
        sqlite=sqlite3.sqlite_version,
        confinement=_confinement(ctx),
        inotify=dict(_inotify()),
        store=settings.home,
        sandboxes=settings.sandboxes,
        free_bytes=machine.free_bytes(settings.sandboxes),
        reflink=_shares_blocks(settings.sandboxes),
        leftovers=tuple(_removed(ctx, one) if fix else one for one in find_leftovers(ctx)),
        databases=tuple(looked_at(ctx, one) for one in kept(ctx)),
        loose=loose,
        bucket=_bucket(ctx) if settings.content_url else "",
    )


def _bucket(ctx: Context) -> str:
    from cleveragents.maintenance.bucket import examine as examine_bucket

    return examine_bucket(ctx.settings)


def _git_version() -> str:
    try:
        return os.fsdecode(command.run("--version")).strip().removeprefix("git version ")
    except AgentsError as error:
        return error.message


def _confinement(ctx: Context) -> Confinement:
    settings, problem = ctx.settings, ""
    try:
        how = mechanism(settings.confine)
    except NotAllowed as error:
        how, problem = "refused", error.message
    version = landlock.abi()
    return Confinement(
        setting=settings.confine,
        in_force=how,
        problem=problem,
        bwrap=bwrap.probe(),
        bwrap_version=bwrap.version(),
        bwrap_cuts_network=bwrap.cuts_network(),
        landlock_abi=version,
        landlock_cannot=landlock.cannot(version) if version else (),
        not_confined=not_confined(how),
        writable=(*settings.writable, cache_dir(os.environ)),
    )


def not_confined(how: str) -> tuple[str, ...]:
    """What a tool can still do, in words."""
    always = (
        "read whatever you can read, but for the store under bwrap",
        "use the network, unless the tool says network: false",
        "ask whoever listens on a socket in a folder, docker and ssh-agent only without bwrap",
        *(() if syscalls.available() else ("use your keyrings",)),
    )
    if how == BWRAP:
        return (*always, *(() if landlock.abi() >= landlock.SCOPED else (landlock.ABSTRACT,)))
    if how == LANDLOCK:
        return (*always, *landlock.cannot(landlock.abi()))
    return ("everything that you can do",) if how == OFF else ()


def _inotify() -> Generator[tuple[str, int]]:
    for name in INOTIFY:
        with suppress(OSError, ValueError), open(f"/proc/sys/fs/inotify/{name}") as file:
            yield name, int(file.read())


def _shares_blocks(folder: str) -> bool:
    """Whether a copy can share its blocks with the original, tried with two files."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as scratch:
        fsio.write_new(f"{scratch}/from", b"x" * 4096)
        with (
            suppress(OSError),
            open(f"{scratch}/from", "rb") as source,
            open(f"{scratch}/to", "wb") as target,
        ):
            return share_blocks(source.fileno(), target.fileno())
    return False


def find_leftovers(ctx: Context) -> list[Leftover]:
    """Folders first, rows after: a plan that is made meanwhile has its row before its folder."""
    folders = _sandbox_folders(ctx.settings.sandboxes)
    plans = {plan.plan_id for plan in ctx.store.plans.all()}
    deleted = ctx.store.plans.deleted()
    found = [
        Leftover(
            kind="sandbox",
            name=name,
            where=f"{ctx.settings.sandboxes}/{name}",
            kept_because=_why_kept(ctx, f"{ctx.settings.sandboxes}/{name}", name in deleted),
        )
        for name in folders
        if name not in plans
    ]
    repositories = {
        resource.path
        for plan_id in plans
        for resource in ctx.store.resources.of_plan(plan_id)
        if traits_of(resource.kind).is_repository
    } | {path for paths in deleted.values() for path in paths}
    for path in sorted(repositories):
        with suppress(AgentsError, OSError):
            found += _refs(path, plans, set(deleted))
    return found + _databases(ctx, plans)


def _why_kept(ctx: Context, folder: str, is_deleted: bool) -> str:
    """Why a folder of sandboxes that no plan here knows is left alone; empty: it is not."""
    whose = store_of(folder)
    if whose is not None and whose != ctx.store.identity.store_id:
        return "it is another store's"
    if whose is not None:
        # A store that was put back from a backup does not know its newer plans.
        never = f"this store never had its plan; if nobody needs it: rm -rf {quote(folder)}"
        return "" if is_deleted else never
    shared = not is_inside(ctx.settings.sandboxes, ctx.settings.home)
    return "sandbox.dir may hold another store's plans" if shared else ""


def _databases(ctx: Context, plans: set[str]) -> list[Leftover]:
    resources = (one for plan_id in plans for one in ctx.store.resources.of_plan(plan_id))
    if all(traits_of(one.kind).server is None for one in resources):
        return []
    from cleveragents.maintenance import databases

    return [
        Leftover(kind="database", name=one.name, where=one.where, kept_because=one.kept_because)
        for one in databases.find_leftovers(ctx)
    ]


def _sandbox_folders(home: str) -> list[str]:
    with os.scandir(home) as entries:
        return sorted(
            entry.name
            for entry in entries
            if _PLAN_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        )


def _refs(path: str, plans: set[str], deleted: set[str]) -> list[Leftover]:
    """Refs whose plan is not in this store; only of one that it deleted may a ref be removed."""
    repository = command.locate(path)
    listed = repository.git("for-each-ref", "--format=%(refname) %(objectname)", command.REFS)
    found: list[Leftover] = []
    for line in os.fsdecode(listed).splitlines():
        name, commit = line.split()
        if name.removeprefix(command.REFS) in plans:
            continue
        if name.removeprefix(command.REFS) not in deleted:
            why = "this store never had its plan, so another may need it; if none does:"
            why = f"{why} git -C {path} update-ref -d {name}"
            found.append(
                Leftover(kind="ref", name=name, where=path, commit=commit, kept_because=why)
            )
            continue
        holding = repository.git("for-each-ref", f"--contains={commit}", "--format=%(refname)")
        others = [one for one in os.fsdecode(holding).split() if not one.startswith(command.REFS)]
        found.append(
            Leftover(
                kind="ref",
                name=name,
                where=path,
                commit=commit,
                kept_because="" if others else f"nothing else holds commit {commit[:12]}",
            )
        )
    return found


def _removed(ctx: Context, one: Leftover) -> Leftover:
    if one.kept_because:
        return one
    if one.kind == "sandbox":
        removal.remove_tree(one.where)
    elif one.kind == "database":
        from cleveragents.maintenance.databases import drop_leftover

        drop_leftover(ctx, one.where, one.name)
    else:
        command.locate(one.where).git("update-ref", "-d", one.name, one.commit)
    return msgspec.structs.replace(one, removed=True)
