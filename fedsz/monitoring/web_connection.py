"""A connection to the web server. One that asks nothing ends in a while, or for another one."""

from __future__ import annotations

import itertools
from asyncio import TimerHandle, Transport
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from fedsz.transport.address import is_loopback, network_of

MOST: Final = 100  # connections; a page holds one
MOST_OF_ADDRESS: Final = 50  # of these, from one address that is not this machine's
ASKING_SECONDS: Final = 10.0  # for a whole request, and between two

_turns = itertools.count()  # clocks of event loops may give many connections one time


class WebConnection(H11Protocol):
    """HTTP/1.1 as uvicorn has it, with a place among so many that may be lost while it is idle.

    If all others in its way are being answered, it is answered 503.
    """

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Take a place; whoever has asked nothing for longest makes room."""
        super().connection_made(transport)
        self.address = network_of(self.client[0]) if self.client else ""
        self._give_up: TimerHandle | None = None
        self._await_request()
        others = [c for c in self.connections if isinstance(c, WebConnection) and c.has_place(self)]
        near = [] if is_loopback(self.address) else [c for c in others if c.address == self.address]
        for crowd, most in ((near, MOST_OF_ADDRESS), (others, MOST)):
            if len(crowd) < most:
                continue
            idle = [connection for connection in crowd if connection.is_idle]
            if idle:
                min(idle, key=lambda connection: connection.turn).transport.abort()
            else:
                self.limit_concurrency = 0  # uvicorn then answers 503
            return

    def has_place(self, newcomer: WebConnection) -> bool:
        """Return whether this one counts beside a newcomer."""
        return self is not newcomer and not self.transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; only a whole one stops the clock."""
        super().data_received(data)
        if not self.is_idle and self._give_up is not None:
            self._give_up.cancel()

    def on_response_complete(self) -> None:
        """Wait for the next request, if that is not here already."""
        super().on_response_complete()
        if self.is_idle and not self.transport.is_closing():
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the clock."""
        if self._give_up is not None:
            self._give_up.cancel()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
        self.turn = next(_turns)
        self._give_up = self.loop.call_later(ASKING_SECONDS, self.transport.abort)
