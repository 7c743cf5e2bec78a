"""Confines one call with the mechanism that is available.

`auto` takes bubblewrap, else Landlock, else nothing; `required`, `bwrap` and `landlock` never run a
tool without.
"""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

import msgspec

from cleveragents.errors import NotAllowed
from cleveragents.tools.confinement import bwrap, landlock, syscalls
from cleveragents.tools.confinement.capabilities import UNDER_LANDLOCK, dropping
from cleveragents.tools.confinement.doors import doors
from cleveragents.tools.confinement.mounts import Mount, Seen, mounted_at_own_paths, not_mounted
from cleveragents.tools.confinement.sides import Sides, beside

BWRAP, LANDLOCK, OFF = "bwrap", "landlock", "off"
INSTALL = "apt install bubblewrap"
MARKS = ("AGENTS_PLAN_ID", "AGENTS_STEP_ID")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a call of the plan may touch, whichever way that is enforced."""

    confine: str = OFF
    hidden: tuple[str, ...] = ()
    """The store, and where sandboxes are made: closed but for the plan's own."""
    writable: tuple[str, ...] = ()
    cache: str = ""
    stand_ins: tuple[Mount, ...] = ()
    look_only: bool = False
    """The sandboxes can be read and not written: for who proposes steps and does not run them."""


class Launch(NamedTuple):
    """How the tool's process is started."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    """Of the process itself; bwrap gives the tool its own."""
    restrict: Callable[[], None] | None = None
    """Called in the child before exec."""
    namespace: bool = False
    """Whether argv is bwrap's: the tool then has a process namespace of its own."""
    fds: tuple[int, ...] = ()
    covered: tuple[str, ...] = ()
    """What bwrap hides, and therefore has to find where it was a moment ago."""

    @property
    def is_outdated(self) -> bool:
        return not all(map(os.path.lexists, self.covered))


def mechanism(confine: str) -> str:
    """bwrap, landlock or off; raises NotAllowed if the required one is not available."""
    if confine == OFF:
        return OFF
    if confine != LANDLOCK and bwrap.probe().works:
        return BWRAP
    if confine != BWRAP and landlock.abi():
        return LANDLOCK
    if confine == "auto":
        return OFF
    raise NotAllowed(
        f"tools cannot be confined here, and sandbox.confine is {confine!r}: {why_not(confine)}",
        f"{INSTALL}, or agents config set sandbox.confine auto",
    )


def why_not(confine: str = "auto") -> str:
    reasons = [] if confine == LANDLOCK else [bwrap.probe().reason]
    if confine != BWRAP:
        reasons.append("the kernel has no Landlock that can be used")
    return "; ".join(reasons)


def can_cut_network(how: str) -> bool:
    if how == BWRAP:
        return bwrap.cuts_network()
    return how == LANDLOCK and landlock.limits_network(landlock.abi())


def cache_dir(environ: Mapping[str, str]) -> str:
    """The folder for tools' downloads, shared by all plans."""
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return os.path.join(base, "cleveragents", "tools")


class Cell:
    """One confined call: what the tool sees, how it is started, what it was denied."""

    def __init__(self, bounds: Bounds, temp: str, plan_dir: str) -> None:
        self.how: str = mechanism(bounds.confine)
        self._bounds = bounds
        look = mounted_at_own_paths if self.how == BWRAP else not_mounted
        self.seen: Seen = look(bounds.stand_ins)
        folders = [one.folder for one in bounds.stand_ins]
        self._roots = [temp] if bounds.look_only else [*folders, temp]
        self._looked_at = folders if bounds.look_only else []
        self._sides = Sides((), (), plan_dir)
        if self.how == BWRAP and bounds.hidden:
            lent = [objects for one in bounds.stand_ins for objects in one.borrowed.values()]
            self._sides = beside(self.seen, plan_dir, bounds.hidden, lent)

    @property
    def plan_dir(self) -> str:
        """The plan file's folder as the user has it, also when a sandbox is mounted over it."""
        return self._sides.plan_dir

    def caches(self) -> dict[str, str]:
        """Variables that send downloads to our cache, if writing elsewhere is denied."""
        base = self._bounds.cache
        if self.how == OFF or not base:
            return {}
        names = {"PIP_CACHE_DIR": "pip", "npm_config_cache": "npm", "UV_CACHE_DIR": "uv"}
        # Only cargo's downloads are wanted here, but its home has one variable.
        names["CARGO_HOME"] = "cargo"
        # A hard link from the cache would let a tool change the cache through the sandbox.
        links = {"UV_LINK_MODE": "copy"}
        return {"XDG_CACHE_HOME": base, **links} | {n: f"{base}/{d}" for n, d in names.items()}

    def rewritten(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment, with PATH and VIRTUAL_ENV pointing to copies instead of originals."""
        changed = {
            name: os.pathsep.join(map(self.seen.to_copies, env[name].split(os.pathsep)))
            for name in ("PATH", "VIRTUAL_ENV")
            if name in env
        }
        return {**env, **changed}

    @contextmanager
    def launch(
        self, argv: Sequence[str], cwd: str, network: bool, env: Mapping[str, str]
    ) -> Generator[Launch]:
        if self.how == OFF:
            yield Launch(argv, cwd, env)
            return
        if self._bounds.cache:
            # If it cannot be made there is no cache, and the tool reports failures.
            with suppress(OSError):
                os.makedirs(self._bounds.cache, mode=0o700, exist_ok=True)
        if self.how == LANDLOCK:
            with landlock.restriction(self._writable, network) as restrict:
                yield Launch(argv, cwd, env, _without_powers(restrict))
            return
        with ExitStack() as stack:
            data = [os.fsencode(text) for _, text in self._sides.files]
            fds = stack.enter_context(_descriptors([*data, syscalls.program(os.geteuid() == 0)]))
            hidden = doors(os.environ, self._bounds.writable, os.geteuid() == 0)
            words = self._words(cwd, network, fds, hidden) + bwrap.setting(env)
            listed = b"".join(os.fsencode(word) + b"\0" for word in words)
            [listing] = stack.enter_context(_descriptors([listed]))
            start = [bwrap.probe().path, "--args", str(listing), "--", *argv]
            # These mark leftover processes; the rest of the environment is the tool's own.
            marks = {name: env[name] for name in MARKS}
            restrict = stack.enter_context(bwrap.before())
            covered = (*hidden[0], *hidden[1])
            yield Launch(start, "/", marks, restrict, True, (*fds, listing), covered)

    def _words(
        self,
        cwd: str,
        network: bool,
        fds: Sequence[int],
        hidden: tuple[Sequence[str], Sequence[str]],
    ) -> list[str]:
        *texts, filter_ = fds
        view = bwrap.View(
            seen=self.seen,
            hidden=self._bounds.hidden,
            writable=(*self._bounds.writable, *self._cache),
            roots=self._roots,
            looked_at=self._looked_at,
            doors=hidden,
            sides=self._sides,
        )
        may_reach = network or not can_cut_network(BWRAP)
        words = bwrap.arguments(view, texts=texts, network=may_reach, cwd=self.seen.at(cwd))
        return [*words, "--seccomp", str(filter_)] if syscalls.available() else words

    def denied(self, output: str, exit_code: int, cwd: str) -> list[str]:
        """Sentences on what the confinement kept a failed call from writing."""
        from cleveragents.tools.confinement.denied import denied_writes

        return denied_writes(
            output,
            mechanism=self.how,
            exit_code=exit_code,
            cwd=self.seen.at(cwd),
            seen=self.seen,
            writable=[os.path.realpath(path) for path in self._writable],
            hidden=[os.path.realpath(path) for path in self._bounds.hidden],
        )

    @property
    def _cache(self) -> tuple[str, ...]:
        return (self._bounds.cache,) if self._bounds.cache else ()

    @property
    def _writable(self) -> tuple[str, ...]:
        return (*self._bounds.writable, *self._cache, *self._roots)


def _without_powers(restrict: Callable[[], None]) -> Callable[[], None]:
    """For Landlock's child: also drop root's powers and forbidden system calls."""
    drop = dropping(UNDER_LANDLOCK) if os.geteuid() == 0 else None
    refuse = syscalls.refusing(drop is not None)

    def give_up() -> None:  # pragma: no cover - runs in the child, before exec
        restrict()
        if drop is not None:
            drop()
        refuse()

    return give_up


@contextmanager
def _descriptors(contents: Sequence[bytes]) -> Generator[tuple[int, ...]]:
    """Descriptors to read each content from, without files."""
    fds: list[int] = []
    try:
        for content in contents:
            fd = os.memfd_create("agents")
            fds.append(fd)
            with open(fd, "wb", closefd=False) as file:
                file.write(content)
            os.lseek(fd, 0, os.SEEK_SET)
        yield tuple(fds)
    finally:
        for fd in fds:
            os.close(fd)
