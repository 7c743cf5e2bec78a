"""Each scenario has a home, a store and a working directory of its own."""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.harness import Agents


def before_scenario(context, scenario):
    folder = tempfile.TemporaryDirectory(prefix="agents-behave-", ignore_cleanup_errors=True)
    context.add_cleanup(folder.cleanup)
    context.agents = Agents(Path(folder.name))
    context.outcome = None
