"""Flower apps whose clients reply with bytes of their steps, not with a model.

A step is the trained model minus the received one, of all float tensors; others stay as the server
has them. The bytes travel in a ConfigRecord, which `FedSZMod` and `FedSZGrid` leave alone. So
their compression is of the broadcast alone.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedsz.arrays import NDArray, wide
from fedsz.errors import FedszError

logger = logging.getLogger(__name__)

App = Callable[[Message, Context], Message]
Arrays = Mapping[str, NDArray]
STEPS: Final = "fedsz.steps"  # the ConfigRecord


def setting_of(message: Message, name: str) -> Any:
    """Return a setting in any ConfigRecord of a message; None if there is none."""
    records = message.content.config_records.values() if message.has_content() else ()
    return next((record[name] for record in records if name in record), None)


def coded_reply(
    message: Message, context: Context, app: App, encode: Callable[[Arrays], Mapping[str, bytes]]
) -> Message:
    """Run the app, and return its reply with the bytes of its step in place of its arrays."""
    before = floats(next(iter(message.content.array_records.values())))
    reply = app(message, context)
    if reply.has_content() and reply.content.array_records:
        after = floats(next(iter(reply.content.array_records.values())))
        step = {name: after[name] - x for name, x in before.items() if name in after}
        others: dict[str, Any] = {
            key: record
            for key, record in reply.content.items()
            if not isinstance(record, ArrayRecord)
        }
        reply.content = RecordDict({**others, STEPS: ConfigRecord(dict(encode(step)))})
    return reply


def floats(record: ArrayRecord) -> dict[str, NDArray]:
    """Return the float tensors of a record, in float32 or float64."""
    arrays = {name: array.numpy() for name, array in record.items()}
    return {name: x.astype(wide(x.dtype)) for name, x in arrays.items() if x.dtype.kind == "f"}


class FedAvgOfSteps(FedAvg):
    """Flower's FedAvg, of arrays that are decoded from the bytes of clients' steps.

    A reply that does not decode is logged and left out.

    Attributes:
        model: that the clients of this round train.
    """

    model: ArrayRecord

    @abstractmethod
    def decode(self, node: int, coded: Mapping[str, Any]) -> Arrays:
        """Return the arrays to be averaged for a client's reply.

        Raises:
            FedszError, ValueError, KeyError, TypeError: they are damaged.
        """

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a round's messages."""
        self.model = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def server_step(self, mean: Arrays) -> Arrays:
        """Return the step of the model, given FedAvg's mean of the decoded arrays: that mean."""
        return mean

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the model after `server_step`, in its dtypes, and FedAvg's metrics."""
        usable = []
        for reply in replies:
            if reply.has_content():
                node = reply.metadata.src_node_id
                try:
                    arrays = self.decode(node, reply.content.config_records[STEPS])
                except (FedszError, ValueError, KeyError, TypeError) as err:
                    logger.warning("the reply of node %d is left out: %s", node, err)
                    continue
                records: Any = dict(reply.content.metric_records)
                records[self.arrayrecord_key] = record_of(arrays)
                reply.content = RecordDict(records)
            usable.append(reply)
        mean, metrics = super().aggregate_train(server_round, usable)
        if mean is None:
            return None, metrics
        arrays = {name: array.numpy() for name, array in self.model.items()}
        steps = self.server_step({name: array.numpy() for name, array in mean.items()})
        for name, step in steps.items():
            x = arrays[name]
            arrays[name] = np.asarray((x + step.reshape(x.shape)).astype(x.dtype))
        return record_of(arrays), metrics


def record_of(arrays: Arrays) -> ArrayRecord:
    """Return arrays as a record."""
    return ArrayRecord({name: Array(x) for name, x in arrays.items()})


def require_finite(name: str, x: NDArray) -> None:
    """Raise `ValueError` unless all elements are finite."""
    if not np.isfinite(x).all():
        raise ValueError(f"{name!r} is not finite")
