"""Policies: equal histories decide the same, and what each promises."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedsz.bounds import ErrorBound
from fedsz.control.accuracy import Accuracy, noise_of
from fedsz.control.auto import ALLOWED, FIRST
from fedsz.control.dc2 import RULES, Dc2
from fedsz.control.gate import RAW, Gate
from fedsz.control.layers import allot
from fedsz.control.policy import POLICIES, Policy, get, replay
from fedsz.control.quantiser_rate import bounds_of_slope, distortion, rate
from fedsz.control.record import Decision, Link, Observation
from fedsz.control.transfer_time import is_worth, transfer_seconds
from fedsz.errors import ConfigError
from fedsz.update.config import EXACT

BASE = Decision(update="delta", error_bound="std:3", downlink="std:1")
SPECS = (
    "fixed",
    "auto",
    "schedule:first=std:4,last=std:1",
    "schedule:first=std:4e+0,down_last=std:1e-1,shape=linear",
    "accuracy",
    *(f"dc2:rule={rule},seconds=10" for rule in RULES),
    "dc2",
    "layers",
    "layers:cost=mse,limit=4",
    "gate",
    "gate:codecs=uniform/szx,again=2",
    "auto+layers+gate",
    "schedule:first=std:1e+1+accuracy+dc2",
)


def policy(spec: str, base: Decision = BASE, *, tolerance: float = 0.5, rounds: int = 9) -> Policy:
    return get(spec, base, tolerance=tolerance, rounds=rounds)


def link(node: str = "1", **fields: Any) -> Link:
    usual = {"bandwidth": 1e6, "raw_bytes": 10**6, "sent_bytes": 10**5}
    return Link(node=node, **(usual | {"encode_seconds": 0.1, "decode_seconds": 0.1} | fields))


def row(number: int, accuracy: float = 0.5, loss: float | None = 1.0, **fields: Any) -> Observation:
    usual: dict[str, Any] = {"raw_up": 10**6, "sent_up": 10**5, "raw_down": 0, "sent_down": 0}
    usual |= {"seconds": 60.0, "replies": int(number > 0), "links": []}
    return Observation(round=number, accuracy=accuracy, loss=loss, **(usual | fields))


# Anything that a run may have seen, most of it ugly.
sizes = st.sampled_from([0, 1, 1000, 10**6, 1 << 40])
seconds = st.sampled_from([0.0, 1e-300, 1e-3, 1.0, 1e5, math.inf, math.nan])
names = st.sampled_from(["conv.weight", "fc.weight", ""])
links = st.builds(
    Link,
    node=st.sampled_from(["1", "2", str(1 << 63)]),
    bandwidth=st.sampled_from([0.0, 1e-300, 1e3, 1e6, 1e300, math.inf, math.nan, -1.0]),
    raw_bytes=sizes,
    sent_bytes=sizes,
    encode_seconds=seconds,
    decode_seconds=seconds,
)
decisions = st.builds(
    Decision,
    update=st.just("delta"),
    error_bound=st.just("std:3"),
    downlink=st.just(EXACT),
    codecs=st.dictionaries(st.sampled_from(["1", "2"]), st.sampled_from(["raw", "szx", "zfp"])),
)
rows = st.builds(
    Observation,
    round=st.integers(0, 20),
    accuracy=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, math.nan]),
    loss=st.sampled_from([0.0, 0.1, 1.0, 2.3, 1e308, math.nan, math.inf, None]),
    raw_up=sizes,
    sent_up=sizes,
    raw_down=sizes,
    sent_down=sizes,
    seconds=seconds,
    replies=st.integers(0, 2),
    links=st.lists(links, max_size=3),
    decision=st.none() | decisions,
    spread=st.dictionaries(
        names,
        st.tuples(
            st.sampled_from([0, 1, 10**9]),
            st.sampled_from([0.0, 1e-300, 1e-3, 1e300, math.inf, math.nan]),
        ),
    ),
    sensitivity=st.dictionaries(
        names, st.sampled_from([0.0, 1e-300, 1.0, 1e300, math.inf, math.nan, -1.0])
    ),
)
histories = st.lists(rows, max_size=6)


@pytest.mark.parametrize("spec", SPECS)
@given(history=histories)
def test_any_history_makes_a_decision_that_can_be_carried_out(
    spec: str, history: list[Observation]
) -> None:
    decided = policy(spec).decide(history)

    assert decided == policy(spec).decide(tuple(history))
    assert decided == msgspec.json.decode(msgspec.json.encode(decided), type=Decision)
    kinds = {"std", "abs"} if "auto" in spec else {"std"}
    assert {ErrorBound.of(b).kind for b in (decided.error_bound, decided.downlink)} <= kinds
    assert all(1 / 8 <= factor <= 8 for factor in decided.factors.values())
    assert "\n" not in decided.why


@pytest.mark.parametrize("spec", SPECS)
def test_a_record_replays_to_the_same_decisions(spec: str) -> None:
    rng = np.random.default_rng(0)
    chosen = policy(spec)
    history: list[Observation] = []
    for number in range(9):
        seen = row(
            number,
            float(rng.uniform()),
            float(rng.uniform()),
            links=[link(str(node), bandwidth=float(rng.lognormal(14))) for node in range(3)],
            spread={f"layer{i}": (1000 * (i + 1), float(rng.lognormal())) for i in range(3)},
            sensitivity={f"layer{i}": float(rng.lognormal()) for i in range(3)},
            decision=chosen.decide(history) if history else None,
        )
        history.append(msgspec.json.decode(msgspec.json.encode(seen), type=Observation))
    again = list(replay(policy(spec), history))

    assert [number for number, _, _ in again] == list(range(1, 9))
    assert all(then == now for _, then, now in again)
    forged = [*history[:-1], msgspec.structs.replace(history[-1], decision=BASE)]
    *_, (_, then, now) = replay(policy(spec), forged)
    assert (then == now) == (spec == "fixed")


def test_specs_that_cannot_be_are_refused_with_what_can() -> None:
    for spec, why in {
        "": "no policy ''; have fixed, auto, schedule, accuracy, dc2, layers, gate",
        "fix": "no policy 'fix'",
        "auto+": "no policy ''",
        "fixed:x=1": "policy 'fixed' has no setting 'x'; have none",
        "accuracy:ups=2": "have up, down, low, high, noise, patience",
        "accuracy:up=much": "up must be float",
        "accuracy:up=0.5": "at least 1",
        "accuracy:low=nan": "finite and above 0",
        "accuracy:low=2": "low <= 1",
        "schedule": "needs an end",
        "schedule:first=abs:1": "both must be of one kind",
        "schedule:first=std:0": "above 0",
        "schedule:first=std:4,shape=steep": "geometric or linear",
        "dc2:rule=da9": "have mean, aimd, aiad, trend, band",
        "dc2:seconds=-1": "not below 0",
        "dc2:width=1": "width < 1",
        "layers:cost=gold": "measured or mse",
        "layers:limit=0.5": "at least 1",
        "gate:codecs=sz9": "no codec 'sz9'",
        "gate:codecs=szx/raw": "by itself",
        "gate:again=0": "at least 1",
    }.items():
        with pytest.raises(ConfigError) as caught:
            policy(spec)
        assert why in str(caught.value)
    with pytest.raises(ConfigError, match="layers needs update delta"):
        policy("layers", msgspec.structs.replace(BASE, update="weights"))
    with pytest.raises(ConfigError, match="exact without it"):
        policy("schedule:down_last=std:1", msgspec.structs.replace(BASE, downlink=EXACT))
    with pytest.raises(ConfigError, match="tolerance"):
        policy("auto", tolerance=math.nan)


def test_what_a_policy_needs_is_what_its_rules_need() -> None:
    assert {rule.name for rule in POLICIES if rule.needs} == {"auto", "layers"}
    assert policy("auto+gate").needs == {"spread"}
    assert policy("gate+layers:cost=mse").needs == {"spread"}
    assert policy("layers+auto").needs == {"spread", "sensitivity"}


def test_it_needs_neither_torch_nor_flower() -> None:
    script = (
        "import sys; sys.modules['torch'] = sys.modules['flwr'] = None; import fedsz.control as p;"
        "p.get('auto+layers+gate', p.Decision(update='delta', error_bound='std:1',"
        "downlink='exact'), tolerance=1, rounds=2).decide([])"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# gate

bandwidths = st.floats(1.0, 1e12)
counts = st.integers(1, 1 << 40)
short = st.floats(0.0, 1e4)


@given(bandwidths, counts, counts, short, short)
def test_gate_is_the_inequality(
    bandwidth: float, raw: int, sent: int, encode: float, decode: float
) -> None:
    seen = link(
        bandwidth=bandwidth,
        raw_bytes=raw,
        sent_bytes=sent,
        encode_seconds=encode,
        decode_seconds=decode,
    )
    decided = policy("gate").decide([row(0), row(1, links=[seen])])
    seconds, plain = encode + decode + 8 * sent / bandwidth, 8 * raw / bandwidth
    assume(not math.isclose(seconds, plain))

    assert ("1" not in decided.codecs) == (0 < seconds < plain)
    assert decided.codecs.get("1", RAW) == RAW
    assert is_worth(encode + decode, raw, sent, bandwidth) == (0 < seconds < plain)


@given(bandwidths, st.lists(st.tuples(counts, short), min_size=2, max_size=2))
def test_gate_takes_the_fastest_codec_once_it_has_tried_them(
    bandwidth: float, costs: list[tuple[int, float]]
) -> None:
    chosen, raw = policy("gate:codecs=uniform/szx"), 10**6
    assert chosen.decide([]).codecs == {}
    history = [row(0), row(1, links=[link(bandwidth=bandwidth, raw_bytes=raw)], decision=BASE)]
    for codec, (sent, encode) in zip(("uniform", "szx"), costs, strict=True):
        decision = chosen.decide(history)
        assert decision.codecs == {"1": codec}
        seen = link(
            bandwidth=bandwidth,
            raw_bytes=raw,
            sent_bytes=sent,
            encode_seconds=encode,
            decode_seconds=0.0,
        )
        history.append(row(len(history), links=[seen], decision=decision))
    seconds = {
        codec: transfer_seconds(encode, sent, bandwidth)
        for codec, (sent, encode) in zip(("uniform", "szx"), costs, strict=True)
    } | {RAW: 8 * raw / bandwidth}
    least = sorted(seconds.values())
    assume(not math.isclose(least[0], least[1]))

    assert chosen.decide(history).codecs == {"1": min(seconds, key=lambda c: seconds[c])}


def test_gate_asks_again_and_remembers_the_speed_of_the_codec() -> None:
    chosen = policy("gate:again=3")
    slow = link(encode_seconds=100.0)
    plain = link(sent_bytes=10**6, encode_seconds=0.0, decode_seconds=0.0)
    history, compressed = [row(0)], []
    for number in range(1, 13):
        decision = chosen.decide(history)
        raw = decision.codecs.get("1") == RAW
        compressed.append(not raw)
        history.append(row(number, links=[plain if raw else slow], decision=decision))

    assert compressed == [True, False, False, False] * 3
    crawling = msgspec.structs.replace(plain, bandwidth=1e4)  # now it pays, without being asked
    for number in (13, 14):
        history.append(row(number, links=[crawling], decision=chosen.decide(history)))
    assert chosen.decide(history).codecs == {}


def test_gate_compresses_while_nothing_is_known() -> None:
    for unknown in (0.0, math.inf, math.nan):
        history = [row(0), row(1, links=[link(bandwidth=unknown, encode_seconds=1e9)])]
        assert policy("gate").decide(history).codecs == {}
    empty = row(1, links=[link(raw_bytes=0, sent_bytes=0)])
    assert policy("gate").decide([row(0), empty]).codecs == {}
    assert Gate().choose([]) == ""


def test_gate_goes_by_the_median_of_the_last_three() -> None:
    rates = [1e9, 1e9, 1e3, 1e3, 1e9]  # the last three say 1e3
    history = [row(i, links=[link(bandwidth=b)]) for i, b in enumerate(rates, 1)]

    assert policy("gate").decide([row(0), *history[:2]]).codecs == {"1": RAW}
    assert policy("gate").decide([row(0), *history]).codecs == {}


# layers


@given(
    st.lists(
        st.tuples(st.integers(1, 10**7), st.floats(0.01, 8.0), st.floats(1e-6, 1e6)),
        min_size=1,
        max_size=20,
    )
)
def test_layers_keep_the_rate_and_cost_no_more(
    tensors: list[tuple[int, float, float]],
) -> None:
    counts, present, weights = (
        np.array(column, dtype=np.float64) for column in zip(*tensors, strict=True)
    )
    factors = allot(counts, present, np.log(weights), 8.0)
    before, after = counts @ rate(present), counts @ rate(present * factors)

    assert ((factors >= 1 / 8) & (factors <= 8)).all()
    assert after == pytest.approx(before, rel=1e-3, abs=1e-6 * counts.sum())
    cost = (counts * weights) @ distortion(present)
    assert (counts * weights) @ distortion(present * factors) <= cost * (1 + 1e-3)


@given(st.lists(st.floats(0.01, 8.0), min_size=2, max_size=6), st.floats(1e-3, 1e3))
def test_layers_spend_more_where_errors_cost_more(bounds: list[float], weight: float) -> None:
    counts, present = np.full(len(bounds), 1000.0), np.full(len(bounds), bounds[0])
    alike = allot(counts, present, np.full(len(bounds), math.log(weight)), 8.0)
    weights = weight * np.array(bounds)
    factors = allot(counts, present, np.log(weights), 8.0)
    order = np.argsort(weights)

    assert alike == pytest.approx(1.0, rel=1e-6)
    assert (np.diff(factors[order]) <= 1e-9).all()


def test_layers_with_fine_bounds_are_reverse_water_filling() -> None:
    counts, weights = np.array([1e3, 1e5, 1e4]), np.array([1.0, 2.0, 0.25])
    factors = allot(counts, np.full(3, 0.01), np.log(weights), 8.0)
    level = np.exp((counts @ np.log(weights)) / counts.sum())  # c_l D_l equal, at the same rate

    assert factors == pytest.approx(np.sqrt(level / weights), rel=2e-3)


def test_layers_by_squared_error_make_fine_bounds_equal() -> None:
    spread = {"a": (1000, 1.0), "b": (3000, 2.0), "c": (10, 0.7)}
    fine = msgspec.structs.replace(BASE, error_bound="std:0.01")
    factors = policy("layers:cost=mse", fine).decide([row(0), row(1, spread=spread)]).factors
    bounds = [factors[name] * deviation for name, (_, deviation) in spread.items()]
    assert bounds == pytest.approx([bounds[0]] * 3, rel=3e-3)

    same = msgspec.structs.replace(BASE, error_bound="abs:0.001")
    assert policy("layers:cost=mse", same).decide([row(0), row(1, spread=spread)]).factors == (
        pytest.approx(dict.fromkeys(spread, 1.0), rel=1e-3)
    )


def test_layers_wait_for_what_they_need_and_leave_out_what_cannot_be_known() -> None:
    spread = {"a": (1000, 1.0), "b": (1000, 1.0), "gone": (0, 1.0), "still": (9, 0.0)}
    chosen = policy("layers")
    unknown = row(1, spread=spread)
    assert chosen.decide([row(0), unknown]).factors == {}
    lost = msgspec.structs.replace(unknown, sensitivity={"a": math.nan, "b": 0.0})
    assert chosen.decide([row(0), lost]).factors == {}
    known = row(2, sensitivity={"a": 1.0, "b": 2.0, "gone": 1.0, "still": 1.0})
    factors = chosen.decide([row(0), lost, known]).factors

    assert factors.keys() == {"a", "b"}
    assert factors["a"] == pytest.approx(1.0, rel=1e-3)  # b's mean is 1, as a's is
    before = msgspec.structs.replace(BASE, factors={"a": 0.5, "other": 2.0})
    assert policy("layers", before).decide([row(0), unknown]).factors == before.factors


@given(st.floats(2.0**-20, 15.0))
def test_rate_and_distortion_are_those_of_a_quantised_laplace_variable(t: float) -> None:
    b, k = math.sqrt(0.5), np.arange(1, 1 << 12)
    mass = 0.5 * np.exp(-(2 * k - 1) * t / b) * -math.expm1(-2 * t / b)
    zero = -math.expm1(-t / b)
    kept = mass[mass > 0]
    bits = -zero * math.log2(zero) - 2 * float(kept @ np.log2(kept))
    if t >= 1e-2:  # else more bins would be needed
        assert rate(t) == pytest.approx(bits, rel=1e-9)
    x = np.linspace(0, 40 * b, 1 << 16)
    error = np.abs(x - 2 * t * np.rint(x / (2 * t)))
    density = np.exp(-x / b) / b
    square = float(np.trapezoid(error**2 * density, x))
    if t >= 1e-2:
        assert distortion(t) == pytest.approx(square, rel=1e-2)
    assert float(rate(t)) > float(rate(t * 1.01))
    assert float(distortion(t)) < float(distortion(t * 1.01))


def test_slopes_lead_back_to_bounds() -> None:
    t = np.geomspace(1e-4, 8.0, 50)
    eps = 1e-4
    slopes = (distortion(t * (1 + eps)) - distortion(t)) / (rate(t) - rate(t * (1 + eps)))
    assert bounds_of_slope(np.log(slopes[t > 0.05])) == pytest.approx(t[t > 0.05], rel=1e-2)
    assert bounds_of_slope(np.array([-math.inf, math.inf])).tolist() == [0.0, math.inf]
    fine = 2 * math.log(2) * t**2 / 3
    assert bounds_of_slope(np.log(fine[t < 0.01])) == pytest.approx(t[t < 0.01], rel=1e-3)


# accuracy

numbers = st.floats(0.0, 1.0)
losses = st.none() | st.floats(0.0, 3.0) | st.sampled_from([math.nan, math.inf])


def factor_of(decision: Decision) -> float:
    return ErrorBound.of(decision.error_bound).value


@given(st.lists(st.tuples(numbers, losses), min_size=1, max_size=9), numbers, losses, st.data())
def test_a_worse_round_never_loosens(
    before: list[tuple[float, float | None]],
    accuracy: float,
    loss: float | None,
    data: st.DataObject,
) -> None:
    history = [row(i, *seen) for i, seen in enumerate(before)]
    lower = data.draw(st.floats(0.0, accuracy))
    higher = math.inf if loss is None or not math.isfinite(loss) else loss
    higher = data.draw(st.just(math.nan) | st.none() | st.floats(higher, math.inf))
    last = len(history)
    for spec in ("accuracy", "accuracy:patience=1,noise=3", "auto", "schedule:last=std:1+accuracy"):
        chosen = policy(spec)
        good = factor_of(chosen.decide([*history, row(last, accuracy, loss)]))
        bad = factor_of(chosen.decide([*history, row(last, lower, higher)]))
        assert bad <= good


def test_it_loosens_on_track_and_tightens_behind_and_when_stuck() -> None:
    rising = [row(i, 0.1 * i, 2.0 - 0.2 * i) for i in range(6)]
    loop = Accuracy(up=1.5, down=2.0)
    assert loop.factor(rising, 0.5)[0] == pytest.approx(1.5**5)
    behind = row(6, 0.2, 1.8)
    assert loop.factor([*rising, behind], 0.5)[0] == pytest.approx(1.5**5 / 2)
    overfit = row(6, 0.499, 1.8)  # the loss grows, the accuracy is within the tolerance
    assert loop.factor([*rising, overfit], 0.5)[0] == pytest.approx(1.5**5)
    assert loop.factor([*rising, overfit], 0.05)[0] == pytest.approx(1.5**5 / 2)
    for lost in (None, math.nan, math.inf):
        assert loop.factor([*rising, row(6, 0.5, lost)], 0.5)[0] == pytest.approx(1.5**5 / 2)
    stuck = [row(6 + i, 0.5, 1.0) for i in range(7)]
    factors = [loop.factor([*rising, *stuck[:i]], 0.5)[0] / 1.5**5 for i in range(8)]
    assert factors == pytest.approx([1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25])


def test_without_a_loss_it_goes_by_the_accuracy_and_failed_rounds_say_nothing() -> None:
    loop = Accuracy(up=1.5, down=2.0)
    history = [row(0, 0.1, None), row(1, 0.3, None), row(2, 0.5, None)]
    assert loop.factor(history, 0.5)[0] == pytest.approx(1.5**2)
    failed = [row(3 + i, 0.5, None, replies=0, links=[]) for i in range(9)]
    assert loop.factor([*history, *failed], 0.5)[0] == pytest.approx(1.5**2)
    assert loop.factor([], 0.5)[0] == loop.factor(history[:1], 0.5)[0] == 1.0


def test_its_limits_hold() -> None:
    up = [row(i, i / 40, 3.0 - i / 20) for i in range(40)]
    down = [row(i, 0.5 - i / 100, 1.0 + i) for i in range(40)]
    loop = Accuracy(low=0.25, high=4.0)
    assert loop.factor(up, 0.5)[0] == 4.0
    assert loop.factor(down, 0.5)[0] == 0.25


def test_noise_is_blind_to_a_steady_rise_and_finds_that_of_a_noisy_one() -> None:
    line = np.arange(8) * 0.3
    estimates = [
        noise_of((line + np.random.default_rng(i).normal(0, 0.1, 8)).tolist()) for i in range(400)
    ]
    assert noise_of(line.tolist()) == pytest.approx(0, abs=1e-12)
    assert np.median(estimates) == pytest.approx(0.1, rel=0.15)


# dc2


def timed(number: int, upload: float, rho: float, **fields: Any) -> Observation:
    """Make a round whose slowest upload took so long, with a faster one beside it."""
    sent = round(rho * 10**6)
    slow = link("1", sent_bytes=sent, bandwidth=8 * sent / upload)
    fast = link("2", sent_bytes=sent, bandwidth=16 * sent / upload)
    return row(number, sent_up=sent, links=[slow, fast], **fields)


def test_controllers_are_as_written() -> None:
    rho, target = 0.2, 10.0
    for rule, latencies, asked in (
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
        assert Dc2(rule=rule).step(rho, latencies, target) == pytest.approx(asked)


@given(
    st.sampled_from(["aimd", "aiad"]), st.floats(0.1, 1e3), st.floats(0.1, 1e3), st.floats(0.01, 1)
)
def test_uploads_that_are_late_are_made_smaller(
    rule: str, upload: float, target: float, rho: float
) -> None:
    assume(not math.isclose(upload, target))
    chosen = policy(f"dc2:rule={rule},seconds={target!r},low=1e-9,high=1e12")
    factor = factor_of(chosen.decide([row(0), timed(1, upload, rho)])) / 3
    asked = min(Dc2(rule=rule).step(round(rho * 1e6) / 1e6, [upload], target), 1.0)
    sent = max(asked, 0.001)

    assert factor == pytest.approx(2 ** (32 * (round(rho * 1e6) / 1e6 - sent)), rel=1e-4)
    assert (factor > 1) == (upload > target) or rho == 1 or sent == 0.001


@pytest.mark.parametrize("rule", ["aimd", "aiad", "band"])
def test_it_finds_the_bound_that_fills_the_time(rule: str) -> None:
    """On a link of 1 Mbit/s with updates of 10 MB whose rate falls by a bit per doubled bound."""
    chosen = policy(f"dc2:rule={rule},seconds=4,low=1e-3,high=1e3")
    history, uploads = [row(0)], []
    for number in range(1, 40):
        bound = factor_of(chosen.decide(history))
        rho = min(max((4.0 - math.log2(bound)) / 32, 0.002), 1.0)
        sent = round(rho * 1e7)
        uploads.append(8 * sent / 1e6)
        seen = link(sent_bytes=sent, raw_bytes=10**7)
        history.append(row(number, raw_up=10**7, sent_up=sent, links=[seen]))

    assert 2.0 < np.mean(uploads[20:]) < 4.8


def test_a_share_of_the_round_and_links_that_are_not_timed() -> None:
    late = timed(1, 20.0, 0.2, seconds=60.0)  # more than a quarter of a minute
    assert factor_of(policy("dc2").decide([row(0), late])) > 3
    assert factor_of(policy("dc2:share=0.5").decide([row(0), late])) < 3
    silent = row(1, links=[link(bandwidth=0.0), link(sent_bytes=0)])
    assert policy("dc2").decide([row(0), silent]).error_bound == "std:3"


# schedule and auto


@given(
    st.sampled_from(["geometric", "linear"]), st.integers(2, 50), st.floats(1, 9), st.floats(0.1, 1)
)
def test_a_schedule_goes_from_first_to_last_without_turning(
    shape: str, rounds: int, first: float, last: float
) -> None:
    spec = f"schedule:first=std:{first!r},last=std:{last!r},down_last=std:0.5,shape={shape}"
    chosen = policy(spec, rounds=rounds)
    decided = [chosen.decide([row(i) for i in range(n)]) for n in range(1, rounds + 1)]
    up = [factor_of(decision) for decision in decided]
    down = [ErrorBound.of(decision.downlink).value for decision in decided]

    assert (up[0], up[-1]) == pytest.approx((first, last), rel=1e-5)
    assert (down[0], down[-1]) == pytest.approx((1.0, 0.5), rel=1e-5)
    steps = np.diff(up if shape == "linear" else np.log(up))
    assert steps == pytest.approx([steps[0]] * (rounds - 1), abs=1e-4)
    assert chosen.decide([row(0), row(rounds + 5)]).error_bound == decided[-1].error_bound


def test_a_schedule_of_one_round_is_its_last() -> None:
    chosen = policy("schedule:first=std:4,last=std:1", rounds=1)
    assert chosen.decide([]).error_bound == "std:1"


def bounds_of(decisions: Sequence[Decision]) -> list[float]:
    return [factor_of(decision) for decision in decisions]


def test_auto_allows_no_less_for_more_tolerance() -> None:
    spread = {"a.weight": (900, 0.01), "b.weight": (100, 0.03)}
    smooth = [row(i, 0.1 * i, 2.0 - 0.2 * i, spread=spread if i else {}) for i in range(9)]
    step = math.sqrt((900 * 0.01**2 + 100 * 0.03**2) / 1000)
    tolerances = [0.0, 0.1, 0.25, 0.5, 0.7, 1.0, 5.0]
    last = [policy("auto", tolerance=t).decide(smooth) for t in tolerances]

    assert all((d.update, d.threshold, d.rule) == ("delta+ef", 0, "parameters") for d in last)
    assert all(a <= b for a, b in itertools.pairwise(bounds_of(last)))
    assert bounds_of(last)[0] == pytest.approx(ALLOWED[0][1] * step, rel=1e-3)
    assert bounds_of(last)[-1] == pytest.approx(ALLOWED[-1][1] * step, rel=1e-3)
    down = [ErrorBound.of(d.downlink).value for d in last]
    assert down[-1] == pytest.approx(ALLOWED[-1][2] * step, rel=1e-3)


def test_auto_starts_by_the_step_and_then_stays() -> None:
    spread = {"a.weight": (900, 0.01)}
    steps = [row(0), *(row(i, 0.1 * i, 2 - 0.2 * i, spread=spread) for i in range(1, 6))]
    shrinking = [
        msgspec.structs.replace(o, spread={"a.weight": (900, 0.01 / max(o.round, 1))})
        if o.round
        else o
        for o in steps
    ]
    auto = policy("auto")

    assert auto.decide([]).error_bound == auto.decide(steps[:1]).error_bound == str(FIRST)
    bounds = {auto.decide(shrinking[:n]).error_bound for n in range(2, 7)}
    assert len(bounds) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0])
def test_auto_waits_for_a_step_that_is_one(bad: float) -> None:
    history = [row(0), row(1, spread={"a.weight": (900, bad)})]
    assert policy("auto").decide(history).error_bound == str(FIRST)
