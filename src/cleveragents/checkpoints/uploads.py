"""Uploads content to the bucket, in a thread with its own connection.

A group is valid on this machine at once. The content that its root plan's segments lack becomes one
segment; once the bucket has stored it, one commit writes the segment's row and marks the group as
uploaded, unless another process has taken the plan meanwhile.
"""

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import msgspec

from cleveragents.checkpoints.sandboxes import is_elsewhere
from cleveragents.content import fsio, trees
from cleveragents.content.bucket.address import Bucket
from cleveragents.content.bucket.backed import BackedPacks
from cleveragents.content.bucket.segments import cut
from cleveragents.content.keys import BLOB, CHUNKS, GIT, TREE
from cleveragents.content.packs import Packs
from cleveragents.errors import AgentsError, BucketUnreachable, LeaseLost, MachineError, NotInBucket
from cleveragents.model.ids import is_id
from cleveragents.model.resource import SandboxRecord, SandboxState
from cleveragents.model.units import plural
from cleveragents.store import Store
from cleveragents.store.clock import utc_now
from cleveragents.store.segments import PendingUpload

PAUSE = 2.0
"""Seconds until the bucket is asked again after it did not answer."""
MOMENT = 0.5
NOTED = "bucket"
"""Name of the store's note: which bucket was found to keep what it has, and with which key."""


class Desk(msgspec.Struct, kw_only=True):
    """The thread's connections, and what it has read so far."""

    store: Store
    packs: BackedPacks
    home_id: str
    bucket: str = ""
    """The note of the bucket that may be used; empty: look."""
    plan: tuple[str, int] = ("", 0)
    """The plan that was brought last, and the epoch of its lease."""
    records: dict[str, SandboxRecord] = {}
    """Its sandboxes by their resources: none is changed under a lease once it has groups."""


class Uploads:
    """Uploads groups while their plans continue."""

    def __init__(
        self, open_desk: Callable[[], AbstractContextManager[Desk]], home: str, wait: float
    ) -> None:
        self._open_desk = open_desk
        self._left = f"{home}/uploads"
        """A file for each plan of which this machine has something that is not there yet."""
        self.limit = wait
        self._changed = threading.Condition()
        self._wanted: list[str] = []
        self._at_work = ""
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self.problem: AgentsError | None = None
        """Why the bucket could not be reached; None: it could."""
        self._failed: dict[str, AgentsError] = {}
        """Plans that cannot be brought whatever the bucket does, until they have another group."""

    def begin(self, plan_id: str) -> None:
        """Start uploading a plan's groups."""
        with self._changed:
            self._failed.pop(plan_id, None)
            if plan_id not in self._wanted:
                self._wanted.append(plan_id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def require_usable(self, store: Store, packs: Packs) -> None:
        """Check the bucket; if it does not answer now, it is asked again before an upload."""
        assert isinstance(packs, BackedPacks)
        with suppress(BucketUnreachable):
            require_bucket(store, packs)

    def left_over(self) -> list[str]:
        """Plans that an earlier command did not upload completely."""
        try:
            return [name for name in os.listdir(self._left) if is_id(name)]
        except FileNotFoundError:
            return []

    def _is_busy(self, plan_id: str = "") -> bool:
        if not plan_id:
            return bool(self._wanted or self._at_work)
        return plan_id in (*self._wanted, self._at_work)

    def wait_for(self, plan_id: str) -> None:
        """Wait until all groups of the plan are uploaded; an error after the limit."""
        self.begin(plan_id)
        with self._changed:
            done = self._changed.wait_for(lambda: not self._is_busy(plan_id), self.limit)
            problem = self._failed.get(plan_id, self.problem)
        if done and plan_id not in self._failed:
            return
        why = f": {problem.message}" if problem else ""
        raise NotInBucket(
            f"plan {plan_id} has groups that are not in the bucket{why}",
            f"when it answers: agents plan resume {plan_id}",
        )

    def finish_uploads(self, plan_id: str, tell: Callable[[], None]) -> None:
        """Wait for pending uploads, but not for a bucket that does not answer.

        `plan_id`: of that plan alone, empty: of all. `tell`: if it takes longer than a moment.
        """
        with self._changed:
            for limit in (min(MOMENT, self.limit), self.limit):
                if self._changed.wait_for(
                    lambda: not self._is_busy(plan_id) or self.problem, limit
                ):
                    return
                tell()

    def close(self, tell: Callable[[], None]) -> str:
        """Wait for pending uploads, and report what is left."""
        if self._thread is None:
            return ""
        with self._changed:
            self.finish_uploads("", tell)
            left = len(self._wanted) + bool(self._at_work) + len(self._failed)
            why = next(iter(self._failed.values()), self.problem)
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout=0 if left and not why else 5)
        if not left:
            return ""
        reason = why.message if why else f"it takes longer than {self.limit:g} s"
        whose = plural(left, "plan has", "plans have")
        return f"{whose} groups that are not in the bucket; the next command continues: {reason}"

    def _run(self) -> None:
        try:
            with self._open_desk() as desk:
                while self._next():
                    self._attempt(desk)
        except AgentsError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - raised by `wait_for`
            self._fail(NotInBucket(f"content cannot be uploaded: {error!r}"))

    def _next(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._is_closing)
            if self._is_closing:
                return False
            self._at_work = self._wanted.pop(0)
            return True

    def _attempt(self, desk: Desk) -> None:
        plan_id = self._at_work
        try:
            self._note_left(plan_id)
            while not _upload_plan(desk, plan_id):
                pass
            with suppress(OSError):
                fsio.unlink_if_there(f"{self._left}/{plan_id}")
        except (BucketUnreachable, MachineError) as error:
            self._fail(error)  # the bucket or the database may be back soon
            return
        except AgentsError as error:
            self._failed[plan_id] = error
        with self._changed:
            self.problem = None
            self._at_work = ""
            self._changed.notify_all()

    def _note_left(self, plan_id: str) -> None:
        fsio.make_private_dir(self._left)
        with open(f"{self._left}/{plan_id}", "ab"):
            pass

    def _fail(self, error: AgentsError) -> None:
        """Report the error to those waiting, and retry later."""
        with self._changed:
            self.problem = error
            if self._at_work and self._at_work not in self._wanted:
                self._wanted.append(self._at_work)
            self._at_work = ""
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closing, PAUSE)


def _upload_plan(desk: Desk, plan_id: str) -> bool:
    try:
        upload(desk, plan_id)
    except LeaseLost:
        # The plan was leased again, here or elsewhere, or the bucket changed: read again.
        desk.bucket, desk.plan = "", ("", 0)
        return False
    return True


def upload(desk: Desk, plan_id: str) -> None:
    """Upload all missing groups; later groups start another upload."""
    store = desk.store
    todo = store.segments.to_upload(plan_id)
    if not todo.groups:
        return
    records = _records(desk, plan_id, todo)
    if any(is_elsewhere(record, desk.home_id) for record in records):
        return
    if not desk.bucket:
        desk.bucket = require_bucket(store, desk.packs)
    root = store.segments.root_of(plan_id)
    bases = [record.origin["base_pack"] for record in records if record.origin.get("base_pack")]
    keys = missing_of(desk, root, [*todo.roots, *map(bytes.fromhex, dict.fromkeys(bases))])
    folder = f"{store.identity.store_id}/{root}"
    made: list[tuple[str, int, bytes]] = []
    for segment in cut(folder, ((key, desk.packs.record(key)) for key in keys)):
        desk.packs.cache.bucket.put_new(segment.name, segment.data)
        made.append((segment.name, len(segment.data), segment.entries))
    with store.transaction(lasts=False, alone=False):
        store.segments.require_same(plan_id, todo.epoch, NOTED, desk.bucket)
        store.segments.add(root, made, utc_now())
        store.segments.mark(plan_id, todo.groups, utc_now())
    for name, _, entries in made:
        desk.packs.index.there.learn(root, name, entries)


def _records(desk: Desk, plan_id: str, todo: PendingUpload) -> list[SandboxRecord]:
    """The plan's sandboxes, read once for each lease and each new resource."""
    if desk.plan != (plan_id, todo.epoch) or not todo.resources <= desk.records.keys():
        found = desk.store.resources.sandboxes(plan_id)
        desk.records = {record.resource_id: record for record in found}
        is_sure = not any(
            record.state is SandboxState.CREATING or is_elsewhere(record, desk.home_id)
            for record in found
        )
        desk.plan = (plan_id, todo.epoch) if is_sure else ("", 0)
    return list(desk.records.values())


def missing_of(desk: Desk, root: str, roots: list[bytes]) -> list[bytes]:
    """Every key below that the root plan's segments lack; a key they have implies all below it.

    Content borrowed from the user's repository comes with the base pack.
    """
    there = desk.packs.index.there.seen(root)
    seen, found = set(there), list[bytes]()
    load = trees.reading(desk.packs.get)
    for top in roots:
        if top[:1] == TREE:
            found += trees.keys_in(load, top, seen)
        elif top not in seen:
            seen.add(top)
            found.append(top)
    for key in [key for key in found if key[:1] == CHUNKS]:
        digests = desk.packs.get(key)
        parts = [BLOB + digests[at : at + 32] for at in range(0, len(digests), 32)]
        found += [part for part in dict.fromkeys(parts) if part not in seen]
        seen.update(parts)
    here = desk.packs.index.here.present(found) if found else set[bytes]()
    return [key for key in found if key in here or not _may_lack(key)]


def _may_lack(key: bytes) -> bool:
    return key[:1] == GIT or key == trees.EMPTY.key


def require_bucket(store: Store, packs: BackedPacks) -> str:
    """Before the first object: check that the bucket keeps objects and the key is the same.

    Returns the store's note of the bucket.
    """
    bucket = packs.cache.bucket
    noted, now = store.noted(NOTED), f"{bucket.url} {bucket.fingerprint}".strip()
    if noted == now:
        return now
    url, _, key = (noted or "").partition(" ")
    if url == bucket.url and key != bucket.fingerprint:
        raise NotInBucket(
            f"content in {url} was written with another key, or with none",
            "agents config list shows content.key-from; the key has to stay, or the address change",
        )
    bucket.probe()
    if url and url != bucket.url:
        _require_moved(store, bucket, url)
    with store.transaction():
        store.note(NOTED, now)
    return now


def _require_moved(store: Store, bucket: Bucket, old: str) -> None:
    """Accept another address only if everything from the old one is there."""
    missing = set(store.segments.names()) - set(bucket.names(store.identity.store_id))
    if missing:
        count = plural(len(missing), "segment", "segments")
        raise NotInBucket(
            f"{count} of this store in {old} cannot be found in {bucket.url}",
            f"copy everything below {old} to it first, or keep content.url = {old}",
        )
