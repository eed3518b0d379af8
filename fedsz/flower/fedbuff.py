"""Asynchronous rounds: a new model each time that a buffer of updates is full."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedsz.errors import ConfigError, RefusedReply
from fedsz.flower.mean import Mean
from fedsz.flower.records import views_of
from fedsz.flower.refusal import Refusal
from fedsz.flower.strategy import Evaluate, StreamingFedAvg, streamed
from fedsz.flower.update import SealedRecord
from fedsz.flower_compat import records_in

BUFFER: Final = 10
MAX_STALENESS: Final = 20
MOST_AHEAD: Final = 1.5  # times a client's equal share of the
RECENT: Final = 64  # updates before
POLL_SECONDS: Final = 0.05  # between looks for replies, at first; twice as long each time, up to
LONGEST_POLL: Final = 1.0


class FedBuff(StreamingFedAvg):
    """Buffered asynchronous aggregation: nobody waits for a slow client (Nguyen et al., 2022).

    A round ends when ``buffer`` updates are there, or everybody who was asked has replied. The mean
    of their steps, each times 1 / sqrt(1 + s), is added to the newest model; s is the number of
    models that are newer than the one its sender started from. Steps are weighted by examples, so
    for equal weights this is algorithm 1 of the paper, with a server learning rate of 1. An idle
    client gets the new model; a client that trains goes on. A client gets each model once. If one
    has made more than ``most_ahead`` times its equal share of recent updates, its steps count less.

    Needs a `FedSZGrid`, which keeps each model that somebody trains on until that client's reply or
    timeout. Memory is that of these models, the sums, and the replies that wait as they were sent.
    Does not evaluate on clients; ``evaluate_fn`` of `start` does it on the server.

    Args:
        buffer: updates that make a new model.
        max_staleness: the most that s may be. Older updates are refused.
        most_ahead: updates of one client among the last `RECENT`, as a multiple of its equal share.
            What is above counts as if it had kept to that; infinity for no limit.

    Raises:
        ConfigError: one of these is out of range, ``min_replies`` is above ``buffer``, or clients
            were to evaluate.

    Examples:
        >>> from fedsz.flower import FedBuff
        >>> strategy = FedBuff(buffer=4, max_staleness=10, fraction_evaluate=0)
        >>> strategy.buffer
        4
    """

    def __init__(
        self,
        *arguments: Any,
        buffer: int = BUFFER,
        max_staleness: int = MAX_STALENESS,
        most_ahead: float = MOST_AHEAD,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        if buffer < self.quorum.min_replies:
            raise ConfigError(f"buffer must be at least min_replies, got {buffer}")
        if max_staleness < 0:
            raise ConfigError(f"max_staleness must be 0 or more, got {max_staleness}")
        if not most_ahead >= 1:
            raise ConfigError(f"most_ahead must be at least 1, got {most_ahead}")
        if self.fraction_evaluate:
            raise ConfigError("FedBuff does not evaluate on clients: pass fraction_evaluate=0")
        self.buffer, self.max_staleness, self.most_ahead = buffer, max_staleness, most_ahead
        self._recent = deque[int](maxlen=RECENT)  # nodes whose updates have counted
        self._out: dict[int, tuple[str, int]] = {}  # by node: its message, and the model in that
        self._models = 0  # that there have been
        self._staleness = 0  # of the reply that is being added
        self._newest = ArrayRecord()  # the model

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,  # noqa: ARG002 - nothing is evaluated there
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the rounds; see Flower's `Strategy`. ``timeout`` is of each message.

        Raises:
            TooFewReplies: three rounds in a row did not count.
        """
        result, arrays = Result(), initial_arrays
        config, self._out = train_config or ConfigRecord(), {}
        while len(list(grid.get_node_ids())) < self.min_available_nodes:
            time.sleep(POLL_SECONDS)
        for number in range(num_rounds + 1):
            if number:
                self.quorum.begin()
                self._newest = arrays
                replies = self._replies(grid, number, arrays, config, timeout)
                averaged, metrics = self.aggregate_train(number, replies)
                if averaged is not None:
                    result.arrays = arrays = averaged
                    self._models += 1
                if metrics is not None:
                    result.train_metrics_clientapp[number] = metrics
            measured = evaluate_fn(number, arrays) if evaluate_fn else None
            if measured is not None:
                result.evaluate_metrics_serverapp[number] = measured
        self.quorum.require()
        return result

    def configure_train(
        self,
        server_round: int,  # noqa: ARG002 - the arguments are Flower's
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,  # noqa: ARG002
    ) -> NoReturn:
        """Raise `ConfigError`: a strategy around this one would run rounds of its own."""
        raise ConfigError("FedBuff runs its rounds itself, and not inside another strategy")

    def _replies(
        self, grid: Grid, number: int, arrays: ArrayRecord, config: ConfigRecord, timeout: float
    ) -> Iterator[Message]:
        """Yield replies as they come, until the buffer is full or nobody is left to wait for."""
        asked: set[int] = set()
        usable, pause = 0, POLL_SECONDS
        while usable < self.buffer:
            config["server-round"] = self.done + number
            asked |= self._ask(grid, arrays, config, timeout, asked)
            if asked and not self._out:
                return
            replies = list(grid.pull_messages([message_id for message_id, _ in self._out.values()]))
            for reply in replies:
                _, first = self._out.pop(reply.metadata.src_node_id)
                self._staleness = self._models - first
                yield reply
                usable += not reply.has_error() and not _refused(reply)
            if replies:
                pause = POLL_SECONDS
            else:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_POLL)

    def _ask(
        self,
        grid: Grid,
        arrays: ArrayRecord,
        config: ConfigRecord,
        timeout: float,
        asked: set[int],
    ) -> set[int]:
        """Send the model to clients that are idle and have not been sent it; return these."""
        nodes = list(grid.get_node_ids())
        most = max(int(len(nodes) * self.fraction_train), self.min_train_nodes) - len(self._out)
        idle = [node for node in nodes if node not in self._out and node not in asked]
        chosen = idle if len(idle) <= most else random.sample(idle, max(0, most))
        if not chosen:
            return set()
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        messages = list(self._construct_messages(content, chosen, MessageType.TRAIN))
        for message in messages:
            message.metadata.ttl = timeout
        ids = grid.push_messages(streamed(messages))
        for node, message_id in zip(chosen, ids, strict=True):
            if message_id:
                self._out[node] = message_id, self._models
        return set(chosen)

    def _add_record(self, mean: Mean, record: ArrayRecord, node: int, weight: float) -> None:
        if not isinstance(record, SealedRecord):
            raise ConfigError("FedBuff needs a FedSZGrid")
        record.received = replace(record.received, staleness=self._staleness)
        if self._staleness > self.max_staleness:
            why = f"{self._staleness} models are newer; at most {self.max_staleness} may be"
            raise RefusedReply(Refusal.STALE, why)
        update, terms, scale = record.opened()
        share = self._share(node) / math.sqrt(1 + self._staleness)
        self._recent.append(node)
        mean.add(update, terms, weight, scale * share)

    def _share(self, node: int) -> float:
        """Return what a client's step counts times, by how often others have replied lately."""
        clients = len({*self._recent, node})
        most = 1 + self.most_ahead * len(self._recent) / clients
        return min(1.0, most / (1 + self._recent.count(node)))

    def _begin_mean(self) -> Mean:
        return Mean(views_of(self._newest))


def _refused(reply: Message) -> bool:
    records = records_in(reply.content, ArrayRecord).values()
    return not any(isinstance(r, SealedRecord) and r.refused is None for r in records)
