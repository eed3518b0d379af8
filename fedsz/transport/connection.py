"""A client as the server knows it: its connection, and the messages it owes replies to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final

import grpc
from flwr.app import Error

from fedsz.transport.frames import Arrival, Begin, Bye, frames, pack, wire_size
from fedsz.transport.link import Meter
from fedsz.transport.messages import megabytes

if TYPE_CHECKING:
    from fedsz.transport.grid_base import Outgoing

# An upload shorter than this tells what a link can do at least, not what it does.
TIMED_BYTES: Final = 64 << 10


class Upload(Arrival[IO[bytes]]):
    """A reply on its way in, and how fast it comes.

    Its time runs from the first chunk, so that neither the link's latency nor its slow start count;
    from BEGIN, which comes just before, where too little follows that chunk.
    """

    def __init__(self, begin: Begin, *, limit: int) -> None:
        super().__init__(begin, None, limit=limit)
        self._begun = time.perf_counter()
        self._first: tuple[float, int] | None = None  # when the first chunk was there, and its size

    def feed(self, piece: memoryview) -> None:
        """Take the body of one DATA frame; see `Arrival.feed`."""
        super().feed(piece)
        if self._first is None:
            self._first = time.perf_counter(), self.received

    def bandwidth(self, known: float) -> float:
        """Return the link's bandwidth, in bits a second, once all of it is here.

        Args:
            known: what was known before; a short upload only ever raises it.
        """
        since, before = self._first or (self._begun, 0)
        if self.size - before < TIMED_BYTES:
            since, before = self._begun, 0
        seconds = time.perf_counter() - since
        if seconds <= 0:
            return known
        measured = 8 * (self.size - before) / seconds
        return measured if self.size >= TIMED_BYTES else max(measured, known)


@dataclass(frozen=True)
class Stored:
    """A complete reply: ``size`` bytes from the start of ``file``, which its reader closes."""

    file: IO[bytes]
    size: int


Outcome = Stored | Error


@dataclass(eq=False)
class Delivery:
    """One message on its way to a client, until it has its outcome.

    Attributes:
        out: the message.
        timeout: seconds until a missing reply is an error.
        settle: told the outcome, once: the reply, or why there is none.
        client_id: whose turn it is, once that is known.
    """

    out: Outgoing
    timeout: float
    settle: Callable[[Delivery, Outcome], None]
    client_id: str = ""
    sent: bool = False
    done: bool = False
    upload: Upload | None = None  # of the reply, in progress
    mishap: str = ""  # what was going on when the link broke
    timer: asyncio.TimerHandle | None = None

    @property
    def message_id(self) -> str:
        """The id of the message."""
        return self.out.encoded.message_id

    def drop_upload(self) -> None:
        """Forget what has arrived of the reply and free its place."""
        if self.upload is not None and self.upload.sink is not None:
            self.upload.sink.close()
            self.upload.sink = None
        self.upload = None

    def progress(self) -> str:
        """Say how far the exchange has come."""
        if (upload := self.upload) is not None:
            return f"during upload ({upload.received / 1e6:.1f} of {megabytes(upload.size)})"
        return "before it replied" if self.sent else "before the message reached it"


@dataclass(eq=False)
class Peer:
    """A client by its id, connected or not."""

    client_id: str
    node_id: int
    link: Connection | None = None
    pending: dict[str, Delivery] = field(default_factory=dict)
    grace: asyncio.TimerHandle | None = None  # runs while it may still return


class Connection:
    """One connection. All writing is done by `send`: gRPC takes one frame at a time."""

    def __init__(self, context: grpc.aio.ServicerContext, meter: Meter) -> None:
        self.peer: Peer | None = None  # once it has said HELLO
        self.bye: Bye | None = None  # once it is to end
        self._context = context
        self._meter = meter
        self._queue: asyncio.Queue[Delivery | bytes | None] = asyncio.Queue()

    async def read(self) -> bytes | None:
        """Return the next frame, None when the client is gone."""
        raw = await self._context.read()
        if raw is grpc.aio.EOF:
            return None
        self._meter.wire_bytes_received += wire_size(raw)
        return bytes(raw)

    def put(self, item: Delivery | bytes) -> None:
        """Queue a message or a frame."""
        self._queue.put_nowait(item)

    def end(self, bye: Bye) -> None:
        """Say ``bye`` after the frame that is being written, whatever else is queued."""
        self.bye = self.bye or bye
        self._queue.put_nowait(None)

    async def send(self, sent: Callable[[Delivery, int], None]) -> None:
        """Write what is queued until the link ends; ``sent`` hears of each whole message."""
        while self.bye is None:
            item = await self._queue.get()
            if isinstance(item, bytes):
                await self._write(item)
            elif item is not None and not item.done:
                await self._send_message(item, sent)
        await self._write(pack(self.bye))

    async def _send_message(self, item: Delivery, sent: Callable[[Delivery, int], None]) -> None:
        wire_bytes = 0
        for frame in frames(item.out.encoded):
            if self.bye is not None or item.done:
                return
            # Returns when the transport has taken it, so a slow client holds one chunk, no more.
            await self._write(frame)
            wire_bytes += wire_size(frame)
        sent(item, wire_bytes)

    async def _write(self, frame: bytes) -> None:
        await self._context.write(frame)
        self._meter.wire_bytes_sent += wire_size(frame)
