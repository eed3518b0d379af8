"""A TCP proxy that delays, drops and cuts what passes, when it is told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

PIECE = 1 << 14  # bytes that are read at once
CLOSE_SECONDS = 5.0


class _Connection:
    """Both ends of one connection."""

    def __init__(self, *ends: asyncio.StreamWriter) -> None:
        self.ends = ends

    def abort(self) -> None:
        """End it at once, as a broken link does: what is on its way is lost."""
        for end in self.ends:
            end.transport.abort()


class FaultyProxy:
    """Passes connections on to a port of this machine, from a thread of its own.

    Use it as a context. Methods may be called from any thread.

    Attributes:
        port: it listens on.
        cuts: how many uploads it has cut.
    """

    def __init__(self, target: int) -> None:
        self.port = self.cuts = 0
        self._target = target
        self._delay = 0.0
        self._left: int | None = None  # bytes up until a connection is cut
        self._open: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def delay(self, seconds: float) -> None:
        """Have each piece wait, each way, from now on."""
        self._do(lambda: setattr(self, "_delay", seconds))

    def drop(self, share: float) -> None:
        """End a share of the connections."""
        self._do(lambda: [one.abort() for one in list(self._open)[: int(share * len(self._open))]])

    def cut(self, after: int) -> None:
        """Let so many bytes pass to the server, and end the connection that sends the next ones."""
        self._do(lambda: setattr(self, "_left", after))

    def _do(self, action: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(action)

    async def _serve(self, down: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            up, forth = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # the server has been killed
            back.transport.abort()
            return
        connection = _Connection(back, forth)
        self._open.add(connection)
        try:
            with suppress(OSError):
                await asyncio.gather(self._up(down, forth), self._pass(up, back))
        finally:
            self._open.discard(connection)
            connection.abort()

    async def _up(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        await self._pass(source, sink, uploads=True)

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, uploads: bool = False
    ) -> None:
        while piece := await source.read(PIECE):
            if self._delay:
                await asyncio.sleep(self._delay)
            if uploads and self._left is not None:
                self._left -= len(piece)
                if self._left < 0:
                    piece = piece[: self._left]
                    self._left = None
                    self.cuts += 1
                    sink.write(piece)
                    raise ConnectionAbortedError
            sink.write(piece)
            await sink.drain()
        raise ConnectionResetError  # one end has gone, so the other has to go

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(listening, self._loop).result(CLOSE_SECONDS)
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self.drop(1.0)
        self._do(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
