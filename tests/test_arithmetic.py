"""The table in docs/cluster.md is what was measured, times what a large team does."""

from benchmarks import arithmetic
from benchmarks.arithmetic import Measured

ON_PAPER = Measured(
    date="2026-11-16",
    groups=30,
    statements=10,
    transactions=1.2,
    wal_bytes=7267,
    puts=1,
    bytes=50_000,
)
"""Groups of 50 KB, each of them put once."""


def test_the_page_has_what_the_script_makes_of_what_is_recorded() -> None:
    before, found, behind = arithmetic.on_page(arithmetic.PAGE.read_text())
    assert found == arithmetic.table(arithmetic.recorded())
    assert before + found + behind == arithmetic.PAGE.read_text()


def test_the_arithmetic() -> None:
    rows = {
        line.split("|")[1].strip(): line.split("|")[3].strip()
        for line in arithmetic.table(ON_PAPER).splitlines()
    }
    assert rows["groups"] == "347 /s, 1,736 at peak"
    assert rows["write transactions"] == "417 /s, 2,083 at peak"
    assert rows["statements"] == "3,472 /s, 17,361 at peak"
    assert rows["write-ahead log"] == "218 GB a day"
    assert rows["content"] == "1.5 TB a day"
    assert rows["puts"] == "900 M a month, $4,500"
    assert rows["7 days kept"] == "10.5 TB, $242 a month"
    assert rows["signs of life"].startswith("3,000 transactions /s")
