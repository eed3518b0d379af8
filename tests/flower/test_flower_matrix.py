"""Every strategy and every kind of app of Flower, plain beside wrapped in fedsz's two lines."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn")

from flwr.serverapp import strategy as flower

from tests.flower.flower_cases import CASES, MASKS, Case

pytestmark = pytest.mark.slow

NOTHING_LOST = "abs:1e-40"  # far below what two neighbouring weights differ by

APART = {
    # Threads reply in an order of their own, and so no two plain runs are equal, either.
    "NumPyClient, ServerApp(server_fn)": 1e-5,
    "NumPyClient, SecAgg+": 1e-3,  # quantises at random
    # Weights replies by their losses. These are of the model in float32 that clients train, and
    # in a plain run of the float64 that the strategy has made of it.
    "QFedAvg": 1e-7,
}

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.mark.sampled(6)
@each_case
def test_learns_as_it_does_plain_from_fewer_bytes_which_are_counted(case: Case) -> None:
    plain, wrapped = case.run(wrapped=False), case.run(wrapped=True)

    assert plain.errors == wrapped.errors == wrapped.traffic.failures == []
    assert plain.accuracy > 0.85  # or there would be nothing to lose
    assert wrapped.accuracy >= plain.accuracy - case.points / 100

    assert wrapped.traffic.sent_up == wrapped.up
    assert wrapped.traffic.sent_down == wrapped.down
    # A plain array has a header, and those of FedAdam and its like are of float64.
    assert wrapped.traffic.raw_up <= plain.up
    assert bool(wrapped.traffic.raw_up) == (case.passes != MASKS)  # which are no arrays
    assert 0 < wrapped.traffic.raw_down <= plain.down

    if case.passes:
        assert wrapped.up <= plain.up + 64 * wrapped.messages
        assert wrapped.down <= plain.down + 64 * wrapped.messages
    else:
        assert plain.up > 20 * wrapped.up > 0
        assert plain.up + plain.down > 12 * (wrapped.up + wrapped.down)


@each_case
def test_without_loss_it_ends_with_the_bits_of_the_plain_run(case: Case) -> None:
    plain = case.run(wrapped=False, rounds=2)
    wrapped = case.run(wrapped=True, rounds=2, bound=NOTHING_LOST)

    assert wrapped.errors == wrapped.traffic.failures == []
    apart = APART.get(case.name, 0.0)
    assert wrapped.loss == pytest.approx(plain.loss, abs=apart, rel=0)
    assert wrapped.accuracy == plain.accuracy or apart


def test_all_strategies_of_flower_are_here() -> None:
    names = {name for name in flower.__all__ if name not in ("Result", "Strategy")}
    private = {name for name in names if name.startswith("DifferentialPrivacy")}

    assert names - private <= {case.name for case in CASES}
    assert len(private) == sum(case.name.startswith("DP, ") for case in CASES)


def test_secure_aggregation_has_a_line_for_each_round(flower_log: list[str]) -> None:
    (case,) = (case for case in CASES if case.passes == MASKS)
    case.run(wrapped=True, rounds=2)

    rounds = [text for text in flower_log if text.startswith("fedsz: round ")]
    # Each round takes four exchanges, of which one has the model.
    assert [text.partition(": 5 replies")[0] for text in rounds] == [
        "fedsz: round 1",
        "fedsz: round 2",
    ]
    assert [text for text in flower_log if text not in rounds] == []
