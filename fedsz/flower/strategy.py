"""FedAvg in memory that does not grow with the number of clients."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedsz.arrays import Layout, NDArray, add_scaled, saturate
from fedsz.codecs.base import Opened, OpenedArray
from fedsz.errors import ConfigError, FedszError, RefusedReply
from fedsz.flower.admission import streamed
from fedsz.flower.admitted_record import AdmittedRecord, release, update_of
from fedsz.flower.quorum import Quorum
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import to_array
from fedsz.flower.refusal import NormSum, Refusal, refusing_failures, told
from fedsz.methods.compressed_sum import CompressedSums
from fedsz.transport.replies import Replies
from fedsz.update.chained import ChainDecoder
from fedsz.update.lossy import CodedTensor, located

logger = logging.getLogger(__name__)

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
Averaged = tuple[ArrayRecord | None, MetricRecord | None]


class _Aggregation:
    """`StreamingFedAvg.aggregate_train` of an instance; of the class itself, Flower's FedAvg's.

    Flower's accounted differential privacy adds noise for a uniform mean of all replies, or of
    none. It takes strategies whose class has FedAvg's method, which is such a mean; ours is, too.
    """

    def __get__(
        self, strategy: StreamingFedAvg | None, owner: type[StreamingFedAvg]
    ) -> Callable[..., Averaged]:
        return FedAvg.aggregate_train if strategy is None else strategy._aggregated


class StreamingFedAvg(FedAvg):
    """Flower's FedAvg, adding each reply to one accumulator as it arrives.

    Memory is one accumulator and one reply that is being checked, where Flower's FedAvg holds every
    reply until the last has come. A reply counts whole or not at all: one that is damaged, not
    finite or too large is counted, logged and left out, and changes no bit of the average. That is
    weighted by ``weighted_by_key`` and comes in the dtypes of the replies: integer buffers are
    rounded, not turned into floats.

    Works on any Grid, or wrapper of one; replies of a `FedSZGrid` come still compressed. All other
    arguments are those of Flower's FedAvg.

    Inside another strategy, such as Flower's differential privacy, that one holds all replies. Then
    all of them count or the round does not, and means of whole numbers stay floats, as FedAvg's do:
    noise is for that.

    Args:
        min_replies: usable replies that a round needs. With fewer it does not count: the model
            stays as it is. Three such rounds in a row raise
            `fedsz.errors.TooFewReplies`.

    Attributes:
        on_update: told of each update of a FedSZGrid's client before it is decoded.

    Raises:
        ConfigError: ``min_replies`` is below 1.

    Examples:
        >>> import numpy as np
        >>> from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
        >>> from flwr.clientapp import ClientApp
        >>> from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg
        >>> app = ClientApp(mods=[FedSZMod()])
        >>> @app.train()
        ... def train(message, context):  # adds 1 to each weight
        ...     arrays = ArrayRecord([message.content["arrays"].to_numpy_ndarrays()[0] + 1])
        ...     content = RecordDict({"a": arrays, "m": MetricRecord({"num-examples": 1})})
        ...     return Message(content, reply_to=message)
        >>> strategy = StreamingFedAvg(fraction_evaluate=0)
        >>> first = ArrayRecord([np.zeros(2000, np.float32)])
        >>> grid = FedSZGrid(LocalGrid(app, [{}, {}]))
        >>> result = strategy.start(grid=grid, initial_arrays=first, num_rounds=1)
        >>> result.arrays.to_numpy_ndarrays()[0][:2]
        array([1., 1.], dtype=float32)
    """

    def __init__(self, *arguments: Any, min_replies: int = 1, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.quorum = Quorum(min_replies)
        self.on_update: Callable[[ReceivedUpdate], None] | None = None
        self._first, self._average = ArrayRecord(), ArrayRecord()  # as Flower's loop holds them
        # Whether this one's own loop runs, not that of one around it; whether this round trains.
        self._starts, self._asks = False, True

    def state(self) -> dict[str, NDArray]:
        """Return what the next round depends on, beside the model; nothing here."""
        return {}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Go on from what `state` returned, also in another process."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the rounds; see Flower's `Strategy`.

        Flower's loop would hold ``initial_arrays`` to the end. It is given a record of its own,
        which is emptied once it goes on with an average; ``evaluate_fn`` gets another.

        Raises:
            TooFewReplies: three rounds in a row did not count.
        """
        evaluate = evaluate_fn and (lambda number, arrays: evaluate_fn(number, _view(arrays)))
        self._first = _view(initial_arrays)
        del initial_arrays
        self._starts = True
        try:
            result = super().start(
                grid, self._first, num_rounds, timeout, train_config, evaluate_config, evaluate
            )
        finally:
            self._starts = False
        self.quorum.require()  # the last rounds have none after them that would
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the round's messages, which ask for replies that are still sealed."""
        self.quorum.require()
        self.quorum.wait()
        if arrays is self._average:
            self._first.clear()
        messages = streamed(super().configure_train(server_round, _view(arrays), config, grid))
        self._asks = bool(messages)
        return messages

    aggregate_train = _Aggregation()

    def _aggregated(self, server_round: int, replies: Iterable[Message]) -> Averaged:
        """Add up ``replies`` one by one, and return their weighted average and metrics."""
        # Those that somebody has gone through come as a list, of a strategy around this one.
        inside = isinstance(replies, list) and not self._starts
        if isinstance(replies, Replies):
            replies = replies.as_they_come()
        mean = self._begin_mean()
        contents: list[RecordDict] = []  # of metrics alone
        added: list[ReceivedUpdate] = []
        errors = refused = 0
        for reply in replies:
            if reply.has_error():
                errors += 1
                continue
            records = reply.content.array_records.values()
            updates = [r.received for r in records if isinstance(r, AdmittedRecord)]
            if self.on_update is not None:
                for update in updates:
                    self.on_update(update)
            try:
                contents.append(self._add(mean, reply))
                added += updates
            except FedszError as err:
                refused += 1
                for update in updates:
                    update.refused = err
                logger.warning("node %d left out: %s", reply.metadata.src_node_id, told(err))
            finally:
                release(reply.content)
        failures = errors + refused
        logger.info("round %d: %d replies, %d failures", server_round, len(contents), failures)
        if not self._asks:
            return None, None  # of a strategy that only evaluates
        counts, why = self.quorum.reached(len(contents) * (mean.weight > 0)), self.quorum.why
        if counts and inside and refused:
            counts, why = False, "the strategy around this one counts on all replies that it took"
            logger.warning("round %d does not count: %s", server_round, why)
        if not counts:
            for update in added:
                update.refused = RefusedReply(Refusal.QUORUM, f"the round does not count: {why}")
            return None, None
        self._average = self._result(mean, inside=inside)
        return self._average, self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def _begin_mean(self) -> Mean:
        return Mean()

    def _result(self, mean: Mean, *, inside: bool) -> ArrayRecord:
        return mean.result(rounds=not inside)

    def _add(self, mean: Mean, reply: Message) -> RecordDict:
        """Add a reply and return its metrics."""
        records, metrics = reply.content.array_records, dict(reply.content.metric_records)
        if len(metrics) != 1:
            raise ConfigError(f"a reply holds {len(metrics)} MetricRecords, not one")
        weight = next(iter(metrics.values())).get(self.weighted_by_key)
        if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            raise ConfigError(
                f"a reply's {self.weighted_by_key!r} must be a number from 0, got {weight!r}"
            )
        if len(records) != 1:
            raise ConfigError(f"a reply holds {len(records)} ArrayRecords, not one")
        (record,) = records.values()
        with refusing_failures():
            update = update_of(record)
        mean.add(update, float(weight))
        kept: dict[str, Any] = dict(metrics)
        return RecordDict(kept)


def _view(arrays: ArrayRecord) -> ArrayRecord:
    """Return a record of the same arrays, which stay when the other is emptied."""
    return ArrayRecord(dict(arrays))


@dataclass
class Base:
    """A tensor that differences refer to, and the weight of these."""

    x: NDArray
    weight: float = 0.0


class Mean:
    """A weighted mean of updates that are added one at a time, decoded as they are added.

    Of tensors that came as differences it adds up the differences alone; what they refer to is
    added once, in the end, by the weight of all that do. The sums are of smaller numbers so, too.
    Of differences by chains of methods, what is linear is decoded once, in the end.

    All of an update is decoded as far as that can fail, and judged, before any of it is added. What
    is kept of it meanwhile is a byte an element, of tensors that `uniform` has coded, and else the
    decoded tensors. So an update that is refused half-way changes no bit of the sums.

    An update that is to be scaled counts as start + scale x (update - start). If it is clipped for
    differential privacy, all of it is decoded and scaled first, so that it keeps to the norm.

    Args:
        steps: whether to add up only what updates are above their starts; see `result`.
    """

    def __init__(self, *, steps: bool = False) -> None:
        self._steps = steps
        self._sums: dict[str, NDArray] = {}
        self._compressed: dict[str, CompressedSums] = {}
        self._bases: dict[str, dict[int, Base]] = {}  # what differences refer to, by its id()
        self._template: Layout | None = None
        self.weight = 0.0

    def add(self, update: ReceivedUpdate, weight: float) -> None:
        """Add ``update``, or nothing of it.

        Raises:
            FedszError: one of its arrays does not decode, or has another shape than in the first
                update; it holds none; or it is judged too large. Nothing has been added.
        """
        if self._template:
            self._template.check(update.shapes)
        if not update.shapes:
            raise RefusedReply(Refusal.MODEL, "it holds no arrays")
        with refusing_failures():
            opened = self._opened(update)
        if self._steps and any(tensor.start is None for tensor in opened):
            raise RefusedReply(Refusal.MODEL, "what it starts from is not known")
        if not weight:
            return  # or an infinite element would make NaN of a sum
        if self._template is None:
            dtypes = {tensor.name: tensor.dtype for tensor in opened}
            self._template = Layout(dict(update.shapes), dtypes)
        with update.clock():
            while opened:
                tensor = opened.pop()  # what is added is freed
                if tensor.name not in self._sums:
                    shape = self._template.shapes[tensor.name]
                    self._sums[tensor.name] = np.zeros(shape, sum_dtype(tensor.dtype))
                is_scaled = update.clipping_norm is not None or tensor.dtype.kind in "iub"
                scale = 1.0 if is_scaled else update.scale
                tensor.values.add(self._sums[tensor.name], weight * scale)
                self._add_start(tensor, weight, scale)
        self.weight += weight

    def _opened(self, update: ReceivedUpdate) -> list[_OpenedTensor]:
        """Decode an update as far as that can fail, and judge it."""
        opened: list[_OpenedTensor] = []
        norm, clipped = NormSum(), update.clipping_norm is not None
        for name, x in iter(update.arrays().items()) if clipped else update.unpacked():
            with update.clock():
                sums = self._sums.get(name)
                wide = sum_dtype(x.dtype) if sums is None else sums.dtype
                compressed = self._compressed.setdefault(name, CompressedSums())
                opened.append(_open(name, x, update.sent(name, x), wide, compressed))
                norm.add(x.dtype, opened[-1].values.energy)
        if not clipped:
            update.judge(norm.total())
        return opened

    def _add_start(self, tensor: _OpenedTensor, weight: float, scale: float) -> None:
        """Add what a tensor's scaled step is above: all of its start, or what `scale` leaves."""
        if (start := tensor.start) is None:
            return
        share = 1.0 if tensor.is_difference else 1 - scale
        weight *= share - 1 if self._steps else share
        if weight:
            bases = self._bases.setdefault(tensor.name, {})
            bases.setdefault(id(start), Base(start)).weight += weight

    def _add_compressed(self, compressed: CompressedSums, sums: NDArray) -> None:
        """Add to ``sums`` what has been added up compressed."""
        compressed.add_to(sums)

    def result(
        self, onto: Mapping[str, NDArray] | None = None, *, rounds: bool = True
    ) -> ArrayRecord:
        """Return the mean, in the dtypes of what was added; the sums are given up on the way.

        A mean of steps is added ``onto`` a model. What is not finite there stays: a mask of -inf.
        What is beyond the range of its dtype becomes the end of that range.

        Args:
            onto: that model.
            rounds: whether means of whole numbers and bools are rounded to such; else float64.
        """
        assert self._template is not None
        record = ArrayRecord()
        for name in self._template.shapes:
            mean = self._sums.pop(name)
            self._add_compressed(self._compressed.pop(name), mean)
            mean /= self.weight
            for base in self._bases.pop(name, {}).values():
                add_scaled(base.x, base.weight / self.weight, mean)
            if onto is not None:
                add_scaled(onto[name], 1.0, mean)
                np.copyto(mean, onto[name], casting="unsafe", where=~np.isfinite(onto[name]))
            dtype = self._template.dtypes[name]
            if rounds or dtype.kind not in "iub":
                saturate(mean, dtype)
            else:
                dtype = mean.dtype
            record[name] = to_array(mean, dtype)
        return record


class _OpenedTensor(NamedTuple):
    """A tensor that can be added, and what its sender started from, where that is known."""

    name: str
    dtype: np.dtype
    values: Opened
    start: NDArray | None
    is_difference: bool  # of it from its start


def _open(
    name: str,
    x: NDArray | CodedTensor,
    sent: NDArray | None,
    wide: np.dtype,
    compressed: CompressedSums,
) -> _OpenedTensor:
    """Decode a tensor as far as that can fail, to be added to sums of dtype ``wide``."""
    # A difference from another model than was sent is no step: that would be kept for each client.
    apart = isinstance(x, CodedTensor) and x.is_of_another(sent)
    if isinstance(x, CodedTensor) and wide == sum_dtype(x.dtype) and not apart:
        if x.reference is not None:
            opened = _open_compressed(x, compressed) or x.open(sent)
            return _OpenedTensor(name, x.dtype, opened, x.reference, is_difference=True)
        return _OpenedTensor(name, x.dtype, x.open(sent), sent, is_difference=False)
    decoded = x.decode() if isinstance(x, CodedTensor) else x
    values = OpenedArray(decoded, sent)
    return _OpenedTensor(name, x.dtype, values, sent, is_difference=False)


def _open_compressed(x: CodedTensor, compressed: CompressedSums) -> Opened | None:
    """Decode a difference but for what is linear of its chain; None where nothing is."""
    if not isinstance(x.codec, ChainDecoder):
        return None
    with located(x.offset):
        return x.codec.open_compressed(x.payload, x.shape, x.dtype, compressed)


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which values of ``dtype`` are added up."""
    if dtype.kind == "c" or dtype == np.float64:
        return dtype
    # Counters reach beyond the 24 bits of a float32; weights of 16 bits need its range.
    return np.dtype(np.float64 if dtype.kind in "iub" else np.float32)
