"""A hundred rounds, both directions compressed: errors do not pile up where they are fed back."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord

from fedsz.flower import FedSZGrid, StreamingFedAvg
from tests.federation import CLIENTS, app_of, grid_of, record_of, to_arrays

ROUNDS = 100
SHAPE = (40, 30)
STEP = 0.01


def step(client: int, turn: int) -> np.ndarray:
    """What training moves on a client in a round, the same in every run: a trend, and noise."""
    rng = np.random.default_rng((client, turn))
    trend = np.random.default_rng(client).laplace(0, STEP / 10, SHAPE)
    return trend + rng.laplace(0, STEP, SHAPE)


def drift(update: str, downlink: str, *, feedback: bool) -> tuple[list[float], float]:
    """Return how far the average is from the exact one, round by round, and the total ratio."""
    turns = [0] * CLIENTS

    def edit(i: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        turns[i] += 1
        return {"fc.weight": (arrays["fc.weight"] + step(i, turns[i])).astype(np.float32)}

    start = np.random.default_rng(9).normal(size=SHAPE).astype(np.float32)
    exact, distances = start.astype(np.float64), []
    weights = np.arange(1, CLIENTS + 1)

    def compare(number: int, arrays: ArrayRecord) -> None:
        nonlocal exact
        if number:
            steps = [step(i, number) for i in range(CLIENTS)]
            exact = exact + np.average(steps, axis=0, weights=weights)
            now = to_arrays(arrays)["fc.weight"]
            distances.append(float(np.sqrt(np.mean((now - exact) ** 2))))

    grid = FedSZGrid(
        grid_of(app_of(edit)), "std:2", update=update, downlink=downlink, downlink_feedback=feedback
    )
    StreamingFedAvg(fraction_evaluate=0).start(
        grid, record_of({"fc.weight": start}), num_rounds=ROUNDS, evaluate_fn=compare
    )
    traffic = grid.take_traffic()
    assert traffic.failures == []
    ratio = (traffic.raw_up + traffic.raw_down) / (traffic.sent_up + traffic.sent_down)
    return distances, ratio


@pytest.mark.parametrize(
    ("update", "downlink", "feedback", "bounded"),
    [
        ("delta+ef", "std:2", True, True),
        ("delta+ef", "exact", True, True),
        ("delta+ef", "std:2", False, False),
        ("delta", "std:2", True, False),
    ],
)
def test_errors_that_are_fed_back_do_not_pile_up(
    update: str, downlink: str, feedback: bool, bounded: bool
) -> None:
    distances, ratio = drift(update, downlink, feedback=feedback)

    early, late = np.mean(distances[5:15]), np.mean(distances[-10:])
    assert ratio > (8 if downlink != "exact" else 1.5)
    if bounded:
        assert late < 1.5 * early
    else:
        assert late > 2 * early
