"""Numbers for people."""

from __future__ import annotations

import math

from fedsz.formatting import (
    bandwidth,
    count,
    digits,
    duration,
    listed,
    megabytes,
    percent,
    points,
    seconds,
    size,
    size_in_digits,
    tick,
)


def test_words() -> None:
    assert [seconds(x) for x in (0.0, 2.5e-7, 0.0123, 59.999, 12345.0, math.nan)] == [
        "0 µs", "0.250 µs", "12.3 ms", "60.0 s", "12,345 s", "–",
    ]  # fmt: skip
    assert [tick(x) for x in (0.01, 0.2, 1000.0, 1e5)] == [
        "10 ms",
        "200 ms",
        "1,000 s",
        "100,000 s",
    ]
    assert [digits(x) for x in (0.0, 1.0, 99.96, 1e-5)] == ["0", "1.00", "100.0", "1.00e-05"]
    assert points(-1e-9) == "+0.00"


def test_sizes() -> None:
    assert [size(x) for x in (0, 999, 153_900, 3.2e6, 5e12)] == [
        "0 B", "999 B", "153.9 kB", "3.2 MB", "5000.0 GB",
    ]  # fmt: skip
    assert [size_in_digits(x) for x in (0, 1_500_000, 2.5e12, math.nan)] == [
        "0 B", "1.50 MB", "2,500 GB", "–",
    ]  # fmt: skip
    assert megabytes(1_234_567) == "1.2 MB"


def test_rates_and_durations() -> None:
    assert [bandwidth(x) for x in (10e6, 1.5e9, 64e3, 12.0, 999.9e3)] == [
        "10 Mbps", "1.5 Gbps", "64 kbps", "12 bps", "1 Mbps",
    ]  # fmt: skip
    assert [duration(x) for x in (95, 100, 6120)] == ["95 s", "2 min", "1.7 h"]


def test_shares_and_counts() -> None:
    assert [percent(x) for x in (0.5, 1.0, math.nan)] == ["50.00", "100.00", "–"]
    assert [count(x, "seed") for x in (1, 2, 1000)] == ["1 seed", "2 seeds", "1,000 seeds"]
    assert [listed("seed", x) for x in ([3], [0, 1, 2], [0, 1], [0, 7])] == [
        "seed 3", "seeds 0-2", "seeds 0, 1", "seeds 0, 7",
    ]  # fmt: skip
