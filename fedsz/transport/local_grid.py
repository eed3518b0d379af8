"""A Grid inside one process, for tests and quick trials."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO

from flwr.app import Message, UserConfig
from flwr.clientapp import ClientApp

from fedsz.flower_compat import ErrorCode, error_reply
from fedsz.transport.grid_base import GridBase, Outgoing, open_reply
from fedsz.transport.message_format import EncodedMessage, decode_message
from fedsz.transport.node import Node, node_id


class LocalGrid(GridBase):
    """A Grid whose nodes run in the calling thread, one after another.

    Messages pass through the bytes of the gRPC link, so what works here can be sent. A node is
    named after its place in ``node_configs``; its Context lasts as long as the run.

    Args:
        app: what every node runs.
        node_configs: one per node, each node's ``context.node_config``.
        run_config: every node's ``context.run_config``.

    Examples:
        >>> from fedsz.flower import LocalGrid, make_client_app
        >>> nodes = [{"partition-id": i, "num-partitions": 8} for i in range(8)]
        >>> grid = LocalGrid(make_client_app(), nodes)
        >>> len(grid.get_node_ids())
        8
    """

    def __init__(
        self,
        app: ClientApp,
        node_configs: Sequence[UserConfig],
        run_config: UserConfig | None = None,
    ) -> None:
        super().__init__()
        self._nodes = {
            node_id(str(i)): (str(i), Node(app, config, run_config))
            for i, config in enumerate(node_configs)
        }
        self._pushed: dict[str, Outgoing] = {}

    def get_node_ids(self) -> list[int]:
        """Return the ids of all nodes."""
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take ``messages`` and return their ids; the nodes run when their replies are pulled."""
        outgoing = {out.metadata.message_id: out for out in self._prepare(messages)}
        self._pushed.update(outgoing)
        return list(outgoing)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Run the nodes that these messages went to and return the replies."""
        pushed = [self._pushed.pop(i) for i in message_ids if i in self._pushed]
        return [self._deliver(out, None, math.inf) for out in pushed]

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Run one node per reply asked for; see `GridBase.stream_replies`.

        A node that has started is not interrupted; ``timeout`` keeps others from starting.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        return (self._deliver(out, timeout, deadline) for out in self._prepare(messages))

    def _deliver(self, out: Outgoing, timeout: float | None, deadline: float) -> Message:
        asked = out.metadata
        if asked.dst_node_id not in self._nodes:
            reason = f"node {asked.dst_node_id} is not connected"
            return error_reply(asked, ErrorCode.NODE_UNAVAILABLE, reason)
        name, node = self._nodes[asked.dst_node_id]
        if time.monotonic() > deadline:
            reason = f"no reply from client {name!r} within {timeout:g} s"
            return error_reply(asked, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason)
        message = decode_message(_source(out.encoded), out.encoded.size)
        reply = node.answer(message, limit=sys.maxsize)
        return open_reply(_source(reply), reply.size, out, name)


def _source(encoded: EncodedMessage) -> BytesIO:
    return BytesIO(b"".join(piece for chunk in encoded.chunks(encoded.size) for piece in chunk))
