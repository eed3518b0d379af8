"""Bandwidths, latencies, and how long bytes take."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz import formatting
from fedsz.errors import ConfigError
from fedsz.experiments.link_model import Link
from fedsz.quantities import bandwidth, latency


def test_a_message_takes_its_latency_and_its_bits() -> None:
    # 228.18 MB, the 10-class AlexNet, at 10 Mbps.
    assert Link(10e6).seconds(228_179_240) == pytest.approx(182.54, abs=0.01)
    assert Link(10e6, 0.05).seconds(0) == 0.05
    assert Link(math.inf, 0.01).seconds(1 << 40) == 0.01
    link = Link(3e7, 0.2)
    assert link.seconds(7000) + link.seconds(5) == pytest.approx(link.seconds(7005) + 0.2)


@pytest.mark.parametrize(
    ("bits", "seconds", "why"),
    [
        *((bits, 0.0, "a bandwidth must be above 0") for bits in (0.0, -1.0, math.nan)),
        *((1e6, s, "a latency must be finite") for s in (-1e-9, math.inf, math.nan)),
    ],
)
def test_a_link_that_there_cannot_be(bits: float, seconds: float, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Link(bits, seconds)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (bandwidth, "10mbps", 10e6), (bandwidth, "1.5 Gbps", 1.5e9), (bandwidth, " 64KBPS ", 64e3),
        (bandwidth, "1e3bps", 1e3), (bandwidth, "2.5e+1 mbps", 25e6), (latency, "50ms", 0.05),
        (latency, "0.2 s", 0.2), (latency, "750us", 750e-6), (latency, "0ms", 0.0),
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(
    read: Callable[[str], float], text: str, value: float
) -> None:
    assert read(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "10", "mbps", "ten mbps", "10 mb", "-1mbps", "1.2.3mbps"])
def test_what_is_no_bandwidth_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="is no bandwidth; write 10mbps, in bps, kbps"):
        bandwidth(text)
    with pytest.raises(ConfigError, match="'50mbps' is no latency; write 50ms, in us, ms, s"):
        latency("50mbps")


@given(bits=st.floats(1, 1e12))
def test_what_is_shown_reads_back_to_three_digits(bits: float) -> None:
    assert bandwidth(formatting.bandwidth(bits)) == pytest.approx(bits, rel=6e-3)


@pytest.mark.parametrize(
    ("bits", "text"), [(10e6, "10 Mbps"), (1.234e9, "1.23 Gbps"), (64e3, "64 kbps"), (5, "5 bps")]
)
def test_units_fit_the_number(bits: float, text: str) -> None:
    assert formatting.bandwidth(bits) == text
