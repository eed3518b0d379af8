"""PrivateFedAvg with noise at the client: it is there before anything leaves, and only once."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedsz import extras
from fedsz.errors import DivergedUpdate, ModelMismatch
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, PrivateFedAvg
from fedsz.privacy.budget import NoiseAt, PrivacyPlan, epsilon_of
from fedsz.privacy.flower_client import LocalNoise
from tests.federation import app_of, record_of, to_arrays
from tests.privacy.test_private_fedavg import BOUNDED, ONE, C, Model, grid_of, run

pytestmark = pytest.mark.skipif(
    bool(extras.missing("dp_accounting")), reason="dp-accounting is not installed"
)


def test_a_round_does_not_count_whose_clients_would_have_noised_and_failed() -> None:
    def edit(i: int, model: Model) -> Model:
        raise RuntimeError("no training today")

    strategy = PrivateFedAvg(epsilon=30, noise=2.0, clip=C, at="client", **ONE)

    before, after = run(strategy, grid_of(edit))

    assert strategy.quorum.why
    assert all(np.array_equal(before[n], after[n]) for n in before)
    assert strategy.releases == 1


@pytest.mark.parametrize("sealed", [True, False], ids=["FedSZGrid", "Flower's own"])
def test_clients_add_the_noise_before_anything_leaves(sealed: bool) -> None:
    plan = PrivacyPlan(epsilon=20, rounds=3, clip=C, at=NoiseAt.CLIENT)
    model = {"w": np.zeros(20_000), "n": np.array([7])}
    sent: list[Model] = []

    def edit(i: int, model: Model) -> Model:
        return {"w": model["w"] + (100.0 if i else 0.0), "n": model["n"] + i}

    grid = grid_of(edit, clients=2, sealed=sealed, **BOUNDED[sealed])
    strategy = PrivateFedAvg(plan=plan, **ONE)
    before, after = run(strategy, grid, start=model)
    sent.append(after)

    noise = (after["w"] - before["w"]) * 2
    share = C / math.sqrt(20_000)  # of an element, of the one that moved
    assert noise.mean() == pytest.approx(share, abs=6 * plan.multiplier * C * math.sqrt(2 / 2e4))
    assert noise.std() == pytest.approx(plan.multiplier * C * math.sqrt(2), rel=0.03)
    assert after["n"] == before["n"]
    # Any update may have been any other, which is twice the norm away.
    assert strategy.epsilon == epsilon_of(plan.multiplier / 2, 1, 1e-5)


@pytest.mark.parametrize("update", ["delta", "weights", "delta+ef", "topk:k=10%", ""])
def test_a_client_that_is_asked_again_adds_no_other_noise(update: str) -> None:
    """Two replies of one round would be two releases: by a server that crashed and goes on."""
    replies: list[list[bytes]] = []

    def twice(message: Message, context: Any, call_next: Any) -> Message:
        for asked in (copy.deepcopy(message), message):
            reply: Message = FedSZMod()(asked, context, call_next)
            if reply.has_content() and "arrays" in reply.content:
                arrays: Any = reply.content["arrays"]
                replies.append([array.data for array in arrays.values()])
        return reply

    configs: list[dict[str, Any]] = [{"partition-id": 0}]
    grid: Any = LocalGrid(app_of(lambda i, x: x, mods=[twice]), configs)
    grid = FedSZGrid(grid, update=update) if update else grid
    strategy = PrivateFedAvg(epsilon=30, noise=2.0, clip=C, at="client", **ONE)

    run(strategy, grid, rounds=2, start={"w": np.zeros(3000, np.float32)})

    first, first_again, second, second_again = replies
    assert first == first_again != second == second_again


def test_a_client_noises_no_less_for_odd_updates() -> None:
    noise, start = LocalNoise(1.0, 2.0), {"w": np.array([1.0, -np.inf, 0]), "n": np.array(3)}
    wide = {"w": np.array([1e150, -np.inf, 1e150]), "n": np.array(9)}

    noised = to_arrays(noise.added(record_of(wide), start, np.random.default_rng(0).bytes))

    assert np.isfinite(noised["w"][[0, 2]]).all()
    assert np.abs(noised["w"][[0, 2]]).max() < 20
    assert noised["w"][1] == -np.inf
    assert noised["n"] == 3
    for odd in ({"w": np.array([np.nan, -np.inf, 0.0]), "n": np.array(3)}, {"w": np.zeros(3)}):
        with pytest.raises((DivergedUpdate, ModelMismatch)):
            noise.added(record_of(odd), start)
