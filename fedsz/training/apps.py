"""The ServerApp and ClientApp of fedsz: image classification, federated, every update compressed.

They run unchanged on `GrpcGrid`, `LocalGrid` and Flower's own SuperLink and simulation: the server
sends, with every round, all that a client needs but its own share of the data.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedsz.arrays import as_arrays
from fedsz.errors import ConfigError
from fedsz.flower.mod import FedSZMod
from fedsz.flower.records import to_record
from fedsz.training import loop
from fedsz.training.build import build_model, check_device, load
from fedsz.training.datasets import load_partition
from fedsz.training.federation import federate, prepare
from fedsz.training.options import RunConfig, options

_SENT: Final = [name for name, about in options().items() if about.sent]

# Images are decoded once, not once a round. A device has one share; a trial in one process, a few.
_cached_partition = lru_cache(maxsize=64)(load_partition)


def make_client_app() -> ClientApp:
    """Return the ClientApp: it trains the model it is sent on its share of the data.

    ``node_config`` may hold "partition-id" and "num-partitions" (as Flower's simulation sets
    them), "data-dir", "device" and "dataset"; a data set other than the server's is refused.
    """
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        told = message.content.config_records["config"]
        config = RunConfig.of({name: told[name] for name in _SENT})
        node = context.node_config
        have = str(node.get("dataset", config.dataset))
        if have != config.dataset:
            raise ConfigError(f"this client has {have!r}, the server asks for {config.dataset!r}")
        model, result = train_share(
            config,
            message.content.array_records["arrays"],
            int(str(told["server-round"])),
            (int(node.get("partition-id", 0)), int(node.get("num-partitions", 1))),
            data_dir=str(node.get("data-dir", "")),
            device=str(node.get("device", config.device)),
        )
        metrics = MetricRecord({"train-loss": result.loss, "train-seconds": result.seconds})
        metrics["num-examples"] = result.examples
        arrays = to_record(as_arrays(model.to("cpu").state_dict()))
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def make_server_app() -> ServerApp:
    """Return the ServerApp: it runs the rounds that its run config describes (`RunConfig`)."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = RunConfig.of(context.run_config)
        federate(grid, config, prepare(config))

    return app


def train_share(
    config: RunConfig,
    arrays: ArrayRecord,
    server_round: int,
    share: tuple[int, int],
    *,
    data_dir: str,
    device: str,
) -> tuple[nn.Module, loop.TrainResult]:
    """Do a client's work in a round: train the model it was sent on its share of the data.

    ``arrays`` are the model's; ``share`` says which part of the data, of how many; ``data_dir`` is
    "" for the hub.

    Raises:
        ConfigError: no such device here.
        DataError: the data is not there.
        ModelMismatch: the arrays are those of another model.
    """
    images = _cached_partition(
        config.dataset,
        data_dir=Path(data_dir) if data_dir else None,
        partition=share[0],
        num_partitions=share[1],
        partitioner=config.partitioner,
        alpha=config.alpha,
        seed=config.seed,
        samples=config.samples or None,
    )
    model = build_model(config).to(check_device(device))
    load(model, arrays)
    result = loop.train(
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
