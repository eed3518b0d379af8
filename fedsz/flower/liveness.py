"""Clients that are slow, fail, or are too few: deadlines, backoff, the least replies of a round.

A reply to a training message is missing f x m x s seconds after it was asked for, and at least five
times s; f is the factor, and m the median of the round's reply times:

- m is known once as many clients have replied as are still missing, and as the quorum needs. So
  when most are slow, nobody is too slow, and a minority that replies late on purpose does not move
  it. A reply that is refused, or an error, is none.
- s is 1 at first. It doubles after a round in which a client was given up, to 8 at most, so that
  devices count that are honest and slow. It halves after one whose replies all came in half the
  time.

No deadline is later than the round's timeout. A client that is given up has failed; see `Backoff`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
from flwr.app import ArrayRecord, Message

from fedsz.errors import ConfigError, TooFewReplies
from fedsz.flower.records import is_training
from fedsz.flower_compat import records_in
from fedsz.transport.replies import Hastened

FACTOR: Final = 3.0
FLOOR: Final = 5.0  # seconds: what a network, or a client that has just started, may need
LONGEST_STRETCH: Final = 8

PATIENCE: Final = 3  # rounds that a client may fail in a row
LONGEST: Final = 64  # rounds that a client is not asked

MOST_MISSED: Final = 3  # rounds in a row that do not count; they end the run
PAUSE: Final = 1.0  # seconds before the next round, twice as many after the second


class Deadlines:
    """Sets deadlines by how long most clients take in a round of training.

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
        self._stretch: dict[str, int] = {}  # by type of message, what its deadlines count times

    def begin(self, pushed: Sequence[Message], timeout: float | None) -> Deadline:
        """Return the deadline of replies to messages that go out now.

        Only training has one, each type of message its own. Messages without a model are steps of a
        protocol that waits for those whom it has asked before.
        """
        has_model = any(records_in(message.content, ArrayRecord) for message in pushed)
        if not has_model or not is_training(pushed):
            return Deadline(len(pushed), timeout)
        kind = pushed[0].metadata.message_type
        floor, factor = (self._stretch.get(kind, 1) * x for x in (FLOOR, self._factor))
        return Deadline(len(pushed), timeout, floor, factor, self._quorum, partial(self._end, kind))

    def _end(self, kind: str, any_late: bool, all_quick: bool) -> None:
        """Note whether a client was given up in a round, and whether all took half of the time."""
        stretch = self._stretch.get(kind, 1)
        if any_late:
            self._stretch[kind] = min(2 * stretch, LONGEST_STRETCH)
        elif all_quick:
            self._stretch[kind] = max(stretch // 2, 1)


class Deadline:
    """The deadline of one exchange of messages, as its replies come in.

    Args:
        asked: how many replies are awaited.
        timeout: seconds after which nothing is awaited in any case; None for no such limit.
        floor: seconds that each reply has.
        factor: how many times the median of the replies' times each has; infinite for no limit.
        quorum: replies before there is a limit.
        on_end: told, once all replies are here, whether one was late, and if not, whether all came
            in half of the time.
    """

    def __init__(
        self,
        asked: int,
        timeout: float | None,
        floor: float = FLOOR,
        factor: float = math.inf,
        quorum: int = 1,
        on_end: Callable[[bool, bool], None] | None = None,
    ) -> None:
        self._asked, self._floor, self._factor, self._quorum = asked, floor, factor, quorum
        self._on_end = on_end
        self._timeout = math.inf if timeout is None else timeout
        self._begun = time.monotonic()
        self._times: dict[str, float] = {}  # by message: of replies that count, in order
        self._failed = self._late = 0
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
        if self._on_end is not None:
            quick = 2 * max(self._times.values(), default=0.0) < self._limit
            self._on_end(self._late > 0, quick)

    def _move(self) -> None:
        """Set the limit by the replies so far, and say so."""
        times, limit = list(self._times.values()), self._timeout
        most = max(self._quorum, math.ceil((self._asked - self._failed) / 2), 1)
        if len(times) >= most and self._factor < math.inf:
            limit = min(limit, max(self._floor, self._factor * times[most - 1]))
        if limit != self._limit:
            self._limit = limit
            self._tell()

    def _tell(self) -> None:
        if self._limit < math.inf:
            for replies, asked in self._awaited:
                replies.give_up_after(round(max(0.0, self._limit - asked), 2))


class Backoff(msgspec.Struct, array_like=True):
    """Clients that keep failing are not asked for some rounds, twice as many each time.

    A client that has failed in `PATIENCE` rounds in a row is not asked in one. If it then
    fails again, it is not asked in two, then four, up to `LONGEST`. A reply that counts clears its
    record. If all clients that were asked have failed, all are asked again.

    Attributes:
        now: the round.
        failed: by node, how many rounds in a row it has failed, and the first round from then on in
            which it is asked again.
    """

    now: int = 0
    failed: dict[int, tuple[int, int]] = {}

    def end_round(self, answered: Collection[int], failed: Collection[int]) -> None:
        """Take the nodes that were asked in a round: those that replied, those that failed."""
        self.now += 1
        for node in answered:
            self.failed.pop(node, None)
        for node in failed:
            times, pause = self.failed.get(node, (0, 0))[0] + 1, 0
            if times >= PATIENCE and answered:
                pause = min(2 ** min(times - PATIENCE, LONGEST), LONGEST)
            self.failed[node] = times, self.now + pause

    def why(self, node: int) -> str:
        """Return why a node is not asked in this round; "" if it is."""
        times, until = self.failed.get(node, (0, 0))
        if until <= self.now:
            return ""
        return f"it failed {times} rounds in a row, and is asked again in {until - self.now}"


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
