"""What fedsz's two lines add to the time of a round without training, in Flower's own engine.

    python -m benchmarks.wrapping [--megabytes 10] [--clients 4] [--rounds 20]

Plain and wrapped rounds take turns in one process, on one engine. A client adds noise to the model,
in place of training, and sends it back; the server runs Flower's FedAvg. Rounds are of one run, so
that they send differences and feed back what earlier ones left out. A busy machine changes wall
time more than processor time, which is of this process alone: not of Flower's simulation.
"""

from __future__ import annotations

import argparse
import logging
import time
from statistics import median
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg

LAYERS = 10  # that the model's numbers are divided among
WARM = 3  # rounds that are not measured: the whole model is sent, and nothing fed back


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


def continued(strategy: type[FedAvg], before: int, clients: int) -> FedAvg:
    """Return a strategy whose first round comes after ``before`` others of its run."""

    class Continued(strategy):  # type: ignore[valid-type, misc]
        def configure_train(self, server_round: int, *rest: Any) -> Any:
            return super().configure_train(before + server_round, *rest)

    sizes = {"min_train_nodes": clients, "min_available_nodes": clients}
    return Continued(fraction_evaluate=0.0, **sizes)


def rounds_on(
    grid: Grid, megabytes: float, clients: int, rounds: int, strategy: type[FedAvg]
) -> str:
    """Take turns, and return what came of it."""
    wrapped = FedSZGrid(grid)
    models = {side: model_of(megabytes) for side in (grid, wrapped)}
    taken: dict[Grid, list[tuple[float, float]]] = {grid: [], wrapped: []}
    for number in range(rounds + WARM):
        for side, model in models.items():
            averaging = continued(strategy, number, clients)
            start = time.perf_counter(), time.process_time()
            result = averaging.start(grid=side, initial_arrays=model, num_rounds=1)
            seconds = time.perf_counter() - start[0], time.process_time() - start[1]
            models[side] = result.arrays
            if number >= WARM:
                taken[side].append(seconds)
    (plain, plain_cpu), (ours, our_cpu) = (zip(*taken[side], strict=True) for side in models)
    ratios = [b / a for a, b in zip(plain, ours, strict=True)]
    added = [b - a for a, b in zip(plain_cpu, our_cpu, strict=True)]
    return (
        f"wrapped / plain {median(ratios):.3f} ({median(ours):.3f} / {median(plain):.3f} s);"
        f" processor time {median(our_cpu) / median(plain_cpu):.3f},"
        f" {median(added) / clients * 1e3:+.2f} ms a client"
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
