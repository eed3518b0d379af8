"""A hundred rounds, both directions compressed: do errors pile up, with and without feedback?

    python -m benchmarks.drift [--rounds 100] [--seeds 3]

First clients whose steps are known, so that the exact average is known too: the distance from it,
in root mean squares of a step. Then scikit-learn's digits, learned for real: accuracy and loss of
the average on held-out images, mean over seeds.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import statistics

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    UserConfig,
)
from flwr.clientapp import ClientApp

from fedsz.arrays import as_arrays
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg, make_client_app
from fedsz.flower.records import to_record
from fedsz.training import loop as training
from fedsz.training.federation import prepare
from fedsz.training.model_state import load
from fedsz.training.options import RunConfig, options

BOUND = "std:2"
WAYS = {
    "exact both ways": ("weights", "exact"),
    "both ways, updates fed back": ("delta+ef", BOUND),
    "both ways, updates not fed back": ("delta", BOUND),
}
CLIENTS = 4
SHAPE, STEP = (40, 30), 0.01  # of the known steps, which are Laplace variables


def known_step(client: int, number: int) -> np.ndarray:
    """Return what a client's training moves in a round: a trend, and noise."""
    trend = np.random.default_rng(client).laplace(0, STEP / 10, SHAPE)
    return trend + np.random.default_rng((client, number)).laplace(0, STEP, SHAPE)


def drift(update: str, downlink: str, rounds: int) -> list[float]:
    """Return how far the average is from the exact one after each round."""
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
        step = known_step(int(context.node_config["client"]), number)
        moved = message.content.array_records["arrays"]["w"].numpy() + step
        records = {
            "arrays": ArrayRecord({"w": Array(moved.astype(np.float32))}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(RecordDict(records), reply_to=message)

    start = np.random.default_rng(9).normal(size=SHAPE).astype(np.float32)
    exact, distances = start.astype(np.float64), []

    def compare(number: int, arrays: ArrayRecord) -> None:
        nonlocal exact
        if number:
            exact = exact + np.mean([known_step(i, number) for i in range(CLIENTS)], axis=0)
            distances.append(float(np.sqrt(np.mean((arrays["w"].numpy() - exact) ** 2))))

    local = LocalGrid(app, [{"client": i} for i in range(CLIENTS)])
    StreamingFedAvg(fraction_evaluate=0.0).start(
        FedSZGrid(local, BOUND, update=update, downlink=downlink),
        ArrayRecord({"w": Array(start)}),
        num_rounds=rounds,
        evaluate_fn=compare,
    )
    return distances


def learn(update: str, downlink: str, *, rounds: int, seed: int) -> list[float]:
    """Return the accuracy after 10 rounds, half of them and all, the last loss, and the ratio."""
    config = RunConfig(rounds=rounds, seed=seed, learning_rate=0.003, batch_size=32)
    problem = prepare(config)
    found: dict[int, dict[str, float]] = {}

    def test(number: int, arrays: object) -> None:
        load(problem.model, arrays)  # type: ignore[arg-type]
        found[number] = training.evaluate(problem.model, problem.held_out)

    nodes: list[UserConfig] = [
        {"partition-id": i, "num-partitions": CLIENTS} for i in range(CLIENTS)
    ]
    exact = update == "weights"
    grid = FedSZGrid(
        LocalGrid(make_client_app(), nodes),
        BOUND,
        codec="raw" if exact else "uniform",
        lossless="raw" if exact else "blosclz",
        update=update,
        downlink=downlink,
    )
    StreamingFedAvg(fraction_evaluate=0.0).start(
        grid,
        to_record(as_arrays(problem.model.state_dict())),
        num_rounds=rounds,
        train_config=ConfigRecord(
            {name: getattr(config, name) for name, about in options().items() if about.sent}
        ),
        evaluate_fn=test,
    )
    sent = grid.take_traffic()
    ratio = (sent.raw_up + sent.raw_down) / (sent.sent_up + sent.sent_down)
    accuracies = [100 * found[n]["accuracy"] for n in (10, rounds // 2, rounds)]
    return [*accuracies, found[rounds]["loss"], ratio]


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(f"bound {BOUND}, {CLIENTS} clients, {platform.machine()}, {os.cpu_count()} cores\n")
    rounds = arguments.rounds
    heads = f"after 10 | after {rounds // 2} | after {rounds} rounds"
    print(f"| known steps | {heads} |")
    print("| --- | ---: | ---: | ---: |")
    scale = 2**0.5 * STEP  # their root mean square, without the trend
    for name, (update, downlink) in WAYS.items():
        if update == "weights":
            continue
        distances = drift(update, downlink, rounds)
        cells = " | ".join(f"{distances[n - 1] / scale:.2f}" for n in (10, rounds // 2, rounds))
        print(f"| {name} | {cells} |", flush=True)
    print(f"\n| digits | {heads} | loss | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, (update, downlink) in WAYS.items():
        runs = [
            learn(update, downlink, rounds=rounds, seed=seed) for seed in range(arguments.seeds)
        ]
        *accuracy, loss, ratio = (statistics.mean(column) for column in zip(*runs, strict=True))
        cells = " | ".join(f"{value:.2f} %" for value in accuracy)
        print(f"| {name} | {cells} | {loss:.4f} | {ratio:.1f} |", flush=True)


if __name__ == "__main__":
    main()
