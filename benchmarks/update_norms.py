"""How far honest updates move, in typical norms: what a limit on norms would clip.

    python benchmarks/update_norms.py

Fleets in one process, each with a client that is away for six rounds and one that is away for
three. A norm counts times the update's weight, where that is above the typical one. Prints, for
each, how many updates were measured, the quantiles of norm / typical norm, and the share that
limits of 3, 5 and 10 typical norms would clip.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from unittest import mock

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedsz.flower import LocalGrid, make_client_app
from fedsz.flower.rules import Rules, Typical
from fedsz.flower.update import Update
from fedsz.flower.wrapped_grid import WrappedGrid
from fedsz.flower_compat import ErrorCode, error_reply
from fedsz.training.federation import federate, prepare
from fedsz.training.options import RunConfig

LIMIT: Final = 30.0  # in typical norms, of the runs that are measured
LIMITS: Final = (3, 5, 10)  # of which it is said how many updates they would clip
AWAY: Final = {0: range(5, 11), 1: range(8, 11)}  # by client: rounds
SKEWED: Final = {"partitioner": "dirichlet", "alpha": 0.1}
DIGITS: Final = {"samples": 400, "test_samples": 100, "rounds": 12}
TABLES: Final = {"task": "tabular", "rounds": 20}
FLEETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "digits": {**DIGITS, "clients": 4},
    "digits, skewed": {**DIGITS, **SKEWED, "clients": 6},
    "digits, std:2 both ways": {
        **DIGITS,
        "error_bound": "std:2",
        "update": "delta+ef",
        "downlink": "std:1",
        "clients": 4,
    },
    "tabular": {**TABLES, "clients": 5},
    "tabular, skewed": {**TABLES, **SKEWED, "clients": 5},
}


class Absent(WrappedGrid):
    """Fails the messages to clients that are away."""

    def __init__(self, inner: Grid) -> None:
        super().__init__(inner)
        self._round = 0

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Yield the replies of those who are there, then errors."""
        pushed = list(messages)
        self._round += bool(pushed)
        nodes = list(self.get_node_ids())
        gone = {nodes[client] for client, rounds in AWAY.items() if self._round in rounds}
        here = [m for m in pushed if m.metadata.dst_node_id not in gone]
        yield from super().stream_replies(here, timeout=timeout)
        for message in pushed:
            if message.metadata.dst_node_id in gone:
                code = ErrorCode.REPLY_MESSAGE_UNAVAILABLE
                yield error_reply(message.metadata, code, "away")


def norms_of(options: Mapping[str, Any]) -> np.ndarray:
    """Return norm / typical norm of each update of a run, where that was known."""
    found: list[float] = []
    limit_norm = Rules.limit_norm

    def measured(rules: Rules, update: Update, typical: Typical) -> Update:
        if typical.norm:
            assert update.norm is not None
            found.append(update.norm / typical.norm * max(1.0, update.weight / typical.weight))
        return limit_norm(rules, update, typical)

    config = RunConfig(max_update_norm=f"{LIMIT:g}x", min_clients=options["clients"], **options)
    node = {"task": config.task, "dataset": config.dataset, "data-dir": "", "device": "cpu"}
    shares = [
        {**node, "partition-id": i, "num-partitions": config.clients} for i in range(config.clients)
    ]
    with mock.patch.object(Rules, "limit_norm", measured):
        federate(Absent(LocalGrid(make_client_app(), shares)), config, prepare(config))
    return np.array(found)


def main() -> None:
    """Measure all fleets."""
    logging.disable()
    above = " | ".join(f"above {limit}" for limit in LIMITS)
    print(f"| fleet | updates | median | 99 % | largest | {above} |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, options in FLEETS.items():
        norms = norms_of(options)
        quantiles = " | ".join(f"{np.quantile(norms, q):.2f}" for q in (0.5, 0.99, 1))
        above = " | ".join(f"{np.mean(norms > limit):.1%}" for limit in LIMITS)
        print(f"| {name} | {len(norms)} | {quantiles} | {above} |", flush=True)


if __name__ == "__main__":
    main()
