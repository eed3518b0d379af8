"""What became of pushed messages, until somebody asks."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from flwr.app import Error

from fedsz.flower_compat import ErrorCode
from fedsz.transport.peer import Delivery, Outcome, Stored

MOST_ERRORS: Final = 1 << 16  # that are kept


class Unpulled:
    """Outcomes of messages that nobody has pulled yet. An app may have stopped to ask for some.

    Args:
        most: replies, of which each is an open file. The oldest one becomes an error for another.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # By message id, the oldest first.
        self._replies: dict[str, tuple[Delivery, Stored]] = {}
        self._errors: dict[str, tuple[Delivery, Error]] = {}
        self._lock = threading.Lock()

    def add(self, delivery: Delivery, outcome: Outcome) -> None:
        """Keep an outcome, and the bytes of its message no longer."""
        delivery.out = delivery.out.emptied()
        with self._lock:
            if isinstance(outcome, Stored):
                self._replies[delivery.message_id] = delivery, outcome
            else:
                self._errors[delivery.message_id] = delivery, outcome
            if len(self._replies) > self._most:
                self._drop(next(iter(self._replies)))
            if len(self._errors) > MOST_ERRORS:
                del self._errors[next(iter(self._errors))]

    def take(self, message_ids: Iterable[str]) -> list[tuple[Delivery, Outcome]]:
        """Return the outcomes of these messages that are here, each once."""
        with self._lock:
            found = (self._replies.pop(i, None) or self._errors.pop(i, None) for i in message_ids)
            return [both for both in found if both is not None]

    def close(self) -> None:
        """Free all files."""
        with self._lock:
            while self._replies:
                self._replies.popitem()[1][1].file.close()

    def _drop(self, message_id: str) -> None:
        delivery, reply = self._replies.pop(message_id)
        reply.file.close()
        newer = f"was dropped: nobody asked for it before {self._most} others had come"
        why = f"the reply of client {delivery.client_id!r} {newer}"
        error = Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, why)
        self._errors[message_id] = delivery, error
