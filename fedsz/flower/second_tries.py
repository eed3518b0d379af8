"""A second try in the same round, for clients that lack the model that they were to hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flwr.app import Message

from fedsz.flower.deadline import Deadline
from fedsz.flower.mod import keeps_model, lacks_model
from fedsz.flower.packing import Packed, Packer

Send = Callable[[Packed, float | None], Iterator[Message]]  # with the seconds that are left


def with_second_tries(
    replies: Iterator[Message], deadline: Deadline, packer: Packer, send: Send
) -> Iterator[Message]:
    """Yield a reply to each message, though a client lack what it was to hold."""
    again: list[Iterator[Message]] = []
    for reply in deadline.watch(replies):
        whole = packer.whole(reply.metadata.src_node_id) if lacks_model(reply) else None
        if whole is None:
            yield _taken(reply, deadline, packer)
        else:  # now: it has a round's training before it
            again.append(deadline.watch(send(whole, deadline.left())))
    for second in again:
        for reply in second:
            yield _taken(reply, deadline, packer)


def note_holder(reply: Message, packer: Packer) -> None:
    """Note what the sender of a reply holds, whatever comes of the reply."""
    if keeps_model(reply):
        packer.received(reply)


def _taken(reply: Message, deadline: Deadline, packer: Packer) -> Message:
    note_holder(reply, packer)
    deadline.took(reply)
    return reply
