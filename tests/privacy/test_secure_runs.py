"""Secure sums of a run: what the server knows from one round to the next, and when it forgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedsz.flower import FedSZGrid, SecureSum, StreamingFedAvg
from fedsz.flower.records import ROUND, to_record, views_of
from tests import secure_apps
from tests.privacy.test_secure_sum import check, expected, grid_of, initial, local, run
from tests.secure_apps import examples_of


def push(grid: FedSZGrid, number: int, nodes: Sequence[int]) -> list[str]:
    """Return why nodes have not taken part in a round; "" for those that have."""
    config = ConfigRecord({ROUND: number})
    content = RecordDict({"arrays": to_record(initial()), "config": config})
    replies = grid.send_and_receive([Message(content, node, "train") for node in nodes])
    why = {m.metadata.src_node_id: m.error.reason if m.has_error() else "" for m in replies}
    return [why[node] for node in nodes]


def late(found: Any, clients: list[int], rounds: int) -> float:
    """How much of the way that the clients' steps lead is not made yet, or goes elsewhere."""
    start, wanted = initial()["kernel"], expected(clients, rounds)["kernel"]
    moved = views_of(found.arrays)["kernel"].astype(np.float64) - start
    return float(np.linalg.norm(moved - (wanted - start)) / np.linalg.norm(wanted - start))


@pytest.mark.parametrize("bits", [20, 5])
def test_a_second_run_of_the_same_strategy_and_grid_is_as_the_first(bits: int) -> None:
    inner = local(n=7)
    grids = [FedSZGrid(inner, downlink="step:0.05", secure=SecureSum(bits=bits))] * 2
    grids.append(FedSZGrid(local(n=7), downlink="step:0.05", secure=SecureSum(bits=bits)))
    strategy = StreamingFedAvg(fraction_evaluate=0.0)
    replies, lates = [], []

    for grid in grids:
        found = strategy.start(grid=grid, initial_arrays=to_record(initial()), num_rounds=8)
        replies.append(grid.take_traffic().replies)
        lates.append(late(found, [*range(7)], 8))

    assert replies == [7 * 8] * 3
    assert lates[:2] == pytest.approx([lates[2]] * 2, rel=0.1, abs=1e-3)


@pytest.mark.parametrize("weight", [-5, math.nan, math.inf])
def test_a_client_whose_weight_is_none_is_left_out(
    weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secure_apps, "examples_of", lambda i: weight if i == 1 else examples_of(i))
    grid = grid_of(local())

    check(run(grid, StreamingFedAvg), [0, 2, 3, 4])
    (failure,) = grid.take_traffic().failures
    assert f"a weight lies in [0, infinity), got {weight}" in failure.reason


def test_clients_of_more_examples_than_a_plan_has_weigh_as_those_of_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(secure_apps, "examples_of", lambda i: 1 << 40)
    grid = grid_of(local())

    run(grid, StreamingFedAvg, rounds=3)

    traffic = grid.take_traffic()
    assert traffic.replies == 3 * 5
    assert not traffic.failures


def test_clients_without_examples_weigh_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of five do not move the mean; if all have none, the round does not count."""
    without = {1, 3}
    monkeypatch.setattr(secure_apps, "examples_of", lambda i: 0 if i in without else examples_of(i))
    grid = grid_of(local())

    check(run(grid, StreamingFedAvg), [0, 2, 4])
    assert grid.take_traffic().replies == 5
    without |= {0, 2, 4}
    assert not run(grid, StreamingFedAvg).arrays
    assert all("no client has any weight" in f.reason for f in grid.take_traffic().failures)
