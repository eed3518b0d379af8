"""Strategies of secure sums: those that average are taken, whatever their names; no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import (
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedXgbBagging,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
)

from fedsz.errors import ConfigError
from fedsz.flower import FedBuff, FetchSgd, PrivateFedAvg, StreamingFedAvg
from fedsz.flower.averaging import averages
from fedsz.flower.records import to_record, views_of
from tests.test_secure_sum import Ears, N, check, grid_of, local, run


class OwnMedian(FedAvg):
    """A robust strategy under a name that nobody knows."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        kept = [reply for reply in replies if not reply.has_error()]
        arrays = [views_of(reply.content["arrays"]) for reply in kept]
        return to_record({n: np.median([a[n] for a in arrays], axis=0) for n in arrays[0]}), None


class OwnKrum(Krum):
    pass


class Swapped(FedAvg):
    """Its class averages, and its object does not."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.aggregate_train = OwnMedian(*args, **named).aggregate_train  # type: ignore[method-assign]


class Logs(StreamingFedAvg):
    """What most strategies of one's own are: it does more, and averages as before."""

    rounds = 0

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.rounds += 1
        return super().aggregate_train(server_round, replies)


class LogsAdam(FedAdam):
    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return super().aggregate_train(server_round, replies)


def test_ones_own_strategy_that_averages_is_taken() -> None:
    check(run(grid_of(local()), Logs, rounds=2), list(range(N)), rounds=2)
    assert run(grid_of(local()), LogsAdam).arrays
    check(run(grid_of(local(), any_strategy=True), OwnMedian), list(range(N)))  # the mean of means
    for kind in (FedAvg, FedAdam, FedAvgM, FedProx, FedYogi, PrivateFedAvg):
        assert averages(kind)
    for kind in (QFedAvg, MultiKrum, FedXgbBagging):
        assert not averages(kind)


REFUSED = [Krum, FedMedian, FedTrimmedAvg, FedBuff, FetchSgd, OwnMedian, OwnKrum, Swapped]


@pytest.mark.parametrize("strategy", REFUSED)
def test_strategies_that_look_at_single_updates_are_refused(strategy: type[FedAvg]) -> None:
    """Before anybody trains; a mean from each client would look as if it was robust."""
    ears = Ears(local())

    with pytest.raises(ConfigError, match=r"a secure sum has none|use send_and"):
        run(grid_of(ears), strategy)

    assert not ears.heard
