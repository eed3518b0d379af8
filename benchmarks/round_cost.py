"""What a round without training costs, beside another installation of fedsz.

    python benchmarks/round_cost.py --before PYTHON [--pairs 9] [--cases NAME ...]

PYTHON is the interpreter of the other installation. Both take turns, each in a process of its own,
on a `FedSZGrid` without options over a `LocalGrid`. A client adds a fixed array to the model, in
place of training. Rounds are of one run, so that they send differences and feed back residuals.
The first rounds are not measured: the whole model is sent then.

- round: a whole round, server and clients, of FedAvg or `StreamingFedAvg`;
- pack: from the strategy's call until the messages to five clients are ready, of a model that the
  clients hold already ("same") or of another ("new");
- tiny: a round of 100 clients and a model of 10 kB;
- memory: how far a server's peak memory (VmHWM) is above its memory before the rounds, over the
  size of the model of 64 MB, by benchmarks/fedavg_memory.py: five clients over gRPC, two rounds.

A table has medians, and the median of the ratios of pairs with its interval of 95 %, by bootstrap.
Linux only.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import fedavg_memory
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from measuring import interval, machine

from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg

WARM: Final = 4  # rounds
LAYERS: Final = 10
MEMORY: Final = ("FedAvg, auto", "StreamingFedAvg, auto")  # servers of fedavg_memory
CLIENTS, MEGABYTES = 5, 64  # of the rounds whose memory is measured


class Case(NamedTuple):
    """A model, its clients and what is timed."""

    megabytes: float
    clients: int
    strategy: type[FedAvg] = FedAvg
    moves: bool = True  # whether each round sends the mean of the round before
    packs: bool = False  # whether only the time until messages are ready is measured


CASES: Final = {
    "round, FedAvg, 5 clients": Case(10, 5),
    "round, FedAvg, 20 clients": Case(10, 20),
    "round, StreamingFedAvg, 5 clients": Case(10, 5, StreamingFedAvg),
    "round, StreamingFedAvg, 20 clients": Case(10, 20, StreamingFedAvg),
    "pack, same model": Case(10, 5, moves=False, packs=True),
    "pack, new model": Case(10, 5, packs=True),
    "tiny, FedAvg, 100 clients": Case(0.01, 100),
    "tiny, StreamingFedAvg, 100 clients": Case(0.01, 100, StreamingFedAvg),
}


class Stamped(LocalGrid):
    """A Grid that notes when it is handed messages."""

    handed = 0.0, 0.0  # seconds of the clock, and of the processor

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Note the time, and do as `LocalGrid` does."""
        pushed = list(messages)
        self.handed = now()
        return super().stream_replies(pushed, timeout=timeout)


def now() -> tuple[float, float]:
    """Return seconds of the clock, and of this process's time on the processor."""
    return time.perf_counter(), time.process_time()


def layers(megabytes: float, deviation: float, seed: int) -> dict[str, np.ndarray]:
    """Return normally distributed float32 layers of about so many MB together."""
    rng = np.random.default_rng(seed)
    shape = (int((megabytes * 1e6 / 4 / LAYERS) ** 0.5),) * 2
    return {
        f"layers.{i}.weight": rng.normal(0, deviation, shape).astype(np.float32)
        for i in range(LAYERS)
    }


def client_app(megabytes: float) -> ClientApp:
    """Return clients that add one of five steps to the model that they are sent."""
    app = ClientApp(mods=[FedSZMod()])
    steps = [layers(megabytes, 1e-3, seed) for seed in range(1, 6)]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        (arrays,) = message.content.array_records.values()
        step = steps[int(context.node_config["client"]) % len(steps)]
        moved = ArrayRecord({name: Array(a.numpy() + step[name]) for name, a in arrays.items()})
        records: dict[str, Any] = {"arrays": moved, "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(records), reply_to=message)

    return app


def work(case: Case) -> None:
    """Run a round whenever a line comes in, and print its seconds of clock and processor."""
    logging.disable(logging.WARNING)
    inner = Stamped(client_app(case.megabytes), [{"client": i} for i in range(case.clients)])
    grid, model = FedSZGrid(inner), layers(case.megabytes, 0.05, 0)
    record = ArrayRecord({name: Array(x) for name, x in model.items()})
    sizes = {"min_train_nodes": case.clients, "min_available_nodes": case.clients}
    strategy = case.strategy(fraction_evaluate=0.0, **sizes)
    for number, _ in enumerate(sys.stdin, 1):
        messages = list(strategy.configure_train(number, record, ConfigRecord(), grid))
        start = now()
        arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
        end = inner.handed if case.packs else now()
        assert arrays is not None
        assert len(arrays) == LAYERS
        if case.moves or number < WARM:
            record = arrays
        print(json.dumps([b - a for a, b in zip(start, end, strict=True)]), flush=True)


def timed(name: str, pythons: list[str], pairs: int) -> list[list[list[float]]]:
    """Return seconds of clock and processor of each pair's rounds, by installation."""
    workers = [
        subprocess.Popen(
            [python, __file__, "--work", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for python in pythons
    ]  # fmt: skip
    found: list[list[list[float]]] = [[] for _ in pythons]
    for pair in range(pairs + WARM):
        for i in (0, 1) if pair % 2 else (1, 0):
            stdin, stdout = workers[i].stdin, workers[i].stdout
            assert stdin
            assert stdout
            stdin.write("\n")
            stdin.flush()
            found[i].append(json.loads(stdout.readline()))
    for worker in workers:
        worker.communicate()
    return [times[WARM:] for times in found]


def grown(name: str, pythons: list[str], pairs: int) -> list[list[float]]:
    """Return how far a server's peak rose in each pair, in sizes of the model."""
    found: list[list[float]] = [[] for _ in pythons]
    for pair in range(pairs):
        for i in (0, 1) if pair % 2 else (1, 0):
            got = fedavg_memory.measure(name, CLIENTS, MEGABYTES, rounds=2, python=pythons[i])
            found[i].append(got["growth"] / MEGABYTES)
    return found


def row(name: str, both: list[list[float]], show: Callable[[float], str]) -> str:
    """Return medians before and after, and the median of ratios with its interval."""
    before, after = both
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    low, high = interval(ratios)
    medians = [show(statistics.median(of)) for of in both]
    ratio = f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"
    return f"| {' | '.join([name, *medians, ratio])} |"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", metavar="PYTHON", help="of the other installation")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--cases", nargs="+", choices=[*CASES, *MEMORY], default=[*CASES, *MEMORY])
    parser.add_argument("--work", choices=CASES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(CASES[given.work])
        return
    pythons = [given.before or sys.executable, sys.executable]
    print(f"{given.pairs} pairs; {machine('flwr')}\n")
    print("| case | before | after | after / before |\n| --- | ---: | ---: | ---: |")
    for name in given.cases:
        if name in CASES:
            times = timed(name, pythons, given.pairs)
            for i, clock in enumerate(("wall", "processor")):
                both = [[pair[i] for pair in of] for of in times]
                print(row(f"{name}: {clock}", both, lambda s: f"{1e3 * s:.1f} ms"), flush=True)
        else:
            both = grown(name, pythons, given.pairs)
            print(row(f"memory, {name}", both, lambda x: f"{x:.2f} models"), flush=True)


if __name__ == "__main__":
    main()
