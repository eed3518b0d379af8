"""What silent clients cost: rounds with 10 % of them beside the same rounds without.

    python benchmarks/silent_clients.py [--rounds 12] [--clients 20] [--seconds 2]

A server and a process with all clients, over gRPC on this machine. A round is FedAvg's in a
FedSZGrid with its defaults and a timeout of an hour. A client that replies takes ``--seconds`` and
up to a quarter more, drawn anew each round. A silent one takes the message and never replies. Times
are of whole rounds, the first one among them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import multiprocessing
import random
import statistics
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from measuring import machine

from fedsz.flower import FedSZGrid, FedSZMod, GrpcGrid, StreamingFedAvg, run_client

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

BOUND = 2.0  # what a round with silent clients may take of one without
HOUR = 3600.0


def app_of(seconds: float, *, silent: bool) -> ClientApp:
    """Return an app that waits, and then replies with another model."""
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, _: Context) -> Message:
        time.sleep(HOUR if silent else seconds * random.uniform(1, 1.25))
        arrays = ArrayRecord([array.numpy() + 1 for array in message.content["arrays"].values()])
        records = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(records), reply_to=message)

    return app


def join(server: str, clients: int, silent: int, seconds: float, over: Event) -> None:
    """Run all clients, each in a thread of its own, until the server's part is over."""
    logging.disable(logging.CRITICAL)
    for i in range(clients):
        app = app_of(seconds, silent=i < silent)
        options = {"client_id": f"client{i}"}
        threading.Thread(target=run_client, args=(app, server), kwargs=options, daemon=True).start()
    over.wait()


def times_of_rounds(rounds: int, clients: int, silent: int, seconds: float) -> list[float]:
    """Return how long each round took, in seconds."""
    over, ends = multiprocessing.Event(), []
    with GrpcGrid(port=0) as grid:
        place = (f"127.0.0.1:{grid.port}", clients, silent, seconds, over)
        process = multiprocessing.Process(target=join, args=place, daemon=True)
        process.start()
        while len(grid.get_node_ids()) < clients:
            time.sleep(0.1)
        StreamingFedAvg(fraction_evaluate=0).start(
            FedSZGrid(grid, rules="fleet"),
            ArrayRecord([np.random.default_rng(0).normal(size=(500, 200)).astype(np.float32)]),
            num_rounds=rounds,
            timeout=HOUR,
            evaluate_fn=lambda *_: ends.append(time.monotonic()),
        )
    over.set()
    process.join()
    return [end - begin for begin, end in itertools.pairwise(ends)]


def main() -> None:
    """Print the times of rounds with and without silent clients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    multiprocessing.set_start_method("spawn")
    silent = asked.clients // 10
    without = times_of_rounds(asked.rounds, asked.clients, 0, asked.seconds)
    times = times_of_rounds(asked.rounds, asked.clients, silent, asked.seconds)
    ratio = statistics.fmean(times) / statistics.fmean(without)
    found = {
        "clients": asked.clients,
        "silent": silent,
        "without": round(statistics.fmean(without), 3),
        "with": round(statistics.fmean(times), 3),
        "longest": round(max(times), 3),
        "ratio": round(ratio, 3),
        "bound": BOUND,
        "machine": machine("grpcio", "flwr"),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
