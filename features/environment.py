"""Each scenario has a home, a store and a working directory of its own.

`CLEVERAGENTS_TEST_STORE=postgres`: the store is on PostgreSQL.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import pgserver
from tests.databases import EVERYWHERE, shared_store
from tests.harness import Agents


def before_all(context):
    context.stack = ExitStack()
    context.pg = context.stack.enter_context(pgserver.running()) if EVERYWHERE else None


def after_all(context):
    context.stack.close()


def before_scenario(context, scenario):
    folder = tempfile.TemporaryDirectory(prefix="agents-behave-", ignore_cleanup_errors=True)
    context.add_cleanup(folder.cleanup)
    context.agents = Agents(Path(folder.name))
    context.outcome = None
    if context.pg is not None:
        store = ExitStack()
        context.add_cleanup(store.close)
        url = store.enter_context(shared_store(context.pg))
        context.agents.env["CLEVERAGENTS_STORE_URL"] = url
