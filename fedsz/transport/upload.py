"""A reply on its way into a file, and what its pace tells of the link."""

from __future__ import annotations

from contextlib import suppress
from typing import IO, Final

from fedsz.transport.events import EventKind, LinkEvent
from fedsz.transport.frames import Begin, Incoming

# An upload shorter than this tells what a link can do at least, not what it does.
TIMED_BYTES: Final = 64 << 10
NEWS_SECONDS: Final = 1.0  # between two events of an upload


class Upload(Incoming):
    """A reply on its way into a sink; without one it is dropped, for nobody waits for it.

    Its time runs from the first chunk, so that neither the link's latency nor its slow start count;
    from BEGIN, which comes just before, where too little follows that chunk.
    """

    sink: IO[bytes] | None

    def __init__(self, begin: Begin, sink: IO[bytes] | None, now: float, *, limit: int) -> None:
        super().__init__(begin, sink, limit=limit)
        self._begun = self._told = now
        self._first: tuple[float, int] | None = None  # when the first chunk was there, and its size

    def take(self, piece: memoryview, now: float) -> None:
        """Count and write the body of one DATA frame; see `Incoming.feed`."""
        self.feed(piece)
        if self.sink is not None and self.complete:
            self.sink.flush()  # a full disk is noticed here, where it fails this reply alone
        self._first = self._first or (now, self.received)

    def news(self, client_id: str, now: float) -> LinkEvent | None:
        """Return how much is here; None if it was told lately, or nobody waits for it."""
        if self.sink is None or now < self._told + NEWS_SECONDS:
            return None
        self._told = now
        passed, size = self.received, self.size
        return LinkEvent(EventKind.RECEIVING, client_id, self.message_id, passed=passed, size=size)

    def drop(self) -> None:
        """Keep nothing of it."""
        if self.sink is not None:
            with suppress(OSError):  # what a full disk did not take is of no use now
                self.sink.close()
            self.sink = None

    def bandwidth(self, known: float, now: float) -> float:
        """Return the link's bandwidth, in bits a second, once all of it is here.

        A short upload only ever raises what was ``known`` before.
        """
        since, before = self._first or (self._begun, 0)
        if self.size - before < TIMED_BYTES:
            since, before = self._begun, 0
        if now <= since:
            return known
        measured = 8 * (self.size - before) / (now - since)
        return measured if self.size >= TIMED_BYTES else max(measured, known)
