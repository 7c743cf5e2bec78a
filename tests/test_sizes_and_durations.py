"""Sizes and times as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleveragents.model.units import parse_bytes, parse_duration, show_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("7d", 604800),
        ("1w", 604800),
        ("250ms", 0.25),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 1.5 h ", 5400),
        ("90", 90),
        (90, 90),
        (0.5, 0.5),
        (0, 0),
    ],
)
def test_a_duration_is_read(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "5x", "5m x", "-5m", "5 5", "1e3s", "\u0665m", "5m,3s"])
def test_a_duration_that_is_none_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration: write it like '30s', '5m'"):
        parse_duration(text)


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan"), "9" * 400 + "s"])
def test_a_duration_is_finite_and_not_negative(value: str | float) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("500MB", 500_000_000),
        ("2GB", 2_000_000_000),
        ("2 gb", 2_000_000_000),
        ("1G", 1_000_000_000),
        ("1GiB", 2**30),
        ("4ki", 4096),
        ("1.5KB", 1500),
        ("0.1KB", 100),
        ("12", 12),
        ("12B", 12),
        (12, 12),
        (0, 0),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_a_size_is_read(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MB", "1XB", "-1MB", "1e3", "1 2", "\u0665MB", "1GBB"])
def test_a_size_that_is_none_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size: write it like '500MB'"):
        parse_bytes(text)


@pytest.mark.parametrize("value", [-1, 2**63, "9" * 5000, "9" * 400 + ".5PB", "10000PB"])
def test_a_size_has_limits(value: str | int) -> None:
    with pytest.raises(ValueError, match="between 0 and 2"):
        parse_bytes(value)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (1536, "1.5 KB"),
        (999_949, "999.9 KB"),
        (999_950, "1 MB"),
        (1_000_000_000, "1 GB"),
        (1_234_567_890_123, "1.2 TB"),
        (5 * 10**18, "5000 PB"),
    ],
)
def test_a_size_is_shown_short(count: int, text: str) -> None:
    assert show_bytes(count) == text


@given(st.integers(0, 10**17))
def test_a_shown_size_is_read_back_within_its_rounding(count: int) -> None:
    assert parse_bytes(show_bytes(count)) == pytest.approx(count, rel=0.06)
