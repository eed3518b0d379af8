"""A task of a job on its server: the model on its way out, the replies, and the rounds they make.

NVFlare asks a filter about one client at a time. So a round is what sends one model, by the number
that the workflow gives it, or until a client is sent it again. A client says with each request
which model it holds: one that lacks the last is sent the whole, or what it has missed.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from fedsz.arrays import Layout, NDArray
from fedsz.control.policy import Controller
from fedsz.control.record import ClientRecord, Failure, RoundRecord
from fedsz.control.rule import SENSITIVITY, SPREAD
from fedsz.control.tally import EvaluationMetrics, Tally
from fedsz.core.ahead import not_ahead
from fedsz.core.broadcast import Broadcast
from fedsz.core.decode import decode
from fedsz.core.protocol import Instructions
from fedsz.core.reference import Reference, require_reference
from fedsz.core.reply_report import ReplyReport
from fedsz.core.settings import EXACT, Settings
from fedsz.core.step import step_spread
from fedsz.errors import ConfigError, CorruptStream, ModelMismatch
from fedsz.formatting import size
from fedsz.stream import Limits, Reader

logger = logging.getLogger(__name__)

# Replies and failures of a round that its record lists: nobody is kept from sending more.
MOST_LISTED: Final = 4096

# Rounds, where they have numbers, after which the model is forgotten that a silent client was sent.
LATEST: Final = 8

# Of bounds that do where clients are on staggered lattices. Here all share one, and what it rounds
# off is in the mean: that shows in jobs of a dozen rounds.
FINER: Final = 1 / 3


def require_usable(controller: Controller) -> None:
    """Raise `ConfigError` for what needs more than the server of a job knows of its clients."""
    if SENSITIVITY in controller.needs:
        raise ConfigError("this policy needs a held-out set: `fedsz server` has one")
    if controller.base.uses_history or controller.base.learns_shifts:
        raise ConfigError(f"update {controller.base.update!r} needs fedsz.flower")


class TaskServer:
    """What the server knows of one task; for threads.

    Args:
        task: its name.
        controller: decides how each round is sent.
        shared_initial: whether clients may hold the first model from the start.
        untrained: whether the first model is untrained, as in `Broadcast`.
    """

    def __init__(
        self, task: str, controller: Controller, *, shared_initial: bool, untrained: bool
    ) -> None:
        self._task, self._controller = task, controller
        self._config = controller.base
        self._broadcast = Broadcast(
            controller.base, shared_initial=shared_initial, untrained=untrained
        )
        self._run, self._turn = secrets.token_bytes(16), 0
        self._number: int | None = None  # of the round, as the workflow says
        self._given = b""  # the digest of the model of this round; of one that is beginning, none
        self._meant: Reference | None = None  # the last model, if differences may be put onto that
        self._first_turn = 0  # of this round
        self._ended = self._replied = False  # whether the last round has, and somebody in this one
        self._in_round: set[str] = set()  # who has been sent it
        self._sent: dict[str, tuple[int, Reference]] = {}  # by client: the last round, and model
        self._asked: dict[str, int] = {}  # and the turn of that
        self._counted: dict[str, int] = {}  # and the last in which its reply counted
        self._evaluated: dict[str, Mapping[str, object]] = {}  # and what it has last said of it
        self._tally = Tally(MOST_LISTED)
        self._last = time.monotonic()
        self._lock = threading.RLock()

    def pack(
        self,
        client: str,
        arrays: Mapping[str, NDArray],
        number: int | None,
        held: bytes,
        *,
        has_initial: bool,
    ) -> tuple[list[bytes], Instructions]:
        """Return the streams of a model for a client, and what it is told beside them.

        Args:
            client: its name.
            arrays: the model; they may change later.
            number: of the round, None where the workflow has none.
            held: the digest of the model that the client holds, or b"".
            has_initial: whether it says that it has the first model.
        """
        given = Reference(arrays)
        with self._lock:
            if self._begins_round(client, number, given.digest):
                self._begin_round(given, number)
            elif client in self._in_round:
                self._turn += 1  # it has a residual of this one
            broadcast = self._broadcast
            if given.digest != self._given:  # a model of its own, in the midst of a round
                broadcast = Broadcast(self._config.replace(downlink=EXACT))
                broadcast.put(_copied(arrays), reference=True)
            model = broadcast.model
            assert model is not None
            held = held or (broadcast.initial if has_initial else b"")
            streams = [bytes(stream[:]) for stream in broadcast.streams(held)]
            self._tally.sent(broadcast.raw_bytes, sum(map(len, streams)))
            last = self._counted.get(client, 0)
            counted = last if self._asked.get(client, 0) > last else None
            self._asked[client] = self._turn
            self._sent[client] = self._controller.next_round, model
            self._in_round.add(client)
            holds = {} if broadcast.exact else {self._task: model.digest}
            told = Instructions(self._told, self._turn, holds, self._run, counted=counted)
            return streams, told

    @property
    def _told(self) -> Settings:
        """What clients are told: nothing that older ones do not know, and to begin with the model.

        They may test what they begin with, and the server takes that for the model's.
        """
        config = self._config
        return not_ahead(config.replace(codec=config.lossy_codec.told)) if config.ahead else config

    def unpack(
        self, client: str, stream: bytes, turn: object, report: ReplyReport, *, differs: bool
    ) -> dict[str, NDArray]:
        """Return the arrays of a reply.

        Args:
            client: who sent it.
            stream: from anybody.
            turn: of the instructions that it answers, as it says.
            report: what it says of itself.
            differs: whether it holds differences from the model, which the workflow adds to it.

        Raises:
            ModelMismatch: it has other arrays than the model, or refers to another one.
            CorruptStream: it is none, or asks for more than the model.
            CodecUnavailable: a codec's library is not installed here.
        """
        began = time.perf_counter()
        with self._lock:
            _, model = self._sent.get(client, (0, None))
        if model is None:
            raise CorruptStream(f"{client} was sent no model to which this is a reply", offset=0)
        layout = Layout.of(model.arrays)
        reader = Reader(stream, Limits.of_model(layout))
        if reader.header.reference is not None:
            require_reference(reader.header.reference, model)
        for tensor in reader.header.tensors:
            if layout.shapes.get(tensor.name) != tensor.shape:
                have = layout.shapes.get(tensor.name, "none")
                raise ModelMismatch(f"{tensor.name!r} has shape {tensor.shape}; the model {have}")
        decoded = dict(decode(reader, model))
        names = [tensor.name for tensor in reader.header.tensors]
        arrays = {name: layout.cast(name, decoded.pop(name)) for name in names}
        with self._lock:
            self._broadcast.feedback = not differs
            if not differs:
                self._meant = None
            if not self._replied:  # most have been sent the model
                self._replied = True
                self._broadcast.pack_away()
        self._note(client, stream, turn, report, reader, time.perf_counter() - began)
        return arrays

    def _note(
        self,
        client: str,
        stream: bytes,
        turn: object,
        report: ReplyReport,
        reader: Reader,
        seconds: float,
    ) -> None:
        record = ClientRecord(
            node=client,
            client=client,
            bandwidth=0.0,
            raw_bytes=reader.header.decoded_bytes,
            sent_bytes=len(stream),
            encode_seconds=report.encode_seconds,
            decode_seconds=seconds,
            kept=report.kept,
            lag=report.lag,
            moved=report.moved != 0,
        )
        with self._lock:
            self._tally.received(record, report)
            # Workflows that number their rounds drop what answers an earlier one.
            first = 0 if self._number is None else self._first_turn
            if isinstance(turn, int) and first <= turn <= self._asked.get(client, 0):
                self._counted[client] = max(turn, self._counted.get(client, 0))

    def failed(self, client: str, reason: str) -> None:
        """Count a reply that is of no use."""
        with self._lock:
            self._tally.failed(Failure(client, reason))

    def evaluated(self, client: str, metrics: Mapping[str, object]) -> None:
        """Take what a client says of its model, in place of what it has said this round."""
        with self._lock:
            self._evaluated[client] = metrics

    def end_round(self, spread: Mapping[str, tuple[int, float]] | None = None) -> None:
        """End the round, log it, and have the next one decided."""
        with self._lock:
            metrics = EvaluationMetrics()
            for said in self._evaluated.values():
                metrics.add(said)
            now, (accuracy, loss), self._evaluated = time.monotonic(), metrics.take(), {}
            odd = loss is not None and not math.isfinite(loss)
            decision = self._controller.decision
            if decision is not None:  # what clients were told explains how late they are
                decision = msgspec.structs.replace(decision, config=self._told)
            record = RoundRecord(
                **msgspec.structs.asdict(self._tally.take()),
                round=self._controller.next_round,
                seconds=now - self._last,
                accuracy=accuracy,
                loss=None if odd else loss,
                diverged=odd,
                decision=decision,
                spread=dict(spread or {}),
            )
            self._last = now
            self._config = _finer(self._controller.decide(record).config.require())
            if record.round:
                self._tell(record)

    def _begins_round(self, client: str, number: int | None, digest: bytes) -> bool:
        if number is not None:
            return number != self._number or not self._given
        return client in self._in_round or digest != self._given

    def _begin_round(self, given: Reference, number: int | None) -> None:
        held, spread = self._broadcast.model, {}
        if SPREAD in self._controller.needs and held is not None:
            base = self._controller.base
            spread = step_spread(
                held.arrays, given.arrays, rule=base.rule, threshold=base.threshold
            )
        if not self._ended:
            self.end_round(spread)
        # Should there be no memory for the model, the next request begins the round again.
        self._ended, self._given = True, b""
        self._broadcast.steer(self._config)
        meant = Reference(_copied(given.arrays))
        since = None if self._broadcast.feedback else self._meant
        self._broadcast.put(meant, reference=True, since=since)
        self._meant = meant
        self._ended = self._replied = False
        self._turn += 1
        self._number, self._given, self._in_round = number, given.digest, set()
        self._first_turn = self._turn
        self._forget_sent()

    def _forget_sent(self) -> None:
        """Forget the models of clients whose reply has counted, or would come too late."""
        oldest = 0 if self._number is None else self._controller.next_round - LATEST
        self._sent = {
            client: (sent, model)
            for client, (sent, model) in self._sent.items()
            if sent >= oldest and self._counted.get(client, 0) < self._asked[client]
        }

    def _tell(self, record: RoundRecord) -> None:
        parts = [
            f"{record.replies} replies",
            f"up {size(record.sent_up)} of {size(record.raw_up)}",
            f"down {size(record.sent_down)} of {size(record.raw_down)}",
        ]
        parts += [f"left out {one.client}: {one.reason}" for one in record.failures]
        logger.info("fedsz: %s, round %d: %s", self._task, record.round, ", ".join(parts))


def _copied(arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Return arrays of our own: a workflow may write the next model into its last one."""
    return {name: x.copy() for name, x in arrays.items()}


def _finer(config: Settings) -> Settings:
    """Return a config whose chosen bound of the model is for one lattice."""
    bound = config.downlink_bound
    if bound is None or not config.staggers:  # somebody has named it
        return config
    return config.replace(downlink=str(bound.scaled(FINER)))
