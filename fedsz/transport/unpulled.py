"""What became of pushed messages, until somebody asks."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

from flwr.app import Error

from fedsz.flower_compat import ErrorCode
from fedsz.transport.grid_base import Outgoing
from fedsz.transport.peer import Delivery, Outcome, Stored

MOST_ERRORS: Final = 1 << 16  # that are kept


class Answer(NamedTuple):
    """The outcome of a message."""

    out: Outgoing  # without its bytes
    client_id: str
    outcome: Outcome


class Unpulled:
    """Outcomes of messages that nobody has pulled yet. An app may have stopped to ask for some.

    Args:
        most: replies, of which each is an open file. The oldest one becomes an error for another.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # By message id, the oldest first.
        self._replies: dict[str, tuple[Answer, Stored]] = {}
        self._errors: dict[str, Answer] = {}
        self._lock = threading.Lock()

    def add(self, delivery: Delivery, outcome: Outcome) -> None:
        """Keep an outcome."""
        answer = Answer(delivery.out.emptied(), delivery.client_id, outcome)
        message_id = delivery.message_id
        with self._lock:
            if isinstance(outcome, Stored):
                self._replies[message_id] = answer, outcome
            else:
                self._errors[message_id] = answer
            if len(self._replies) > self._most:
                self._drop(next(iter(self._replies)))
            if len(self._errors) > MOST_ERRORS:
                del self._errors[next(iter(self._errors))]

    def take(self, message_ids: Iterable[str]) -> list[Answer]:
        """Return the outcomes of these messages that are here, each once."""
        with self._lock:
            found = (self._pop(message_id) for message_id in message_ids)
            return [answer for answer in found if answer is not None]

    def close(self) -> None:
        """Free all files."""
        with self._lock:
            while self._replies:
                self._replies.popitem()[1][1].file.close()

    def _pop(self, message_id: str) -> Answer | None:
        reply = self._replies.pop(message_id, None)
        return self._errors.pop(message_id, None) if reply is None else reply[0]

    def _drop(self, message_id: str) -> None:
        answer, reply = self._replies.pop(message_id)
        reply.file.close()
        newer = f"was dropped: nobody asked for it before {self._most} others had come"
        why = f"the reply of client {answer.client_id!r} {newer}"
        error = Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, why)
        self._errors[message_id] = answer._replace(outcome=error)
