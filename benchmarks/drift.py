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

from flwr.app import ConfigRecord, UserConfig

from fedsz.arrays import as_arrays
from fedsz.flower import FedSZGrid, LocalGrid, StreamingFedAvg, make_client_app
from fedsz.flower.records import to_record
from fedsz.training import loop as training
from fedsz.training.federation import prepare
from fedsz.training.model_state import load
from fedsz.training.options import RunConfig, options
from tests.test_drift import STEP, drift

BOUND = "std:2"
WAYS = {
    "exact both ways": ("weights", "exact", True),
    "both ways, fed back": ("delta+ef", BOUND, True),
    "both ways, broadcasts not fed back": ("delta+ef", BOUND, False),
    "both ways, updates not fed back": ("delta", BOUND, True),
    "both ways, nothing fed back": ("delta", BOUND, False),
}
CLIENTS = 4


def learn(update: str, downlink: str, *, feedback: bool, rounds: int, seed: int) -> list[float]:
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
        downlink_feedback=feedback,
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
    print("| known steps | after 10 | after 50 | after 100 rounds |")
    print("| --- | ---: | ---: | ---: |")
    scale = 2**0.5 * STEP  # of the Laplace variables that steps are
    for name, (update, downlink, feedback) in WAYS.items():
        if update == "weights":
            continue
        distances, _ = drift(update, downlink, feedback=feedback)
        cells = " | ".join(f"{distances[n - 1] / scale:.2f}" for n in (10, 50, 100))
        print(f"| {name} | {cells} |", flush=True)
    rounds = arguments.rounds
    print(f"\n| digits | after 10 | after {rounds // 2} | after {rounds} rounds | loss | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, (update, downlink, feedback) in WAYS.items():
        runs = [
            learn(update, downlink, feedback=feedback, rounds=rounds, seed=seed)
            for seed in range(arguments.seeds)
        ]
        *accuracy, loss, ratio = (statistics.mean(column) for column in zip(*runs, strict=True))
        cells = " | ".join(f"{value:.2f} %" for value in accuracy)
        print(f"| {name} | {cells} | {loss:.4f} | {ratio:.1f} |", flush=True)


if __name__ == "__main__":
    main()
