"""FedAvg in memory that does not grow with the number of clients."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedsz.arrays import Layout, NDArray, cast
from fedsz.errors import ConfigError, FedszError
from fedsz.flower.admission import release, streamed, update_of
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import to_array
from fedsz.update.lossy import CodedTensor, add_scaled

logger = logging.getLogger(__name__)


class StreamingFedAvg(FedAvg):
    """Flower's FedAvg, adding each reply to one accumulator as it arrives.

    Memory is one accumulator and at most one decoded tensor, where Flower's FedAvg holds every
    reply until the last has come. A reply is checked whole before any of it is added, and taken
    back if it turns out damaged all the same: it is counted, logged and left out. The average is
    weighted by ``weighted_by_key`` and comes in the dtypes of the replies: integer buffers are
    rounded, not turned into floats.

    Works on any Grid, or wrapper of one; replies of a `FedSZGrid` come still compressed. All
    arguments are those of Flower's FedAvg.
    """

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the round's messages, which ask for replies that are still sealed."""
        return streamed(super().configure_train(server_round, arrays, config, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add up ``replies`` one by one, and return their weighted average and metrics."""
        mean = Mean()
        contents: list[RecordDict] = []  # of metrics alone
        failures = 0
        for reply in replies:
            if reply.has_error():
                failures += 1
                continue
            try:
                contents.append(self._add(mean, reply))
            except FedszError as err:
                failures += 1
                node, reason = reply.metadata.src_node_id, f"{type(err).__name__}: {err}"
                logger.warning("node %d left out: %s", node, reason)
            finally:
                release(reply.content)
        logger.info("round %d: %d replies, %d failures", server_round, len(contents), failures)
        if not mean.weight:
            return None, None
        return mean.result(), self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def _add(self, mean: Mean, reply: Message) -> RecordDict:
        """Add a reply and return its metrics."""
        records, metrics = reply.content.array_records, dict(reply.content.metric_records)
        updates = [update_of(record) for record in records.values()]
        try:
            if len(metrics) != 1:
                raise ConfigError(f"a reply holds {len(metrics)} MetricRecords, not one")
            weight = next(iter(metrics.values())).get(self.weighted_by_key)
            if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
                raise ConfigError(
                    f"a reply's {self.weighted_by_key!r} must be a number from 0, got {weight!r}"
                )
            if len(updates) != 1:
                raise ConfigError(f"a reply holds {len(updates)} ArrayRecords, not one")
            mean.add(updates[0], float(weight))
        except FedszError as err:
            for update in updates:
                update.refused = f"{type(err).__name__}: {err}"
            raise
        kept: dict[str, Any] = dict(metrics)
        return RecordDict(kept)


@dataclass
class Base:
    """A tensor that differences refer to, and the weight of these."""

    x: NDArray
    weight: float = 0.0


class Mean:
    """A weighted mean of updates that are added one at a time, decoded as they are added.

    Of tensors that came as differences it adds up the differences alone; what they refer to is
    added once, in the end, by the weight of all that do. The sums are of smaller numbers so, too.
    """

    def __init__(self) -> None:
        self._sums: dict[str, NDArray] = {}
        self._bases: dict[str, dict[int, Base]] = {}  # what differences refer to, by its id()
        self._template: Layout | None = None
        self.weight = 0.0

    def add(self, update: ReceivedUpdate, weight: float) -> None:
        """Add ``update``, or nothing of it.

        Raises:
            FedszError: one of its arrays does not decode, or has another shape than in the first
                update. What had been added of it is taken back, exactly but for the rounding of
                one addition.
        """
        first = self._template is None
        shapes: dict[str, tuple[int, ...]] = {}
        dtypes: dict[str, np.dtype] = {}
        try:
            for name, x in update.unpacked():
                with update.clock():
                    self._put(name, x, weight, new=first)
                shapes[name], dtypes[name] = x.shape, x.dtype
            if self._template is None:
                self._template = Layout({name: shapes[name] for name in update.names}, dtypes)
            self._template.check(shapes)
        except FedszError:
            if first:
                self._sums.clear()
                self._bases.clear()
            else:
                for name, x in islice(update.unpacked(), len(shapes)):
                    self._put(name, x, -weight, new=False)
            raise
        self.weight += weight

    def _put(self, name: str, x: NDArray | CodedTensor, weight: float, *, new: bool) -> None:
        if new and isinstance(x, np.ndarray):
            self._sums[name] = scaled(x, weight, sum_dtype(x.dtype))
            return
        if new:
            self._sums[name] = np.zeros(x.shape, sum_dtype(x.dtype))
        sums = self._sums.get(name)
        if sums is None or x.shape != sums.shape:
            return  # there is nowhere to add it; `Layout.check` will refuse it
        if isinstance(x, CodedTensor) and sums.dtype == sum_dtype(x.dtype):
            x.accumulate(sums, weight)
            if x.reference is not None:
                bases = self._bases.setdefault(name, {})
                bases.setdefault(id(x.reference), Base(x.reference)).weight += weight
        else:
            sums += scaled(x.decode() if isinstance(x, CodedTensor) else x, weight, sums.dtype)

    def result(self) -> ArrayRecord:
        """Return the mean, in the dtypes of what was added; the sums are given up on the way."""
        assert self._template is not None
        record = ArrayRecord()
        for name in self._template.shapes:
            mean = self._sums.pop(name)
            mean /= self.weight
            for base in self._bases.pop(name, {}).values():
                add_scaled(base.x, base.weight / self.weight, mean)
            record[name] = to_array(cast(mean, self._template.dtypes[name]))
        return record


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which values of ``dtype`` are added up."""
    if dtype.kind == "c" or dtype == np.float64:
        return dtype
    # Counters reach beyond the 24 bits of a float32; weights of 16 bits need its range.
    return np.dtype(np.float64 if dtype.kind in "iub" else np.float32)


def scaled(x: NDArray, weight: float, dtype: np.dtype) -> NDArray:
    """Return ``weight`` x ``x``, in place where ``x`` is of that dtype and ours to change."""
    wide = x.astype(dtype, copy=not x.flags.writeable)
    wide *= weight
    return wide
