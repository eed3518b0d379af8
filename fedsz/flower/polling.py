"""Replies as they come from any Grid, by push and pull: Flower's SuperLink and its simulation.

Flower's own `send_and_receive` holds all replies until the last has come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Self

from flwr.app import Message, Metadata
from flwr.serverapp import Grid

from fedsz import flower_compat as compat

NOT_TAKEN: Final = "its message was not accepted for delivery"

PULLS: Final = 16  # calls in which a poll asks for all replies, so that few are in memory at once
SHARE: Final = 0.1  # of the time since the messages went out, until the next poll
SHORTEST: Final = 0.05  # seconds until the next poll: a simulation answers in less,
LONGEST: Final = 3.0  # and SuperNodes ask for their messages as often


def push(grid: Grid, messages: Sequence[Message]) -> list[str]:
    """Push messages; return the id of each, or "" for one that the Grid did not take."""
    # A SuperLink has "" or None for what it does not take, and others leave that out.
    ids = [message_id or "" for message_id in grid.push_messages(messages)]
    if len(ids) != len(messages):
        taken, own = set(ids), (message.metadata.message_id for message in messages)
        ids = [message_id if message_id in taken else "" for message_id in own]
    return ids


class PolledReplies:
    """An iterator over the replies to messages, which it pushes at once.

    A message that the Grid did not take, and one without a reply in time, has an error reply.

    Args:
        grid: that takes the messages.
        messages: requests.
        timeout: seconds from now until a reply is missing; None for no such limit.
    """

    def __init__(self, grid: Grid, messages: Iterable[Message], timeout: float | None) -> None:
        pushed = list(messages)
        self._grid, self._limit = grid, math.inf if timeout is None else timeout
        self._begun = time.monotonic()
        self._refused: list[Metadata] = []
        self._missing: dict[str, Metadata] = {}
        for message, message_id in zip(pushed, push(grid, pushed), strict=True):
            if message_id:
                self._missing[message_id] = message.metadata
            else:
                self._refused.append(message.metadata)
        self._replies = self._poll()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        return next(self._replies)

    def give_up_after(self, seconds: float) -> None:
        """Await missing replies for so long from when their messages went out."""
        self._limit = seconds

    def _poll(self) -> Iterator[Message]:
        for metadata in self._refused:
            yield _error(metadata, NOT_TAKEN)
        while self._missing:
            ids = list(self._missing)
            length = math.ceil(len(ids) / PULLS)
            for start in range(0, len(ids), length):
                for reply in self._grid.pull_messages(ids[start : start + length]):
                    self._missing.pop(reply.metadata.reply_to_message_id, None)
                    yield reply
            waited = time.monotonic() - self._begun
            if waited >= self._limit:
                break
            pause = min(max(SHORTEST, SHARE * waited), LONGEST, self._limit - waited)
            time.sleep(pause if self._missing else 0)
        for metadata in self._missing.values():
            yield _error(metadata, f"no reply in {self._limit:.3g} s")


def _error(metadata: Metadata, reason: str) -> Message:
    return compat.error_reply(metadata, compat.ErrorCode.NODE_UNAVAILABLE, reason)
