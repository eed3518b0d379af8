"""The server's end of all links: who is connected, what each client owes, what comes and goes.

A `Hub` lives on one event loop and is touched from nowhere else, so it needs no locks, and a
client costs two coroutines instead of threads. `GrpcGrid` is its face to other threads.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from functools import partial

import grpc
from flwr.app import Error

from fedsz import flower_compat as compat
from fedsz.errors import CorruptStream, UnsupportedStream
from fedsz.transport.connection import Connection, Delivery, Peer, Stored, Upload
from fedsz.transport.frames import PROTOCOL, Ack, Begin, Bye, ByeKind, Hello, Welcome, pack, unpack
from fedsz.transport.link import EventKind, LinkEvent, Meter, OnEvent, tell
from fedsz.transport.node import node_id

logger = logging.getLogger(__name__)

SPOOL_MEMORY_BYTES = 64 << 10  # of each reply; a larger one waits on disk
_HELLO_SECONDS = 30.0
_BYE_SECONDS = 2.0  # for the reason of a refusal to reach the client


class Hub:
    """The clients of a server and the replies they owe.

    Attributes:
        connected: the node ids of the connected clients; replaced, never changed.
        meter: what has crossed the links.
        names: by node id, what clients call themselves.
        bandwidths: by node id, how fast its last upload came in, in bits a second.
    """

    def __init__(
        self, *, max_message_bytes: int, reconnect_grace: float, on_event: OnEvent | None
    ) -> None:
        self.connected: tuple[int, ...] = ()
        self.meter = Meter()
        self.bandwidths: dict[int, float] = {}
        self.names: dict[int, str] = {}
        self._max_message_bytes = max_message_bytes
        self._reconnect_grace = reconnect_grace
        self._tell = partial(tell, on_event)
        self._peers: dict[int, Peer] = {}
        self._closing: Bye | None = None

    def post(self, deliveries: list[Delivery]) -> None:
        """Send each message to its node; what cannot be sent has its outcome at once."""
        loop = asyncio.get_running_loop()
        for delivery in deliveries:
            node = delivery.out.metadata.dst_node_id
            peer = self._peers.get(node)
            if peer is None or (peer.link is None and peer.grace is None):
                who = f"node {node}" if peer is None else f"client {peer.client_id!r}"
                error = Error(compat.ErrorCode.NODE_UNAVAILABLE, f"{who} is not connected")
                delivery.settle(delivery, error)
                continue
            delivery.client_id = peer.client_id
            peer.pending[delivery.message_id] = delivery
            delivery.timer = loop.call_later(delivery.timeout, self._expire, peer, delivery)
            if peer.link is not None:
                peer.link.put(delivery)

    def forget(self, deliveries: list[Delivery]) -> None:
        """Await these replies no longer, and tell nobody."""
        for delivery in deliveries:
            peer = self._peers.get(delivery.out.metadata.dst_node_id)
            if peer is not None and delivery.message_id in peer.pending:
                self._release(peer, delivery, received=False)

    def shut(self, reason: str) -> None:
        """Give up what is pending and send all clients home."""
        self._closing = Bye(ByeKind.FINISHED, reason)
        for peer in self._peers.values():
            text = f"the server was closed before client {peer.client_id!r} replied"
            for delivery in list(peer.pending.values()):
                self._fail(peer, delivery, text)
            if peer.grace is not None:
                peer.grace.cancel()
            if peer.link is not None:
                peer.link.end(self._closing)

    async def serve(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        """Handle one connection from its HELLO to its end: gRPC calls this for each stream."""
        link = Connection(context, self.meter)
        tasks = {
            asyncio.create_task(link.send(self._sent)),
            asyncio.create_task(self._read(link)),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if link.bye is not None:
                await asyncio.wait(tasks, timeout=_BYE_SECONDS)
        finally:
            self._part(link)
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, grpc.aio.BaseError):
                    logger.error("a connection failed", exc_info=outcome)

    async def _read(self, link: Connection) -> None:
        """Read a connection to its end; a client that breaks the rules is refused."""
        try:
            raw = await asyncio.wait_for(link.read(), _HELLO_SECONDS)
            if raw is None:
                return
            peer = self._admit(link, raw)
            await self._receive(peer, link)
        except TimeoutError:
            self._refuse(link, f"no HELLO within {_HELLO_SECONDS:g} s")
        except CorruptStream as err:
            self._refuse(link, err.what)

    def _admit(self, link: Connection, raw: bytes) -> Peer:
        """Take the client that sent ``raw``, and tell it and the sender what is still to do."""
        hello = unpack(raw)
        if not isinstance(hello, Hello):
            raise CorruptStream("the first frame is not HELLO")
        if hello.protocol != PROTOCOL:
            raise UnsupportedStream(f"protocol {hello.protocol}; this server speaks {PROTOCOL}")
        node = node_id(hello.client_id)
        peer = self._peers.setdefault(node, Peer(hello.client_id, node))
        self.names[node] = hello.client_id
        if peer.link is not None:
            reason = f"another connection came with the client id {peer.client_id!r}"
            peer.link.end(Bye(ByeKind.REPLACED, reason))
            self._disconnect(peer, reason)
        if peer.grace is not None:
            peer.grace.cancel()
            peer.grace = None
        link.peer, peer.link = peer, link
        self.connected = (*self.connected, node)
        have = peer.pending.keys() & set(hello.have)
        link.put(pack(Welcome(node, self._max_message_bytes, sorted(have))))
        for delivery in peer.pending.values():
            if delivery.message_id not in have:
                delivery.sent = False
                link.put(delivery)
        self._tell(LinkEvent(EventKind.JOINED, peer.client_id, node_config=hello.node_config))
        if self._closing is not None:
            link.end(self._closing)
        return peer

    async def _receive(self, peer: Peer, link: Connection) -> None:
        """Take replies until the client is gone or another connection replaces this one."""
        arrival: Upload | None = None
        while (raw := await link.read()) is not None and peer.link is link:
            frame = unpack(raw)
            if isinstance(frame, memoryview) and arrival is not None:
                self._feed(peer, arrival, frame)
            elif isinstance(frame, Begin):
                arrival = self._begin(peer, link, frame)
            else:
                raise CorruptStream(f"a frame of type {raw[0]} out of place")
            if arrival.complete:
                self._arrived(peer, arrival)
                arrival = None

    def _begin(self, peer: Peer, link: Connection, begin: Begin) -> Upload:
        for other in peer.pending.values():
            other.drop_upload()  # if this one breaks it off
        arrival = Upload(begin, limit=self._max_message_bytes)
        delivery = peer.pending.get(begin.message_id)
        if delivery is None:
            link.put(pack(Ack(begin.message_id, received=False)))
        else:
            # Closed by whoever settles the delivery.
            arrival.sink = tempfile.SpooledTemporaryFile(SPOOL_MEMORY_BYTES)  # noqa: SIM115
            delivery.upload = arrival
        return arrival

    def _feed(self, peer: Peer, arrival: Upload, piece: memoryview) -> None:
        try:
            # A write to the page cache takes less time than handing it to a thread would.
            arrival.feed(piece)
        except OSError as err:
            reason = f"the reply of client {peer.client_id!r} could not be stored: {err.strerror}"
            self._fail(peer, peer.pending[arrival.message_id], reason)

    def _arrived(self, peer: Peer, arrival: Upload) -> None:
        self.meter.messages_received += 1
        known = self.bandwidths.get(peer.node_id, 0.0)
        self.bandwidths[peer.node_id] = arrival.bandwidth(known)
        detail = "" if arrival.sink else "dropped: nobody waits for this reply any more"
        message_id, cost = arrival.message_id, arrival.wire_bytes
        self._tell(LinkEvent(EventKind.RECEIVED, peer.client_id, message_id, cost, detail))
        if arrival.sink is not None:
            delivery = peer.pending[arrival.message_id]
            delivery.upload = None  # the file has a new owner
            self._release(peer, delivery, received=True)
            arrival.sink.seek(0)
            delivery.settle(delivery, Stored(arrival.sink, arrival.size))

    def _sent(self, delivery: Delivery, wire_bytes: int) -> None:
        delivery.sent = True
        self.meter.messages_sent += 1
        peer = self._peers[delivery.out.metadata.dst_node_id]
        self._tell(LinkEvent(EventKind.SENT, peer.client_id, delivery.message_id, wire_bytes))

    def _expire(self, peer: Peer, delivery: Delivery) -> None:
        reason = f"no reply from client {peer.client_id!r} within {delivery.timeout:g} s"
        if delivery.upload is not None:
            reason += f", given up {delivery.progress()}"
        self._fail(peer, delivery, reason)

    def _refuse(self, link: Connection, reason: str) -> None:
        """Send a client home for good; nothing is expected of it any more."""
        peer = link.peer
        client_id = "" if peer is None else peer.client_id
        self._tell(LinkEvent(EventKind.REFUSED, client_id, detail=reason))
        link.end(Bye(ByeKind.REFUSED, reason))
        if peer is not None and peer.link is link:
            self._disconnect(peer, reason)
            for delivery in list(peer.pending.values()):
                self._fail(peer, delivery, f"client {peer.client_id!r} was refused: {reason}")

    def _part(self, link: Connection) -> None:
        """Note that a connection is over; its client has a while to come back."""
        peer = link.peer
        if peer is None or peer.link is not link:
            return
        self._disconnect(peer, "connection lost" if self._closing is None else "server closed")
        if self._closing is None:
            loop = asyncio.get_running_loop()
            peer.grace = loop.call_later(self._reconnect_grace, self._give_up, peer)

    def _disconnect(self, peer: Peer, reason: str) -> None:
        peer.link = None
        self.connected = tuple(node for node in self.connected if node != peer.node_id)
        for delivery in peer.pending.values():
            delivery.mishap = delivery.progress()
            delivery.drop_upload()
        self._tell(LinkEvent(EventKind.LEFT, peer.client_id, detail=reason))

    def _give_up(self, peer: Peer) -> None:
        peer.grace = None
        for delivery in list(peer.pending.values()):
            reason = (
                f"client {peer.client_id!r} left {delivery.mishap or delivery.progress()} and did "
                f"not return within {self._reconnect_grace:g} s"
            )
            self._fail(peer, delivery, reason, compat.ErrorCode.NODE_UNAVAILABLE)

    def _fail(
        self,
        peer: Peer,
        delivery: Delivery,
        reason: str,
        code: int = compat.ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ) -> None:
        self._release(peer, delivery, received=False)
        message_id = delivery.message_id
        self._tell(LinkEvent(EventKind.FAILED, peer.client_id, message_id, detail=reason))
        delivery.settle(delivery, Error(code, reason))

    def _release(self, peer: Peer, delivery: Delivery, *, received: bool) -> None:
        """End an exchange; a connected client is told, so that it wastes no more on it."""
        del peer.pending[delivery.message_id]
        delivery.done = True
        delivery.drop_upload()
        if delivery.timer is not None:
            delivery.timer.cancel()
        if peer.link is not None:
            peer.link.put(pack(Ack(delivery.message_id, received)))
