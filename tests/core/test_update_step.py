"""Steps onto the server's own model: what a broadcast rounds does not get into it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from fedsz.core.reference import Reference
from fedsz.flower import FedSZGrid, StreamingFedAvg
from fedsz.flower.mean import Mean
from fedsz.flower.update import Update
from tests.federation import CLIENTS, app_of, grid_of, record_of, to_arrays

Arrays = dict[str, np.ndarray]

ROUNDS = 100
SHAPE = (40, 30)
STEP = 0.01


def step(client: int, number: int) -> np.ndarray:
    """What training moves on a client in a round, the same in every run: a trend, and noise."""
    rng = np.random.default_rng((client, number))
    trend = np.random.default_rng(client).laplace(0, STEP / 10, SHAPE)
    return trend + rng.laplace(0, STEP, SHAPE)


def drift(update: str, downlink: str) -> tuple[list[float], float]:
    """Return how far the average is from the exact one, round by round, and the total ratio."""
    rounds = [0] * CLIENTS

    def edit(i: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        rounds[i] += 1
        return {"fc.weight": (arrays["fc.weight"] + step(i, rounds[i])).astype(np.float32)}

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

    grid = FedSZGrid(grid_of(app_of(edit)), "std:2", update=update, downlink=downlink)
    StreamingFedAvg(fraction_evaluate=0).start(
        grid, record_of({"fc.weight": start}), num_rounds=ROUNDS, evaluate_fn=compare
    )
    traffic = grid.take_traffic()
    assert traffic.failures == []
    ratio = (traffic.raw_up + traffic.raw_down) / (traffic.sent_up + traffic.sent_down)
    return distances, ratio


@pytest.mark.parametrize(
    ("update", "downlink", "bounded"),
    [("delta+ef", "std:2", True), ("delta+ef", "exact", True), ("delta", "std:2", False)],
)
def test_errors_that_are_fed_back_do_not_accumulate(
    update: str, downlink: str, bounded: bool
) -> None:
    """Over a hundred rounds, in which nothing but clients has a memory of errors."""
    distances, ratio = drift(update, downlink)

    early, late = np.mean(distances[5:15]), np.mean(distances[-10:])
    assert ratio > (8 if downlink != "exact" else 1.5)
    if bounded:
        assert late < 1.5 * early
    else:
        assert late > 2 * early


def updated(
    trained: Arrays, model: Arrays, reference: Arrays, **options: Any
) -> tuple[Update, Arrays]:
    update = Update.open(record_of(trained), model=model, reference=Reference(reference), **options)
    return update, update.arrays()


def test_a_step_is_put_onto_the_servers_own_model() -> None:
    rng = np.random.default_rng(0)
    model = {"w": rng.normal(size=SHAPE).astype(np.float32), "n": np.array(7)}
    reference = {"w": np.round(model["w"], 1), "n": np.array(7)}
    trained = {"w": reference["w"] + np.float32(0.25), "n": np.array(9)}

    update, arrays = updated(trained, model, reference)

    assert np.allclose(arrays["w"], model["w"] + 0.25, atol=1e-6)
    assert arrays["n"] == 9  # which is exact in every broadcast
    assert update.measured().norm == pytest.approx(0.25 * np.sqrt(model["w"].size), rel=1e-5)
    mean = Mean()
    mean.add(update, update.terms(), 3.0, 1.0)
    assert np.allclose(to_arrays(mean.result())["w"], arrays["w"], atol=1e-6)


def test_a_step_counts_as_its_scale_says() -> None:
    model = {"w": np.ones(SHAPE, np.float32)}
    update, _ = updated({"w": model["w"] + 1}, model, model)

    assert np.allclose(update.scaled(0.25).arrays()["w"], 1.25)


def test_a_reply_to_an_exact_broadcast_passes_to_the_bit() -> None:
    model = {"w": np.float32([1e8, 1.0, -0.0, np.inf]), "half": np.float16([1.0, 6e4])}
    trained = {"w": np.float32([1e-8, 0.1, 0.0, np.inf]), "half": np.float16([0.1, -6e4])}

    for exact in (model, {}):  # whose start is the model, or not known
        _, arrays = updated(trained, model, exact)
        assert all(arrays[name].tobytes() == x.tobytes() for name, x in trained.items())


def test_a_reply_that_is_a_step_stays_one() -> None:
    model = {"w": np.full(SHAPE, 5.0, np.float32)}
    step = {"w": np.full(SHAPE, 0.1, np.float32)}

    update, arrays = updated(step, model, {"w": model["w"] + 1}, is_step=True)

    assert np.array_equal(arrays["w"], step["w"])
    assert update.measured().norm == pytest.approx(0.1 * np.sqrt(step["w"].size), rel=1e-5)
