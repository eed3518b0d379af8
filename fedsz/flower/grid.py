"""The server side: a Grid that compresses what any strategy sends and receives."""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedsz import flower_compat as compat
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec
from fedsz.control.autopilot import Autopilot
from fedsz.control.policy import DEFAULT_TOLERANCE, FIXED
from fedsz.control.record import Decision, Link
from fedsz.errors import ConfigError, FedszError
from fedsz.flower.instructions import Orders
from fedsz.flower.mod import lacks_model
from fedsz.flower.packing import Outbox, is_training
from fedsz.flower.records import KEY, Update, array_records, replaced, to_record
from fedsz.flower.wrapped_grid import WrappedGrid
from fedsz.flower_compat import error_reply
from fedsz.update.config import (
    DEFAULT_CODEC,
    DEFAULT_ERROR_BOUND,
    DEFAULT_LOSSLESS,
    DEFAULT_THRESHOLD,
    DEFAULT_UPDATE,
    EXACT,
    Settings,
    check_update,
)

Send = Callable[..., Iterable[Message]]

logger = logging.getLogger(__name__)


@dataclass
class Traffic:
    """What crossed a `FedSZGrid`, counted exactly.

    Attributes:
        replies: replies with arrays that were decoded.
        failures: (node id, reason) of each message that got no usable reply.
        raw_up, sent_up: bytes of the arrays in these replies, before and after compression.
        raw_down, sent_down: the same for what was sent to clients, once for each client.
        wire_up, wire_down: bytes of gRPC messages, 0 on a Grid that does not count them.
        encode_seconds: the clients' time to compress, added up, as they report it.
        decode_seconds: the server's time to decode.
        max_error: the largest error as a share of its bound, as the clients report it.
        links: what each reply took.
    """

    replies: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)
    raw_up: int = 0
    sent_up: int = 0
    raw_down: int = 0
    sent_down: int = 0
    wire_up: int = 0
    wire_down: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    max_error: float = 0.0
    links: list[Link] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Raw over sent bytes of the replies; NaN if there were none."""
        return self.raw_up / self.sent_up if self.sent_up else math.nan


class FedSZGrid(WrappedGrid):
    """A Grid for any strategy whose clients run `FedSZMod`.

    What goes out is packed once for all, with the settings by which clients compress their replies;
    what comes back is decoded before the strategy sees it::

        strategy.start(grid=FedSZGrid(grid, error_bound=1e-2), initial_arrays=...)

    A reply that does not decode, or that has other names or shapes than the model last sent,
    becomes an error reply: counted, logged with its reason, left out by the strategy. Arrays go out
    and come in in the dtypes of the first model sent, whatever a strategy made of them since.

    Args:
        inner: the Grid that carries the messages.
        error_bound, codec, lossless, threshold, rule: as in `fedsz.compress`.
        update: what clients send: "weights"; "delta", what they differ by from the model that the
            message held, within the same bound on the weights; or "delta+ef", which adds to it
            what earlier rounds left out. A client whose reply is not of that model sends weights
            all the same.
        decay: what a client's residual is multiplied with for each round that it waits, in [0, 1].
        downlink: how the model is sent: "exact", or as what it differs by from the one that a
            client holds, within a bound such as "std:1" or 1e-2.
        downlink_feedback: whether what one broadcast leaves out goes into the next.
        policy: who decides all of this before each round: "fixed", the above; or another, such as
            "auto", which asks for nothing else; see `fedsz.control`.
        tolerance: points of accuracy that compression may cost, for policies that ask.
        rounds: how many there will be, for policies that ask.
        same_model: whether replies must have the names and shapes of the model that was sent; False
            for apps whose clients answer with something else, such as adapters.

    Raises:
        ConfigError: one of these is out of range or does not exist.
        CodecUnavailable: a codec's library is not installed here.
    """

    def __init__(
        self,
        inner: Grid,
        error_bound: ErrorBound | float | str = DEFAULT_ERROR_BOUND,
        *,
        codec: str | Codec = DEFAULT_CODEC,
        lossless: str | Codec = DEFAULT_LOSSLESS,
        threshold: int = DEFAULT_THRESHOLD,
        rule: str = "paper",
        update: str = DEFAULT_UPDATE,
        decay: float = 1.0,
        downlink: ErrorBound | float | str = EXACT,
        downlink_feedback: bool = True,
        policy: str = FIXED,
        tolerance: float = DEFAULT_TOLERANCE,
        rounds: int = 100,
        same_model: bool = True,
    ) -> None:
        check_update(update)
        if not 0 <= decay <= 1:
            raise ConfigError(f"decay must lie in [0, 1], got {decay}")
        super().__init__(inner)
        self._given = Settings(error_bound, codec, lossless, threshold, rule)
        self._orders = Orders(self._given, update, decay)
        self._outbox = Outbox(str(downlink), feedback=downlink_feedback)
        self._autopilot: Autopilot | None = None
        if policy != FIXED:
            base = Decision(
                update=update, error_bound=str(self._given.bound), downlink=self._outbox.bound
            )
            self._autopilot = Autopilot(policy, base, tolerance=tolerance, rounds=rounds)
        self._codecs: Mapping[int, str] = {}  # by node id, for those that use another
        self._same_model = same_model
        self._traffic = Traffic()
        self._wire = self._wire_counters()

    def steer(self, decision: Decision) -> None:
        """Compress otherwise from the next message on; see `fedsz.control`.

        Raises:
            ConfigError: a bound, an update or a codec does not exist.
            CodecUnavailable: a codec's library is not installed here.
        """
        given = self._given
        settings = replace(
            given,
            error_bound=decision.error_bound,
            factors=decision.factors,
            threshold=given.threshold if decision.threshold is None else decision.threshold,
            rule=decision.rule or given.rule,
        )
        for codec in decision.codecs.values():
            _ = replace(settings, codec=codec)
        self._outbox.steer(decision.downlink)
        self._orders = replace(self._orders, settings=settings, update=decision.update)
        self._codecs = {int(node): codec for node, codec in decision.codecs.items()}

    def observe(self, *, accuracy: float | None = None, loss: float | None = None) -> None:
        """Tell the policy how good the model is that goes out next, where the app measures that.

        Args:
            accuracy: on held-out data, in [0, 1].
            loss: mean cross-entropy there, in nats.
        """
        if self._autopilot:
            self._autopilot.observe(accuracy, loss)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pack and push; see Flower's `Grid`."""
        return self.inner.push_messages(self._packed(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Pull and unpack; see Flower's `Grid`."""
        replies = list(self.inner.pull_messages(message_ids))
        for reply in replies:
            self._note(reply)
        return [self._plain(reply) for reply in replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Return the replies to ``messages``, their arrays plain."""
        replies = self._exchange(self.inner.send_and_receive, messages, timeout)
        return [self._plain(reply) for reply in replies]

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Yield the replies to ``messages`` as they come, still sealed; `open` each."""
        replies = self._exchange(super().stream_replies, messages, timeout)
        # Flower's records refer to each other in circles: where the inner Grid has parked what it
        # sends, only this frees the packed model before the last reply.
        gc.collect()
        return replies

    def open(self, reply: Message) -> Update:
        """Return the arrays of a reply that `stream_replies` yielded, not yet decoded.

        Raises:
            FedszError: they are damaged, or not those of the model.
        """
        return the_only(self._opened(reply))

    def count(self, reply: Message, *updates: Update) -> None:
        """Count a reply of which every array was decoded."""
        node = reply.metadata.src_node_id
        note = reply.content.config_records.get(KEY, ConfigRecord())
        link = Link(
            node=str(node),
            bandwidth=getattr(self.inner, "bandwidths", {}).get(node, 0.0),
            raw_bytes=sum(update.raw_bytes for update in updates),
            sent_bytes=sum(update.sent_bytes for update in updates),
            encode_seconds=number(note, "encode-seconds"),
            decode_seconds=sum(update.seconds for update in updates),
        )
        traffic = self._traffic
        traffic.replies += 1
        traffic.links.append(link)
        if self._autopilot:
            self._autopilot.count(link)
        traffic.raw_up += link.raw_bytes
        traffic.sent_up += link.sent_bytes
        traffic.encode_seconds += link.encode_seconds
        traffic.decode_seconds += link.decode_seconds
        traffic.max_error = max(traffic.max_error, number(note, "max-error"))

    def fail(self, reply: Message, reason: str) -> None:
        """Count and log a message that got no usable reply."""
        node_id = reply.metadata.src_node_id
        self._traffic.failures.append((node_id, reason))
        logger.warning("node %d left out: %s", node_id, reason)

    def take_traffic(self) -> Traffic:
        """Return what was counted since the last call, or since the start."""
        traffic, self._traffic = self._traffic, Traffic()
        before, self._wire = self._wire, self._wire_counters()
        traffic.wire_up, traffic.wire_down = (
            now - then for now, then in zip(self._wire, before, strict=True)
        )
        return traffic

    def _exchange(
        self, send: Send, messages: Iterable[Message], timeout: float | None
    ) -> Iterator[Message]:
        """Send ``messages``; yield a reply to each, though a client lack what it was to hold."""
        deadline = None if timeout is None else time.monotonic() + timeout
        packed = self._packed(messages)
        replies = iter(send(packed, timeout=timeout))
        # Without the messages: they would stay, with the model, until the last reply.
        return self._with_second_tries(replies, send, deadline)

    def _with_second_tries(
        self, replies: Iterator[Message], send: Send, deadline: float | None
    ) -> Iterator[Message]:
        again: list[Iterator[Message]] = []
        for reply in replies:
            if not lacks_model(reply):
                self._note(reply)
                yield reply
                continue
            whole = self._outbox.whole(reply.metadata.src_node_id)
            if whole is None:
                yield reply
                continue
            self._traffic.sent_down += whole.sent_bytes
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            # Now: it has a round's training before it.
            again.append(iter(send([whole.message], timeout=left)))
        for second in again:
            for reply in second:
                self._note(reply)
                yield reply

    def _note(self, reply: Message) -> None:
        """Note what the sender of a reply holds, whatever comes of the reply."""
        if not reply.has_error():
            self._outbox.received(reply.metadata.src_node_id)

    def _packed(self, messages: Iterable[Message]) -> list[Message]:
        """Return ``messages`` with their arrays sealed. The caller's messages stay as they are.

        A list, for Flower's own Grids go through it twice.
        """
        pushed = list(messages)
        if self._autopilot and is_training(pushed):
            self.steer(self._autopilot.decide(self._outbox.spread(pushed, self._given)))
        packed = self._outbox.pack(pushed, self._orders, self._codecs)
        self._traffic.raw_down += sum(p.raw_bytes for p in packed)
        self._traffic.sent_down += sum(p.sent_bytes for p in packed)
        return [p.message for p in packed]

    def _plain(self, reply: Message) -> Message:
        """Return a reply with plain arrays, or the error reply that takes its place."""
        if reply.has_error():
            self.fail(reply, str(reply.error.reason))
            return reply
        if not array_records(reply.content):
            return reply
        try:
            updates = self._opened(reply)
            plain = {key: to_record(update.arrays()) for key, update in updates.items()}
        except FedszError as err:
            reason = f"{type(err).__name__}: {err}"
            self.fail(reply, reason)
            return failed(reply, reason)
        self.count(reply, *updates.values())
        reply.content = replaced(reply.content, plain, None)
        return reply

    def _opened(self, reply: Message) -> dict[str, Update]:
        """Return what each ArrayRecord of a reply holds, checked against the one sent."""
        records = array_records(reply.content)
        expected = dict(self._outbox.templates) if self._same_model else {}
        if len(records) == len(expected) == 1:
            # A client may call its model otherwise.
            expected = dict(zip(records, expected.values(), strict=True))
        return {
            key: Update(record, expected.get(key), self._outbox.references)
            for key, record in records.items()
        }

    def _wire_counters(self) -> tuple[int, int]:
        counters: Any = getattr(self.inner, "counters", None)
        if counters is None:
            return 0, 0
        return counters.wire_bytes_received, counters.wire_bytes_sent


def failed(reply: Message, reason: str) -> Message:
    """Return the error reply that stands in for ``reply``."""
    code = compat.ErrorCode.MOD_FAILED_PRECONDITION
    error = error_reply(reply.metadata, code, reason).error
    return compat.make_message(reply.metadata, error=error)


def open_reply(reply: Message) -> Update:
    """Return the arrays of a reply from a plain Grid, be they sealed or not.

    Raises:
        FedszError: there is not exactly one ArrayRecord, or it is damaged.
    """
    return the_only({key: Update(r) for key, r in array_records(reply.content).items()})


def the_only(updates: dict[str, Update]) -> Update:
    """Return the update of a reply that is to hold one.

    Raises:
        ConfigError: it holds none, or several.
    """
    if len(updates) != 1:
        raise ConfigError(f"a reply holds {len(updates)} ArrayRecords, not one")
    return next(iter(updates.values()))


def number(note: ConfigRecord, key: str) -> float:
    """Return a finite number of at least 0 that a client reports, else 0."""
    value = note.get(key, 0.0)
    return value if isinstance(value, float) and math.isfinite(value) and value >= 0 else 0.0
