"""What one checkpoint costs in a running plan, beside plain shadow git on the same tree."""

import os
import time

from .trees import SIZES, OpenPlan, change, rewrite


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

    def time_a_hundred_files_changed(self, files):
        self.turn += 1
        rewrite(self.plan.root, self.turn, 100)
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


class LargeFile:
    """One byte changed in 50 MB."""

    timeout = 300

    def setup(self):
        self.plan = OpenPlan(20)
        self.file = self.plan.root / "large.bin"
        self.file.write_bytes(os.urandom(50_000_000))
        self.plan.checkpoint()
        self.turn = 0

    def teardown(self):
        self.plan.close()

    def time_one_byte_of_50_mb(self):
        self.turn += 1
        with self.file.open("r+b") as file:
            file.seek(1000 * self.turn)
            file.write(bytes([self.turn % 256]))
        self.plan.checkpoint()


class NewProcess:
    """`agents plan checkpoint create`: start-up, a walk, a durable checkpoint."""

    params = [list(SIZES)]
    param_names = ["files"]
    timeout = 300

    def setup(self, files):
        self.plan = OpenPlan(files)
        self.plan.let_go()
        self.turn = 0

    def teardown(self, files):
        self.plan.close()

    def time_ten_changes(self, files):
        self.turn += 1
        change(self.plan.root, self.turn)
        self.plan.run_command()


class First:
    """The sandbox of a plan and its first checkpoint."""

    params = [list(SIZES)]
    param_names = ["files"]
    timeout = 300

    def time_sandbox_and_first_checkpoint(self, files):
        OpenPlan(files).close()
