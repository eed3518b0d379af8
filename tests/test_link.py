"""Bandwidths, latencies, and how long bytes take."""

from __future__ import annotations

import math

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


@given(
    rate=st.floats(1e3, 1e11), delay=st.floats(0, 10), a=st.integers(0, 1 << 40),
    b=st.integers(0, 1 << 40),
)  # fmt: skip
def test_two_messages_cost_one_latency_more_than_one(
    rate: float, delay: float, a: int, b: int
) -> None:
    link = Link(rate, delay)

    apart, together = link.seconds(a) + link.seconds(b), link.seconds(a + b)
    assert apart == pytest.approx(together + delay)
    assert link.seconds(a) >= delay


@pytest.mark.parametrize("bits", [0.0, -1.0, math.nan])
def test_a_bandwidth_is_above_zero(bits: float) -> None:
    with pytest.raises(ConfigError, match="a bandwidth must be above 0"):
        Link(bits)


@pytest.mark.parametrize("seconds", [-1e-9, math.inf, math.nan])
def test_a_latency_is_finite_and_not_below_zero(seconds: float) -> None:
    with pytest.raises(ConfigError, match="a latency must be finite"):
        Link(1e6, seconds)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("10mbps", 10e6),
        ("1.5 Gbps", 1.5e9),
        (" 64KBPS ", 64e3),
        ("1e3bps", 1e3),
        ("2.5e+1 mbps", 25e6),
    ],
)
def test_bandwidths_as_people_write_them(text: str, bits: float) -> None:
    assert bandwidth(text) == pytest.approx(bits)


@pytest.mark.parametrize(
    ("text", "seconds"), [("50ms", 0.05), ("0.2 s", 0.2), ("750us", 750e-6), ("0ms", 0.0)]
)
def test_latencies_as_people_write_them(text: str, seconds: float) -> None:
    assert latency(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "mbps", "ten mbps", "10 mb", "-1mbps", "1.2.3mbps"])
def test_what_is_no_bandwidth_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="is no bandwidth; write 10mbps, in bps, kbps"):
        bandwidth(text)


def test_a_latency_has_other_units() -> None:
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
