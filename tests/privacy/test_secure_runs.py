"""Secure sums of a run: weights that clients say, from one round to the next."""

from __future__ import annotations

import math

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsz.errors import TooFewReplies
from fedsz.flower import LocalGrid, StreamingFedAvg
from tests.privacy import secure_apps
from tests.privacy.secure_apps import examples_of
from tests.privacy.test_secure_sum import check, grid_of, local, run


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


def test_clients_without_the_mod_end_the_run_with_the_reason() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, _: Context) -> Message:
        return Message(message.content["arrays"], reply_to=message)

    grid = grid_of(LocalGrid(app, [{}] * 5))

    with pytest.raises(TooFewReplies, match=r"in 3 secure sums.*is FedSZMod\(\) the first"):
        run(grid, StreamingFedAvg, rounds=9)
