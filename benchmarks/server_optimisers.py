"""What the default costs and saves under servers with momentum or Adam, and forgetful clients.

    python -m benchmarks.server_optimisers --data-dir DIR [--seeds 3] [--tasks mlp lstm]

Flower's own strategies run behind a `FedSZGrid` without any option, and on the same Grid without
it. Pairs share the seed: of the model, the shares and the examples' order. Clients of `mlp` take
plain steps on skewed shares of scikit-learn's digits, those of `lstm` steps by AdamW on
Shakespeare's lines. Those that keep nothing lose their Context's state before each message. It
prints a row for each task and case.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, Final, NamedTuple, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from fedsz.experiments.sweep_worker import grid_of
from fedsz.flower import FedSZGrid
from fedsz.flower.records import to_record
from fedsz.report.runs import Spread, difference
from fedsz.training.apps import make_client_app
from fedsz.training.federation import prepare
from fedsz.training.model_state import arrays_of, load
from fedsz.training.options import RunConfig, options

FORGETFUL: Final = "FedAvg, clients keep nothing"
SERVERS: Final[Mapping[str, Callable[[], FedAvg]]] = {
    "FedAvg": lambda: FedAvg(fraction_evaluate=0.0),
    FORGETFUL: lambda: FedAvg(fraction_evaluate=0.0),
    "FedAvgM, momentum 0.5": lambda: FedAvgM(fraction_evaluate=0.0, server_momentum=0.5),
    "FedAvgM, momentum 0.9": lambda: FedAvgM(fraction_evaluate=0.0, server_momentum=0.9),
    "FedAdam, eta 0.01": lambda: FedAdam(fraction_evaluate=0.0, eta=0.01),
}
TASKS: Final = {
    "mlp": RunConfig(
        task="tabular", model="mlp", dataset="digits", partitioner="dirichlet", alpha=0.3,
        clients=4, rounds=20, learning_rate=0.02,
    ),
    "lstm": RunConfig(
        task="benchmarks.tasks:Characters", model="lstm", dataset="shakespeare", clients=4,
        rounds=12, samples=2560, test_samples=300, learning_rate=3e-3,
    ),
}  # fmt: skip


class Outcome(NamedTuple):
    """What a run came to: the last accuracy, the mean of all rounds, and all bytes of arrays."""

    accuracy: float
    course: float
    up: int
    down: int


def without_memory(app: ClientApp) -> ClientApp:
    """Return an app whose clients keep nothing from message to message."""

    def answer(message: Message, context: Context) -> Message:
        context.state.clear()
        return app(message, context)

    return cast(ClientApp, answer)  # a LocalGrid calls it, no more


def outcome(config: RunConfig, server: str, *, compressed: bool) -> Outcome:
    """Run a federation.

    Without compression a `FedSZGrid` counts the bytes all the same.
    """
    problem = prepare(config)
    exact = {"codec": "raw", "lossless": "raw", "update": "weights", "downlink": "exact"}
    app = without_memory(make_client_app()) if server == FORGETFUL else None
    grid = FedSZGrid(grid_of(config, app), **({"shared_initial": True} if compressed else exact))
    accuracies: list[float] = []

    def test(_: int, arrays: ArrayRecord) -> MetricRecord:
        load(problem.model, arrays)
        score = problem.task.evaluate(problem.model, problem.held_out)
        accuracies.append(score.accuracy)
        grid.observe(accuracy=score.accuracy, loss=score.loss)
        return MetricRecord({"accuracy": score.accuracy})

    told: dict[str, Any] = {
        name: getattr(config, name) for name, about in options().items() if about.sent
    }
    SERVERS[server]().start(
        grid,
        to_record(arrays_of(problem.model)),
        num_rounds=config.rounds,
        train_config=ConfigRecord(told),
        evaluate_fn=test,
    )
    traffic = grid.take_traffic()
    last, course = accuracies[-1], fmean(accuracies[1:])  # the first is before any training
    if compressed:
        return Outcome(last, course, traffic.sent_up, traffic.sent_down)
    return Outcome(last, course, traffic.raw_up, traffic.raw_down)


def row(name: str, server: str, pairs: list[tuple[Outcome, Outcome]]) -> str:
    """Return a line of the table from uncompressed runs and those by default."""
    plain, default = zip(*pairs, strict=True)
    lost = difference(Spread.of(b.accuracy - a.accuracy for a, b in pairs))
    over_all = difference(Spread.of(b.course - a.course for a, b in pairs))
    up = sum(a.up for a in plain) / sum(b.up for b in default)
    both = sum(a.up + a.down for a in plain) / sum(b.up + b.down for b in default)
    ends = f"{100 * fmean(a.accuracy for a in plain):.1f} %"
    cells = [f"{name}, {server}", len(pairs), ends, f"{up:.1f}", f"{both:.1f}", lost, over_all]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Run all pairs and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", default="", help="folder of the data sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS], default=[*TASKS])
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print("| clients and server | seeds | plain | up | both | points | all rounds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in arguments.tasks:
        config = TASKS[name]
        for server in SERVERS:
            pairs = [
                (
                    outcome(run, server, compressed=False),
                    outcome(run, server, compressed=True),
                )
                for run in (
                    replace(config, seed=seed, data_dir=arguments.data_dir)
                    for seed in range(arguments.seeds)
                )
            ]
            print(row(name, server, pairs), flush=True)


if __name__ == "__main__":
    main()
