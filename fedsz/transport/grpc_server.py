"""The IO of a server: streams, timers and temporary files for its `ServerSession`.

A `Hub` lives on one event loop and is touched from nowhere else, so it needs no locks, and a
client costs two coroutines instead of threads. `GrpcGrid` is its face to other threads.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import IO

import grpc

from fedsz.errors import LinkError
from fedsz.transport.address import is_loopback, network_of
from fedsz.transport.frames import Bye, Control, frames, pack, wire_size
from fedsz.transport.link_events import Counters
from fedsz.transport.proofs import Identities
from fedsz.transport.server_session import Delivery, ServerSession

logger = logging.getLogger(__name__)

SPOOL_MEMORY_BYTES = 64 << 10  # of each reply; a larger one waits on disk
_HELLO_SECONDS = 10.0
_REVOCATION_SECONDS = 2.0  # between looks at the file of clients
_QUEUE = 256  # messages and frames that a client has not taken; it is not read before it does
_BYE_SECONDS = 2.0  # for the reason of a refusal to reach the client


def spool() -> IO[bytes]:
    """Return a file for the bytes of one reply."""
    return tempfile.SpooledTemporaryFile(SPOOL_MEMORY_BYTES)


def address_of(peer: str) -> str:
    """Return the `network_of` the address in gRPC's name for a peer; the name if it has none."""
    host = peer.partition(":")[2].rpartition(":")[0].replace("%5B", "[").replace("%5D", "]")
    return network_of(host.strip("[]")) or peer


@dataclass(eq=False)
class Visit:
    """One stream of a client or a stranger."""

    address: str
    refused: str = ""  # why it is to end; "" as long as it is not
    refusal: asyncio.Event = field(default_factory=asyncio.Event)  # set once it is refused

    def refuse(self, why: str) -> None:
        """Let the stream end."""
        self.refused = why
        self.refusal.set()


class Visitors:
    """The streams that are open, of which there are so many at most, in all and of one address.

    If there is no room for another stream, the oldest one without a HELLO makes room; if all have
    said HELLO, the other one is refused.

    Args:
        most: streams in all.
        most_per_address: of one address; those of this machine are not limited by it.
    """

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most, self._most_per_address = most, most_per_address
        self._open: Counter[str] = Counter()  # by address
        self._silent: dict[Visit, None] = {}  # those without a HELLO, the oldest first

    @contextmanager
    def visit(self, peer: str) -> Iterator[Visit]:
        """Count a stream for as long as the block takes; `Visit.refused` says if it is to end.

        ``peer`` is gRPC's name for its other end.
        """
        visit = Visit(address_of(peer))
        self._make_room(visit)
        self._open[visit.address] += 1
        if not visit.refused:
            self._silent[visit] = None
        try:
            yield visit
        finally:
            self.identify(visit)
            self._open[visit.address] -= 1
            if not self._open[visit.address]:
                del self._open[visit.address]

    def identify(self, visit: Visit) -> None:
        """Note that a client has said HELLO, or that its stream is over."""
        self._silent.pop(visit, None)

    def _make_room(self, visit: Visit) -> None:
        address = visit.address
        if self._open[address] >= self._most_per_address and not is_loopback(address):
            crowd = [other for other in self._silent if other.address == address]
            why = f"{address} has its {self._most_per_address} connections"
        elif self._open.total() >= self._most:
            crowd = list(self._silent)
            why = f"the server has its {self._most} connections; try again in a while"
        else:
            return
        if crowd:
            self.identify(crowd[0])
            crowd[0].refuse(f"{why}, and this one has not said HELLO")
        else:
            visit.refuse(why)


class Connection:
    """One gRPC stream. All writing is done by `send`: gRPC takes one frame at a time."""

    def __init__(self, context: grpc.aio.ServicerContext, counters: Counters) -> None:
        self.bye: Bye | None = None  # once it is to end
        self.ending = asyncio.Event()  # set with `bye`
        self._context, self._counters = context, counters
        self._queue: asyncio.Queue[Control | Delivery] = asyncio.Queue()

    async def read(self) -> bytes | None:
        """Return the next frame, None when the client is gone.

        Waits while the client does not read: each frame of its own may queue an answer.
        """
        if self._queue.qsize() >= _QUEUE:
            await self._queue.join()
        raw = await self._context.read()
        if raw is grpc.aio.EOF:
            return None
        self._counters.wire_bytes_received += wire_size(raw)
        return bytes(raw)

    def put(self, item: Control | Delivery) -> None:
        """Queue a message or a frame; BYE ends the stream after the frame that is being written."""
        if isinstance(item, Bye):
            self.bye = self.bye or item
            self.ending.set()
        self._queue.put_nowait(item)

    async def send(self, sent: Callable[[Delivery, int], None]) -> None:
        """Write the queue until the stream ends; ``sent`` is called with each whole message."""
        while self.bye is None:
            item = await self._queue.get()
            self._queue.task_done()
            if isinstance(item, Delivery):
                await self._send_message(item, sent)
            elif not isinstance(item, Bye):
                await self._write(pack(item))
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
        self._counters.wire_bytes_sent += wire_size(frame)


class Hub:
    """Reports events and time to a `ServerSession`."""

    def __init__(self, session: ServerSession, identities: Identities, visitors: Visitors) -> None:
        self.session, self._identities, self._visitors = session, identities, visitors
        self._alarm: asyncio.TimerHandle | None = None

    def post(self, deliveries: list[Delivery]) -> None:
        """Send each message to its node; one that cannot be sent has its outcome at once."""
        self.session.post(deliveries, _now())
        self._set_alarm()

    def hasten(self, deliveries: list[Delivery], timeout: float) -> None:
        """Await these replies for ``timeout`` seconds from when they were posted."""
        self.session.hasten(deliveries, timeout, _now())
        self._set_alarm()

    async def serve(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        """Handle one connection from its HELLO to its end: gRPC calls this for each stream."""
        with self._visitors.visit(context.peer()) as visit:
            if not visit.refused:
                await self._serve(visit, context)
            if visit.refused:  # for now: the client tries again
                await context.abort(grpc.StatusCode.UNAVAILABLE, visit.refused)

    async def _serve(self, visit: Visit, context: grpc.aio.ServicerContext) -> None:
        connection = Connection(context, self.session.counters)
        try:
            self.session.connect(connection, self._identities.of(context))
        except LinkError as err:
            self.session.connect(connection)
            self.session.refuse(connection, str(err))
        sent = partial(self.session.sent, connection)
        # A client that neither reads nor writes does not hold up its end.
        work = (connection.send(sent), self._read(connection, visit))
        ends = (connection.ending.wait(), visit.refusal.wait())
        tasks = [asyncio.create_task(job) for job in (*work, *ends)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if connection.bye is not None:
                await asyncio.wait(tasks[: len(work)], timeout=_BYE_SECONDS)
        finally:
            self.session.lost(connection, _now())
            self._set_alarm()
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, grpc.aio.BaseError):
                    logger.error("a connection failed", exc_info=outcome)

    async def _read(self, connection: Connection, visit: Visit) -> None:
        try:
            raw = await asyncio.wait_for(connection.read(), _HELLO_SECONDS)
        except TimeoutError:
            raw = None
            self.session.refuse(connection, f"no HELLO within {_HELLO_SECONDS:g} s")
        self._visitors.identify(visit)
        while raw is not None:
            self.session.receive(connection, raw, _now())
            raw = await connection.read() if self.session.serves(connection) else None

    async def watch_revocations(self) -> None:
        """End the connections of clients that are revoked while they are here, for ever."""
        while True:
            await asyncio.sleep(_REVOCATION_SECONDS)
            self.session.revoke(self._identities.revoked())

    def _set_alarm(self) -> None:
        """Call the session when the first of its time limits is over."""
        if self._alarm is not None:
            self._alarm.cancel()
        due = self.session.next_deadline()
        loop = asyncio.get_running_loop()
        self._alarm = None if due is None else loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self.session.tick(_now())
        self._set_alarm()


def _now() -> float:
    return asyncio.get_running_loop().time()
