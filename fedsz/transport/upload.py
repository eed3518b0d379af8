"""A reply on its way in, and how fast it comes."""

from __future__ import annotations

from typing import IO, Final

from fedsz.transport.frames import Arrival, Begin

# An upload shorter than this tells what a link can do at least, not what it does.
TIMED_BYTES: Final = 64 << 10


class Upload(Arrival):
    """A reply on its way into a sink; without one it is dropped, for nobody waits for it.

    Its time runs from the first chunk, so that neither the link's latency nor its slow start count;
    from BEGIN, which comes just before, where too little follows that chunk.
    """

    def __init__(self, begin: Begin, sink: IO[bytes] | None, now: float, *, limit: int) -> None:
        super().__init__(begin, limit=limit)
        self.sink = sink
        self._begun = now
        self._first: tuple[float, int] | None = None  # when the first chunk was there, and its size

    def take(self, piece: memoryview, now: float) -> None:
        """Count and write the body of one DATA frame; see `Arrival.feed`."""
        self.feed(piece)
        if self.sink is not None:
            self.sink.write(piece)
        if self._first is None:
            self._first = now, self.received

    def bandwidth(self, known: float, now: float) -> float:
        """Return the link's bandwidth, in bits a second, once all of it is here.

        Args:
            known: what was known before; a short upload only ever raises it.
            now: the time on the clock of the other methods, in seconds.
        """
        since, before = self._first or (self._begun, 0)
        if self.size - before < TIMED_BYTES:
            since, before = self._begun, 0
        seconds = now - since
        if seconds <= 0:
            return known
        measured = 8 * (self.size - before) / seconds
        return measured if self.size >= TIMED_BYTES else max(measured, known)
