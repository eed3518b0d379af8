"""What TLS with identities costs: a round over it beside the same round over plaintext.

    python benchmarks/tls_cost.py [--rounds 60] [--clients 4] [--megabytes 8] [--seconds 0]

A server process has two grids: one of plaintext, and one where each client shows a certificate and
a token. Each grid has a process with all of its clients. Rounds of both kinds take turns, so that
what else the machine does meets both. A round is FedAvg's in a FedSZGrid with its defaults: the
model goes out within a bound, or with ``--exact`` without loss, which takes far more bytes. Each
client adds noise of an update's size and replies with the compressed step.
``--seconds`` is how long each client trains; 0, the default, is a round of nothing but the link
and the codec. The interval is of the median of the pairs' ratios, by bootstrap.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from measuring import interval, machine

from fedsz.flower import FedSZGrid, FedSZMod, GrpcGrid, StreamingFedAvg, run_client
from fedsz.transport.authority import Authority
from fedsz.transport.credentials import Identities, channel_credentials, server_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

KINDS = ("plaintext", "tls")
BOUND = 1.10  # what a round over TLS may take of one over plaintext
WARM_UP = 3  # rounds of each kind
LAYERS = 8
TIMEOUT = 300.0


def model(megabytes: int) -> dict[str, np.ndarray]:
    """Return weights of ``megabytes`` MB, as spiky as trained ones."""
    rng = np.random.default_rng(0)
    shape = (megabytes * 1_000_000 // 4 // LAYERS // 1000, 1000)
    return {
        f"layer{i}.weight": (0.02 * rng.laplace(size=shape)).astype(np.float32)
        for i in range(LAYERS)
    }


def noisy_app(client_id: int, megabytes: int, seconds: float) -> ClientApp:
    """Return an app whose every update is a step of noise, after ``seconds`` of training."""
    app = ClientApp(mods=[FedSZMod()])
    rng = np.random.default_rng(client_id)
    steps = {
        name: (1e-3 * rng.laplace(size=x.shape)).astype(np.float32)
        for name, x in model(megabytes).items()
    }

    @app.train()
    def train(message: Message, _: Context) -> Message:
        time.sleep(seconds)
        weights = message.content["arrays"].to_numpy_ndarrays()
        moved = [x + step for x, step in zip(weights, steps.values(), strict=True)]
        arrays = ArrayRecord(dict(zip(steps, map(Array, moved), strict=True)))
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
        return Message(content, reply_to=message)

    return app


def serve(options: argparse.Namespace, folder: Path, pipe: Connection) -> None:
    """Be the server: tell both ports, then the seconds of each pair of rounds."""
    be_quiet()
    authority = Authority(folder)
    cert = folder / "server.pem"
    secured = {
        "credentials": server_credentials(cert, cert.with_suffix(".key"), authority.ca),
        "identities": Identities(authority.clients, by_token=True),
    }
    with GrpcGrid(port=0) as plain, GrpcGrid(port=0, **secured) as tls:
        grids = dict(zip(KINDS, (plain, tls), strict=True))
        pipe.send({kind: grid.port for kind, grid in grids.items()})
        while any(len(grid.get_node_ids()) < options.clients for grid in grids.values()):
            time.sleep(0.01)
        rounds = {kind: rounds_on(grid, options) for kind, grid in grids.items()}
        for number in range(WARM_UP + options.rounds):
            order = KINDS if number % 2 else KINDS[::-1]
            took = {kind: next(rounds[kind]) for kind in order}
            if number >= WARM_UP:
                pipe.send(took)
        pipe.send(None)


def rounds_on(grid: GrpcGrid, options: argparse.Namespace) -> Iterator[float]:
    """Run rounds of federated averaging, and yield the seconds of each."""
    compressed = FedSZGrid(grid, error_bound="step:0.5") if options.exact else FedSZGrid(grid)
    strategy = StreamingFedAvg(fraction_evaluate=0, min_available_nodes=options.clients)
    arrays = ArrayRecord({name: Array(x) for name, x in model(options.megabytes).items()})
    for number in itertools.count(1):
        start = time.perf_counter()
        asked = strategy.configure_train(number, arrays, ConfigRecord(), compressed)
        replies = compressed.send_and_receive(asked, timeout=TIMEOUT)
        averaged, _ = strategy.aggregate_train(number, replies)
        seconds = time.perf_counter() - start
        assert averaged is not None
        traffic = compressed.take_traffic()
        assert (traffic.replies, traffic.failures) == (options.clients, []), traffic
        arrays = averaged
        yield seconds


def join(kind: str, port: int, options: argparse.Namespace, folder: Path) -> None:
    """Be all clients of one grid."""
    be_quiet()

    def run(number: int) -> None:
        cert, token = (folder / "clients" / f"{number}.{end}" for end in ("pem", "token"))
        ca, key = folder / "ca.pem", cert.with_suffix(".key")
        secured = channel_credentials(ca, cert, key, token=token) if kind == "tls" else None
        app = noisy_app(number, options.megabytes, options.seconds)
        run_client(app, f"127.0.0.1:{port}", client_id=str(number), credentials=secured)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(options.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def be_quiet() -> None:
    """Log no rounds, and not that plaintext is plaintext."""
    for name in ("flwr", "fedsz.security"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def measure(options: argparse.Namespace) -> list[dict[str, float]]:
    """Run all processes; return the seconds of each pair of rounds."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="fedsz-") as name:
        folder = Path(name) / "keys"
        authority = Authority.create(folder)
        authority.certify_server(["127.0.0.1"], 1)
        for number in range(options.clients):
            authority.certify_client(str(number), 1)
            authority.make_token(str(number))
        pipe, theirs = spawn.Pipe()
        server = spawn.Process(target=serve, args=(options, folder, theirs), daemon=True)
        server.start()
        ports = pipe.recv()
        clients = [
            spawn.Process(target=join, args=(kind, ports[kind], options, folder), daemon=True)
            for kind in KINDS
        ]
        for process in clients:
            process.start()
        pairs = list(iter(pipe.recv, None))
        for process in (server, *clients):
            process.join(10)
    return pairs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60, help="pairs of rounds")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=8, help="of the model, in float32")
    parser.add_argument("--seconds", type=float, default=0.0, help="that each client trains")
    parser.add_argument("--exact", action="store_true", help="send the model without loss")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    pairs = measure(options)
    ratios = [pair["tls"] / pair["plaintext"] for pair in pairs]
    middle, (low, high) = statistics.median(ratios), interval(ratios)
    if options.json:
        json.dump(
            {"machine": machine("grpcio", "flwr"), "pairs": pairs, "ratio": [low, middle, high]},
            sys.stdout,
        )
        print()
    else:
        print(machine("grpcio", "flwr"))
        down = "without loss" if options.exact else "within a bound"
        print(
            f"{len(pairs)} pairs of rounds, {options.clients} clients: {options.megabytes} MB"
            f" {down}, {options.seconds:g} s of training"
        )
        for kind in KINDS:
            print(f"{kind:<10} {statistics.median([pair[kind] for pair in pairs]):.4f} s a round")
        print(f"tls / plaintext {middle:.3f} ({low:.3f}-{high:.3f})")
    if middle > BOUND:
        sys.exit(f"TLS costs more than {BOUND - 1:.0%} of a round")


if __name__ == "__main__":
    main()
