"""Clients that are slow or too few: deadlines, and the least replies of a round.

A reply to a training message is missing f x m seconds after it was asked for, and at least five
seconds; f is the factor, and m the median of the round's reply times. It is known once as many
clients have replied as are still missing, and as the quorum needs. So when most are slow, nobody is
too slow, and a minority that replies late on purpose does not move it. A reply that is refused, or
an error, is none. No deadline is later than the round's timeout.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from flwr.app import ArrayRecord, Message

from fedsz.errors import ConfigError, TooFewReplies
from fedsz.flower.records import is_training
from fedsz.flower_compat import records_in
from fedsz.transport.grid_base import Hastened

FACTOR: Final = 3.0
FLOOR: Final = 5.0  # seconds: what a network, or a client that has just started, may need

MOST_MISSED: Final = 3  # rounds in a row that do not count; they end the run
PAUSE: Final = 1.0  # seconds before the next round, twice as many after the second


@dataclass(frozen=True)
class Deadlines:
    """Sets deadlines by how long most clients take in a round of training.

    Attributes:
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

    factor: float = FACTOR
    quorum: int = 1

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise ConfigError(f"a deadline's factor must be at least 1, got {self.factor:g}")
        if self.quorum < 1:
            raise ConfigError(f"a deadline's quorum must be at least 1, got {self.quorum}")

    def begin(self, pushed: Sequence[Message], timeout: float | None) -> Deadline:
        """Return the deadline of replies to messages that go out now.

        Only training has one. Messages without a model are steps of a protocol that waits for those
        whom it has asked before.
        """
        has_model = any(records_in(message.content, ArrayRecord) for message in pushed)
        factor = self.factor if has_model and is_training(pushed) else math.inf
        return Deadline(len(pushed), timeout, factor, self.quorum)


class Deadline:
    """The deadline of one exchange of messages, as its replies come in.

    Args:
        asked: how many replies are awaited.
        timeout: seconds after which nothing is awaited in any case; None for no such limit.
        factor: how many times the median of the replies' times each has; infinite for no limit.
        quorum: replies before there is a limit.
    """

    def __init__(self, asked: int, timeout: float | None, factor: float, quorum: int) -> None:
        self._asked, self._factor, self._quorum = asked, factor, quorum
        self._timeout = math.inf if timeout is None else timeout
        self._begun = time.monotonic()
        self._times: dict[str, float] = {}  # by message: of replies that count, in order
        self._failed = 0
        self._limit = self._timeout
        self._awaited: list[tuple[Hastened, float]] = []  # and when they were asked for

    def remaining(self) -> float | None:
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
        else:
            self._times[reply.metadata.reply_to_message_id] = seconds
        self._move()

    def refused(self, reply: Message) -> None:
        """Note that a reply does not count after all."""
        if self._times.pop(reply.metadata.reply_to_message_id, None) is not None:
            self._failed += 1
            self._move()

    def _move(self) -> None:
        """Set the limit by the replies so far, and say so."""
        times, limit = list(self._times.values()), self._timeout
        most = max(self._quorum, math.ceil((self._asked - self._failed) / 2), 1)
        if len(times) >= most and self._factor < math.inf:
            limit = min(limit, max(FLOOR, self._factor * times[most - 1]))
        if limit != self._limit:
            self._limit = limit
            self._tell()

    def _tell(self) -> None:
        if self._limit < math.inf:
            for replies, asked in self._awaited:
                replies.give_up_after(round(max(0.0, self._limit - asked), 2))


class Quorum:
    """Tells rounds that count from those that do not.

    A model that too few clients have changed is not taken: the round does not count, and the next
    one starts from the same model, after a pause. Clients that only fail cannot use up a run so.

    Args:
        min_replies: how many usable replies a round needs.

    Attributes:
        why: the last round does not count; "" if it does.

    Raises:
        ConfigError: ``min_replies`` is below 1.
    """

    def __init__(self, min_replies: int = 1) -> None:
        if min_replies < 1:
            raise ConfigError(f"min_replies must be at least 1, got {min_replies}")
        self.min_replies = min_replies
        self.why = ""
        self._missed = 0  # rounds in a row

    def reached(self, replies: int) -> bool:
        """Return whether a round that is over counts, by the number of its usable replies."""
        if replies >= self.min_replies:
            self.why, self._missed = "", 0
            return True
        self.why = f"{replies} of {self.min_replies} usable replies that it needs"
        self._missed += 1
        return False

    def require(self) -> None:
        """Raise `TooFewReplies` if the last rounds are too many in a row that do not count."""
        if self._missed >= MOST_MISSED:
            rounds = f"{self._missed} rounds in a row do not count"
            raise TooFewReplies(f"{rounds}; the last got {self.why}")

    def begin(self) -> None:
        """Begin a round: a moment after one that does not count, as the same clients may fail.

        Raises:
            TooFewReplies: as `require`.
        """
        self.require()
        if self._missed:
            time.sleep(PAUSE * 2 ** (self._missed - 1))
