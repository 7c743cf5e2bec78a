"""What every kind of sandbox must keep, as tests to inherit (`cleveragents[testing]`).

    class TestMySandbox(SandboxContract):
        kind, strategy = "my-kind", "my-strategy"

        def make_source(self, folder): ...
        def changes(self): ...
        def all_changes(self, path): ...

The kind has to be registered (entry point `cleveragents.sandboxes`). For readable failures say
`pytest.register_assert_rewrite("cleveragents.testing")` in your `conftest.py`. Nothing else of
the package imports this.
"""

from cleveragents.testing.bench import Bench, Start, making, open_bench
from cleveragents.testing.crash import killed_at
from cleveragents.testing.in_place_contract import InPlaceContract
from cleveragents.testing.observe import Seen, look, require_same, stamps
from cleveragents.testing.sandbox_contract import OURS, SandboxContract
from cleveragents.testing.state_contract import REF, Change, StateContract

__all__ = [
    "OURS",
    "REF",
    "Bench",
    "Change",
    "InPlaceContract",
    "SandboxContract",
    "Seen",
    "Start",
    "StateContract",
    "killed_at",
    "look",
    "making",
    "open_bench",
    "require_same",
    "stamps",
]
