"""Grids as other engines have them: Flower's own in one process, and one with faults."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from types import SimpleNamespace
from typing import Any

from flwr.app import Error, Message, Metadata
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.constant import (
    HEARTBEAT_INTERVAL_INF,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
)
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import (
    FLWR_IN_MEMORY_DB_NAME,
    NOOP_FEDERATION_ID,
    SYSTEM_MESSAGE_TYPE,
    TaskType,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import http_grid
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid
from flwr.superlink.servicer.runtime import runtime_handlers

from fedsz.flower.wrapped_grid import WrappedGrid
from fedsz.flower_compat import ErrorCode, make_message
from fedsz.transport.message_format import decode_message
from fedsz.transport.node import Node


class Superlink:
    """Flower's link state, a Grid of Flower's on it, and nodes that answer in a thread.

    Args:
        app: what the nodes run.
        clients: how many there are.
        over_http: whether the Grid is an `HttpGrid`, of which only the sockets are left out.
    """

    def __init__(self, app: ClientApp, clients: int, *, over_http: bool = False) -> None:
        factory = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
        )
        self.state: Any = factory.state()
        self.run_id = self.state.create_run(
            "", "", "", {}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP
        )
        (run,) = self.state.get_run_info(run_ids=[self.run_id])
        TaskIdentity.task_id, TaskIdentity.run_id = 1, self.run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        self.grid: Any = InMemoryGrid(state_factory=factory, pull_interval=0.01)
        if over_http:
            self.grid = HttpGrid(token="none")  # noqa: S106 - there is nobody to prove anything to
            self.grid._client = _Handlers(self.state, self.run_id)
        self.over_http = over_http
        self.grid.set_run(run)
        self.nodes: dict[int, Node] = {}
        for i in range(clients):
            node = self.state.create_node(
                NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, secrets.token_bytes(32), HEARTBEAT_INTERVAL_INF
            )
            self.state.acknowledge_node_heartbeat(node, HEARTBEAT_INTERVAL_INF)
            self.nodes[node] = Node(app, {"partition-id": i})

    def unregister(self, node_id: int) -> None:
        """Let a node be gone for good: what it is asked is not taken."""
        self.state.delete_node(NOOP_FLWR_AID, node_id)

    def answer(self, over: threading.Event) -> None:
        """Answer what is asked until ``over`` is set."""
        while not over.wait(0.002):
            for node_id, node in self.nodes.items():
                for message in self.state.get_message_ins(node_id, 1):
                    self._reply(node, self._whole(message) if self.over_http else message)

    def _whole(self, message: Message) -> Message:
        """Return a message with its content, once that has come."""
        name, store = message.metadata.message_id, self.state.object_store
        ids = [tree.object_id for tree in iterate_object_tree(store.get_object_tree(name))]
        while not all(store.get(i) for i in ids):
            time.sleep(0.001)
        whole: Any = inflate_object_from_contents(name, {i: store.get(i) for i in ids})
        whole.metadata.__dict__["_message_id"] = name
        return whole

    def _reply(self, node: Node, message: Message) -> None:
        encoded = node.answer(message, limit=sys.maxsize)
        chunks = encoded.chunks(encoded.size)
        source = BytesIO(b"".join(piece for chunk in chunks for piece in chunk))
        told = decode_message(source, encoded.size)
        reply = Message(told.content if told.has_content() else told.error, reply_to=message)
        if not self.over_http:
            reply.metadata.__dict__["_message_id"] = secrets.token_hex(8)
            self.state.store_message_res(reply)
            return
        reply.metadata.__dict__["_message_id"] = reply.object_id
        session = self.state.start_session(self.run_id)
        objects = get_all_nested_objects(reply)
        _, missing = self.state.store_message_and_object_tree(
            remove_content_from_message(reply), get_object_tree(reply), session
        )
        for i in missing:
            self.state.store_object(self.run_id, session, i, objects[i].deflate())


class _Handlers:
    """Flower's own handlers of requests of an HttpGrid, called without a socket."""

    def __init__(self, state: Any, run_id: int) -> None:
        self._state, self._task = state, Task(run_id=run_id)

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        plain = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).removeprefix("_")
        handler = getattr(runtime_handlers, plain)
        return lambda request: handler(request, self._state, self._task)


@contextmanager
def superlink(app: ClientApp, clients: int, *, over_http: bool = False) -> Iterator[Superlink]:
    """Run the nodes of a Flower link state for as long as this lasts."""
    link, over = Superlink(app, clients, over_http=over_http), threading.Event()
    thread = threading.Thread(target=link.answer, args=(over,), daemon=True)
    thread.start()
    sleep = http_grid.time.sleep
    http_grid.time = SimpleNamespace(time=time.time, sleep=lambda _: sleep(0.01))
    try:
        yield link
    finally:
        http_grid.time = time
        over.set()
        thread.join(30)


Answer = Callable[[Message], list[Message]]


class FaultyGrid(WrappedGrid):
    """A Grid that pushes and pulls alone, as Flower's own do, and has faults.

    Args:
        inner: a Grid of ours.
        answers: by node, what comes in place of its reply; all of it at once, or none.
        refuses: nodes whose messages are not taken.
        named: what it says for these, if not nothing at all: HttpGrid says "" or None.
    """

    def __init__(
        self,
        inner: Any,
        answers: dict[int, Answer] | None = None,
        refuses: Iterable[int] = (),
        named: list[str | None] | None = None,
    ) -> None:
        super().__init__(inner)
        self.answers, self.refuses, self.named = answers or {}, set(refuses), named or []
        self.asked: dict[str, int] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[Any]:
        ids: list[Any] = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node in self.refuses:
                ids += self.named
                continue
            ids += self.inner.push_messages([message])
            self.asked[ids[-1]] = node
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for message_id in set(message_ids) - {None, ""}:
            answer = self.answers.get(self.asked[message_id], lambda reply: [reply])
            for reply in self.inner.pull_messages([message_id]):
                replies += answer(reply)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push, and pull until all are here or nobody has more to say."""
        missing, replies = set(self.push_messages(messages)) - {None, ""}, []
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
