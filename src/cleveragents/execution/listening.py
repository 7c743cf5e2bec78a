"""A running tool's output: reported as it comes, and saved for other processes."""

import codecs
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from cleveragents.context import Context
from cleveragents.errors import MachineError
from cleveragents.lease import LeasedPlan
from cleveragents.model.tool import ToolCall
from cleveragents.tools.limits import Capture
from cleveragents.tools.runner import CallContext, hidden

KEPT = 1 << 16
"""Bytes of it that others can read before the call has ended."""
EVERY = 1.0
LONGEST_LINE = 1 << 12


class Listener:
    """Receives one call's output; `idle` is called repeatedly while its process runs."""

    def __init__(
        self, ctx: Context, leased: LeasedPlan, call: ToolCall, secrets: tuple[str, ...]
    ) -> None:
        self._ctx = ctx
        self._leased = leased
        self._call = call
        self._secrets = secrets
        self._kept = Capture(min(ctx.settings.output_limit, KEPT))
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._untold = ""
        self._saved_at = time.monotonic()
        self._saved_bytes = 0

    def hear(self, data: bytes) -> None:
        self._kept.feed(data)
        self._untold += self._decoder.decode(data)

    def idle(self) -> None:
        self._tell(self._whole())
        self._ctx.talk.idle()
        if time.monotonic() - self._saved_at >= EVERY:
            self.save()

    def save(self) -> None:
        """Save the output so far; it need not survive a power cut."""
        self._saved_at = time.monotonic()
        if self._kept.total == self._saved_bytes:
            return
        self._saved_bytes = self._kept.total
        text = hidden(self._secrets, self._kept.text())
        so_far = msgspec.structs.replace(self._call, output=text, output_bytes=self._kept.total)
        # A full disk should not end a tool that does not write itself.
        with (
            suppress(MachineError),
            self._leased.transaction(lasts=False),
        ):
            self._ctx.store.calls.put(so_far)

    def end(self) -> None:
        self._tell(len(self._untold))

    def _whole(self) -> int:
        """How much may be shown: half a secret would not be recognized."""
        if not self._secrets or len(self._untold) > LONGEST_LINE:
            return len(self._untold)
        return self._untold.rfind("\n") + 1

    def _tell(self, length: int) -> None:
        text, self._untold = self._untold[:length], self._untold[length:]
        if text:
            told = {"id": self._call.step_id, "text": hidden(self._secrets, text)}
            self._ctx.talk.tell("output", told)


def with_listener(context: CallContext, listener: Listener) -> CallContext:
    """The call, with a listener."""
    return msgspec.structs.replace(meanwhile(context, listener.idle), hear=listener.hear)


def meanwhile(context: CallContext, more: Callable[[], None]) -> CallContext:
    """The call, with one more function that is called repeatedly while it runs."""
    before = context.meanwhile

    def both() -> None:
        if before is not None:
            before()
        more()

    return msgspec.structs.replace(context, meanwhile=both)
