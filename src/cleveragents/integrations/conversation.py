"""The conversation of an observed plan, now and at an earlier point.

A group keeps its point in the conversation. To return there, a new session is made that ends at
that point; the old one is never changed, so a failure changes nothing and undo only has to name
it. The plan then keeps the anchor that it returned to, and the session to continue.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from cleveragents import codec
from cleveragents.context import Context
from cleveragents.integrations.agent import agent_named, resume
from cleveragents.integrations.session import is_in_place
from cleveragents.model.conversation import Conversation, Point, Session, anchor_in
from cleveragents.model.plan import Plan

KEY = "conversation"
AGAIN = ("agents", "run", "--plan")


def current(ctx: Context, plan_id: str) -> Conversation | None:
    """The plan's current conversation; None if it follows no agent."""
    plan = ctx.store.plans.get(plan_id)
    return _named(plan, plan.actor_state)


def _named(plan: Plan, state: Any) -> Conversation | None:
    found = anchor_in(state)
    if found is None:
        return None
    kept = cast("dict[str, Any]", state).get(KEY)
    if kept is not None:
        return codec.convert(kept, Conversation)
    anchor, _ = found
    return Conversation(
        agent=anchor.agent,
        session_id=anchor.session_id,
        continue_=_placed(plan, resume(anchor.agent, anchor.session_id)),
    )


def _placed(plan: Plan, argv: tuple[str, ...]) -> tuple[str, ...]:
    """The agent's command line, in the plan's sandboxes if it has any."""
    return argv if is_in_place(plan) else (*AGAIN, plan.plan_id, "--", *argv)


class Return:
    """Moves the conversation for a rollback, undo or redo, which call `remember`.

    `again`: an undo or redo, which returns to where the plan was, even in the middle of a prompt; a
    rollback to the group from before a prompt leaves that prompt out.
    """

    def __init__(
        self, ctx: Context, plan_id: str, env: Mapping[str, str], again: bool = False
    ) -> None:
        self._ctx = ctx
        self._plan_id = plan_id
        self._env = env
        self._again = again
        self.conversation = current(ctx, plan_id)

    def remember(self, state: Any) -> Any:
        """The state for the plan to keep, naming the conversation at that point."""
        made = self.at(state)
        if made is None:
            return state
        self.conversation = made
        return _naming(self._anchored(state), made)

    def stay(self, state: Any) -> Any:
        """For files alone: the conversation continues where it is."""
        state = self._anchored(state)
        if self.conversation is None or anchor_in(state) is None:
            return state
        return _naming(state, self.conversation)

    def at(self, state: Any) -> Conversation | None:
        """The session at a state: itself if nothing came after, else a copy that ends there."""
        literal, state = state is not None, self._anchored(state)
        found = anchor_in(state)
        if found is None:
            return None
        anchor, point = found
        plan = self._ctx.store.plans.get(self._plan_id)
        named = _named(plan, state)
        last = Point.AFTER if self._again and literal else point
        if named is not None and named.session_id and self._ends_there(named, state, last):
            return named
        from cleveragents.integrations.client import INSIDE

        # The agent's own program may make it, and runs our hooks: they would report a session that
        # nobody knows yet, which would be a plan of its own.
        env = {**self._env, INSIDE: self._plan_id}
        made = agent_named(anchor.agent).fork(anchor, point, env)
        made = replace(made, continue_=_placed(plan, made.continue_))
        if made.session_id:
            self._record(made)
        return made

    def _anchored(self, state: Any) -> Any:
        """The state with an anchor: before the first prompt, that of the first prompt's session."""
        if state is not None:
            return state
        store = self._ctx.store
        decisions = store.plans.decisions(self._plan_id)
        prompt = next((one.decision_id for one in decisions if one.parent_id is not None), None)
        for group in store.checkpoints.groups(self._plan_id):
            if (found := anchor_in(group.actor_state)) is not None:
                # A conversation without a known file cannot be cut: it continues as it is.
                known = group.decision_id == prompt and found[0].transcript
                return group.actor_state if known else None
        return None

    def _ends_there(self, named: Conversation, state: dict[str, Any], point: Point) -> bool:
        """Whether the session has nothing after the state's point."""
        session = self._ctx.store.sessions.get(named.agent, named.session_id)
        if session is not None and session.plan_id != self._plan_id:
            return False  # it continued elsewhere
        groups = self._ctx.store.checkpoints.groups(self._plan_id)
        later = [
            group.actor_state
            for group in groups
            if anchor_in(group.actor_state) is not None
            and KEY not in group.actor_state
            and group.actor_state.get("session_id") == named.session_id
        ]
        if KEY in state:
            return not later
        return point is Point.AFTER and bool(later) and anchor_in(later[-1]) == anchor_in(state)

    def _record(self, made: Conversation) -> None:
        """Record first of all that events of the new session belong to this plan."""
        session = Session(
            session_id=made.session_id,
            agent=made.agent,
            plan_id=self._plan_id,
            forked_from=made.forked_from,
            created_at=self._ctx.now(),
        )
        with self._ctx.store.transaction():
            self._ctx.store.sessions.put(session)


def _naming(state: dict[str, Any], conversation: Conversation) -> dict[str, Any]:
    """The state with the session to continue, unless it is the anchor's own."""
    bare = {name: value for name, value in state.items() if name != KEY}
    if bare["session_id"] == conversation.session_id:
        return bare
    return {**bare, KEY: msgspec.to_builtins(conversation)}


def shown(conversation: Conversation | None) -> dict[str, Any] | None:
    """The conversation as data for programs."""
    return None if conversation is None else msgspec.to_builtins(conversation)
