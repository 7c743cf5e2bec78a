"""Run the command as if the clock stood elsewhere: `python -m tests.shifted SECONDS plan list`.

For machines without faketime. Only the standard library is told another time, none of our code.
"""

import datetime
import sys
import time

SECONDS = float(sys.argv.pop(1))
_real, _real_ns = time.time, time.time_ns


class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return cls.fromtimestamp(time.time(), tz)


time.time = lambda: _real() + SECONDS
time.time_ns = lambda: _real_ns() + int(SECONDS * 1e9)
datetime.datetime = Shifted  # type: ignore[misc]

from cleveragents.cli.main import main  # noqa: E402

sys.argv[0] = "agents"
main()
