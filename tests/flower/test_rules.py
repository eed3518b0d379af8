"""Rules: what a reply must keep to, and how far one client can pull the mean."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

from fedsz.errors import ConfigError, RefusedReply
from fedsz.flower import FedBuff, FedSZGrid, LocalGrid, StreamingFedAvg
from fedsz.flower.mean import Mean
from fedsz.flower.refusal import Refusal
from fedsz.flower.rules import FEW, GROWTH, MOST_OF_FEW, Move, Rules, Typical
from fedsz.flower.update import Update
from fedsz.flower.wrapped_grid import WrappedGrid
from tests.federation import app_of, initial, moved, record_of, run, steps_norm, to_arrays
from tests.flower.test_hostile_replies import CLIENTS, REFUSED, Hostile, metrics, sending

STRATEGIES = pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])


def update_of(norm: float | None, weight: float = 1.0) -> Update:
    """An update of which nothing is known but its norm and its weight."""
    return Update(ArrayRecord(), {}, None, {}, {}, 0, 0, b"", weight=weight, norm=norm)


@pytest.mark.parametrize(
    ("norms", "typical"),
    [
        ([3.0, 1.0, 2.0], 2.0),
        ([1.0, 1e9], 1.0),
        ([0.0, 0.0, 4.0], 4.0),  # that have not moved say nothing of others
        ([math.nan, math.inf], 0.0),
        ([], 0.0),
    ],
)
def test_a_typical_client_is_the_median(norms: list[float], typical: float) -> None:
    moves = [Move(node, norm, 1.0) for node, norm in enumerate(norms)]
    assert Typical().after(moves).norm == typical


def test_the_typical_client_may_grow_by_a_factor_a_round() -> None:
    typical = Typical(norm=1.0, weight=10.0, clients=5)

    grown = typical.after([Move(0, 100.0, 1e6)] * 5)

    assert grown == Typical(GROWTH, 10 * GROWTH, 5)
    assert typical.after([Move(0, 0.01, 1.0)] * 5) == Typical(0.01, 1.0, 5)
    assert typical.after([]) == typical


@pytest.mark.parametrize(
    ("clients", "share", "most"),
    [(10, 0.2, 22.5), (10, 0.5, 90), (FEW - 1, 0.2, 10 * MOST_OF_FEW), (1, 0.2, 1e9), (10, 1, 1e9)],
)
def test_one_client_has_a_share_of_the_weight(clients: int, share: float, most: float) -> None:
    rules, typical = Rules(max_client_share=share), Typical(1.0, 10.0, clients)

    assert rules.limit_weight(update_of(1.0, 1e9), typical).weight == pytest.approx(most)
    assert rules.limit_weight(update_of(1.0, 10.0), typical).weight == 10


@pytest.mark.parametrize(
    ("most", "weight", "norm", "scale"),
    [
        ("3x", 10.0, 5.0, 1.0),
        ("3x", 10.0, 12.0, 0.5),
        ("3x", 20.0, 12.0, 0.25),  # twice the weight and half the norm pull as far
        ("3x", 1.0, 12.0, 0.5),
        ("none", 20.0, 1e9, 1.0),
        (3, 20.0, 12.0, 0.25),
        ("refuse:7", 10.0, 6.9, 1.0),
    ],
)
def test_one_client_moves_at_most_as_far(
    most: Any, weight: float, norm: float, scale: float
) -> None:
    typical = Typical(2.0, 10.0, 10)
    update = Rules(max_update_norm=most).limit_norm(update_of(norm, weight), typical)
    assert update.scale == pytest.approx(scale)


def test_an_update_beyond_a_limit_that_refuses_is_refused() -> None:
    for limit in ("refuse:3x", "refuse:6"):
        with pytest.raises(RefusedReply, match=r"the norm of its update is 6.1; the most is 6"):
            Rules(max_update_norm=limit).limit_norm(update_of(6.1), Typical(2.0, 1.0, 10))


def test_rules_out_of_range() -> None:
    for wrong in ("0x", "-1", "nan", "many", "", "refuse:none"):
        with pytest.raises(ConfigError, match="a norm's limit is a number above 0"):
            Rules(max_update_norm=wrong)
    with pytest.raises(ConfigError, match="max_client_share"):
        Rules(max_client_share=0)


def test_the_schema_of_most_replies_of_a_round_counts() -> None:
    """Three of eight are first and alike; then most change theirs."""
    rounds = []
    inner = Hostile(metrics(more=1.0), 0, 1, 2, clients=8)
    grid = FedSZGrid(inner, 1e-3, rules=Rules())

    def noted(number: int, _: ArrayRecord) -> MetricRecord:
        traffic = grid.take_traffic()
        rounds.append((traffic.replies, {failure.kind for failure in traffic.failures}))
        inner.hostile = (0, 1, 2, 3, 4) if number == 3 else inner.hostile
        return MetricRecord({"round": number})

    start = record_of(initial())
    FedAvg(fraction_evaluate=0).start(grid, start, num_rounds=5, evaluate_fn=noted)

    assert rounds[1:] == [(5, {Refusal.RECORDS})] * 5  # and all are asked again


def floats_moved(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Whole numbers stay, as those of positions and masks do; variances grow."""
    rng = np.random.default_rng(client)
    return {
        name: (x + rng.uniform(0, 0.1, x.shape)).astype(x.dtype) if x.dtype.kind == "f" else x
        for name, x in arrays.items()
    }


@STRATEGIES
def test_clients_that_hardly_move_freeze_nothing(
    strategy: type[FedAvg], caplog: pytest.LogCaptureFixture
) -> None:
    """Two of six are not most. Where most are, the user of a command is warned."""
    tiny = {name: x * x.dtype.type(1.000001) for name, x in initial().items()}
    steps = []
    for hostile, warned in ((2, 0), (4, 3)):  # of six, and in three rounds
        attack = sending(lambda _: record_of(dict(tiny)))
        inner = Hostile(attack, *range(hostile), app=app_of(floats_moved))
        grid = FedSZGrid(inner, 1e-3, rules=Rules(max_client_share=1))
        result = run(strategy(fraction_evaluate=0), grid, rounds=3)
        steps.append(steps_norm(to_arrays(result.arrays), initial()))
        warnings = [r for r in caplog.records if r.name == "fedsz.security"]
        caplog.clear()
        assert [warning.levelno for warning in warnings] == [logging.WARNING] * warned
        assert all(" updates, with most of the round's weight" in r.getMessage() for r in warnings)

    assert steps[0] > 20 * steps[1]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize("name", REFUSED)
def test_an_attack_moves_the_average_by_a_share_of_the_limit(
    name: str, strategy: type[FedAvg]
) -> None:
    hostile, start = 4, initial()
    rules = Rules(max_update_norm="6x")
    grid = FedSZGrid(Hostile(REFUSED[name][0], hostile), 1e-3, rules=rules)

    result = to_arrays(run(strategy(fraction_evaluate=0), grid).arrays)

    norms = sorted(steps_norm(moved(start, i), start) for i in range(3))
    weights = {i: i + 1 for i in range(CLIENTS) if i != hostile}
    others = {
        name: np.average([moved(start, i)[name] for i in weights], 0, list(weights.values()))
        for name in start
    }
    share = (hostile + 1) / (hostile + 1 + sum(weights.values()))
    slack = 0.05 + 0.001 * steps_norm(others, start)  # of the error bound, in two dtypes
    assert steps_norm(result, others) <= share * (6 * norms[1] + steps_norm(others, start)) + slack


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize("update", ["weights", "delta"])
def test_what_is_clipped_goes_as_far_as_the_limit_its_own_way(
    strategy: type[FedAvg], update: str
) -> None:
    """Floats of every width; a counter and a mask arrive as they are."""
    start, after = initial(), moved(initial(), 1)
    rules = Rules(max_update_norm=0.5, max_client_share=1)
    app = app_of()
    grid = FedSZGrid(LocalGrid(app, [{"partition-id": 1}] * 2), 1e-4, update=update, rules=rules)

    result = to_arrays(run(strategy(fraction_evaluate=0), grid).arrays)

    scale = 0.5 / steps_norm(after, start)
    for name in ("fc.weight", "fc.bias", "half.weight"):
        wanted = start[name] + scale * (after[name].astype(float) - start[name])
        assert np.allclose(result[name], wanted, rtol=0, atol=2e-3), name
    assert result["bn.num_batches_tracked"] == after["bn.num_batches_tracked"]
    assert np.array_equal(result["mask"], after["mask"])
    scales = [client.scale for client in grid.take_traffic().clients]
    assert scales == pytest.approx([scale] * 2, rel=1e-2)


def test_an_infinite_mask_of_a_reply_without_weight_is_no_nan() -> None:
    mean, mask = Mean(), np.array([0, -np.inf], np.float32)
    for weight in (0.0, 1.0):
        update = Update.open(record_of({"mask": mask}), model={"mask": mask})
        mean.add(update, update.terms(), weight, 1.0)
    assert np.array_equal(to_arrays(mean.result())["mask"], mask)


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
    grid = FedSZGrid(inner, 1e-4, rules=Rules(max_client_share=1))
    strategy = FedBuff(fraction_evaluate=0, buffer=3)
    result = strategy.start(grid, record_of(initial()), num_rounds=20)

    clients = grid.take_traffic().clients
    assert 0.5 < np.mean([client.node in map(str, inner.fast) for client in clients]) < 0.7
    moved = (to_arrays(result.arrays)["fc.weight"] - initial()["fc.weight"]).mean()
    assert moved < 20 * 10 * 0.1
