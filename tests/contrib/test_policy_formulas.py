"""`schedule`, `dc2`, `gate` and `layers` decide by their formulas."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedsz.bounds import ErrorBound
from fedsz.contrib.dc2 import Dc2
from fedsz.control.gate import RAW
from fedsz.control.record import RoundRecord
from fedsz.control.transfer_time import UpdateCost
from tests.policies import BASE, client, decide, factor_of, row


@given(st.integers(2, 50), st.floats(1, 9), st.floats(0.1, 1))
def test_a_schedule_goes_from_first_to_last_by_equal_factors(
    rounds: int, first: float, last: float
) -> None:
    spec = f"schedule:first=std:{first!r},last=std:{last!r},down_last=std:0.5"
    decided = [
        decide(spec, [row(n - 1)] if n > 1 else [], rounds=rounds) for n in range(1, rounds + 1)
    ]
    up = [factor_of(decision) for decision in decided]
    down = [ErrorBound.of(decision.config.downlink).value for decision in decided]

    assert (up[0], up[-1]) == pytest.approx((first, last), rel=1e-5)
    assert (down[0], down[-1]) == pytest.approx((1.0, 0.5), rel=1e-5)
    steps = np.diff(np.log(up))
    assert steps == pytest.approx([steps[0]] * (rounds - 1), abs=1e-4)
    for later in (decide(spec, [row(rounds + 5)], rounds=rounds), decide(spec, rounds=1)):
        assert factor_of(later) == pytest.approx(up[-1])


def timed(number: int, upload: float, rho: float, **fields: Any) -> RoundRecord:
    """Make a round whose slowest upload took so long, with a faster one beside it."""
    sent = round(rho * 10**6)
    slow = client("1", sent_bytes=sent, bandwidth=8 * sent / upload)
    fast = client("2", sent_bytes=sent, bandwidth=16 * sent / upload)
    return row(number, sent_up=sent, clients=[slow, fast], **fields)


def test_controllers_of_dc2_are_as_written() -> None:
    rho = 0.2
    for rule, (*before, now), asked in (
        ("mean", [8.0, 12.0], rho - 0.02 * (12 - 10) / 10),
        ("mean", [12.0, 8.0], rho + 0.02 * (10 - 8) / 10),
        ("aimd", [10.1], rho / 2),
        ("aimd", [10.0], rho + 0.01),
        ("aiad", [10.1], rho - 0.02),
        ("aiad", [9.0], rho + 0.01),
        ("trend", [8.0, 12.0], rho - 0.02 * (12 - 8) / 10),
        ("trend", [12.0], rho),
        ("band", [8.0, 12.0], rho - 0.02 * (12 - 8) / 10),
        ("band", [8.0, 13.0], rho / 2),
        ("band", [12.0, 7.0], rho + 0.01),
    ):
        times = now, before[-1] if before else now, fmean([*before, now])
        assert Dc2(rule=rule).step(rho, *times) == pytest.approx(asked)


@given(
    st.sampled_from(["aimd", "aiad"]), st.floats(0.1, 1e3), st.floats(0.1, 1e3), st.floats(0.01, 1)
)
def test_uploads_that_are_late_are_made_smaller(
    rule: str, upload: float, target: float, rho: float
) -> None:
    assume(not math.isclose(upload, target))
    spec = f"dc2:rule={rule},seconds={target!r},low=1e-9,high=1e12"
    factor = factor_of(decide(spec, [row(0), timed(1, upload, rho)])) / 3
    rho = round(rho * 1e6) / 1e6
    asked = Dc2(rule=rule, seconds=target).step(rho, upload, upload, upload)
    sent = max(min(asked, 1.0), 0.001)

    assert factor == pytest.approx(2 ** (32 * (rho - sent)), rel=1e-4)
    assert (factor > 1) == (upload > target) or rho == 1 or sent == 0.001


@pytest.mark.parametrize("rule", ["aimd", "aiad", "band"])
def test_dc2_finds_the_bound_that_fills_the_time(rule: str) -> None:
    """On a link of 1 Mbit/s with updates of 10 MB whose rate falls by a bit per doubled bound."""
    history, uploads = [row(0)], []
    for number in range(1, 40):
        bound = factor_of(decide(f"dc2:rule={rule},seconds=4,low=1e-3,high=1e3", history))
        sent = round(min(max((4.0 - math.log2(bound)) / 32, 0.002), 1.0) * 1e7)
        uploads.append(8 * sent / 1e6)
        seen = client(sent_bytes=sent, raw_bytes=10**7)
        history.append(row(number, raw_up=10**7, sent_up=sent, clients=[seen]))

    assert 2.0 < np.mean(uploads[20:]) < 4.8


def test_dc2_takes_no_step_where_links_are_not_timed() -> None:
    silent = row(1, clients=[client(bandwidth=0.0), client(sent_bytes=0)])
    assert decide("dc2", [row(0), silent]).config.error_bound == "std:3"


bandwidths = st.floats(1.0, 1e12)
counts = st.integers(1, 1 << 40)
short = st.floats(0.0, 1e4)


@given(bandwidths, counts, counts, short, short)
def test_gate_is_the_inequality(
    bandwidth: float, raw: int, sent: int, encode: float, decode: float
) -> None:
    told = {"encode_seconds": encode, "decode_seconds": decode}
    seen = client(bandwidth=bandwidth, raw_bytes=raw, sent_bytes=sent, **told)
    decided = decide("gate", [row(0), row(1, clients=[seen])])
    seconds, plain = encode + decode + 8 * sent / bandwidth, 8 * raw / bandwidth
    assume(not math.isclose(seconds, plain))

    assert decided.codecs == ({} if 0 < seconds < plain else {"1": RAW})
    cost = UpdateCost(raw, sent, encode, decode)
    assert cost.is_worth(bandwidth) == (0 < seconds < plain)


def test_gate_asks_again_and_remembers_the_speed_of_the_codec() -> None:
    spec, slow = "gate:again=3", client(encode_seconds=100.0)
    plain = client(sent_bytes=10**6, encode_seconds=0.0, decode_seconds=0.0)
    history, compressed = [row(0)], []
    for number in range(1, 13):
        decision = decide(spec, history)
        raw = decision.codecs.get("1") == RAW
        compressed.append(not raw)
        history.append(row(number, clients=[plain if raw else slow], decision=decision))

    assert compressed == [True, False, False, False] * 3
    crawling = msgspec.structs.replace(plain, bandwidth=1e4)  # now it pays, without being asked
    for number in (13, 14):
        history.append(row(number, clients=[crawling], decision=decide(spec, history)))
    assert decide(spec, history).codecs == {}


def test_gate_compresses_while_nothing_is_known() -> None:
    unknown = [client(bandwidth=b, encode_seconds=1e9) for b in (0.0, math.inf, math.nan)]
    for seen in (*unknown, client(raw_bytes=0, sent_bytes=0)):
        assert decide("gate", [row(0), row(1, clients=[seen])]).codecs == {}
    assert decide("gate", [row(0)]).codecs == {}


def test_gate_goes_by_the_median_of_the_last_three() -> None:
    rates = [1e9, 1e9, 1e3, 1e3, 1e9]  # the last three say 1e3
    history = [row(i, clients=[client(bandwidth=b)]) for i, b in enumerate(rates, 1)]

    assert decide("gate", [row(0), *history[:2]]).codecs == {"1": RAW}
    assert decide("gate", [row(0), *history]).codecs == {}


tensors = st.tuples(st.integers(1, 10**7), st.floats(0.01, 8.0), st.floats(0.5, 2.0))


@given(st.lists(tensors, min_size=1, max_size=20), st.sampled_from(["std:3", "abs:0.1", "step:2"]))
def test_layers_keep_the_bits_and_make_the_cost_of_each_error_equal(
    layers: list[tuple[int, float, float]], bound: str
) -> None:
    counts, deviations, costs = np.array(layers, dtype=np.float64).T
    names = [f"layer{i}" for i in range(len(layers))]
    seen = row(
        1,
        spread={n: (count, s) for n, (count, s, _) in zip(names, layers, strict=True)},
        sensitivity={n: c * count for n, (count, _, c) in zip(names, layers, strict=True)},
    )

    decided = decide("layers:limit=1e6", [row(0), seen], BASE.replace(error_bound=bound))

    factors = np.array([decided.config.factors[name] for name in names])
    assert counts @ np.log2(factors) == pytest.approx(0, abs=1e-3 * counts.sum())
    rms = math.sqrt(float(counts @ deviations**2) / float(counts.sum()))
    units = {"std": deviations, "abs": 1.0, "step": np.minimum(rms, 4 * deviations)}
    errors = factors * units[ErrorBound.of(bound).kind] * np.sqrt(costs)
    assert errors == pytest.approx(errors[0], rel=2e-3)


def test_layers_wait_for_what_they_need_and_leave_out_what_cannot_be_known() -> None:
    spread = {"a": (1000, 1.0), "b": (1000, 1.0), "gone": (0, 1.0), "still": (9, 0.0)}
    unknown = row(1, spread=spread)
    lost = msgspec.structs.replace(unknown, sensitivity={"a": math.nan, "b": 0.0})
    known = row(2, sensitivity={"a": 1.0, "b": 2.0, "gone": 1.0, "still": 1.0})
    for history in ([row(0), unknown], [row(0), lost]):
        assert decide("layers", history).config.factors == {}
    factors = decide("layers", [row(0), lost, known]).config.factors

    assert factors.keys() == {"a", "b"}
    assert factors["a"] == pytest.approx(1.0, rel=1e-3)  # b's mean is 1, as a's is
    before = BASE.replace(factors={"a": 0.5, "other": 2.0})
    assert decide("layers", [row(0), unknown], before).config.factors == before.factors
