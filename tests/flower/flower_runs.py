"""Runs of an app, plain and with fedsz's two lines, and what is compared of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from threadpoolctl import threadpool_limits

from fedsz.control.record import Traffic
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid
from tests.federation import Watched
from tests.flower.flower_apps import held_out, tested, weights_of

CLIENTS = 5
ROUNDS = 6

Score = tuple[float, float]  # of the final model on held-out data: accuracy, mean cross-entropy
ServerSide = Callable[[Grid, int, int], Score]  # on a Grid, for a number of rounds, from a seed


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes:
        accuracy, loss: of the final model on held-out data.
        up, down: bytes of arrays that crossed the Grid.
        messages: how many went out.
        errors: reasons of the replies that were errors.
        traffic: as `FedSZGrid` counted it; of a plain run, nothing.
    """

    accuracy: float
    loss: float
    up: int
    down: int
    messages: int
    errors: list[str]
    traffic: Traffic = field(default_factory=Traffic, repr=False)


@dataclass(frozen=True)
class Case:
    """An app with a server's side.

    Attributes:
        name: as in docs/flower.md.
        app: makes the ClientApp from the mods that come first.
        serve: the server's side.
        points: of accuracy that the wrapped run may lose.
        passes: what passes through as it is, and why; "" where all is compressed.
        clients: how many there are.
    """

    name: str
    app: Callable[[Sequence[Any]], ClientApp]
    serve: ServerSide
    points: float = 1.5
    passes: str = ""
    clients: int = CLIENTS

    def run(
        self, *, wrapped: bool, rounds: int = ROUNDS, seed: int = 0, bound: str | None = None
    ) -> Outcome:
        """Run it in this process, plain or with fedsz's two lines, and by its default bounds.

        Clients find the seed in their run_config.
        """
        # Flower samples nodes, and draws the noise of DP, from the global generators.
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        nodes = [{"partition-id": i, "num-partitions": self.clients} for i in range(self.clients)]
        app = self.app([FedSZMod()] if wrapped else [])
        grid = LocalGrid(app, nodes, {"seed": seed})
        options = {} if bound is None else {"error_bound": bound}
        return outcome(self.serve, grid, options if wrapped else None, rounds=rounds, seed=seed)


def outcome(
    serve: ServerSide,
    grid: Grid,
    options: Mapping[str, Any] | None,
    *,
    rounds: int,
    seed: int = 0,
) -> Outcome:
    """Run a server's side on a Grid, and count what crosses it.

    It is wrapped in a `FedSZGrid` with these options, and plain where they are None.
    """
    counting = Watched(grid)
    ours = counting if options is None else FedSZGrid(counting, **options)
    with threadpool_limits(1):  # matrices this small are not worth a second thread
        score = serve(ours, rounds, seed)
    traffic = ours.take_traffic() if isinstance(ours, FedSZGrid) else Traffic()
    crossed = counting.bytes_up, counting.bytes_down, len(counting.down)
    return Outcome(*score, *crossed, counting.errors, traffic)


def started(strategy: Any, initial: Callable[[int], ArrayRecord]) -> ServerSide:
    """A server that runs a strategy of ``flwr.serverapp.strategy``, made afresh for each run."""

    def serve(grid: Grid, rounds: int, seed: int) -> Score:
        result = strategy().start(grid=grid, initial_arrays=initial(seed), num_rounds=rounds)
        return tested(weights_of(result.arrays), *held_out())

    return serve
