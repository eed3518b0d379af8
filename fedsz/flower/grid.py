"""The server side: a Grid that compresses what any strategy sends and receives."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec
from fedsz.errors import ConfigError, FedszError
from fedsz.flower import compat
from fedsz.flower.node import error_reply
from fedsz.flower.records import (
    KEY,
    Arrays,
    Template,
    Update,
    array_records,
    replaced,
    seal,
    settings_record,
    template_of,
    to_record,
)
from fedsz.flower.wrapper import WrappedGrid
from fedsz.pipeline import (
    DEFAULT_CODEC,
    DEFAULT_ERROR_BOUND,
    DEFAULT_LOSSLESS,
    DEFAULT_THRESHOLD,
    Settings,
)
from fedsz.update import DELTA, WEIGHTS, Reference, check_update

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

    @property
    def ratio(self) -> float:
        """Raw over sent bytes of the replies; NaN if there were none."""
        return self.raw_up / self.sent_up if self.sent_up else math.nan


class FedSZGrid(WrappedGrid):
    """A Grid for any strategy whose clients run `FedSZMod`.

    What goes out is packed losslessly into one stream, with the settings by which clients compress
    their replies; what comes back is decoded before the strategy sees it::

        strategy.start(grid=FedSZGrid(grid, error_bound=1e-2), initial_arrays=...)

    A reply that does not decode, or that has other names or shapes than the model last sent,
    becomes an error reply: counted, logged with its reason, left out by the strategy. Arrays go out
    and come in in the dtypes of the first model sent, whatever a strategy made of them since.

    Args:
        inner: the Grid that carries the messages.
        error_bound, codec, lossless, threshold, rule: as in `fedsz.compress`.
        update: what clients send, "weights" or "delta": what they differ by from the model that the
            message held, within the same bound on the weights. A client whose reply is not of that
            model sends weights all the same.
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
        update: str = WEIGHTS,
        same_model: bool = True,
    ) -> None:
        check_update(update)
        super().__init__(inner)
        self._update = update
        self._references: dict[bytes, Reference] = {}  # what the last messages held, by digest
        self._settings = Settings(error_bound, codec, lossless, threshold, rule)
        # A broadcast is packed, not approximated: its error would reach every client.
        self._downlink = Settings(codec=lossless, lossless=lossless)
        self._same_model = same_model
        self._sent: dict[str, Template] = {}  # by the key of the ArrayRecord
        self._traffic = Traffic()
        self._wire = self._wire_counters()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pack and push; see Flower's `Grid`."""
        return self.inner.push_messages(self._packed(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Pull and unpack; see Flower's `Grid`."""
        return [self._plain(reply) for reply in self.inner.pull_messages(message_ids)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Return the replies to ``messages``, their arrays plain."""
        replies = self.inner.send_and_receive(self._packed(messages), timeout=timeout)
        return [self._plain(reply) for reply in replies]

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Yield the replies to ``messages`` as they come, still sealed; `open` each."""
        replies = super().stream_replies(self._packed(messages), timeout=timeout)
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
        traffic = self._traffic
        traffic.replies += 1
        for update in updates:
            traffic.raw_up += update.raw_bytes
            traffic.sent_up += update.sent_bytes
            traffic.decode_seconds += update.seconds
        note = reply.content.config_records.get(KEY, ConfigRecord())
        traffic.encode_seconds += number(note, "encode-seconds")
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

    def _packed(self, messages: Iterable[Message]) -> list[Message]:
        """Return ``messages`` with their arrays sealed, each RecordDict packed once.

        The caller's messages stay as they are. A list, for Flower's own Grids go through it twice.
        """
        out = []
        self._references = {}
        packed: dict[int, tuple[RecordDict, RecordDict, int, int]] = {}
        for message in messages:
            content = message.content
            if id(content) not in packed:
                # The original is kept with its packed self, so that its id stays taken.
                packed[id(content)] = (content, *self._pack(content))
            _, sealed, raw, sent = packed[id(content)]
            self._traffic.raw_down += raw
            self._traffic.sent_down += sent
            out.append(compat.make_message(message.metadata, content=sealed))
        return out

    def _pack(self, content: RecordDict) -> tuple[RecordDict, int, int]:
        sealed: dict[str, ArrayRecord] = {}
        raw = 0
        for key, record in array_records(content).items():
            template = template_of(record)
            if key not in self._sent or self._sent[key].shapes != template.shapes:
                self._sent[key] = template
            arrays = Arrays(record, self._sent[key])
            sealed[key], report = seal(arrays, self._downlink)
            if self._update == DELTA:
                reference = Reference(arrays)
                self._references[reference.digest] = reference
            raw += report.raw_bytes
        note = settings_record(self._settings, self._update)
        return replaced(content, sealed, note), raw, sum(map(payload_bytes, sealed.values()))

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
        expected = dict(self._sent) if self._same_model else {}
        if len(records) == len(expected) == 1:
            # A client may call its model otherwise.
            expected = dict(zip(records, expected.values(), strict=True))
        return {
            key: Update(record, expected.get(key), self._references)
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


def payload_bytes(record: ArrayRecord) -> int:
    """Return the bytes of a record's arrays as they are sent: for a sealed one, of its stream."""
    return sum(len(array.data) for array in record.values())


def number(note: ConfigRecord, key: str) -> float:
    """Return a finite number of at least 0 that a client reports, else 0."""
    value = note.get(key, 0.0)
    return value if isinstance(value, float) and math.isfinite(value) and value >= 0 else 0.0
