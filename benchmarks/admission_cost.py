"""What the checks of replies cost the server: a round's time, beside that of another fedsz.

    python benchmarks/admission_cost.py [--before PYTHON] [--bound std:1] [--pairs 20]

PYTHON is the interpreter of another installation, of a commit without the checks. Without it, what
is compared is ``rules="fleet"`` with none. Both take the same 100 replies, steps of an 8 MB model,
on a `FedSZGrid` with `StreamingFedAvg`, in turns and each in a process of its own. Shown are
medians of processor seconds a round, and the median of the ratios of pairs.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsz.core.encode import compress_measured
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.flower import FedSZGrid, LocalGrid, StreamingFedAvg
from fedsz.flower.records import sealed, to_record

REPLIES = 100
DIFFERENT = 5  # replies, which come again and again
SHAPE = (250, 1000)
LAYERS = 8


def model(seed: int, scale: float) -> dict[str, np.ndarray]:
    """8 MB of weights, or a step."""
    rng = np.random.default_rng(seed)
    return {
        f"layer{i}.weight": (scale * rng.laplace(size=SHAPE)).astype(np.float32)
        for i in range(LAYERS)
    }


def replies(bound: str) -> list[ArrayRecord]:
    """Steps from the model, as clients send them."""
    before = model(0, 0.02)
    config = Settings.of(bound, update="delta", threshold=0)
    records = []
    for seed in range(1, DIFFERENT + 1):
        after = {name: before[name] + x for name, x in model(seed, 0.001).items()}
        records.append(sealed(compress_measured(after, config, Reference(before))[0]))
    return records


def work(bound: str, **rules: str) -> None:
    """Run a round whenever a line comes in, and print the processor seconds that it took."""
    ready = replies(bound)
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        record = ready[int(context.node_config["client"]) % DIFFERENT]
        copied = ArrayRecord(dict(record.items()))
        metrics = MetricRecord({"num-examples": 10, "train-loss": 0.5})
        return Message(RecordDict({"arrays": copied, "metrics": metrics}), reply_to=message)

    inner = LocalGrid(app, [{"client": i} for i in range(REPLIES)])
    grid = FedSZGrid(inner, bound, update="delta", **rules)
    strategy = StreamingFedAvg(min_train_nodes=REPLIES)
    for number, _ in enumerate(sys.stdin, 1):
        arrays = to_record(model(0, 0.02))
        messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        answered = grid.send_and_receive(messages)
        start = time.process_time()
        strategy.aggregate_train(number, answered)
        took = time.process_time() - start
        assert grid.take_traffic().replies == REPLIES
        print(json.dumps(took), flush=True)


def main() -> None:
    """Run both in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before")
    parser.add_argument("--bound", default="std:1")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--work", action="store_true")
    parser.add_argument("--rules", default="")
    given = parser.parse_args()
    if given.work:
        work(given.bound, **({"rules": given.rules} if given.rules else {}))
        return
    fleet = ["--rules", "fleet"]
    commands = [(given.before or sys.executable, []), (sys.executable, fleet)]
    workers = [
        subprocess.Popen(
            [python, __file__, "--work", "--bound", given.bound, *rules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for python, rules in commands
    ]
    seconds: list[list[float]] = [[], []]
    for pair in range(given.pairs + 1):
        for i in (0, 1) if pair % 2 else (1, 0):
            stdin, stdout = workers[i].stdin, workers[i].stdout
            assert stdin
            assert stdout
            stdin.write("\n")
            stdin.flush()
            took = json.loads(stdout.readline())
            if pair:  # the first warms up
                seconds[i].append(took)
    for worker in workers:
        worker.terminate()
        worker.wait()
    before, after = seconds
    ratio = statistics.median(b / a for a, b in zip(before, after, strict=True))
    print(f"{platform.processor() or platform.machine()}, {REPLIES} replies of 8 MB, {given.bound}")
    for name, took in (("before", before), ("with checks", after)):
        print(f"{name}: median {statistics.median(took):.3f} s, least {min(took):.3f} s")
    print(f"median of {given.pairs} pairs' ratios: {ratio:.3f}")


if __name__ == "__main__":
    main()
