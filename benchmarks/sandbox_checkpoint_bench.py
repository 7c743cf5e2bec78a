"""What one checkpoint costs in a running plan, beside plain shadow git on the same tree."""

import time

from .trees import SIZES, OpenPlan, change


class Checkpoint:
    params = [list(SIZES)]
    param_names = ["files"]
    timeout = 300

    def setup(self, files):
        self.plan = OpenPlan(files)
        self.turn = 0

    def teardown(self, files):
        self.plan.close()

    def time_ten_changes(self, files):
        self.turn += 1
        change(self.plan.root, self.turn)
        self.plan.checkpoint()

    def time_nothing_changed(self, files):
        self.plan.checkpoint()

    def track_times_faster_than_shadow_git(self, files):
        """Median ratio over alternating rounds: above 1 means faster than shadow git."""
        ratios = []
        for turn in range(5):
            change(self.plan.root, 100 + turn)
            begin = time.perf_counter()
            self.plan.shadow.checkpoint()
            middle = time.perf_counter()
            self.plan.checkpoint()
            ratios.append((middle - begin) / (time.perf_counter() - middle))
        return sorted(ratios)[len(ratios) // 2]

    track_times_faster_than_shadow_git.unit = "x"
