"""Clients whose updates are coded in bases from broadcasts, and their server, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.serverapp.strategy import FedAvg

from fedsz.core.reference import Reference
from fedsz.flower import FedSZGrid, LocalGrid, StreamingFedAvg
from fedsz.flower.records import streams_of
from fedsz.stream import Reader
from tests.federation import app_of, around, record_of

CHAIN: Final = "feedback>eigen>uniform@step:1"
NATURAL: Final = "uniform@step:1"  # what streams say of it without a basis
SHAPES: Final = {"conv.weight": (12, 10, 3, 3), "fc.weight": (40, 50), "fc.bias": (40,)}


def stepped(model: dict[str, np.ndarray], seed: int, rank: int = 2) -> dict[str, np.ndarray]:
    """The model after a step in directions that are the same for all seeds."""
    rng, moved = np.random.default_rng(seed), {}
    for name, x in model.items():
        fixed = np.random.default_rng(len(name))
        flat = x.reshape(len(x), -1) if x.ndim > 1 else x.reshape(1, -1)
        left, right = (fixed.normal(size=(n, rank)) for n in flat.shape)
        step = left @ rng.normal(size=(rank, rank)) @ right.T
        moved[name] = (x + 1e-3 * step.reshape(x.shape)).astype(x.dtype)
    return moved


def model(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}


def ways(first: dict[str, np.ndarray], steps: int = 2) -> list[Reference]:
    models = [first]
    for seed in range(steps):
        models.append(stepped(models[-1], seed))
    return [Reference(m) for m in models]


class Fleet:
    """A server and four clients in one process, and by what chains they reply."""

    def __init__(
        self,
        strategy: type[FedAvg] = StreamingFedAvg,
        within: Callable[[int], AbstractContextManager[object]] = lambda i: nullcontext(),
        **named: Any,
    ) -> None:
        self.contexts: dict[int, Context] = {}
        self.backwards = False  # whether clients are asked from the last on
        self.told: dict[int, list[str]] = {}  # by client: the chains of its last reply
        self.grid_of = lambda: FedSZGrid(
            self.inner, **{"update": CHAIN, "downlink": "step:0.5", "threshold": 0, **named}
        )
        app = around(
            app_of(lambda i, x: stepped(x, 10 * self.round + i), examples=lambda _: 1),
            before=lambda i, _, context: self.contexts.update({i: context}),
            after=lambda i, asked, reply: self.told.update({i: chains_of(reply)}),
        )

        def answer(message: Message, context: Context) -> Message:
            with within(int(context.node_config["partition-id"])):
                reply: Message = app(message, context)
            return reply

        self.inner = LocalGrid(answer, [{"partition-id": i} for i in range(4)])
        self.grid, self.round, self.strategy = self.grid_of(), 0, strategy
        self.model = record_of(model())

    def run(self, nodes: Sequence[int] = range(4), *, evaluated: Sequence[int] = ()) -> list[str]:
        """Do a round, and return the chain of each reply."""
        self.round += 1
        self.told = {}
        strategy = self.strategy(min_train_nodes=1)
        asked = strategy.configure_train(self.round, self.model, ConfigRecord(), self.grid)
        replies = self.grid.send_and_receive(self._to(nodes, asked))
        told = self.told
        averaged, _ = strategy.aggregate_train(self.round, replies)
        assert averaged is not None
        self.model = averaged
        if evaluated:
            asked = strategy.configure_evaluate(self.round, self.model, ConfigRecord(), self.grid)
            replies = self.grid.send_and_receive(self._to(evaluated, asked))
            strategy.aggregate_evaluate(self.round, replies)
        self.replies = self.grid.end_round().replies
        return [text for texts in told.values() for text in texts]

    def _to(self, nodes: Sequence[int], messages: Iterable[Message]) -> list[Message]:
        left_out = {c.node_id for i, c in self.contexts.items() if i not in nodes}
        asked = [m for m in messages if m.metadata.dst_node_id not in left_out]
        # So sums round alike.
        return sorted(asked, key=lambda m: m.metadata.dst_node_id, reverse=self.backwards)

    def restart(self) -> None:
        """Go on in another Grid, from what this one remembers."""
        state = self.grid.state()
        self.grid = self.grid_of()
        self.grid.restore(state)


def chains_of(reply: Message) -> list[str]:
    """The texts of a reply's chains, if it has arrays."""
    records = reply.content.array_records.values() if reply.has_content() else ()
    streams = [s for record in records for s in streams_of(record)]
    return [chain.text for stream in streams for chain in Reader(stream).header.chains]
