"""A client of the gRPC link as a coroutine, so that one process can be thousands of them.

Protocol, messages and app are those of `fedsz client`; only threads are left out. So its app must
answer quickly: all clients of a process wait for it.
"""

from __future__ import annotations

import asyncio
import random
import secrets

import grpc
from flwr.app import UserConfig
from flwr.clientapp import ClientApp

from fedsz.transport.channel import CHANNEL_OPTIONS, METHOD, SERVICE
from fedsz.transport.client_session import ClientSession, Request
from fedsz.transport.events import EventKind, LinkEvent
from fedsz.transport.frames import PROTOCOL, ByeKind, Hello, frames
from fedsz.transport.messages import EncodedMessage, decode_message
from fedsz.transport.node import Node

Call = grpc.aio.StreamStreamCall
MOST_BYTES = 1 << 30  # of a message
PAUSE = 1.0  # seconds between attempts to connect, and up to as many more


class WireClient:
    """A client that comes back until the server has finished.

    Attributes:
        acknowledged: how many replies the server has.
    """

    def __init__(
        self,
        server: str,
        client_id: str,
        app: ClientApp,
        node_config: UserConfig,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.client_id, self.acknowledged = client_id, 0
        self._server, self._credentials = server, credentials
        self._node = Node(app, node_config)
        hello = Hello(PROTOCOL, client_id, dict(node_config), [], secrets.token_bytes(16))
        self._session = ClientSession(hello, max_message_bytes=MOST_BYTES)

    @property
    def finished(self) -> bool:
        """Whether the server has said that the run is over."""
        bye = self._session.bye
        return bye is not None and bye.kind == ByeKind.FINISHED

    async def run(self) -> None:
        """Answer messages until the run is over."""
        while not self.finished:
            try:
                await self._converse()
            # gRPC raises the second where a stream has ended that is written to.
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                self._session.disconnect()
            if not self.finished:
                await asyncio.sleep(PAUSE * random.uniform(1, 2))

    def answer(self, request: Request) -> EncodedMessage:
        """Return the reply to a request."""
        message = decode_message(request.source, request.size)
        return self._node.answer(message, limit=request.reply_limit)

    async def upload(self, call: Call, reply: EncodedMessage) -> None:
        """Send a reply."""
        for frame in frames(reply):
            await call.write(frame)

    async def _converse(self) -> None:
        """Hold one connection until it ends."""
        async with self._channel() as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            await call.write(self._session.connect())
            while self._session.bye is None and (raw := await call.read()) is not grpc.aio.EOF:
                for output in self._session.receive(raw):
                    match output:
                        case EncodedMessage():
                            await self.upload(call, output)
                        case LinkEvent(kind):
                            self.acknowledged += kind == EventKind.SENT
                while (request := self._session.take()) is not None:
                    for reply in self._session.hand_in(self.answer(request)):
                        assert isinstance(reply, EncodedMessage)
                        await self.upload(call, reply)

    def _channel(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._server, CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(self._server, self._credentials, CHANNEL_OPTIONS)


async def run_all(clients: list[WireClient]) -> None:
    """Run clients beside each other until all have finished."""
    await asyncio.gather(*(client.run() for client in clients))
