"""The ServerApp and ClientApp of fedsz: image classification, federated, every update compressed.

They run unchanged on `GrpcGrid`, `LocalGrid` and Flower's own SuperLink and simulation: the server
sends, with every round, all that a client needs but its own share of the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsz.arrays import as_arrays
from fedsz.errors import ConfigError
from fedsz.flower.mod import FedSZMod
from fedsz.flower.records import to_record
from fedsz.training.client_round import train_share
from fedsz.training.federation import federate, prepare
from fedsz.training.options import RunConfig, options

if TYPE_CHECKING:
    pass

_SENT: Final = [name for name, about in options().items() if about.sent]


def make_client_app() -> ClientApp:
    """Return the ClientApp: it trains the model it is sent on its share of the data.

    ``node_config`` may hold "partition-id" and "num-partitions" (as Flower's simulation sets
    them), "data-dir", "device" and "dataset"; a data set other than the server's is refused.
    """
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        told = {
            key: message.content.config_records["config"][key] for key in (*_SENT, "server-round")
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


def make_server_app() -> ServerApp:
    """Return the ServerApp: it runs the rounds that its run config describes (`RunConfig`)."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = RunConfig.of(context.run_config)
        federate(grid, config, prepare(config))

    return app
