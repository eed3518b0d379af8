"""How much the server's memory grows with its clients: StreamingFedAvg beside Flower's FedAvg.

    python benchmarks/fedavg_memory.py [--clients 10 50] [--megabytes 32] [--rounds 1]

A server process and a process of N clients, each with a connection of its own, over gRPC on
loopback. Each client replies with a model of its own; all reply at once. Growth is the server
process's peak resident memory (VmHWM) over what it held before the round, with the model there and
all clients connected. Linux only. The average is checked against one made in float64.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from measuring import forget_peak, memory

from fedsz import ErrorBound
from fedsz.flower import FedSZGrid, FedSZMod, GrpcGrid, StreamingFedAvg, run_client
from fedsz.flower.records import to_record

LAYERS = 8
BOUND = 1e-2

# name -> (strategy, how the Grid compresses, if it does)
SERVERS: dict[str, tuple[type[FedAvg], dict[str, Any] | None]] = {
    "Flower's FedAvg": (FedAvg, None),
    "Flower's FedAvg + FedSZGrid": (FedAvg, {"error_bound": BOUND, "update": "weights"}),
    "StreamingFedAvg + FedSZGrid": (StreamingFedAvg, {"error_bound": BOUND, "update": "weights"}),
    "the same, steps": (StreamingFedAvg, {"error_bound": BOUND, "update": "delta"}),
    "the same, both ways": (
        StreamingFedAvg,
        {"error_bound": BOUND, "update": "delta+ef", "downlink": BOUND},
    ),
    "FedAvg, auto": (FedAvg, {}),
    "StreamingFedAvg, auto": (StreamingFedAvg, {}),
}


def model(seed: int, megabytes: int) -> dict[str, np.ndarray]:
    """A model of ``megabytes`` MB with weights as spiky as trained ones."""
    rng = np.random.default_rng(seed)
    shape = (megabytes * 1_000_000 // 4 // LAYERS // 1000, 1000)
    return {
        f"layer{i}.weight": (0.02 * rng.laplace(size=shape)).astype(np.float32)
        for i in range(LAYERS)
    }


def serve(name: str, clients: int, megabytes: int, rounds: int) -> None:
    """Be the server; print what the rounds took."""
    strategy_class, compressing = SERVERS[name]
    strategy = strategy_class(
        fraction_evaluate=0, min_train_nodes=clients, min_available_nodes=clients
    )
    with GrpcGrid(port=0) as grid:
        print(json.dumps({"port": grid.port}), flush=True)
        initial = to_record(model(0, megabytes))
        while len(grid.get_node_ids()) < clients:
            threading.Event().wait(0.05)
        before = memory("VmRSS")
        forget_peak()
        result = strategy.start(
            grid if compressing is None else FedSZGrid(grid, **compressing),
            initial,
            num_rounds=rounds,
        )
        growth = memory("VmHWM") - before
        received = grid.counters.wire_bytes_received / 1e6
    error = check(result.arrays, clients, megabytes)
    print(json.dumps({"growth": growth, "received": received, "error": error}), flush=True)


def check(mean: ArrayRecord, clients: int, megabytes: int) -> float:
    """The largest error of one layer's average, as a share of the largest bound."""
    name = "layer0.weight"
    layers = [model(seed, megabytes)[name] for seed in range(1, clients + 1)]
    exact = np.mean(np.stack(layers), axis=0, dtype=np.float64)
    bound = max(ErrorBound.rel(BOUND).absolute(layer) for layer in layers)
    return float(np.abs(mean[name].numpy() - exact).max()) / bound


def train(port: int, clients: int, megabytes: int) -> None:
    """Be the clients: each a thread with a connection; four work at a time."""
    turn = threading.Semaphore(4)
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def reply(message: Message, context: Context) -> Message:
        with turn:
            arrays = to_record(model(int(context.node_config["seed"]), megabytes))
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    threads = [
        threading.Thread(
            target=run_client,
            args=(app, f"127.0.0.1:{port}"),
            kwargs={"client_id": str(seed), "node_config": {"seed": seed}},
        )
        for seed in range(1, clients + 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(
    name: str, clients: int, megabytes: int, rounds: int = 1, python: str = sys.executable
) -> dict[str, Any]:
    """Run both processes once, by an interpreter."""
    this = [python, __file__, "--clients", str(clients), "--megabytes", str(megabytes)]
    this += ["--rounds", str(rounds)]
    with subprocess.Popen([*this, "--serve", name], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        with subprocess.Popen([*this, "--train", str(port)]):
            measured: dict[str, Any] = json.loads(server.stdout.readline())
    return measured


def main() -> None:
    """Measure every server with every number of clients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.clients[0], arguments.megabytes, arguments.rounds)
        return
    if arguments.train:
        train(arguments.train, arguments.clients[0], arguments.megabytes)
        return
    size = arguments.megabytes
    print(
        f"Rounds: {arguments.rounds}; a model of {size} MB; {platform.machine()},"
        f" {os.cpu_count()} cores.\n"
    )
    print("| server | clients | received | growth | growth / model | error / bound |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for clients in arguments.clients:
        for name in arguments.only:
            got = measure(name, clients, size, arguments.rounds)
            print(
                f"| {name} | {clients} | {got['received']:.0f} MB | {got['growth']:.0f} MB"
                f" | {got['growth'] / size:.2f} | {got['error']:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
