"""A Grid inside one process, for tests and quick trials."""

from __future__ import annotations

import sys
import time
from io import BytesIO
from typing import TYPE_CHECKING

from fedsz import flower_compat as compat
from fedsz.flower_compat import error_reply
from fedsz.transport.grid_base import GridBase, Outgoing, open_reply
from fedsz.transport.messages import EncodedMessage, decode_message
from fedsz.transport.node import Node, node_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from flwr.app import Message, UserConfig
    from flwr.clientapp import ClientApp


class LocalGrid(GridBase):
    """A Grid whose nodes run in the calling thread, one after another.

    Messages pass through the bytes of the gRPC link, so what works here can be sent. A node is
    named after its place in ``node_configs``; its Context lasts as long as the run.

    Args:
        app: what every node runs.
        node_configs: one per node, each node's ``context.node_config``.
        run_config: every node's ``context.run_config``.

    Example:
        >>> grid = LocalGrid(app, [{"partition-id": i, "num-partitions": 8} for i in range(8)])
        >>> FedAvg().start(grid, initial_arrays=arrays)
    """

    def __init__(
        self,
        app: ClientApp,
        node_configs: Sequence[UserConfig],
        run_config: UserConfig | None = None,
    ) -> None:
        super().__init__()
        names = [str(i) for i in range(len(node_configs))]
        self._names = {node_id(name): name for name in names}
        self._nodes = {
            node_id(name): Node(app, config, run_config)
            for name, config in zip(names, node_configs, strict=True)
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
        return [self._deliver(out) for out in pushed]

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Run one node per reply asked for; see `GridBase.stream_replies`.

        A node that has started is not interrupted; ``timeout`` keeps others from starting.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        return self._replies(self._prepare(messages), timeout, deadline)

    def _replies(
        self, outgoing: list[Outgoing], timeout: float | None, deadline: float | None
    ) -> Iterator[Message]:
        for out in outgoing:
            if deadline is not None and time.monotonic() > deadline:
                name = self._names.get(out.metadata.dst_node_id)
                reason = f"no reply from client {name!r} within {timeout:g} s"
                code = compat.ErrorCode.REPLY_MESSAGE_UNAVAILABLE
                yield error_reply(out.metadata, code, reason)
            else:
                yield self._deliver(out)

    def _deliver(self, out: Outgoing) -> Message:
        asked = out.metadata
        node = self._nodes.get(asked.dst_node_id)
        if node is None:
            reason = f"node {asked.dst_node_id} is not connected"
            return error_reply(asked, compat.ErrorCode.NODE_UNAVAILABLE, reason)
        message = decode_message(_source(out.encoded), out.encoded.size)
        reply = node.answer(message, limit=sys.maxsize)
        return open_reply(_source(reply), reply.size, asked, self._names[asked.dst_node_id])


def _source(encoded: EncodedMessage) -> BytesIO:
    return BytesIO(b"".join(piece for chunk in encoded.chunks(encoded.size) for piece in chunk))
