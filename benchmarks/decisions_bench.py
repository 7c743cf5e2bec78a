"""Whether a decision costs more when many were made before it, pruning included."""

import os
import shutil
import statistics
import tempfile
import time
from itertools import pairwise

from cleveragents.context import Talk
from cleveragents.workspace import open_workspace

DECISIONS = 250 if os.environ.get("BENCH_SMOKE") else 1000


class Decisions:
    timeout = 900

    def setup(self):
        self.folder = tempfile.mkdtemp()
        os.mkdir(f"{self.folder}/docs")
        steps = "".join(
            f"  - {{id: s{n}, tool: file.write, with: {{path: f{n % 20}, content: '{n}'}}}}\n"
            for n in range(DECISIONS)
        )
        with open(f"{self.folder}/plan.yaml", "w", encoding="utf-8") as plan:
            plan.write("name: long\nresources: {docs: {kind: fs-directory, path: docs}}\n")
            plan.write(f"steps:\n{steps}")

    def teardown(self):
        shutil.rmtree(self.folder)

    def track_wall_last_hundred_to_first(self):
        """Median time of a decision among the last hundred, over that among the first."""
        return self.ratio(time.perf_counter)

    def track_cpu_last_hundred_to_first(self):
        """The same in CPU time, which other work on the machine does not change."""
        return self.ratio(time.process_time)

    def ratio(self, clock):
        ended = []

        def tell(event, _data):
            if event == "done":
                ended.append(clock())

        home = f"{self.folder}/store-{time.monotonic_ns()}"
        with open_workspace(home, talk=Talk(tell=tell)) as workspace:
            workspace.run(f"{self.folder}/plan.yaml")
        took = [after - before for before, after in pairwise(ended)]
        return statistics.median(took[-100:]) / statistics.median(took[:100])

    track_wall_last_hundred_to_first.unit = "x"
    track_cpu_last_hundred_to_first.unit = "x"
