"""The IO of a server: streams, time and temporary files for its `ServerSession`.

A `Hub` lives on one event loop and is touched from nowhere else, so it needs no locks, and a
client costs two coroutines instead of threads. `GrpcGrid` is its face to other threads.
"""

from __future__ import annotations

import asyncio
import logging

import grpc

from fedsz.errors import LinkError
from fedsz.transport.credentials import ClientFile, Identity
from fedsz.transport.frames import Bye, Control, frames, pack, wire_size
from fedsz.transport.link_events import Counters
from fedsz.transport.server_session import Delivery, ServerSession

logger = logging.getLogger(__name__)

_HELLO_SECONDS = 10.0
_TICK_SECONDS = 0.2  # between looks at the clock and at the file of clients
_QUEUE = 256  # messages and frames that a client has not taken; it is not read before it does
_BYE_SECONDS = 2.0  # for the reason of a refusal to reach the client


class Connection:
    """One gRPC stream. All writing is done by `send`: gRPC takes one frame at a time."""

    def __init__(self, context: grpc.aio.ServicerContext, counters: Counters) -> None:
        self.identity: Identity | None = None
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

    async def send(self) -> None:
        """Write the queue until the stream ends."""
        while self.bye is None:
            item = await self._queue.get()
            self._queue.task_done()
            if isinstance(item, Delivery):
                await self._send_message(item)
            elif not isinstance(item, Bye):
                await self._write(pack(item))
        await self._write(pack(self.bye))

    async def _send_message(self, item: Delivery) -> None:
        for frame in frames(item.out.encoded):
            if self.bye is not None or item.done:
                return
            # Returns when the transport has taken it, so a slow client holds one chunk, no more.
            await self._write(frame)

    async def _write(self, frame: bytes) -> None:
        await self._context.write(frame)
        self._counters.wire_bytes_sent += wire_size(frame)


class Hub:
    """Reports events and time to a `ServerSession`.

    Args:
        session: of all clients.
        clients: which of them are refused, and the tokens of others.
    """

    def __init__(self, session: ServerSession, clients: ClientFile) -> None:
        self.session, self._clients = session, clients
        self.counters = Counters()

    async def serve(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        """Handle one connection from its HELLO to its end: gRPC calls this for each stream."""
        connection = Connection(context, self.counters)
        self._revoke()  # which reads new tokens, too
        reason = ""
        try:
            connection.identity = self._clients.identity_of(context)
        except LinkError as err:
            reason = str(err)
        self.session.connect(connection)
        if reason:
            self.session.refuse(connection, reason)
        # A client that neither reads nor writes does not hold up its end.
        work = (connection.send(), self._read(connection))
        tasks = [asyncio.create_task(job) for job in (*work, connection.ending.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if connection.bye is not None:
                await asyncio.wait(tasks[: len(work)], timeout=_BYE_SECONDS)
        finally:
            self.session.lost(connection, now())
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
        while raw is not None:
            self.session.receive(connection, raw, now())
            raw = await connection.read() if self.session.serves(connection) else None

    async def watch(self) -> None:
        """Have the session look at the clock and at the revocations, until this is cancelled."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._revoke()
            self.session.tick(now())

    def _revoke(self) -> None:
        self.session.revoke(self._clients.revoked())


def now() -> float:
    """Return the time of the event loop, in seconds."""
    return asyncio.get_running_loop().time()
