"""What a rollback costs in a running plan: durable, with `pre_rollback`, verified."""

import time

from cleveragents.checkpoints.restoration import Restoration

from .trees import SIZES, OpenPlan, change


class Rollback:
    params = [list(SIZES)]
    param_names = ["files"]
    timeout = 300

    def setup(self, files):
        self.plan = OpenPlan(files)
        self.target = self.plan.checkpoint()
        self.tree = self.plan.shadow.checkpoint()
        self.turn = 0

    def teardown(self, files):
        self.plan.close()

    def back(self):
        todo = Restoration(group_id=self.target, plan={})
        return self.plan.ctx.checkpoints.rollback_to_checkpoint(self.plan.leased, todo)

    def time_ten_changes_taken_back(self, files):
        self.turn += 1
        change(self.plan.root, self.turn)
        assert self.back()

    def track_times_faster_than_shadow_git(self, files):
        """Median ratio over alternating rounds; shadow git syncs nothing and verifies nothing."""
        ratios = []
        for turn in range(5):
            change(self.plan.root, 100 + turn)
            begin = time.perf_counter()
            self.plan.shadow.restore(self.tree)
            middle = time.perf_counter()
            change(self.plan.root, 200 + turn)
            ours = time.perf_counter()
            assert self.back()
            ratios.append((middle - begin) / (time.perf_counter() - ours))
        return sorted(ratios)[len(ratios) // 2]

    track_times_faster_than_shadow_git.unit = "x"
