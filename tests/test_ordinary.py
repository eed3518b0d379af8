"""What is ordinary among clients: a few of them do not decide it, however fast they are."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

from fedsz.errors import ConfigError
from fedsz.flower import FedBuff, FedSZGrid, LocalGrid, StreamingFedAvg
from fedsz.flower.admission import AdmissionRules
from fedsz.flower.ordinary import (
    CLIENTS,
    LONGEST,
    ROUNDS,
    Latest,
    Move,
    NormLimit,
    Ordinary,
    largest_weight,
    nowhere_below,
    ordinary_norm,
    usually_above,
)
from fedsz.flower.refusal import Norm, Refusal
from fedsz.flower.wrapped_grid import WrappedGrid
from tests.federation import app_of, initial, record_of, run, to_arrays
from tests.test_clipping import steps_norm
from tests.test_hostile_replies import Hostile, metrics, sending

STRATEGIES = pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])


def floats_moved(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Whole numbers stay, as those of positions and masks do; variances grow."""
    rng = np.random.default_rng(client)
    return {
        name: (x + rng.uniform(0, 0.1, x.shape)).astype(x.dtype) if x.dtype.kind == "f" else x
        for name, x in arrays.items()
    }


def fleet_grid(inner: Any, **rules: Any) -> FedSZGrid:
    return FedSZGrid(inner, 1e-3, rules=AdmissionRules(**rules))


def test_limits_follow_most_of_the_clients() -> None:
    ordinary = Ordinary(NormLimit.of("10x"))
    assert ordinary.weight == 0
    for weights in ([1.0, 2.0, 1e9], [0.0, 1.5], []):
        for node, weight in enumerate(weights):
            ordinary.weighs(node, weight)
        ordinary.end_round()
    assert ordinary.weight == 1.5  # of 1, 1.5 and 1e9
    assert NormLimit.of(3) == NormLimit.of("3") == NormLimit(fixed=3.0)
    assert NormLimit.of("refuse:3x") == NormLimit(factor=3.0, clips=False)
    assert largest_weight(0.5, 5, 10) == 40
    assert largest_weight(0.5, 2, 10) == largest_weight(0.5, 4, 10) == 100
    assert largest_weight(1, 5, 10) == largest_weight(0.5, 1, 10) == np.inf
    for wrong in ("0x", "-1", "nan", "many", "", "refuse:none"):
        with pytest.raises(ConfigError, match="a norm's limit is a number above 0"):
            AdmissionRules(max_update_norm=wrong)
    with pytest.raises(ConfigError, match="max_client_share"):
        AdmissionRules(max_client_share=0)
    with pytest.raises(ConfigError, match="no codec"):
        AdmissionRules(allow_codecs=("sz4",))


@pytest.mark.parametrize(
    ("floats", "whole", "ordinary"),
    [
        ([3.0, 1.0, 2.0], [5.0, 0.0, 7.0], Norm(2, 5)),
        ([1e-9, 1e-9, 1.0, 1.0], [0.0, 0.0, 0.0, 9e17], Norm(1, 0)),
        ([1.0, 1e9], [0.0, 3.0], Norm(1, 3)),
        ([0.0, 0.0, 4.0], [0.0, 0.0, 0.0], Norm(4, 0)),
    ],
)
def test_the_ordinary_norm(floats: list[float], whole: list[float], ordinary: Norm) -> None:
    moves = [Move(Norm(*both)) for both in zip(floats, whole, strict=True)]
    assert ordinary_norm(moves) == ordinary
    limit = NormLimit.of("10x").over(ordinary)
    assert limit == Norm(10 * ordinary.floats, 10 * ordinary.whole)
    assert NormLimit.of("2.5").over(ordinary).floats == 2.5
    unlimited = Norm(np.inf, np.inf)
    assert NormLimit.of("none").over(ordinary) == NormLimit.of("10x").over(None) == unlimited


def test_a_client_counts_once_and_for_a_while() -> None:
    latest, slow, few = Latest[float](), 7, [1, 2]
    latest.add(slow, 1.0)
    for number in range(LONGEST):
        latest.end_round()
        assert latest.values.count(1.0) == 1
        for node in few:
            latest.add(node, 100.0 + number)
        assert len(latest.values) == (3 if number else 1)
    latest.end_round()
    assert latest.values == [100.0 + LONGEST - 1] * 2

    many = range(10, 10 + CLIENTS)
    for _ in range(ROUNDS):
        assert [node for node, *_ in latest.known][:2] == few
        for node in many:
            latest.add(node, 1.0)
        latest.end_round()
    assert [node for node, *_ in latest.known] == list(many)
    assert Latest(latest.known).known == latest.known


@STRATEGIES
def test_the_form_is_not_that_of_the_first_two(strategy: type[FedAvg]) -> None:
    grid = fleet_grid(Hostile(metrics(more=1.0), 0, 1))

    run(strategy(fraction_evaluate=0), grid, rounds=5)

    traffic = grid.take_traffic()
    assert [failure.kind for failure in traffic.failures] == [Refusal.RECORDS] * 10  # and no bench
    assert traffic.replies == 20


@STRATEGIES
def test_the_form_is_that_of_most_replies_of_the_round_before(strategy: type[FedAvg]) -> None:
    """Three of eight are first and alike, and have one round; then most change theirs."""
    rounds = []
    inner = Hostile(metrics(more=1.0), 0, 1, 2, clients=8)
    grid = fleet_grid(inner)

    def noted(number: int, _: ArrayRecord) -> MetricRecord:
        traffic = grid.take_traffic()
        rounds.append((traffic.replies, {failure.kind for failure in traffic.failures}))
        inner.hostile = (0, 1, 2, 3, 4) if number == 3 else inner.hostile
        return MetricRecord({"round": number})

    start = record_of(initial())
    strategy(fraction_evaluate=0).start(grid, start, num_rounds=5, evaluate_fn=noted)

    refused = {Refusal.RECORDS}
    assert rounds[1:] == [(3, refused), (5, refused), (5, refused), (3, refused), (5, refused)]


@STRATEGIES
def test_whole_numbers_that_nobody_moves_are_not_moved(strategy: type[FedAvg]) -> None:
    far = np.array(8 * 10**17)
    attack = sending(lambda _: record_of({**initial(), "bn.num_batches_tracked": far}))
    inner = Hostile(attack, 4, app=app_of(floats_moved))
    grid = fleet_grid(inner)

    result = to_arrays(run(strategy(fraction_evaluate=0), grid, rounds=2).arrays)

    assert result["bn.num_batches_tracked"] == pytest.approx(3)  # as it was
    assert result["half.weight"].min() > initial()["half.weight"].min()  # what it trained counts
    assert not grid.take_traffic().failures
    refusing = fleet_grid(inner, max_update_norm="refuse:10x")
    run(strategy(fraction_evaluate=0), refusing)
    assert [failure.kind for failure in refusing.take_traffic().failures] == [Refusal.NORM]


@STRATEGIES
def test_clients_that_hardly_move_freeze_nothing(
    strategy: type[FedAvg], caplog: pytest.LogCaptureFixture
) -> None:
    """Half of them are not most. Where most are, whoever runs the server is told, once."""
    tiny = {name: x * x.dtype.type(1.000001) for name, x in initial().items()}
    steps = []
    for hostile in (3, 4):  # of six, the first to reply
        attack = sending(lambda _: record_of(dict(tiny)))
        inner = Hostile(attack, *range(hostile), app=app_of(floats_moved))
        grid = fleet_grid(inner, max_client_share=1)
        result = run(strategy(fraction_evaluate=0), grid, rounds=3)
        steps.append(steps_norm(to_arrays(result.arrays), initial()))
        grid.end_round()
        (warning,) = [r for r in caplog.records if r.name == "fedsz.security"]
        caplog.clear()
        assert warning.levelno == logging.WARNING
        assert f"{6 - hostile} of 6 updates" in warning.getMessage()

    assert steps[0] > 20 * steps[1]


VARIANCES = {
    "var": np.full(40, 0.5, np.float32),  # which nobody but an attacker takes below 0
    "half.var": np.full(40, 0.5, np.float16),
    "scale": np.full(40, 0.05, np.float32),  # which most do
    "bias": np.zeros(40, np.float32),
    "gates": np.repeat(np.array([0, 1], np.float32), 20),
}


@pytest.mark.parametrize("threshold", [0, 1 << 20])  # coded within a bound, and exactly
@STRATEGIES
def test_a_variance_stays_above_0(strategy: type[FedAvg], threshold: int) -> None:
    """And what others take below 0 may go there."""

    def edit(_: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        signs = {"scale": -1, "bias": -1, "gates": -1}
        return {n: (x + 0.1 * signs.get(n, 1)).astype(x.dtype) for n, x in arrays.items()}

    lowered = {name: x - x.dtype.type(1) for name, x in VARIANCES.items()}
    inner = Hostile(sending(lambda _: record_of(lowered)), 4, app=app_of(edit))
    grid = FedSZGrid(inner, 1e-4, threshold=threshold, rules=AdmissionRules())
    start = record_of(dict(VARIANCES))
    result = strategy(fraction_evaluate=0).start(grid, start, num_rounds=1)

    arrays = to_arrays(result.arrays)
    weights = np.array([1, 2, 3, 4, 6, 5])
    for name, x in VARIANCES.items():
        last = np.zeros_like(x) if "var" in name else lowered[name]
        replies = [edit(0, {name: x})[name]] * 5 + [last]
        mean = np.average(np.array(replies, float), 0, weights)
        assert np.allclose(arrays[name], mean, rtol=0, atol=2e-3), name


def test_what_may_go_below_0() -> None:
    model = {**VARIANCES, "none": np.zeros((0, 3), np.float32), "whole": np.ones(3, np.int64)}
    assert nowhere_below(model) == ["var", "half.var", "scale", "gates"]
    high, low = Move(Norm(1, 0), frozenset({"var"})), Move(Norm(1, 0))
    assert usually_above([high, high, low]) == usually_above([high, low]) == {"var"}
    assert usually_above([high, low, low]) == usually_above([]) == frozenset()


def test_what_begins_at_0_may_go_below_it() -> None:
    """Nobody has been seen to leave it above 0, though it is there after the first round."""
    steps = iter(np.repeat([0.5, -1.0], 4))

    def edit(_: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        step = next(steps)
        return {n: x + x.dtype.type(step) if n == "fc.bias" else x for n, x in arrays.items()}

    nodes = [{"partition-id": i} for i in range(4)]
    grid = FedSZGrid(LocalGrid(app_of(edit), nodes), codec="raw", rules=AdmissionRules())
    start = initial() | {"fc.bias": np.zeros(4, np.float32)}
    result = StreamingFedAvg(fraction_evaluate=0).start(grid, record_of(start), num_rounds=2)

    assert to_arrays(result.arrays)["fc.bias"].tolist() == [-0.5] * 4
    assert not [client for client in grid.take_traffic().clients if client.raised]


class Uneven(WrappedGrid):
    """A Grid on which some clients reply six times as often as each of the others."""

    def __init__(self, inner: Any, fast: int) -> None:
        super().__init__(inner)
        nodes = list(inner.get_node_ids())
        self.node_of: dict[str, int] = {}
        self.fast, self.slow, self.pulls = nodes[:fast], nodes[fast:], 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = list(messages)
        ids = list(self.inner.push_messages(pushed))
        self.node_of |= {i: m.metadata.dst_node_id for i, m in zip(ids, pushed, strict=True)}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        asked = list(message_ids)
        self.pulls += 1
        turn = self.slow[self.pulls // 3 % len(self.slow)] if self.pulls % 3 == 0 else None
        ids = [i for i in asked if self.node_of[i] in (self.fast if turn is None else [turn])]
        return list(self.inner.pull_messages(ids[:1]))


def test_a_client_has_a_share_of_recent_updates() -> None:
    ahead, paper = (FedBuff(fraction_evaluate=0, most_ahead=most) for most in (1.5, math.inf))
    assert ahead._share(0) == ahead._share(1) == 1
    for node in [0, 1, 2, 0, 1, 3, 0, 1, 4, 0, 1, 5] * 6:
        for strategy in (ahead, paper):
            strategy._recent.append(node)
    for node, share in ((0, (1 + 1.5 * 64 / 6) / (1 + 21)), (5, 1), (6, 1)):
        assert ahead._share(node) == pytest.approx(share, abs=0.02)
        assert paper._share(node) == 1
    with pytest.raises(ConfigError, match="most_ahead"):
        FedBuff(fraction_evaluate=0, most_ahead=0.5)


def test_fast_clients_do_not_become_the_measure() -> None:
    """Two of eight make two thirds of the updates of a buffer, each in the limits of the last."""
    norms = {"fc.weight": 0.1}

    def edit(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if client < 2:  # as far as it may: ten times the median as it is when updates are alike
            norms["fc.weight"] *= 1.5
        step = norms["fc.weight"] if client < 2 else 0.1
        return {n: x + x.dtype.type(step) if n == "fc.weight" else x for n, x in arrays.items()}

    nodes = [{"partition-id": i} for i in range(8)]
    inner = Uneven(LocalGrid(app_of(edit), nodes), 2)
    grid = FedSZGrid(inner, 1e-4, rules=AdmissionRules(max_client_share=1))
    strategy = FedBuff(fraction_evaluate=0, buffer=3)
    result = strategy.start(grid, record_of(initial()), num_rounds=20)

    clients = grid.take_traffic().clients
    assert 0.5 < np.mean([client.node in map(str, inner.fast) for client in clients]) < 0.7
    moved = (to_arrays(result.arrays)["fc.weight"] - initial()["fc.weight"]).mean()
    assert moved < 20 * 10 * 0.1
