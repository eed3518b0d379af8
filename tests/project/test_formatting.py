"""Numbers for people."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from fedsz import formatting as f

SHOWN: list[tuple[Callable[[Any], str], dict[float, str]]] = [
    (f.seconds, {0: "0 µs", 2.5e-7: "0.250 µs", 0.0123: "12.3 ms", 59.999: "60.0 s"}),
    (f.seconds, {12345.0: "12,345 s", math.nan: "–"}),
    (f.tick, {0.01: "10 ms", 0.2: "200 ms", 1000.0: "1,000 s", 1e5: "100,000 s"}),
    (f.digits, {0: "0", 1: "1.00", 99.96: "100.0", 1e-5: "1.00e-05"}),
    (f.points, {-1e-9: "+0.00"}),
    (f.percent, {0.5: "50.00", 1.0: "100.00", math.nan: "–"}),
    (f.size, {0: "0 B", 999: "999 B", 153_900: "153.9 kB", 3.2e6: "3.2 MB", 5e12: "5000.0 GB"}),
    (f.size_in_digits, {0: "0 B", 1_500_000: "1.50 MB", 2.5e12: "2,500 GB", math.nan: "–"}),
    (f.megabytes, {1_234_567: "1.2 MB"}),
    (f.bandwidth, {10e6: "10 Mbps", 1.5e9: "1.5 Gbps", 64e3: "64 kbps", 12: "12 bps"}),
    (f.bandwidth, {999.9e3: "1 Mbps"}),
    (f.duration, {95: "95 s", 100: "2 min", 6120: "1.7 h"}),
]


@pytest.mark.parametrize(("show", "numbers"), SHOWN)
def test_numbers(show: Callable[[float], str], numbers: dict[float, str]) -> None:
    assert [show(x) for x in numbers] == [*numbers.values()]


def test_counts() -> None:
    assert [f.count(x, "seed") for x in (1, 2, 1000)] == ["1 seed", "2 seeds", "1,000 seeds"]
    listed = [f.listed("seed", x) for x in ([3], [0, 1, 2], [0, 1], [0, 7])]
    assert listed == ["seed 3", "seeds 0-2", "seeds 0, 1", "seeds 0, 7"]
