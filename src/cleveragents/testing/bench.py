"""One sandbox and a store of its own, as the tests of a kind use them."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cleveragents.content.packs import Packs
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.ids import new_id
from cleveragents.model.resource import Resource
from cleveragents.sandbox.protocol import (
    ApplyOptions,
    Making,
    Place,
    Proposal,
    Sandbox,
)
from cleveragents.sandbox.registry import open_sandbox
from cleveragents.store import Store, open_store
from cleveragents.testing.observe import Seen, look, stamps


class Bench:
    """A store of its own, and the sandbox of one resource in it."""

    def __init__(self, folder: Path, store: Store, packs: Packs, resource: Resource) -> None:
        self.folder = folder
        self.store = store
        self.packs = packs
        self.source: Path = Path(resource.path)
        base, is_file = self.source.name, self.source.is_file()
        own = folder / "sandbox" / base
        path = own / base if is_file else own
        if resource.is_in_place:
            path = self.source
        root = path.parent if is_file else path
        self.place: Place = Place(
            plan_id=resource.plan_id,
            resource=resource,
            root=str(root),
            path=str(path),
            own=str(own) if resource.is_in_place else "",
            packs=packs,
            cache=str(folder / "cache" / "app"),
        )
        self.sandbox: Sandbox = open_sandbox(self.place)
        self._staged = 0

    @property
    def root(self) -> Path:
        return Path(self.place.root)

    @property
    def path(self) -> Path:
        return Path(self.place.path)

    def create(self) -> None:
        os.makedirs(os.path.dirname(self.place.ours), exist_ok=True)
        origin = self.sandbox.create(making())
        self.place = _replace(self.place, origin=origin)
        self.reopen()

    def reopen(self) -> Sandbox:
        """As a new process would find it: nothing remembered."""
        self.sandbox.close()
        self.sandbox = open_sandbox(self.place)
        return self.sandbox

    def fresh_look(self) -> SandboxCheckpoint:
        """The state as somebody sees it who knows nothing of earlier ones; nothing is kept."""
        stranger = open_sandbox(_replace(self.place, cache=None))
        try:
            with self.packs.preview() as batch:
                return stranger.capture(batch, None, strict=False)
        finally:
            stranger.close()

    def capture(
        self, previous: SandboxCheckpoint | None = None, strict: bool = True
    ) -> SandboxCheckpoint:
        """Capture and keep: the content is in the store when this returns."""
        with self.packs.batch() as batch:
            state = self.sandbox.capture(batch, previous, strict)
            batch.seal()
            with self.store.transaction():
                self.store.objects.add(batch.located.items())
                assert self.store.objects.reuse(batch.reused) == []
        for learned in batch.after_commit:
            learned()
        return state

    def staging(self) -> str:
        self._staged += 1
        return str(self.folder / f"staging{self._staged}")

    def go(self, current: SandboxCheckpoint, target: SandboxCheckpoint) -> None:
        staging = self.staging()
        self.sandbox.switch(self.sandbox.stage(current, target, staging), staging)

    def options(self, **given: Any) -> ApplyOptions:
        values: dict[str, Any] = {
            "mode": None,
            "ignored": True,
            "message": "applied\n",
            "branch": "agents/test",
            "staging": self.staging(),
        }
        return ApplyOptions(**(values | given))

    def propose(
        self, origin: SandboxCheckpoint, result: SandboxCheckpoint, options: ApplyOptions
    ) -> Proposal:
        with self.packs.batch() as batch:
            proposal = self.sandbox.compare(origin, result, options, batch)
            batch.seal()
            with self.store.transaction():
                self.store.objects.add(batch.located.items())
        return proposal

    def stage_apply(self, origin: SandboxCheckpoint, result: SandboxCheckpoint) -> dict[str, Any]:
        options = self.options()
        return self.sandbox.stage_apply(self.propose(origin, result, options), options)


class Start:
    """A sandbox that was just made, and how everything looked then."""

    def __init__(self, made: Bench, exactly: "Callable[[Path], dict[bytes, Seen]]") -> None:
        self.made = made
        self._exactly = exactly
        self.state: SandboxCheckpoint = made.capture()
        self.exact: dict[bytes, Seen] = exactly(made.root)
        self.times: dict[bytes, tuple[int, int]] = stamps(made.root)
        self.source: dict[bytes, Seen] = look(made.source.parent)

    def is_now(self) -> bool:
        here, there = self._exactly(self.made.root), look(self.made.source.parent)
        return here == self.exact and there.keys() == self.source.keys()


def making() -> Making:
    def refuse(problem: str, hint: str) -> None:
        raise AssertionError(f"asked about the size: {problem}; {hint}")

    return Making(
        limit_bytes=1 << 30, limit_files=10_000, confirm=refuse, progress=lambda _name, _size: None
    )


def _replace(place: Place, **fields: Any) -> Place:
    import msgspec

    return msgspec.structs.replace(place, **fields)


@contextmanager
def open_bench(
    folder: Path, source: Path, kind: str, strategy: str, **fields: Any
) -> Generator[Bench]:
    """A bench that is closed at the end; the sandbox is not made yet."""
    store = open_store(str(folder / "store"))
    (folder / "content").mkdir()
    packs = Packs(str(folder / "content"), store.objects)
    plan_id = new_id()
    resource = Resource(
        resource_id=new_id(),
        plan_id=plan_id,
        name="app",
        kind=kind,
        path=str(source),
        strategy=strategy,
        **fields,
    )
    bench = Bench(folder, store, packs, resource)
    try:
        yield bench
    finally:
        bench.sandbox.close()
        packs.close()
        store.close()
