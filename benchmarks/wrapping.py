"""What fedsz's two lines add to the time of a round without training, in Flower's own engine.

    python -m benchmarks.wrapping [--megabytes 10] [--clients 4] [--rounds 20]

Plain and wrapped rounds take turns in one run, on one engine. A client adds noise to the model, in
place of training, and sends it back; the server runs Flower's FedAvg.
"""

from __future__ import annotations

import argparse
import logging
import time
from statistics import fmean, median
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg

LAYERS = 10  # that the model's numbers are divided among


def model_of(megabytes: float) -> ArrayRecord:
    """Return float32 layers of weights as networks have them, 1e6 bytes a megabyte."""
    rng = np.random.default_rng(0)
    width = int((megabytes * 1e6 / 4 / LAYERS) ** 0.5)
    layers = (rng.normal(0, 0.05, (width, width)).astype(np.float32) for _ in range(LAYERS))
    return ArrayRecord({f"layers.{i}.weight": Array(layer) for i, layer in enumerate(layers)})


def client_app() -> ClientApp:
    """Return clients that add noise to what they are sent; plain messages pass `FedSZMod`."""
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        (arrays,) = message.content.array_records.values()
        rng = np.random.default_rng(context.node_id)
        moved = {}
        for name, array in arrays.items():
            x = array.numpy()
            moved[name] = Array(x + 1e-3 * rng.standard_normal(x.shape, np.float32))
        metrics = MetricRecord({"num-examples": 1})
        records: dict[str, Any] = {"arrays": ArrayRecord(moved), "metrics": metrics}
        return Message(RecordDict(records), reply_to=message)

    return app


def rounds_on(grid: Grid, megabytes: float, clients: int, rounds: int, strategy: Any) -> str:
    """Take turns, and return what came of it."""
    wrapped = FedSZGrid(grid)
    models = {side: model_of(megabytes) for side in (grid, wrapped)}
    seconds: dict[Grid, list[float]] = {grid: [], wrapped: []}
    for number in range(rounds + 2):  # the first two are for warming up, and the whole model
        for side, model in models.items():
            start = time.perf_counter()
            averaging = strategy(
                fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
            )
            result = averaging.start(grid=side, initial_arrays=model, num_rounds=1)
            models[side] = result.arrays
            if number >= 2:
                seconds[side].append(time.perf_counter() - start)
    plain, ours = seconds[grid], seconds[wrapped]
    ratios = [b / a for a, b in zip(plain, ours, strict=True)]
    return (
        f"plain {median(plain):.3f} s, wrapped {median(ours):.3f} s a round;"
        f" wrapped / plain {median(ratios):.3f} (mean {fmean(ratios):.3f})"
    )


def main() -> None:
    """Print a line for each engine and strategy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    sizes = options.megabytes, options.clients, options.rounds

    for strategy in (FedAvg, StreamingFedAvg):
        local = LocalGrid(client_app(), [{} for _ in range(options.clients)])
        print("LocalGrid,", strategy.__name__, rounds_on(local, *sizes, strategy), flush=True)
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, _context: Context) -> None:
        print("simulation, FedAvg", rounds_on(grid, *sizes, FedAvg), flush=True)

    from flwr.simulation import run_simulation

    resources: Any = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0},
        "init_args": {"num_cpus": 2},
    }
    run_simulation(server, client_app(), num_supernodes=options.clients, backend_config=resources)


if __name__ == "__main__":
    main()
