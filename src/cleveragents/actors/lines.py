"""An actor at the other end of a pipe: JSON lines in, JSON lines out."""

import msgspec

from cleveragents import codec
from cleveragents.actors.protocol import Answer, Channel, Outcome, Start
from cleveragents.errors import ActorFailed

SHOWN = 120
codec.make_ready(Answer)
_decoder: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


class LineActor:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._line = 0

    @property
    def where(self) -> str:
        return f"the actor, line {self._line}"

    def begin(self, start: Start) -> None:
        self._channel.send(msgspec.json.encode(start))

    def tell(self, outcome: Outcome) -> None:
        self._channel.send(msgspec.json.encode(outcome))

    def ask(self) -> Answer:
        line = self._channel.receive()
        self._line += 1
        try:
            return _decoder.decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ActorFailed(
                f"{self.where}: {error}: {_shown(line)}",
                "one JSON object per line; see docs/reference/actors.md",
            ) from None


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "backslashreplace").strip()
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:SHOWN])
    return text if len(line) <= SHOWN else f"{text}..."
