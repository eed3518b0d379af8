"""The server: rounds, then a query of all clients, and a file of JSON with what happened."""

from __future__ import annotations

import json
import os
import resource
import time
from itertools import pairwise
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from contract import task
from fedsz.flower import Deadlines, FedSZGrid, StreamingFedAvg

app = ServerApp()


def run(grid: Grid, config: dict) -> dict:  # type: ignore[type-arg] # Flower's run config
    """Return what a run came to: accuracies, seconds and bytes of each round, a query's answers."""
    x, y = task.data(-1, 1)
    accuracies: list[float] = []
    times = [time.monotonic()]
    records: list[dict[str, object]] = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = {name: array.numpy() for name, array in arrays.items()}
        accuracies.append(float((task.shares(model, x).argmax(1) == y).mean()))
        times.append(time.monotonic())
        return MetricRecord({"accuracy": accuracies[-1]})

    def note(record) -> None:  # type: ignore[no-untyped-def]
        records.append(
            {
                "replies": record.replies,
                "failures": [f"{f.kind}: {f.reason}" for f in record.failures],
                "sent_up": record.sent_up,
                "sent_down": record.sent_down,
                "raw_down": record.raw_down,
            }
        )

    nodes = sorted(grid.get_node_ids())
    while len(nodes) < config["clients"]:
        time.sleep(0.2)
        nodes = sorted(grid.get_node_ids())
    ours = grid
    if config["wrapped"]:
        options = {}
        if config["deadline-factor"]:
            options["deadlines"] = Deadlines(float(config["deadline-factor"]))
        if config["exact"]:
            options["error_bound"] = "abs:1e-40"
        ours = FedSZGrid(grid, on_round=note, **options)
    strategy = StreamingFedAvg if config["streaming"] else FedAvg
    strategy(
        fraction_evaluate=float(config["fraction-evaluate"]), min_available_nodes=config["clients"]
    ).start(
        ours,
        task.initial(float(config["megabytes"])),
        num_rounds=int(config["rounds"]),
        evaluate_fn=evaluate,
    )
    asked = [Message(RecordDict(), node, "query") for node in nodes if config["queries"]]
    answers = [reply.content["answer"]["part"] for reply in ours.send_and_receive(asked)]
    return {
        "accuracies": accuracies,
        "seconds": [after - before for before, after in pairwise(times[1:])],
        "rounds": records,
        "answers": sorted(answers),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run it, and write what it came to into a file."""
    Path(os.environ["CONTRACT_RESULT"]).write_text(json.dumps(run(grid, dict(context.run_config))))
