"""FedAvg in memory that does not grow with the number of clients."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedsz.arrays import NDArray
from fedsz.errors import ConfigError, FedszError
from fedsz.flower.liveness import Quorum
from fedsz.flower.mean import Mean
from fedsz.flower.refusal import reason, refusing_failures
from fedsz.flower.rules import Typical, require_finite
from fedsz.flower.update import SealedRecord, Update
from fedsz.flower_compat import make_record, records_in
from fedsz.transport.grid_base import StreamedRequest

logger = logging.getLogger(__name__)

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
Averaged = tuple[ArrayRecord | None, MetricRecord | None]


class StreamingFedAvg(FedAvg):
    """Flower's FedAvg, adding each reply to one accumulator as it arrives.

    Memory is one accumulator and one reply that is being checked, where Flower's FedAvg holds every
    reply until the last has come. A reply counts whole or not at all: one that is damaged, not
    finite or too large is counted, logged and left out, and changes no bit of the average. That is
    weighted by ``weighted_by_key`` and comes in the dtypes of the replies: integer buffers are
    rounded, not turned into floats.

    Works on any Grid, or wrapper of one; replies of a `FedSZGrid` come still compressed. All other
    arguments are those of Flower's FedAvg.

    A subclass that looks at replies finds records without arrays: they are still compressed. Inside
    another strategy, such as Flower's differential privacy, replies have plain arrays, and that one
    holds all of them. Then all count or the round does not, and means of whole numbers stay floats,
    as FedAvg's do: noise is for that.

    Args:
        min_replies: usable replies that a round needs. With fewer it does not count: the model
            stays as it is. Three such rounds in a row raise
            `fedsz.errors.TooFewReplies`.

    Attributes:
        on_update: told of each update of a FedSZGrid's client before it is decoded.
        on_request: called as each round begins, with the nodes that it asks to train.

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
        self.on_update: Callable[[Update], None] | None = None
        self.on_request: Callable[[list[int]], None] | None = None
        self.done = 0  # rounds before those of `start`, which counts from 1
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
        self.quorum.begin()
        if arrays is self._average:
            self._first.clear()
        number = self.done + server_round
        asked = self._messages(number, _view(arrays), config, grid)
        # A strategy around this one looks at the replies' arrays.
        messages = streamed(asked) if self._starts else list(asked)
        self._asks = bool(messages)
        if self.on_request is not None:
            self.on_request([message.metadata.dst_node_id for message in messages])
        return messages

    def _messages(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a round's messages to the clients that take part in it."""
        return super().configure_train(number, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Averaged:
        """Add up ``replies`` one by one, and return their weighted average and metrics."""
        mean, inside = self._begin_mean(), isinstance(replies, list) and not self._starts
        contents: list[RecordDict] = []  # of metrics alone
        errors = refused = 0
        for reply in replies:
            if reply.has_error():
                errors += 1
                continue
            records = records_in(reply.content, ArrayRecord).values()
            sealed = [record for record in records if isinstance(record, SealedRecord)]
            if self.on_update is not None:
                for record in sealed:
                    self.on_update(record.received)
            try:
                contents.append(self._add(mean, reply))
            except FedszError as err:
                refused += 1
                for record in sealed:
                    record.refused = err
                logger.warning("node %d left out: %s", reply.metadata.src_node_id, reason(err))
            finally:
                release(reply.content)
        failures = errors + refused
        number = server_round + self.done
        logger.info("round %d: %d replies, %d failures", number, len(contents), failures)
        if not self._asks:
            return None, None  # of a strategy that only evaluates
        counts, why = self._reached(len(contents) * (mean.weight > 0)), self.quorum.why
        if counts and inside and refused:
            counts, why = False, "the strategy around this one counts on all replies that it took"
            logger.warning("round %d does not count: %s", server_round, why)
        if not counts:
            return None, None
        self._average = self._result(mean, inside=inside)
        contents = _same_metrics(contents)
        averaged = self.train_metrics_aggr_fn(contents, self.weighted_by_key) if contents else None
        return self._average, averaged

    def _reached(self, replies: int) -> bool:
        """Return whether a round that is over counts, by the number of its usable replies."""
        return self.quorum.reached(replies)

    def _begin_mean(self) -> Mean:
        return Mean()

    def _result(self, mean: Mean, *, inside: bool) -> ArrayRecord:
        return mean.result(rounds=not inside)

    def _add(self, mean: Mean, reply: Message) -> RecordDict:
        """Add a reply and return its metrics."""
        records = records_in(reply.content, ArrayRecord)
        metrics = records_in(reply.content, MetricRecord)
        if len(metrics) != 1:
            raise ConfigError(f"a reply holds {len(metrics)} MetricRecords, not one")
        weight = self._weight(next(iter(metrics.values())))
        if len(records) != 1:
            raise ConfigError(f"a reply holds {len(records)} ArrayRecords, not one")
        (record,) = records.values()
        self._add_record(mean, record, reply.metadata.src_node_id, weight)
        return RecordDict(dict(metrics))

    def _add_record(self, mean: Mean, record: ArrayRecord, node: int, weight: float) -> None:  # noqa: ARG002 - of subclasses
        """Add the arrays of a reply.

        Raises:
            FedszError: it must not count. Nothing has been added.
        """
        if isinstance(record, SealedRecord):
            update, terms, scale = record.opened()
        else:
            with refusing_failures():  # of a Grid that checks nothing
                update, scale = Update.open(record), 1.0
                terms = update.terms()
                require_finite(update.measured(terms), Typical())
        mean.add(update, terms, weight, scale)

    def _weight(self, metrics: MetricRecord) -> float:
        """Return what a reply of these metrics counts in the mean."""
        weight = metrics.get(self.weighted_by_key)
        if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            raise ConfigError(
                f"a reply's {self.weighted_by_key!r} must be a number from 0, got {weight!r}"
            )
        return float(weight)


def _view(arrays: ArrayRecord) -> ArrayRecord:
    """Return a record of the same arrays, which stay when the other is emptied."""
    return make_record(dict(arrays))


def streamed(messages: Iterable[Message]) -> list[Message]:
    """Return messages whose replies are to come sealed; those that share a content still do."""
    asked = list(messages)
    contents = {id(message.content): StreamedRequest(dict(message.content)) for message in asked}
    originals = [message.content for message in asked]  # or an id could be used again
    for message, content in zip(asked, originals, strict=True):
        message.content = contents[id(content)]
    return asked


def release(content: RecordDict) -> None:
    """Free the arrays of a message that are not needed any more.

    Flower's records refer to each other in circles, so without this they would stay until the
    garbage collector comes by, and megabytes do not make it come sooner.
    """
    for record in records_in(content, ArrayRecord).values():
        if isinstance(record, SealedRecord):
            record.release()
        record.clear()


def _same_metrics(contents: list[RecordDict]) -> list[RecordDict]:
    """Return contents whose MetricRecords have the metrics that all of them have.

    Flower averages records of one form, or raises: one client must not end a run by its metrics.
    """
    records = [next(iter(content.metric_records.values())) for content in contents]
    forms = [
        {name: len(x) if isinstance(x, list) else 0 for name, x in record.items()}
        for record in records
    ]
    shared = set.intersection(*({*form.items()} for form in forms)) if forms else set()
    if all(form.items() == shared for form in forms):
        return contents
    names = {name for name, _ in shared}
    return [
        RecordDict({"metrics": MetricRecord({n: x for n, x in record.items() if n in names})})
        for record in records
    ]
