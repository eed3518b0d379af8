"""Laws that every policy keeps, those of `fedsz.contrib` too, by the public protocol alone."""

from __future__ import annotations

import copy
import gc
import math
import tracemalloc
from dataclasses import FrozenInstanceError

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.contrib.dc2 import Steps
from fedsz.control.controller import all_policies, parsed
from fedsz.control.policy import NextRound, Policy
from fedsz.control.record import ClientRecord, Decision, RoundRecord
from tests.policies import BASE, client, controller, decide, row

SPECS = (
    "fixed",
    "auto",
    "schedule:first=std:4,last=std:1",
    "schedule:first=std:4e+0,down_last=std:1e-1",
    "accuracy",
    *(f"dc2:rule={rule}" for rule in Steps),
    "layers",
    "layers:limit=4",
    "gate",
    "gate:again=2",
    "auto+layers+gate",
    "schedule:first=std:1e+1+accuracy+dc2",
)

# Anything that a run may have seen, most of it ugly.
sizes = st.sampled_from([0, 1, 1000, 10**6, 1 << 40])
seconds = st.sampled_from([0.0, 1e-300, 1e-3, 1.0, 1e5, math.inf, math.nan])
names = st.sampled_from(["conv.weight", "fc.weight", ""])
client_records = st.builds(
    ClientRecord,
    node=st.sampled_from(["1", "2", str(1 << 63)]),
    bandwidth=st.sampled_from([0.0, 1e-300, 1e3, 1e6, 1e300, math.inf, math.nan, -1.0]),
    raw_bytes=sizes,
    sent_bytes=sizes,
    encode_seconds=seconds,
    decode_seconds=seconds,
)
decisions = st.builds(
    Decision,
    config=st.sampled_from([BASE, BASE.replace(error_bound="step:1")]),
    codecs=st.dictionaries(st.sampled_from(["1", "2"]), st.sampled_from(["raw", "szx", "zfp"])),
)
rows = st.builds(
    RoundRecord,
    round=st.integers(0, 20),
    accuracy=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, math.nan, math.inf, None]),
    loss=st.sampled_from([0.0, 0.1, 1.0, 2.3, -3.0, 1e308, math.nan, math.inf, None]),
    diverged=st.booleans(),
    residual_ratio=st.sampled_from([None, 0.0, 5.0, math.inf, math.nan]),
    raw_up=sizes,
    sent_up=sizes,
    raw_down=sizes,
    sent_down=sizes,
    seconds=seconds,
    replies=st.integers(0, 2),
    clients=st.lists(client_records, max_size=3),
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


@given(spec=st.sampled_from(SPECS), history=histories)
def test_any_history_makes_a_decision_that_can_be_carried_out(
    spec: str, history: list[RoundRecord]
) -> None:
    decided = decide(spec, history)

    assert decided == decide(spec, tuple(history))
    assert decided == msgspec.json.decode(msgspec.json.encode(decided), type=Decision)
    told = [decided.config.bound, decided.config.downlink_bound]
    assert {bound.kind for bound in told if bound} == {"step" if "auto" in spec else "std"}
    assert all(1 / 8 <= factor <= 8 for factor in decided.config.factors.values())
    assert "\n" not in decided.why


@pytest.mark.parametrize("spec", SPECS)
def test_a_record_replays_to_the_same_decisions(spec: str) -> None:
    rng = np.random.default_rng(0)
    history: list[RoundRecord] = []
    for number in range(9):
        seen = row(
            number,
            float(rng.uniform()),
            float(rng.uniform()),
            clients=[client(str(node), bandwidth=float(rng.lognormal(14))) for node in range(3)],
            spread={f"layer{i}": (1000 * (i + 1), float(rng.lognormal())) for i in range(3)},
            sensitivity={f"layer{i}": float(rng.lognormal()) for i in range(3)},
            decision=decide(spec, history) if history else None,
        )
        history.append(msgspec.json.decode(msgspec.json.encode(seen), type=RoundRecord))
    again = controller(spec)
    for seen in history:
        assert seen.decision == again.decision
        again.decide(seen)
    assert (history[-1].decision == Decision(config=BASE)) == (spec == "fixed")


# What makes or keeps records.
PLACES = ("fedsz/control/", "fedsz/contrib/", "tests/contrib/", "tests/policies")


def test_a_controller_keeps_nothing_of_its_rounds() -> None:
    """The records of these rounds would be 500 kB."""
    asked = controller("auto+accuracy+dc2:seconds=1+gate", rounds=None)

    def play(first: int, last: int) -> int:
        for number in range(first, last):
            asked.decide(
                row(
                    number,
                    number / 1000,
                    clients=[client(str(node), bandwidth=1e6 + number) for node in range(20)],
                    spread={"layer": (1000, 1.0 + number)},
                    sensitivity={"layer": float(number)},
                    decision=asked.decision,
                )
            )
        gc.collect()
        # Other threads of a long test run allocate, too.
        ours = [tracemalloc.Filter(True, f"*/{place}*.py") for place in PLACES]
        snapshot = tracemalloc.take_snapshot().filter_traces(ours)
        return sum(trace.size for trace in snapshot.traces)

    tracemalloc.start()
    try:
        grown = -play(0, 60) + play(60, 140)
    finally:
        tracemalloc.stop()
    assert grown < 5_000


@pytest.mark.parametrize("policy", all_policies(), ids=lambda policy: policy.name)
def test_settings_are_frozen(policy: Policy) -> None:
    with pytest.raises(FrozenInstanceError):
        policy.tolerance = 1.0  # type: ignore[misc]


@given(spec=st.sampled_from(SPECS), history=histories)
def test_observing_and_deciding_change_no_state(spec: str, history: list[RoundRecord]) -> None:
    for policy in parsed(spec, 0.5):
        state = policy.init()
        assert state == policy.init()
        for record in history:
            before = copy.deepcopy(state)
            after = policy.observe(state, record)
            assert repr(state) == repr(before)  # NaN is not equal to itself
            state = after
        before = copy.deepcopy(state)
        decision = decide("auto") if policy.name != "schedule" else Decision(config=BASE)
        policy.decide(state, decision, NextRound(3, 9))
        assert repr(state) == repr(before)


def test_a_node_that_restarts_for_ever_fills_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsz.control.gate.LISTED", 20)
    asked = controller("gate", rounds=None)
    for number in range(200):
        fast = client(f"restarted {number}", bandwidth=1e12)
        asked.decide(row(number, clients=[fast, client("old", bandwidth=1e12)]))

    assert asked.decision is not None
    assert len(asked.decision.codecs) == 20
    assert "old" in asked.decision.codecs
