"""A plan in the hands of this process: what it reads, and the only way it writes."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from cleveragents import codec
from cleveragents.content.background import Beside
from cleveragents.model.decision import Decision
from cleveragents.model.ids import new_id
from cleveragents.model.journal import EntryState, JournalEntry, Moment, Operation
from cleveragents.model.plan import Plan, Step
from cleveragents.model.plan_spec import PlanSpec
from cleveragents.store import Lease, Store


def spec_of(plan: Plan) -> PlanSpec:
    return codec.convert(plan.spec, PlanSpec)


class Session:
    """A plan held by this process: every commit carries the lease and moves `plan` on."""

    def __init__(self, store: Store, plan: Plan, lease: Lease, now: Callable[[], str]) -> None:
        self.store = store
        self.plan = plan
        self.lease = lease
        self.now = now
        self._read: tuple[dict[str, Any], PlanSpec] | None = None
        self._behind: tuple[str, Beside[None]] | None = None

    @property
    def spec(self) -> PlanSpec:
        """The plan file in force; a correction may bring another."""
        if self._read is None or self._read[0] is not self.plan.spec:
            self._read = self.plan.spec, spec_of(self.plan)
        return self._read[1]

    def moment(self) -> Moment:
        """Where the plan stands now, to come back to."""
        return Moment(self.plan.head_group_id, self.plan.version)

    def opened(self, operation: Operation, **detail: Any) -> JournalEntry:
        """A new journal entry that starts here."""
        return JournalEntry(
            entry_id=new_id(),
            plan_id=self.plan.plan_id,
            operation=operation,
            state=EntryState.OPEN,
            before=self.moment(),
            detail=detail,
            started_at=self.now(),
        )

    def closed(
        self, entry: JournalEntry, state: EntryState = EntryState.DONE, **detail: Any
    ) -> JournalEntry:
        """The same entry, ended here; put it down in the commit that ends it."""
        return msgspec.structs.replace(
            entry,
            state=state,
            after=self.moment(),
            detail={**entry.detail, **detail},
            ended_at=self.now(),
        )

    def afterwards(self, intent_id: str, work: Callable[[], None]) -> None:
        """Do `work` beside; the next commit waits for it and takes the intent off."""
        self._wait()
        self._behind = intent_id, Beside(work)

    def settle(self) -> None:
        """Wait for what is still done beside, and take its intent off."""
        if self._behind is not None:
            with self.transaction():
                self._take_off()

    def _take_off(self) -> None:
        if (intent_id := self._wait()) is not None:
            self.store.intents.remove(intent_id)
            self._behind = None

    def _wait(self) -> str | None:
        if self._behind is None:
            return None
        self._behind[1].wait()
        return self._behind[0]

    @contextmanager
    def transaction(self) -> Generator[None]:
        """One commit under the lease; if it fails, `plan` is what it was."""
        before, behind = self.plan, self._behind
        try:
            with self.store.transaction(self.lease):
                yield
        except BaseException:
            self.plan, self._behind = before, behind
            raise

    def write(
        self,
        *,
        steps: tuple[Step, ...] = (),
        decisions: tuple[Decision, ...] = (),
        removed_steps: tuple[str, ...] = (),
        view_changed: bool = False,
        **fields: Any,
    ) -> None:
        """Put the plan's next version down; call it inside `store.transaction(lease)`."""
        self._take_off()
        plan = msgspec.structs.replace(self.plan, updated_at=self.now(), **fields)
        self.plan = self.store.plans.commit(
            plan,
            before=self.plan,
            steps=steps,
            decisions=decisions,
            removed_steps=removed_steps,
            view_changed=view_changed,
            new_source="spec" in fields,
        )

    def commit(
        self,
        *,
        steps: tuple[Step, ...] = (),
        decisions: tuple[Decision, ...] = (),
        removed_steps: tuple[str, ...] = (),
        view_changed: bool = False,
        **fields: Any,
    ) -> None:
        """The same as a transaction of its own."""
        with self.transaction():
            self.write(
                steps=steps,
                decisions=decisions,
                removed_steps=removed_steps,
                view_changed=view_changed,
                **fields,
            )
