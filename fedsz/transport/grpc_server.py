"""The IO of a server: streams, timers and temporary files for its `ServerSession`.

A `Hub` lives on one event loop and is touched from nowhere else, so it needs no locks, and a
client costs two coroutines instead of threads. `GrpcGrid` is its face to other threads.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable
from functools import partial
from typing import IO

import grpc

from fedsz.errors import LinkError
from fedsz.transport.credentials import Identities
from fedsz.transport.frames import Bye, ByeKind, Control, frames, pack, wire_size
from fedsz.transport.link_events import Counters
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
    """Reports events and time to a `ServerSession`.

    If there is no room for another connection, the oldest one without a HELLO makes room; if all
    have said HELLO, the new one is told to try again.

    Args:
        session: of all clients.
        identities: who may connect.
        most: connections at a time.
    """

    def __init__(self, session: ServerSession, identities: Identities, most: int) -> None:
        self.session, self._identities, self._most = session, identities, most
        self._alarm: asyncio.TimerHandle | None = None
        self._connections = 0
        self._silent: dict[Connection, None] = {}  # those without a HELLO, the oldest first

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
        connection = Connection(context, self.session.counters)
        if self._connections >= self._most:
            full = Bye(ByeKind.TAKEN, f"the server has its {self._most} connections")
            if not self._silent:
                await context.write(pack(full))
                return
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.put(full)
        self._connections += 1
        self._silent[connection] = None
        try:
            await self._serve(connection, context)
        finally:
            self._connections -= 1
            self._silent.pop(connection, None)

    async def _serve(self, connection: Connection, context: grpc.aio.ServicerContext) -> None:
        try:
            self.session.connect(connection, self._identities.of(context))
        except LinkError as err:
            self.session.connect(connection)
            self.session.refuse(connection, str(err))
        sent = partial(self.session.sent, connection)
        # A client that neither reads nor writes does not hold up its end.
        work = (connection.send(sent), self._read(connection))
        tasks = [asyncio.create_task(job) for job in (*work, connection.ending.wait())]
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

    async def _read(self, connection: Connection) -> None:
        try:
            raw = await asyncio.wait_for(connection.read(), _HELLO_SECONDS)
        except TimeoutError:
            raw = None
            self.session.refuse(connection, f"no HELLO within {_HELLO_SECONDS:g} s")
        self._silent.pop(connection, None)
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
