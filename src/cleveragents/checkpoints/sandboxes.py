"""The sandboxes of a plan, opened by every command."""

import os

from cleveragents.content import fsio
from cleveragents.content.packs import Packs
from cleveragents.errors import SandboxMissing, SandboxNotOurs, StoreElsewhere
from cleveragents.model.resource import IN_PLACE, Resource, SandboxRecord, SandboxState
from cleveragents.sandbox.marks import is_marked, version_at
from cleveragents.sandbox.protocol import Place, Sandbox
from cleveragents.sandbox.registry import has_copy, is_captured, open_sandbox, path_in, traits_of
from cleveragents.store import Identity


def is_elsewhere(record: SandboxRecord, home_id: str) -> bool:
    """Whether another home made the sandbox; the first one of a plan may say none."""
    return bool(home_id) and record.origin.get("home", home_id) != home_id


class PlanSandboxes:
    """Resource id -> sandbox of one plan, with the rows they were made from."""

    def __init__(
        self,
        resources: list[Resource],
        records: dict[str, SandboxRecord],
        opened: dict[str, Sandbox],
        identity: Identity,
    ) -> None:
        self.resources: dict[str, Resource] = {item.resource_id: item for item in resources}
        self.records = records
        self.opened = opened
        self._identity = identity
        self._marked: set[str] = set()
        self.home_id = ""
        """Which home this is, if several have the same plans."""
        self.in_bucket = False
        """Whether what they hold is in a bucket, so that any machine can continue with them."""

    def __getitem__(self, resource_id: str) -> Sandbox:
        return self.opened[resource_id]

    def named(self, name: str) -> Sandbox:
        return next(s for s in self.opened.values() if s.place.resource.name == name)

    @property
    def paths(self) -> dict[str, str]:
        return {s.place.resource.name: s.place.path for s in self.opened.values()}

    @property
    def capturable(self) -> dict[str, Sandbox]:
        """The sandboxes that can be checkpointed."""
        return {
            rid: sandbox
            for rid, sandbox in self.opened.items()
            if is_captured(sandbox.place.resource)
        }

    def has_copy(self, record: SandboxRecord) -> bool:
        """Whether it is a private copy, and not the resource itself."""
        return has_copy(self.resources[record.resource_id])

    @property
    def in_place(self) -> tuple[str, ...]:
        """The resources in place."""
        return tuple(rid for rid, item in self.resources.items() if item.is_in_place)

    @property
    def elsewhere(self) -> tuple[SandboxRecord, ...]:
        """The sandboxes that another home made, not on this machine."""
        return tuple(r for r in self.records.values() if is_elsewhere(r, self.home_id))

    @property
    def only_on(self) -> str | None:
        """The one machine that has their content; None if it is here or in a bucket."""
        if self.in_bucket or not self.elsewhere:
            return None
        origin = self.elsewhere[0].origin
        return origin.get("is_on") or origin["made_on"]

    def from_another_boot(self) -> tuple[SandboxRecord, ...]:
        """The sandboxes that a power cut may have damaged since they were last verified.

        Also if only their disk failed, and was mounted again.
        Resources in place are the user's, and taken as they are.
        """
        return tuple(
            r
            for r in self._copies()
            if not fsio.is_same_mount(r.boot_id or fsio.UNKNOWN_BOOT, fsio.mount_id(r.root))
        )

    def _copies(self) -> list[SandboxRecord]:
        """This home's private copies that are made."""
        return [
            r
            for r in self.records.values()
            if r.state is SandboxState.READY
            and self.has_copy(r)
            and r.strategy != IN_PLACE
            and not is_elsewhere(r, self.home_id)
        ]

    @property
    def folder(self) -> str | None:
        """Where this home's copies are; None if there are none."""
        return next((os.path.dirname(record.root) for record in self._copies()), None)

    @property
    def missing(self) -> tuple[SandboxRecord, ...]:
        """The copies that are not where they were made."""
        return tuple(r for r in self._copies() if not os.path.lexists(r.root))

    @property
    def version(self) -> int:
        """The newest version of the plan that its sandboxes have seen.

        A store with an older one was put back from a backup.
        """
        return version_at(self.folder) if self.folder else 0

    def require_not_only_elsewhere(self) -> None:
        if (machine := self.only_on) is not None:
            raise SandboxMissing(
                f"the sandbox {self.elsewhere[0].root} is only on {machine}, in its own home",
                "run the command there; with content.url any machine can continue the plan",
            )

    def require_ours(self) -> None:
        """Refuse to restore into a sandbox that is missing or not the one we made."""
        if self._identity.is_elsewhere:
            raise StoreElsewhere(self._identity.message, self._identity.hint)
        self.require_not_only_elsewhere()
        if self.elsewhere:
            raise SandboxMissing(
                f"the sandbox {self.elsewhere[0].root} is on another machine",
                f"agents plan resume {self.elsewhere[0].plan_id} continues it here",
            )
        for record in self.records.values():
            if not self.has_copy(record):
                continue
            if record.state is SandboxState.REMOVED or not os.path.lexists(record.root):
                raise SandboxMissing(
                    f"the sandbox {record.root} is missing",
                    f"agents plan export {record.plan_id} --patch DIR, then agents plan delete"
                    f" {record.plan_id}",
                )
            if not fsio.is_inode(record.root, record.identity):
                raise SandboxNotOurs(
                    f"{record.root} is not the directory this plan made",
                    "if the store was put back from a backup: agents doctor --adopt;"
                    " else move it away, the plan's own sandbox is gone",
                )
            self.require_marked(record)

    def require_marked(self, record: SandboxRecord) -> None:
        """Refuse a sandbox without the mark of this sandbox, plan and store."""
        if record.sandbox_id in self._marked:
            return
        if not is_marked(self._identity.owner, record):
            raise SandboxNotOurs(
                f"{record.root} is not marked as this plan's sandbox and was left alone",
                "run agents check",
            )
        self._marked.add(record.sandbox_id)

    def may_remove(self, record: SandboxRecord) -> bool:
        """Whether the place is empty or ours."""
        return not os.path.lexists(record.root) or is_marked(self._identity.owner, record)

    def close(self) -> None:
        for sandbox in self.opened.values():
            sandbox.close()


def layout(resources: list[Resource], home: str, plan_id: str) -> dict[str, tuple[str, str]]:
    """Resource id -> (root, path): `<sandboxes>/<plan>/<name of the resource's folder>`."""
    found: dict[str, tuple[str, str]] = {}
    used: set[str] = set()
    for resource in resources:
        if not has_copy(resource):
            found[resource.resource_id] = (resource.path, resource.path)
            continue
        folder = os.path.basename(resource.path.rstrip("/")) or resource.name
        if not traits_of(resource.kind).is_folder_at(resource.path):
            folder = resource.name
        if folder in used or folder.startswith("."):
            folder = f"{resource.name}-{folder.lstrip('.')}"
        used.add(folder)
        root = f"{home}/{plan_id}/{folder}"
        found[resource.resource_id] = (root, path_in(root, resource))
    return found


def _work_root(resource: Resource) -> str:
    """In place: the directory that tools work in, which is the user's."""
    is_file = traits_of(resource.kind).is_file_at(resource.path)
    return os.path.dirname(resource.path) if is_file else resource.path


def open_sandboxes(
    packs: Packs,
    resources: list[Resource],
    records: list[SandboxRecord],
    home: str,
    cache: str,
    plan_id: str,
    identity: Identity,
) -> PlanSandboxes:
    by_resource = {record.resource_id: record for record in records}
    places = layout(resources, home, plan_id)
    for record in records:
        places[record.resource_id] = (record.root, record.path)
    opened: dict[str, Sandbox] = {}
    for resource in resources:
        root, path = places[resource.resource_id]
        inner = [item for item in resources if item.outer == resource.name]
        links = {item.place: places[item.resource_id][1] for item in inner}
        in_place = resource.is_in_place
        record = by_resource.get(resource.resource_id)
        opened[resource.resource_id] = open_sandbox(
            Place(
                plan_id=plan_id,
                resource=resource,
                root=_work_root(resource) if in_place else root,
                own=root if in_place else "",
                path=path,
                packs=packs,
                links={} if in_place else links,
                inner=tuple(item.place for item in inner),
                origin=record.origin if record else {},
                cache=f"{cache}/{record.sandbox_id}" if record else None,
            )
        )
    return PlanSandboxes(resources, by_resource, opened, identity)
