"""The ServerApp and ClientApp of fedsz: a task, federated, every update compressed.

They run unchanged on `GrpcGrid`, `LocalGrid` and Flower's own SuperLink and simulation: the server
sends, with every round, all that a client needs but its own share of the data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsz.arrays import Layout, StateDict
from fedsz.errors import ConfigError
from fedsz.flower.mod import FedSZMod
from fedsz.flower.records import to_record
from fedsz.privacy.flower_client import SecureMember
from fedsz.safetensors_file import INITIAL, read_safetensors
from fedsz.stream import Limits
from fedsz.threads import allow
from fedsz.training.federation import federate, prepare
from fedsz.training.model_state import arrays_of, load
from fedsz.training.options import CAPPED, RunConfig, options
from fedsz.training.seeding import seed_of
from fedsz.training.task import LoadedTask, client_task, load_task, require_plain

_SENT: Final = [name for name, about in options().items() if about.sent]


@lru_cache(maxsize=1)
def _loaded(config: RunConfig) -> tuple[LoadedTask, Callable[[int, int], Any]]:
    """Return a task, and how shares are loaded: each once, since clients of a process share it."""
    task = load_task(config)
    return task, lru_cache(maxsize=None)(task.load_share)


def make_client_app(
    on_model: Callable[[Layout], None] | None = None, secure: SecureMember | None = None
) -> ClientApp:
    """Return the ClientApp: it trains the model that it receives on its share of the data.

    ``node_config`` may hold "partition-id" and "num-partitions" (as Flower's simulation sets
    them), "task", "data-dir", "device" and "dataset". Another task or data set than the server's is
    refused; without "dataset", so is a server's data set that is no plain name, but a path. A task
    that is not one of fedsz runs only if "task" names it: no server can make a client import other
    code. "initial" is a file with the weights that the server starts from;
    without it they are built from the run's seed. "max-epochs", "max-image-size" and
    "max-batch-size" are the most of each that a server may ask for; without one there is no limit.

    Args:
        on_model: called with the names, shapes and dtypes of the model that this client has built.
        secure: what this client asks of secure sums.

    Examples:
        >>> from fedsz.flower import LocalGrid, make_client_app
        >>> halves = [{"partition-id": i, "num-partitions": 2} for i in range(2)]
        >>> grid = LocalGrid(make_client_app(), halves)
    """
    app = ClientApp(mods=[TaskMod(secure=secure)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config, node = _asked(message, context), context.node_config
        model, metrics = train_share(
            config,
            message.content.array_records["arrays"],
            int(str(message.content.config_records["config"]["server-round"])),
            (int(node.get("partition-id", 0)), int(node.get("num-partitions", 1))),
        )
        arrays = arrays_of(model)
        if on_model is not None:
            on_model(Layout.of(arrays))
        content = RecordDict({"arrays": to_record(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


class TaskMod(FedSZMod):
    """Compresses for a client that can build the model which its task starts from."""

    def initial_model(self, message: Message, context: Context) -> StateDict | None:
        """Return the weights in the file "initial" of ``node_config``, or those of the seed."""
        config = _asked(message, context)
        if path := str(context.node_config.get("initial", "")):
            return read_safetensors(Path(path), INITIAL)
        return arrays_of(_loaded(config)[0].build_model())

    def limits(self, message: Message, context: Context) -> Limits:
        """Return those of the model that the task builds.

        A request that the app would refuse is refused here, before any of it is decoded.

        Raises:
            ConfigError: it is not what this client was started for.
        """
        return _limits(_asked(message, context))


@lru_cache(maxsize=1)
def _limits(config: RunConfig) -> Limits:
    return Limits.of_model(Layout.of(arrays_of(_loaded(config)[0].build_model())))


def _asked(message: Message, context: Context) -> RunConfig:
    """Return what a message asks this client to do.

    Raises:
        ConfigError: it is not what this client was started for.
    """
    sent: Mapping[str, Any] = message.content.config_records.get("config", {})
    node = context.node_config
    if missing := [name for name in _SENT if name not in sent]:
        raise ConfigError(f"the server's request does not say {', '.join(missing)}")
    here = {
        "task": client_task(str(node.get("task", "")), str(sent["task"])),
        "data_dir": str(node.get("data-dir", "")),
        "device": str(node.get("device", RunConfig.device)),
    }
    config = RunConfig.of({name: sent[name] for name in _SENT} | here)
    require_fit(config, node)
    if config.dataset and "dataset" not in node:
        require_plain(config.dataset)
    return config


def require_fit(config: RunConfig, node: Mapping[str, bool | int | float | str]) -> None:
    """Refuse a run for a client that was started for another one.

    Client and server call it, so ``node`` may hold anything.

    Args:
        config: the run.
        node: what the client says of itself; `make_client_app` says what that may be.

    Raises:
        ConfigError: the client has another task or data set, or allows less than the run asks for.
    """
    if "task" in node:
        client_task(str(node["task"]), config.task)
    have = str(node.get("dataset", config.dataset))
    if have != config.dataset:
        raise ConfigError(f"this client has {have!r}, the server asks for {config.dataset!r}")
    for name in CAPPED:
        flag, asked = f"max-{name}".replace("_", "-"), getattr(config, name)
        most = node.get(flag, asked)
        try:
            allowed = asked <= float(most)
        except ValueError:
            raise ConfigError(f"--{flag} must be a number, got {most!r}") from None
        if not allowed:
            raise ConfigError(f"the server asks for {name} {asked}; this client: --{flag} {most}")


def make_server_app() -> ServerApp:
    """Return the ServerApp: it runs the rounds that its run config describes (`RunConfig`).

    Examples:
        >>> from flwr.app import Context, RecordDict
        >>> from fedsz.flower import LocalGrid, make_client_app, make_server_app
        >>> options = {"task": "tabular", "rounds": 1, "min-clients": 1}
        >>> context = Context(1, 0, node_config={}, state=RecordDict(), run_config=options)
        >>> make_server_app()(LocalGrid(make_client_app(), [{}]), context)
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = RunConfig.of(context.run_config)
        with allow(config.threads):
            federate(grid, config, prepare(config))

    return app


def train_share(
    config: RunConfig, arrays: ArrayRecord, server_round: int, share: tuple[int, int]
) -> tuple[Any, MetricRecord]:
    """Do a client's work in a round: train the model it was sent on its share of the data.

    Args:
        config: which task, and its options.
        arrays: the model's.
        server_round: from 1.
        share: which part of the data, of how many.

    Returns:
        The trained model, and what there is to report: "num-examples", "train-seconds", and what
        the task reports, such as "train-loss".

    Raises:
        ConfigError: no such task or device here.
        DataError: the data is not there.
        ModelMismatch: the arrays are those of another model.
        TaskError: the task failed.
    """
    task, load_share = _loaded(config)
    data = load_share(*share)
    model = task.build_model()
    load(model, arrays)
    start = time.perf_counter()
    # Another order each round and each client, the same in each run.
    seed = seed_of(config.seed, server_round, share[0])
    examples, measured = task.train(model, data, seed)
    metrics = MetricRecord({f"train-{name}": x for name, x in measured.items()})
    metrics["train-seconds"] = time.perf_counter() - start
    metrics["num-examples"] = examples
    return model, metrics
