"""Grids as other engines have them: Flower's own in one process, and one that answers oddly."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import Error, Message, Metadata
from flwr.clientapp import ClientApp
from flwr.common.constant import (
    HEARTBEAT_INTERVAL_INF,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
)
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import (
    FLWR_IN_MEMORY_DB_NAME,
    NOOP_FEDERATION_ID,
    SYSTEM_MESSAGE_TYPE,
    TaskType,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from fedsz.flower.wrapped_grid import WrappedGrid
from fedsz.flower_compat import ErrorCode, make_message
from fedsz.transport.node import Node


class Superlink:
    """Flower's link state, its Grid, and nodes that answer in a thread; some may have gone."""

    def __init__(self, app: ClientApp, clients: int) -> None:
        factory = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
        )
        self.state: Any = factory.state()
        number = self.state.create_run(
            "", "", "", {}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP
        )
        (run,) = self.state.get_run_info(run_ids=[number])
        TaskIdentity.task_id, TaskIdentity.run_id = 1, number
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        self.grid = InMemoryGrid(state_factory=factory, pull_interval=0.01)
        self.grid.set_run(run)
        self.nodes: dict[int, Node] = {}
        for i in range(clients):
            node = self.state.create_node(
                NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, secrets.token_bytes(32), HEARTBEAT_INTERVAL_INF
            )
            self.state.acknowledge_node_heartbeat(node, HEARTBEAT_INTERVAL_INF)
            self.nodes[node] = Node(app, {"partition-id": i})

    def answer(self, over: threading.Event) -> None:
        """Answer what is asked until ``over`` is set."""
        from io import BytesIO

        from fedsz.transport.messages import decode_message

        while not over.wait(0.002):
            for node_id, node in self.nodes.items():
                for message in self.state.get_message_ins(node_id, 1):
                    reply = node.answer(message, limit=sys.maxsize)
                    chunks = reply.chunks(reply.size)
                    whole = BytesIO(b"".join(piece for chunk in chunks for piece in chunk))
                    told = decode_message(whole, reply.size)
                    own = Message(
                        told.content if told.has_content() else told.error, reply_to=message
                    )
                    own.metadata.__dict__["_message_id"] = secrets.token_hex(8)
                    self.state.store_message_res(own)


@contextmanager
def superlink(app: ClientApp, clients: int) -> Iterator[Superlink]:
    """Run the nodes of a Flower link state for as long as this lasts."""
    link, over = Superlink(app, clients), threading.Event()
    thread = threading.Thread(target=link.answer, args=(over,), daemon=True)
    thread.start()
    try:
        yield link
    finally:
        over.set()
        thread.join(30)


Answer = Callable[[Message], list[Message]]


class Odd(WrappedGrid):
    """A Grid that pushes and pulls alone, as Flower's own do, and answers for some nodes oddly.

    Args:
        inner: a Grid of ours.
        answers: by node, what comes in place of its reply; all of it at once, or none.
        refuses: nodes whose messages are not taken.
        names_none: whether it says None for these, as HttpGrid does; else it leaves them out.
    """

    def __init__(
        self,
        inner: Any,
        answers: dict[int, Answer] | None = None,
        refuses: Iterable[int] = (),
        *,
        names_none: bool = False,
    ) -> None:
        super().__init__(inner)
        self.answers, self.refuses, self.names_none = answers or {}, set(refuses), names_none
        self.asked: dict[str, int] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[Any]:
        ids: list[Any] = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node in self.refuses:
                ids += [None] if self.names_none else []
                continue
            ids += self.inner.push_messages([message])
            self.asked[ids[-1]] = node
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for message_id in set(message_ids) - {None}:
            answer = self.answers.get(self.asked[message_id], lambda reply: [reply])
            for reply in self.inner.pull_messages([message_id]):
                replies += answer(reply)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push, and pull until all are here or nobody has more to say."""
        missing, replies = set(self.push_messages(messages)) - {None}, []
        while missing:
            here = self.pull_messages(missing)
            replies += here
            missing -= {reply.metadata.reply_to_message_id for reply in here}
            if not here:
                break
        return replies

    def __getattribute__(self, name: str) -> Any:
        if name == "stream_replies":
            raise AttributeError(name)
        return super().__getattribute__(name)


def in_its_own_name(reply: Message) -> list[Message]:
    """What SuperLink says for a node that has gone: the node is itself."""
    asked = reply.metadata
    metadata = Metadata(
        run_id=asked.run_id,
        message_id=secrets.token_hex(8),
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=asked.reply_to_message_id,
        group_id="",
        created_at=asked.created_at,
        ttl=0,
        message_type=SYSTEM_MESSAGE_TYPE,
    )
    error = Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable")
    return [make_message(metadata, error=error)]


def twice(reply: Message) -> list[Message]:
    """The same reply again."""
    return [reply, reply]


def error_first(reply: Message) -> list[Message]:
    """An error, and then the reply after all."""
    return [*in_its_own_name(reply), reply]


def never(reply: Message) -> list[Message]:
    """Nothing at all."""
    return []


def for_another(node: int) -> Answer:
    """Return what answers in the name of another node."""

    def answer(reply: Message) -> list[Message]:
        reply.metadata.__dict__["_src_node_id"] = node
        return [reply]

    return answer
