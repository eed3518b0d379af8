"""The ServerApp and ClientApp of fedsz: image classification, federated, every update compressed.

They run unchanged on `GrpcGrid`, `LocalGrid` and Flower's own SuperLink and simulation: the server
sends, with every round, all that a client needs but its own share of the data.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsz.config import RunConfig
from fedsz.errors import ConfigError
from fedsz.flower.fedavg import StreamingFedAvg
from fedsz.flower.grid import FedSZGrid
from fedsz.flower.mod import FedSZMod
from fedsz.flower.records import Arrays, Template, template_of, to_record
from fedsz.flower.rounds import OnRound, Pilot, Round, policy_of
from fedsz.partition import NDArray, as_arrays, as_tensor

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fedsz.tasks.datasets import Images
    from fedsz.tasks.training import TrainResult

# What the server tells its clients each round.
SENT: Final = (
    "dataset", "samples", "model", "partitioner", "alpha", "seed",
    "epochs", "batch_size", "learning_rate", "momentum", "image_size",
)  # fmt: skip


def make_client_app() -> ClientApp:
    """Return the ClientApp: it trains the model it is sent on its share of the data.

    ``node_config`` may hold "partition-id" and "num-partitions" (as Flower's simulation sets
    them), "data-dir", "device" and "dataset"; a data set other than the server's is refused.
    """
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        told = {
            key: message.content.config_records["config"][key] for key in (*SENT, "server-round")
        }
        server_round = int(str(told.pop("server-round")))
        config = RunConfig.of(told)
        node = context.node_config
        have = str(node.get("dataset", config.dataset))
        if have != config.dataset:
            raise ConfigError(f"this client has {have!r}, the server asks for {config.dataset!r}")
        share = int(node.get("partition-id", 0)), int(node.get("num-partitions", 1))
        model, result = train_share(
            config,
            message.content.array_records["arrays"],
            server_round,
            share,
            data_dir=str(node.get("data-dir", "")),
            device=str(node.get("device", config.device)),
        )
        metrics = MetricRecord(
            {
                "train-loss": result.loss,
                "train-seconds": result.seconds,
                "num-examples": result.examples,
            }
        )
        arrays = to_record(as_arrays(model.to("cpu").state_dict()))
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def train_share(
    config: RunConfig,
    arrays: ArrayRecord,
    server_round: int,
    share: tuple[int, int],
    *,
    data_dir: str,
    device: str,
) -> tuple[nn.Module, TrainResult]:
    """Do a client's work in a round: train the model it was sent on its share of the data.

    Args:
        config: the run.
        arrays: the model's.
        server_round: from 1.
        share: which part of the data, of how many.
        data_dir: where the data is, or "" for the hub.
        device: where to train.

    Raises:
        ConfigError: no such device here.
        DataError: the data is not there.
        ModelMismatch: the arrays are those of another model.
    """
    from fedsz.tasks import training

    images = _partition(config, data_dir, *share)
    model = build_model(config).to(check_device(device))
    load(model, arrays)
    result = training.train(
        model,
        images,
        epochs=config.epochs,
        lr=config.learning_rate,
        momentum=config.momentum,
        batch_size=config.batch_size,
        # Another order each round and each client, the same in each run.
        seed=hash((config.seed, server_round, share[0])) % 2**32,
        image_size=config.image_size,
    )
    return model, result


def make_server_app() -> ServerApp:
    """Return the ServerApp: it runs the rounds that its run config describes (`RunConfig`)."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = RunConfig.of(context.run_config)
        federate(grid, config, prepare(config))

    return app


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
    from fedsz.tasks import datasets

    _ = policy_of(config)
    if config.partitioner not in datasets.PARTITIONERS:
        have = ", ".join(datasets.PARTITIONERS)
        raise ConfigError(f"no partitioner {config.partitioner!r}; have {have}")
    model = build_model(config).to(check_device(config.device))
    if config.initial:
        _start_from(model, Path(config.initial))
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
    from fedsz.tasks import training

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


def build_model(config: RunConfig) -> nn.Module:
    """Return the run's model, with the weights that its seed gives."""
    import torch

    from fedsz.tasks import datasets, models

    spec = datasets.get(config.dataset)
    model = models.build(
        config.model,
        num_classes=spec.num_classes,
        in_channels=spec.shape[0],
        seed=config.seed,
    )
    # Convolutions train 1.5 times as fast on a CPU when channels lie side by side.
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def load(model: nn.Module, record: ArrayRecord) -> Mapping[str, NDArray]:
    """Load plain arrays into a model, and return them in its dtypes.

    Raises:
        ModelMismatch: names or shapes differ; the first of them is named.
    """
    template = Template.of(as_arrays(model.state_dict()))
    template.check(template_of(record).shapes)
    arrays = dict(Arrays(record, template))
    model.load_state_dict({name: as_tensor(x) for name, x in arrays.items()})
    return arrays


def check_device(name: str) -> torch.device:
    """Return a device that is there.

    Raises:
        ConfigError: torch knows no such device, or has none here.
    """
    import torch

    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as err:
        first = str(err).partition("\n")[0]
        raise ConfigError(f"no device {name!r} here: {first}") from None
    return device


def wait_for(grid: Grid, count: int) -> None:
    """Return once ``count`` clients are connected."""
    while len(list(grid.get_node_ids())) < count:
        time.sleep(0.1)


def _partition(config: RunConfig, data_dir: str, index: int, count: int) -> Images:
    return _cached_partition(
        config.dataset, data_dir, index, count,
        config.partitioner, config.alpha, config.seed, config.samples,
    )  # fmt: skip


@lru_cache(maxsize=64)  # a device has one share; a trial in one process may have a few
def _cached_partition(
    dataset: str,
    data_dir: str,
    index: int,
    count: int,
    partitioner: str,
    alpha: float,
    seed: int,
    samples: int,
) -> Images:
    """Decode a client's images once, not once a round."""
    from fedsz.tasks import datasets

    return datasets.load_partition(
        dataset,
        data_dir=_path(data_dir),
        partition=index,
        num_partitions=count,
        partitioner=partitioner,
        alpha=alpha,
        seed=seed,
        samples=samples or None,
    )


@lru_cache(maxsize=2)  # runs that follow each other are often judged by the same
def _cached_test(dataset: str, data_dir: str, samples: int) -> Images:
    from fedsz.tasks import datasets

    return datasets.load_test(dataset, data_dir=_path(data_dir), samples=samples or None)


def _reported_seconds(content: RecordDict) -> float:
    """Return how long a client trained, if it says so."""
    metrics: dict[str, Any] = dict(next(iter(content.metric_records.values())))
    seconds = metrics.get("train-seconds", 0.0)
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def _start_from(model: nn.Module, path: Path) -> None:
    """Load weights that a run, or anybody, has saved.

    Raises:
        ConfigError: the file cannot be read.
        ModelMismatch: it holds another model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(path)
    except (OSError, SafetensorError) as err:
        raise ConfigError(f"cannot read the initial weights {path}: {err}") from err
    arrays = as_arrays(state)
    Template.of(as_arrays(model.state_dict())).check({name: x.shape for name, x in arrays.items()})
    model.load_state_dict(state)


def _path(folder: str) -> Any:
    return Path(folder) if folder else None
