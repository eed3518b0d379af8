"""Replies to messages of which some are still out when the next round's go out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from fedsz.flower.admission import FIRST, Admission
from fedsz.flower.mod import lacks_model
from fedsz.flower.packing import Packed, Packer
from fedsz.flower.second_tries import note_holder

OnSent = Callable[[Packed], None]


class OverlappingReplies:
    """Pulls replies from a Grid, and hands them out one at a time, first come first.

    So one is added up before the next is admitted. A client that lacks the model that it was to
    hold is sent it, and its next reply is the one. The first replies of a run are held back until
    it is known what is ordinary among them.

    Args:
        inner: the Grid that carries the messages.
        packer: packed them.
        admission: judges the replies.
        on_sent: told of each message that is sent again.
    """

    def __init__(self, inner: Grid, packer: Packer, admission: Admission, on_sent: OnSent) -> None:
        self._inner, self._packer, self._admission = inner, packer, admission
        self._on_sent = on_sent
        self._ids: dict[str, str] = {}  # by the inner Grid's id of a message that is out: ours
        self._first: list[Message] = []
        self._here: deque[Message] = deque()

    def sent(self, message_ids: Iterable[str]) -> None:
        """Take note of messages that are out."""
        self._ids |= {message_id: message_id for message_id in message_ids}

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._ids.values()

    def next(self, wanted: Collection[str]) -> Message | None:
        """Return one of the replies to these messages, not admitted yet; None if there is none."""
        if not self._here:
            ids = [inner for inner, ours in self._ids.items() if ours in wanted]
            self._take(list(self._inner.pull_messages(ids)) if ids else [])
        return self._here.popleft() if self._here else None

    def _take(self, replies: list[Message]) -> None:
        for reply in replies:
            message_id = self._ids.pop(reply.metadata.reply_to_message_id, None)
            whole = None
            if message_id is not None and lacks_model(reply):
                whole = self._packer.whole(reply.metadata.src_node_id)
            if whole is not None and message_id is not None:
                (again,) = self._inner.push_messages([whole.message])
                self._ids[again] = message_id
                self._on_sent(whole)
                continue
            note_holder(reply, self._packer)
            self._first.append(reply)
        settled = self._admission.knows(self._first) or not self._ids
        if settled or sum(not reply.has_error() for reply in self._first) >= FIRST:
            self._here += self._admission.settled(self._first, self._packer.ordered)
            self._first = []
