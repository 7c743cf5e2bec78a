"""Benchmarks for ASV.

`SIZES` are the trees a benchmark runs on; the smoke run of `nox -s bench_check` takes the small.
"""

import os

FILES = {"S": 300, "M": 10_000, "L": 100_000}
SIZES = ["S"] if os.environ.get("BENCH_SMOKE") == "1" else list(FILES)
