"""How long the slowest clients are awaited, by how long the others took.

With f the factor, a reply to a training message is missing f x t seconds after it was asked for,
and at least five; both count s times:

- In the first round, t is how long the last reply so far took. The rule holds once as many clients
  have replied as are missing. So a client is given up after a silence as long as the round.
- Later, t is the median of the times of all replies in the last five rounds, or how long this
  round's quorum took, if that is more: when all are slow, nobody is too slow. A minority that
  replies late on purpose does not move it.
- s is 1 at first. It doubles after a round in which somebody was given up, to 8 at most, so that
  devices count that are honest and slow. It halves after one whose replies all came in half the
  time.

Replies that admission refuses do not count, and nobody is given up before the quorum has replied.
No deadline is later than the round's timeout. Who is given up has failed the round; see `Bench`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from flwr.app import ArrayRecord, Message

from fedsz.errors import ConfigError
from fedsz.flower.pushes import is_training
from fedsz.flower_compat import records_in
from fedsz.transport.replies import Hastened

FACTOR: Final = 3.0
FLOOR: Final = 5.0  # seconds: what a network, or a client that has just started, may need
LONGEST_STRETCH: Final = 8
ROUNDS: Final = 5  # that are remembered


class Deadlines:
    """Sets deadlines by how long clients took in recent rounds of training.

    Args:
        factor: times as long as the others a client may take, from 1; infinite for no deadlines
            but the timeout of each round.
        quorum: replies to a training message before nobody is given up, from 1.

    Raises:
        ConfigError: one of these is out of range.

    Examples:
        >>> from fedsz.flower import Deadlines, FedSZGrid, GrpcGrid
        >>> deadlines = Deadlines(factor=2, quorum=3)  # twice what most clients take
        >>> grid = FedSZGrid(GrpcGrid(port=0), deadlines=deadlines)
    """

    def __init__(self, factor: float = FACTOR, quorum: int = 1) -> None:
        if not factor >= 1:
            raise ConfigError(f"a deadline's factor must be at least 1, got {factor:g}")
        if quorum < 1:
            raise ConfigError(f"a deadline's quorum must be at least 1, got {quorum}")
        self._factor, self._quorum = factor, quorum
        self._recent: dict[str, RecentTimes] = {}

    def begin(self, pushed: Sequence[Message], timeout: float | None) -> Deadline:
        """Return the deadline of replies to messages that go out now.

        Only training has one, each type of message its own. Messages without a model are steps of a
        protocol that waits for those whom it has asked before.
        """
        has_model = any(records_in(message.content, ArrayRecord) for message in pushed)
        if not has_model or not is_training(pushed):
            return Deadline(RecentTimes(), len(pushed), timeout, math.inf, 1)
        recent = self._recent.setdefault(pushed[0].metadata.message_type, RecentTimes())
        return Deadline(recent, len(pushed), timeout, self._factor, self._quorum)


class RecentTimes:
    """How long replies to one type of message took in recent rounds."""

    def __init__(self) -> None:
        self._rounds: deque[list[float]] = deque(maxlen=ROUNDS)
        self.stretch = 1  # what deadlines count times

    def usual(self) -> float | None:
        """Return the median of the replies' times, in seconds; None before any have come."""
        times = [seconds for one in self._rounds for seconds in one]
        return statistics.median(times) if times else None

    def end_round(self, times: list[float], late: int, limit: float) -> None:
        """Take a round's times and its limit, in seconds, and how many clients were given up."""
        if times:
            self._rounds.append(times)
        if late:
            self.stretch = min(2 * self.stretch, LONGEST_STRETCH)
        elif 2 * max(times, default=0.0) < limit:
            self.stretch = max(self.stretch // 2, 1)


class Deadline:
    """The deadline of one exchange of messages, as its replies come in.

    Args:
        recent: what is known of exchanges of this kind; learns of this one.
        asked: how many replies are awaited.
        timeout: seconds after which nothing is awaited in any case; None for no such limit.
        factor, quorum: as in `Deadlines`.
    """

    def __init__(
        self,
        recent: RecentTimes,
        asked: int,
        timeout: float | None,
        factor: float = FACTOR,
        quorum: int = 1,
    ) -> None:
        self._recent, self._asked, self._factor, self._quorum = recent, asked, factor, quorum
        self._timeout = math.inf if timeout is None else timeout
        self._usual = recent.usual()
        self._begun = time.monotonic()
        self._times: dict[str, float] = {}  # by message: of replies that count, in order
        self._failed = self._late = 0
        self._limit = self._timeout
        self._awaited: list[tuple[Hastened, float]] = []  # and when they were asked for

    def left(self) -> float | None:
        """Return the seconds until the timeout; None if there is none."""
        gone = time.monotonic() - self._begun
        return None if self._timeout == math.inf else max(0.0, self._timeout - gone)

    def watch(self, replies: Iterator[Message]) -> Iterator[Message]:
        """Return ``replies``, which this deadline holds for from now on."""
        if isinstance(replies, Hastened):
            self._awaited.append((replies, time.monotonic() - self._begun))
            if self._limit < self._timeout:
                self._tell()
        return replies

    def took(self, reply: Message) -> None:
        """Take a reply as it comes, and see what it means for the others."""
        seconds = time.monotonic() - self._begun
        if reply.has_error():
            self._failed += 1
            self._late += seconds >= self._limit
        else:
            self._times[reply.metadata.reply_to_message_id] = seconds
            self._move()

    def refused(self, reply: Message) -> None:
        """Note that a reply does not count after all."""
        if self._times.pop(reply.metadata.reply_to_message_id, None) is not None:
            self._failed += 1
            self._move()

    def end(self) -> None:
        """Note that all replies are here."""
        self._recent.end_round(list(self._times.values()), self._late, self._limit)

    def _move(self) -> None:
        if (limit := self._next_limit()) != self._limit:
            self._limit = limit
            self._tell()

    def _next_limit(self) -> float:
        times = list(self._times.values())
        missing = self._asked - len(times) - self._failed
        if len(times) < self._quorum or (self._usual is None and len(times) < missing):
            return self._timeout
        seconds = times[-1] if self._usual is None else max(self._usual, times[self._quorum - 1])
        return min(self._timeout, self._recent.stretch * max(FLOOR, self._factor * seconds))

    def _tell(self) -> None:
        if self._limit < math.inf:
            for replies, asked in self._awaited:
                replies.give_up_after(round(max(0.0, self._limit - asked), 2))
