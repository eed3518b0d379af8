"""Federated training on any Grid: the rounds, their tests, and what follows from them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedsz.arrays import as_arrays
from fedsz.errors import ConfigError
from fedsz.flower.grid import FedSZGrid
from fedsz.flower.records import to_record
from fedsz.flower.strategy import StreamingFedAvg
from fedsz.training.build import build_model, check_device, load, start_from
from fedsz.training.client_round import folder
from fedsz.training.datasets import Images
from fedsz.training.options import RunConfig
from fedsz.training.rounds import OnRound, Pilot, Round, policy_of

if TYPE_CHECKING:
    from torch import nn


# What the server tells its clients each round.
SENT: Final = (
    "dataset", "samples", "model", "partitioner", "alpha", "seed",
    "epochs", "batch_size", "learning_rate", "momentum", "image_size",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """What a run starts from.

    Attributes:
        model: with its initial weights.
        held_out: the images it is judged by.
    """

    model: nn.Module
    held_out: Images


def prepare(config: RunConfig) -> Problem:
    """Return what ``config`` asks to learn, having checked all that the server can check.

    Raises:
        ConfigError: a data set, model, partitioner, codec or device that does not exist.
        CodecUnavailable: the codec's library is not installed here.
        DataError: the held-out set is not there.
        ModelMismatch: the initial weights are those of another model.
    """
    from fedsz.training import datasets

    _ = policy_of(config)
    if config.partitioner not in datasets.PARTITIONERS:
        have = ", ".join(datasets.PARTITIONERS)
        raise ConfigError(f"no partitioner {config.partitioner!r}; have {have}")
    model = build_model(config).to(check_device(config.device))
    if config.initial:
        start_from(model, Path(config.initial))
    return Problem(model, _cached_test(config.dataset, config.data_dir, config.test_samples))


def federate(
    grid: Grid, config: RunConfig, problem: Problem, on_round: OnRound | None = None
) -> nn.Module:
    """Run federated averaging on ``grid`` and return the trained model.

    Args:
        grid: where the clients are.
        config: the run.
        problem: what `prepare` returned for it.
        on_round: called after each round, and before the first with what was there to start from.
    """
    from fedsz.training import loop as training

    model = problem.model
    compressing = FedSZGrid(
        grid,
        config.error_bound,
        codec=config.codec,
        lossless=config.lossless,
        threshold=config.threshold,
        rule=config.rule,
        update=config.update,
        downlink=config.downlink,
    )
    pilot = Pilot(config)
    last = time.monotonic()
    train_seconds = 0.0

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        nonlocal last, train_seconds
        begin = time.monotonic()
        averaged = load(model, arrays)
        result = training.evaluate(model, problem.held_out, image_size=config.image_size)
        tested = time.monotonic()
        spread, sensitivity = pilot.measure(model, averaged, problem.held_out)
        now = time.monotonic()
        seconds, last = now - last, now
        done = Round(
            number,
            result.accuracy,
            result.loss,
            seconds,
            train_seconds,
            tested - begin,
            compressing.take_traffic(),
            pilot.decision,
            spread,
            sensitivity,
        )
        train_seconds = 0.0
        if on_round:
            on_round(done)
        compressing.steer(pilot.decide(done))
        return MetricRecord({"accuracy": result.accuracy, "loss": result.loss})

    def average(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        nonlocal train_seconds
        train_seconds = sum(_reported_seconds(content) for content in contents)
        return strategy_average(contents, weighted_by)

    # The fleet is complete once; after that a round goes on with those who are there.
    wait_for(grid, config.min_clients)
    strategy = StreamingFedAvg(
        fraction_evaluate=0.0, min_train_nodes=1, min_evaluate_nodes=0, min_available_nodes=1
    )
    strategy_average = strategy.train_metrics_aggr_fn
    strategy.train_metrics_aggr_fn = average
    strategy.start(
        compressing,
        to_record(as_arrays(model.state_dict())),
        num_rounds=config.rounds,
        timeout=config.round_timeout,
        train_config=ConfigRecord({key: getattr(config, key) for key in SENT}),
        evaluate_fn=evaluate,
    )
    return model


def wait_for(grid: Grid, count: int) -> None:
    """Return once ``count`` clients are connected."""
    while len(list(grid.get_node_ids())) < count:
        time.sleep(0.1)


@lru_cache(maxsize=2)  # runs that follow each other are often judged by the same
def _cached_test(dataset: str, data_dir: str, samples: int) -> Images:
    from fedsz.training import datasets

    return datasets.load_test(dataset, data_dir=folder(data_dir), samples=samples or None)


def _reported_seconds(content: RecordDict) -> float:
    """Return how long a client trained, if it says so."""
    metrics: dict[str, Any] = dict(next(iter(content.metric_records.values())))
    seconds = metrics.get("train-seconds", 0.0)
    return float(seconds) if isinstance(seconds, int | float) else 0.0
