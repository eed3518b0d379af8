"""A task of a job on its server: the model on its way out, the replies, and the rounds they make.

NVFlare asks a filter about one client at a time. So a round is what sends one model, by the number
that the workflow gives it, or until a client is sent it again.

The server puts the step of a reply onto its own model:

    result = trained - reference + the server's model

so that the rounding of a broadcast never gets into the server's model.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from fedsz.arrays import Layout, NDArray
from fedsz.control.controller import Controller
from fedsz.control.record import ClientRecord, Failure, RoundRecord, Traffic, median_metrics
from fedsz.core.broadcast import Broadcast
from fedsz.core.decode import decode_onto
from fedsz.core.protocol import ReplyNote, Request
from fedsz.core.reference import Reference
from fedsz.core.settings import EXACT
from fedsz.errors import CorruptStream, ModelMismatch
from fedsz.formatting import size
from fedsz.nvflare.content import Announcement, Sealed
from fedsz.nvflare.model_filter import Task
from fedsz.stream import Limits, Reader

logger = logging.getLogger(__name__)

# Replies and failures of a round that its record has; a client may send any number.
MOST_LISTED: Final = 4096

# Rounds after which the model is forgotten that a silent client was sent.
LATEST: Final = 8


class _OpenRequest(NamedTuple):
    """A model that a client was sent, and has not replied to."""

    task_id: str
    round: int  # in which it was sent
    model: Reference  # the server's own
    reference: Reference  # as the client has it


class TaskServer:
    """What the server knows of one task; for threads.

    Args:
        task: its name.
        controller: decides how each round is sent.
        shared_initial: whether clients may have the first model from the start.
    """

    def __init__(self, task: str, controller: Controller, *, shared_initial: bool) -> None:
        self._task, self._controller = task, controller
        self._settings = controller.decide(RoundRecord(round=0)).config.require()
        self._broadcast = Broadcast(shared_initial=shared_initial)
        self._run = secrets.token_bytes(16)
        self._round = 0  # as requests count: a client has a residual of each
        self._number: int | None = None  # of the round, as the workflow says
        self._model: Reference | None = None  # the server's own, of the last round
        self._is_open = False  # whether a round has begun, and not ended
        self._in_round: set[str] = set()  # clients that have been sent its model
        self._requests: dict[str, _OpenRequest] = {}  # by client
        self._replied: set[str] = set()  # clients that have ever sent a result
        self._metrics: dict[str, Mapping[str, object]] = {}  # by client, of this round
        # Of this round.
        self._clients = deque[ClientRecord](maxlen=MOST_LISTED)
        self._failures = deque[Failure](maxlen=MOST_LISTED)
        self._bytes = Counter[str]()  # by the fields of `Traffic`
        self._last = time.monotonic()
        self._lock = threading.RLock()

    def pack(
        self, client: str, announced: Announcement, task: Task, arrays: Mapping[str, NDArray]
    ) -> tuple[bytes, Request]:
        """Return the stream of a model for a client, and the request beside it.

        The arrays may change later: a workflow may write the next model into them.
        """
        given = Reference(arrays)
        with self._lock:
            if self._begins_round(client, task.number, given):
                self._begin_round(given, task.number)
            elif client in self._in_round:
                self._round += 1  # it has a residual of this one
            model, broadcast = self._model, self._broadcast
            assert model is not None
            if given.digest != model.digest:  # one of this client's, in the midst of a round
                model, broadcast = _copied(given), Broadcast()
                broadcast.publish(model.arrays, self._settings.replace(downlink=EXACT))
            reference, initial = broadcast.reference, announced.has_initial
            assert reference is not None
            base = announced.digests.get(self._task) or (broadcast.initial if initial else b"")
            stream = broadcast.since(base) if base else None
            if stream is None:
                stream, base = broadcast.key_frame(), b""
            # A client that has lost its residual may lose the next one, too.
            has_lost = announced.is_new and client in self._replied
            request = Request(
                run=self._run,
                round=self._round,
                trains=True,
                base={self._task: base} if base else {},
                reference={} if broadcast.exact else {self._task: reference.digest},
                settings=self._settings.without_feedback if has_lost else self._settings,
            )
            self._bytes.update(raw_down=reference.nbytes, sent_down=len(stream))
            of_round = self._controller.next_round
            self._requests[client] = _OpenRequest(task.id, of_round, model, reference)
            self._in_round.add(client)
            return stream, request

    def unpack(
        self, client: str, task: Task, content: Sealed, *, is_step: bool
    ) -> dict[str, NDArray]:
        """Return the arrays of a reply, its step put onto the server's model, and count it.

        Args:
            client: its sender.
            task: which it says that it answers.
            content: from anybody.
            is_step: whether the workflow adds the reply to the model itself.

        Raises:
            ModelMismatch: it has other arrays than the model, or refers to another one.
            CorruptStream: it is none, or asks for more than the model.
            CodecUnavailable: a codec's library is not installed here.
        """
        began, note = time.perf_counter(), ReplyNote.decode(content.note)
        with self._lock:
            request = self._requests.get(client)
        if request is None or request.task_id != task.id:
            raise CorruptStream(f"it answers no model that {client} was sent last", offset=0)
        layout = Layout.of(request.model.arrays)
        reader = Reader(content.stream, Limits.of_model(layout))
        names = [tensor.name for tensor in reader.header.tensors]
        content.check_names(names)
        for tensor in reader.header.tensors:
            if layout.shapes.get(tensor.name) != tensor.shape:
                have = layout.shapes.get(tensor.name, "none")
                raise ModelMismatch(f"{tensor.name!r} has shape {tensor.shape}; the model {have}")
        model = {} if is_step or note.is_step else request.model.arrays
        arrays = dict(decode_onto(reader, request.reference, model))
        record = ClientRecord.of(
            note,
            node=client,
            client=client,
            bandwidth=0.0,
            raw_bytes=reader.header.decoded_bytes,
            sent_bytes=len(content.stream),
            decode_seconds=time.perf_counter() - began,
        )
        with self._lock:
            self._clients.append(record)
            self._replied.add(client)
            if self._requests.get(client) is request:
                del self._requests[client]
        return {name: layout.cast(name, arrays[name]) for name in names}

    def failed(self, client: str, reason: str) -> None:
        """Count a reply that is of no use."""
        with self._lock:
            self._failures.append(Failure(client, reason))

    def evaluated(self, client: str, metrics: Mapping[str, object]) -> None:
        """Take a client's metrics of the model, in place of what it has said this round."""
        with self._lock:
            self._metrics[client] = metrics

    def end_round(self) -> None:
        """End the round if one is open, log it, and have the next one decided."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open, now = False, time.monotonic()
            accuracy, loss = median_metrics(self._metrics.values())
            traffic = Traffic.of(self._clients, self._failures, **self._bytes)
            self._metrics, self._bytes = {}, Counter()
            self._clients.clear()
            self._failures.clear()
            record = RoundRecord(
                **msgspec.structs.asdict(traffic),
                round=self._controller.next_round,
                seconds=now - self._last,
                accuracy=accuracy,
                loss=loss,
                decision=self._controller.decision,
            ).with_finite_metrics()
            self._last = now
            self._log(record)
            self._settings = self._controller.decide(record).config.require()

    def _begins_round(self, client: str, number: int | None, given: Reference) -> bool:
        if not self._is_open or self._model is None:
            return True
        if number is not None:
            return number != self._number
        return client in self._in_round or given.digest != self._model.digest

    def _begin_round(self, given: Reference, number: int | None) -> None:
        self.end_round()
        # `decode_onto` knows by identity what a broadcast has left as it is.
        model = self._model
        if model is None or model.digest != given.digest:
            model = _copied(given)
        self._broadcast.publish(model.arrays, self._settings)
        self._model, self._number, self._in_round = model, number, set()
        self._round += 1
        # Only now: if there is no memory for the model, the next request begins the round again.
        self._is_open = True
        oldest = self._controller.next_round - LATEST
        requests = self._requests.items()
        self._requests = {client: one for client, one in requests if one.round >= oldest}

    def _log(self, record: RoundRecord) -> None:
        parts = [
            f"{record.replies} replies",
            f"up {size(record.sent_up)} of {size(record.raw_up)}",
            f"down {size(record.sent_down)} of {size(record.raw_down)}",
        ]
        parts += [f"left out {one.client}: {one.reason}" for one in record.failures]
        logger.info("fedsz: %s, round %d: %s", self._task, record.round, ", ".join(parts))


def _copied(model: Reference) -> Reference:
    """Return a model of our own: a workflow may write the next model into its last one."""
    return Reference({name: x.copy() for name, x in model.arrays.items()}, model.digest)
