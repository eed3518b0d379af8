"""What is out: every message that was sent, until its outcome is booked to who was asked.

A reply says which message it answers, and nothing else of it is believed: Flower's SuperLink
answers in its own name for a node that has gone, and Grids leave replies out or give them twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from flwr.app import Message, Metadata

from fedsz.flower.records import TRAIN
from fedsz.flower.sent_content import SentContent
from fedsz.flower.shifts import KnownModels

# Models that a node may be asked about at a time. A server that asks more has given up the first:
# nobody pulls a reply to that, so nothing else would end what is kept for it.
MOST_MODELS = 2


@dataclass(eq=False)
class Asked:
    """A message that is out: who was asked, for what, of which model.

    Attributes:
        metadata: the app's own; its node and its type are those that the outcome is booked to.
        content: what it held.
        sent: metadata of what went out last: the same, or that of a second try.
        streamed: whether the app takes replies as they come, still sealed.
        message_id: by which the app asks for the reply; "" where it has not pushed the message.
        inner_id: by which the inner Grid knows what went out last; "" where no push has said so.
        again: whether it was sent a second time.
        out: whether its outcome is still to come.
    """

    metadata: Metadata
    content: SentContent
    sent: Metadata
    streamed: bool = False
    message_id: str = ""
    inner_id: str = ""
    again: bool = False
    out: bool = True

    @property
    def node(self) -> int:
        """Who was asked."""
        return self.metadata.dst_node_id

    @property
    def trains(self) -> bool:
        """Whether the reply goes into an average."""
        return self.metadata.message_type.startswith(TRAIN)

    @property
    def current_id(self) -> str:
        """The id of what went out last; "" before the inner Grid has given it one."""
        return self.inner_id or self.sent.message_id

    def own(self, reply: Message) -> None:
        """Make a reply's metadata say what was asked, whoever has written it."""
        reply.metadata.__dict__.update(
            _src_node_id=self.node,
            _dst_node_id=self.metadata.src_node_id,
            _reply_to_message_id=self.message_id or self.metadata.message_id,
            _message_type=self.metadata.message_type,
            _group_id=self.metadata.group_id,
        )


class Outcome(NamedTuple):
    """A reply, the message that it answers, and what it may be differences from, by digest."""

    reply: Message
    asked: Asked
    references: KnownModels


class Ledger:
    """All that is out, by message.

    A Grid gives a message its id in the course of sending it, which may be as late as when the
    first reply is asked for.
    """

    def __init__(self) -> None:
        self._unnamed: list[Asked] = []  # had no id when last looked at
        self._named: dict[str, list[Asked]] = {}  # by the inner Grid's id
        self._of_node: dict[int, list[Asked]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of_node.values()))

    def note(self, asked: Asked) -> None:
        """Take note of a message that goes out now."""
        asked.out = True
        self._unnamed.append(asked)
        self._of_node.setdefault(asked.node, []).append(asked)
        models = dict.fromkeys(id(one.content.broadcasts) for one in self._of_node[asked.node])
        given_up = set(list(models)[:-MOST_MODELS])
        for one in self._of_node[asked.node]:
            if id(one.content.broadcasts) in given_up:
                self.drop(one)

    def name(self, asked: Asked, inner_id: str) -> None:
        """Note the id that a push has returned: the app is told that of the first push."""
        asked.inner_id = inner_id
        asked.message_id = asked.message_id or inner_id

    def pushed(self, message_ids: Iterable[str]) -> list[Asked]:
        """Return what is out of the messages that an app knows by these ids."""
        wanted = set(message_ids)
        return [one for of in self._of_node.values() for one in of if one.message_id in wanted]

    def settle(self, reply: Message) -> Asked | None:
        """Return what a reply answers, which is out no more; None if nothing out is answered.

        A Grid that gives messages no ids is believed in who replies.
        """
        unnamed, self._unnamed = self._unnamed, []
        for asked in unnamed:
            if not asked.current_id:
                self._unnamed.append(asked)
            else:
                self._named.setdefault(asked.current_id, []).append(asked)
        metadata = reply.metadata
        found = self._named.get(metadata.reply_to_message_id) or [
            asked for asked in self._unnamed if asked.node == metadata.src_node_id
        ]
        if found:
            asked = found[0]
            self.drop(asked)
            return asked
        return None

    def drop(self, asked: Asked) -> None:
        """Await no outcome of a message any more: a reply that still comes answers nothing."""
        asked.out = False
        if asked in self._unnamed:
            self._unnamed.remove(asked)
        _remove(asked, self._named, asked.current_id)
        _remove(asked, self._of_node, asked.node)


def _remove(asked: Asked, known: dict[Any, list[Asked]], key: str | int) -> None:
    others = [other for other in known.pop(key, []) if other is not asked]
    if others:
        known[key] = others
