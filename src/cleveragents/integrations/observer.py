"""Turns agents' sessions into observed plans, one event at a time.

All state is in the store, so another process may handle the next event; a process that stays, the
sidecar, just has less to read.
"""

import os
from collections.abc import Callable
from contextlib import suppress

import msgspec

from cleveragents.context import Context
from cleveragents.errors import AgentsError
from cleveragents.execution.observed.executor import CallRequest, Late, ObservedExecutor, in_time
from cleveragents.execution.observed.plan import ObservedPlan
from cleveragents.integrations.agent import agent_named
from cleveragents.integrations.events import (
    LARGEST_OUTPUT,
    LARGEST_PROMPT,
    OWN_TOOLS,
    Answer,
    Event,
    Prompt,
    Quiet,
    SessionEnded,
    SessionStarted,
    StepBegins,
    StepEnded,
    bounded,
    bounded_inputs,
    named_paths,
)
from cleveragents.integrations.files.session_files import last_records
from cleveragents.lease import AT_WORK, EVENT, start_time
from cleveragents.model.conversation import Anchor, Point, Session, state_at
from cleveragents.model.journal import Operation
from cleveragents.model.plan import Plan
from cleveragents.model.tool import CallState, ToolResult

MOVED = frozenset(
    {
        Operation.ROLLBACK,
        Operation.UNDO,
        Operation.REDO,
        Operation.RESTORE,
        Operation.CORRECT,
    }
)
INTERRUPTED = "interrupted by its person"
SHELL_INPUTS = frozenset({"command", "cmd", "script", "url"})
"""A tool that takes one of these can reach the world outside."""
MakePlan = Callable[[Context, Anchor, str], Plan]
"""The plan for a session that nobody has seen yet, by the folder it works in."""
Fits = Callable[[Plan], bool]
"""Whether the plan that followed a session so far follows it here too."""


class Observer:
    """Handles the events of sessions in order."""

    def __init__(
        self, ctx: Context, make_plan: MakePlan, fits: Fits | None = None, wait: float = 60.0
    ) -> None:
        self._ctx = ctx
        self._make_plan = make_plan
        self._fits = fits or _is_open
        self._wait = wait
        self._followed: dict[str, ObservedPlan] = {}
        self._sessions: dict[str, Anchor] = {}
        """Session -> where it was last heard of, as long as it has not ended."""
        self._read: dict[str, tuple[int, int]] = {}
        """Session file -> how it was when we last looked for calls that a person ended."""
        self._was_one = False
        self.agent: tuple[int, str] | None = None
        """The agent's process and when that began, as far as any session's events told."""

    @property
    def is_over(self) -> bool:
        """Whether all known sessions have ended."""
        return self._was_one and not self._sessions

    def end_all(self) -> None:
        """End everything open: the agent is gone."""
        for anchor in tuple(self._sessions.values()):
            self.handle(SessionEnded(anchor=anchor, reason="gone"))

    def handle(self, event: Event, *, pid: int = 0, late: Late = in_time) -> Answer:
        """Record an event; `pid`: the agent's process; `late`: why it was not recorded in time."""
        if isinstance(event, StepBegins) and OWN_TOOLS.fullmatch(event.tool):
            return Answer()
        session = self._session(event, pid)
        self._was_one = True
        if isinstance(event, SessionEnded):
            self._sessions.pop(event.anchor.session_id, None)
        elif session is not None:
            self._sessions[event.anchor.session_id] = event.anchor
        if session is None:
            return Answer()
        if session.pid:
            self.agent = session.pid, session.started
        followed = self._follow(session.plan_id)
        with followed.taken(self._verb(event)) as executor:
            executor.late = late
            answer = self._reminder(session.plan_id, event)
            self._note(executor, event)
        if isinstance(event, Quiet | SessionEnded):
            background = event.background if isinstance(event, Quiet) else ()
            self._put(msgspec.structs.replace(session, background=background))
        return answer

    def drain(self) -> None:
        """Read the trackers' events; to be called often while a call is open."""
        for followed in self._followed.values():
            followed.drain()
        if any(followed.open_keys for followed in self._followed.values()):
            self._end_interrupted()

    def _end_interrupted(self) -> None:
        """A person may end a call without that any hook is called: the session file tells."""
        for anchor in tuple(self._sessions.values()):
            there = _age(anchor.transcript)
            if there is None or self._read.get(anchor.transcript) == there:
                continue
            ended = agent_named(anchor.agent).interrupted(last_records(anchor.transcript))
            with suppress(AgentsError):  # tried again
                for followed in tuple(self._followed.values()):
                    for call in followed.open_keys & ended:
                        at = msgspec.structs.replace(anchor, call_id=call)
                        self.handle(StepEnded(anchor=at, call=call, ok=False, error=INTERRUPTED))
                self._read[anchor.transcript] = there

    def close(self) -> None:
        for followed in self._followed.values():
            followed.release()

    def _follow(self, plan_id: str) -> ObservedPlan:
        if plan_id not in self._followed:
            self._followed[plan_id] = ObservedPlan(self._ctx, plan_id, self._wait)
        return self._followed[plan_id]

    def _session(self, event: Event, pid: int) -> Session | None:
        """The session with its plan; None for the end of a session that did nothing."""
        anchor = event.anchor
        known = self._ctx.store.sessions.get(anchor.agent, anchor.session_id)
        if known is not None and self._fits(self._ctx.store.plans.get(known.plan_id)):
            started = (start_time(pid) or "") if pid else ""
            if pid and (known.pid, known.started) != (pid, started):
                known = msgspec.structs.replace(known, pid=pid, started=started)
                self._put(known)
            return known
        if not isinstance(event, SessionStarted | Prompt | StepBegins):
            return None
        plan = self._make_plan(self._ctx, anchor, event.cwd)
        session = Session(
            session_id=anchor.session_id,
            agent=anchor.agent,
            plan_id=plan.plan_id,
            pid=pid,
            started=(start_time(pid) or "") if pid else "",
            created_at=self._ctx.now(),
        )
        self._put(session)
        return session

    def _put(self, session: Session) -> None:
        if self._ctx.store.sessions.get(session.agent, session.session_id) != session:
            with self._ctx.store.transaction():
                self._ctx.store.sessions.put(session)

    def _verb(self, event: Event) -> str:
        """The activity shown to others who find the plan busy."""
        agent = event.anchor.agent
        return (
            f"{agent}{AT_WORK}{event.tool}" if isinstance(event, StepBegins) else f"{EVENT}{agent}"
        )

    def _note(self, executor: ObservedExecutor, event: Event) -> None:
        anchor = event.anchor
        match event:
            case SessionStarted():
                executor.interrupt(state=None)
            case Prompt():
                text = bounded(event.text, LARGEST_PROMPT)
                executor.prompt(text, state_at(anchor, Point.BEFORE), event.parent_call)
            case StepBegins():
                executor.begin(_call_request(event), state_at(anchor, Point.BEFORE))
            case StepEnded():
                executor.end(event.call, _result(event), state_at(anchor))
            case Quiet():
                said = bounded(event.said, LARGEST_OUTPUT)
                executor.quiet(state_at(anchor), said, background=bool(event.background))
            case SessionEnded():
                executor.quiet(None)

    def _reminder(self, plan_id: str, event: Event) -> Answer:
        """Text that tells the agent that its files have changed since it last saw them."""
        if not isinstance(event, SessionStarted | Prompt) or getattr(event, "parent_call", ""):
            return Answer()
        last = self._ctx.store.journal.last(plan_id, 1)
        if not last or last[0].operation not in MOVED:
            return Answer()
        plan = self._ctx.store.plans.get(plan_id)
        guidance = self._ctx.store.plans.guidance(plan_id)
        said = f"The workspace was returned to checkpoint {plan.head_group_id}; files you remember"
        return Answer(context="\n".join((f"{said} may differ; read them again.", *guidance)))


def _age(path: str) -> tuple[int, int] | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns


def _is_open(plan: Plan) -> bool:
    return not plan.is_final


def _call_request(event: StepBegins) -> CallRequest:
    outside = event.network
    if outside is None:
        outside = event.writes is not False and not SHELL_INPUTS.isdisjoint(event.inputs)
    return CallRequest(
        key=event.call,
        tool=event.tool,
        inputs=bounded_inputs(event.inputs),
        writes=event.writes is not False,
        paths=named_paths(event.inputs, event.cwd) if event.writes else (),
        outside=outside,
        parent=event.parent_call,
    )


def _result(event: StepEnded) -> ToolResult:
    output = bounded(event.output, LARGEST_OUTPUT)
    return ToolResult(
        ok=event.ok,
        state=CallState.OK if event.ok else CallState.FAILED,
        output=output,
        output_bytes=len(event.output.encode()),
        error=None if event.ok else bounded(event.error or "failed", LARGEST_OUTPUT),
    )
