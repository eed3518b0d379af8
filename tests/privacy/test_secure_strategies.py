"""Strategies of secure sums: fedsz's own say that they average; of others, the user must say so."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as Clipping
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Krum

from fedsz.errors import ConfigError
from fedsz.flower import FedBuff, StreamingFedAvg
from fedsz.flower.records import to_record
from tests.privacy.test_secure_sum import Ears, N, check, grid_of, initial, local, run


class Logs(StreamingFedAvg):
    """What most strategies of one's own are: it does more, and averages as before."""

    rounds = 0

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.rounds += 1
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("strategy", [StreamingFedAvg, Logs])
def test_strategies_of_fedsz_are_taken(strategy: type[FedAvg]) -> None:
    grid = grid_of(local(), strategy_averages=False)

    check(run(grid, strategy, rounds=2), list(range(N)), rounds=2)


@pytest.mark.parametrize("strategy", [FedAvg, FedAdam, FedMedian, Krum])
def test_any_other_strategy_is_taken_if_the_user_says_that_it_averages(
    strategy: type[FedAvg],
) -> None:
    """Before anybody trains; a mean from each client would look as if it was robust."""
    ears = Ears(local())
    with pytest.raises(ConfigError, match=r"say so by SecureSum\(strategy_averages=True\)"):
        run(grid_of(ears, strategy_averages=False), strategy)
    assert not ears.heard

    assert run(grid_of(ears, strategy_averages=True), strategy).arrays


def test_a_strategy_around_one_that_averages_must_be_said_to() -> None:
    """This one would clip the mean in place of each update, and add too little noise."""
    ears = Ears(local())
    inner = StreamingFedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    private = Clipping(inner, noise_multiplier=0.1, clipping_norm=1.0, num_sampled_clients=N)

    with pytest.raises(ConfigError, match="if it averages, say so"):
        private.start(grid_of(ears, strategy_averages=False), to_record(initial()), num_rounds=1)

    assert not ears.heard


def test_a_strategy_that_takes_replies_as_they_come_is_refused() -> None:
    with pytest.raises(ConfigError, match="use send_and_receive"):
        run(grid_of(local()), FedBuff)
