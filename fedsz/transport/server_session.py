"""The server's part of the protocol: its clients, their requests and their replies. No sockets.

A `ServerSession` is a state machine. Its driver reports each event - messages posted, frames
received, connections lost, time gone by - and sends the frames that the session queues. The session
waits for nothing and reads no clock, so a test can take it through any order of events.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import IO, Final, NamedTuple, Protocol

from flwr.app import Error

from fedsz.data_share import Share
from fedsz.errors import CorruptStream, UnsupportedStream
from fedsz.flower_compat import ErrorCode
from fedsz.formatting import megabytes
from fedsz.transport import frames
from fedsz.transport.credentials import Identity, why_revoked, why_wrong
from fedsz.transport.frames import Ack, Begin, Bye, ByeKind, Control, Hello, Incoming, Welcome
from fedsz.transport.grid_base import Outgoing
from fedsz.transport.link_events import Counters, EventKind, LinkEvent, NodeConfig
from fedsz.transport.node import node_id

MAX_PEERS: Final = 1 << 16  # clients that are remembered; more are taken once some have left
TIMED_BYTES: Final = 64 << 10  # after its first chunk, from which an upload tells a bandwidth
NEWS_SECONDS: Final = 1.0  # between two events of an upload
_NO_REPLY: Final = ErrorCode.REPLY_MESSAGE_UNAVAILABLE


class Line(Protocol):
    """A connection, as the session writes to it."""

    def put(self, item: Control | Delivery, /) -> None:
        """Queue a frame, or a message, which is sent as long as it is not `Delivery.done`.

        The connection ends with BYE, whatever else is queued.
        """


class Stored(NamedTuple):
    """A complete reply: the ``size`` bytes written to ``file``, which its reader closes."""

    file: IO[bytes]
    size: int


Outcome = Stored | Error
Settler = Callable[["Delivery", Outcome], None]


@dataclass(eq=False)
class Delivery:
    """One message for a client, until it has its outcome."""

    out: Outgoing
    timeout: float  # seconds in which the reply is awaited, once it is posted
    settle: Settler  # called once
    client_id: str = ""  # whom it is for, once it is posted
    begun: bool = False  # the client has it, or it is queued on its connection
    sent: bool = False  # all of it is out, to a client that still has it
    done: bool = False  # the reply is not awaited any more: the rest need not be sent
    expires: float = 0.0
    mishap: str = ""  # the state of the exchange when the connection broke

    @property
    def message_id(self) -> str:
        """The id of the message."""
        return self.out.encoded.message_id


class Upload(Incoming):
    """A reply on its way into a sink; without a sink it is dropped, as it is not awaited."""

    sink: IO[bytes] | None

    def __init__(self, begin: Begin, sink: IO[bytes] | None, now: float, *, limit: int) -> None:
        super().__init__(begin, sink, limit=limit)
        self._reported = now
        self._first: tuple[float, int] | None = None  # the first chunk's time and size

    def take(self, piece: memoryview, now: float) -> None:
        """Count and write the body of one DATA frame; see `Incoming.feed`."""
        self.feed(piece)
        if self.sink is not None and self.complete:
            self.sink.flush()  # a full disk is noticed here, where it fails this reply alone
        self._first = self._first or (now, self.received)

    def news(self, client_id: str, now: float) -> LinkEvent | None:
        """Return an event of the upload's progress, once a second; None for a dropped one."""
        if self.sink is None or now < self._reported + NEWS_SECONDS:
            return None
        self._reported = now
        passed, size = self.received, self.size
        return LinkEvent(EventKind.RECEIVING, client_id, self.message_id, passed=passed, size=size)

    def drop(self) -> None:
        """Discard its bytes."""
        if self.sink is not None:
            with suppress(OSError):  # a full disk may refuse what is still buffered
                self.sink.close()
            self.sink = None

    def bandwidth(self, now: float) -> float | None:
        """Return the link's bandwidth in bits a second, once all bytes are here.

        Time runs from the first chunk, so that latency and TCP's slow start do not count. None if
        too little follows that chunk.
        """
        since, before = self._first or (now, self.size)
        nbytes = self.size - before
        return 8 * nbytes / (now - since) if nbytes >= TIMED_BYTES and now > since else None


@dataclass(eq=False)
class Peer:
    """A client by its id, connected or not."""

    client_id: str
    node_id: int
    session_key: bytes = b""  # of the process that was connected last
    share: Share | None = None  # of the data, that it had last
    connection: Line | None = None
    pending: dict[str, Delivery] = field(default_factory=dict)
    upload: Upload | None = None  # in progress
    grace_ends: float | None = None  # while it may still return

    @property
    def live(self) -> bool:
        """Whether it is connected, or may still return."""
        return self.connection is not None or self.grace_ends is not None

    def gives_way_to(self, hello: Hello, identity: Identity) -> bool:
        """Return whether a connection may take this client's place.

        The process that was connected last may at any time: it lost its link before the server
        noticed. Another one with the same identity may when the link is dead, and a stranger when
        the client has not come back in time either.
        """
        if self.session_key and hmac.compare_digest(hello.session_key, self.session_key):
            return True
        return self.connection is None and (bool(identity) or self.grace_ends is None)

    def upload_of(self, delivery: Delivery) -> Upload | None:
        """Return the upload in progress if it is the reply to this message."""
        upload = self.upload
        return upload if upload and upload.message_id == delivery.message_id else None

    def progress(self, delivery: Delivery) -> str:
        """Say how far an exchange has come."""
        if (upload := self.upload_of(delivery)) is not None:
            return f"during upload ({upload.received / 1e6:.1f} of {megabytes(upload.size)})"
        return "before it replied" if delivery.sent else "before the message reached it"


class Taken(Exception):
    """The id or the share of the data that a client asks for is another's for now."""


class ServerSession:
    """All clients of a server and the replies they owe.

    All times are seconds on one monotonic clock. A delivery's ``settle``, and ``tell``, must not
    call the session.

    Args:
        max_message_bytes: the largest reply accepted.
        reconnect_grace: seconds that a client has to come back.
        open_sink: makes a file for the bytes of one reply. The session closes those it drops; an
            OSError on writing fails the delivery.
        tell: called with each event.
        shares: of the data, of which each is one live client's; None leaves shares to the clients.
        why_unfit: returns why a client with this config is refused, "" if it is not.
    """

    def __init__(
        self,
        *,
        max_message_bytes: int,
        reconnect_grace: float,
        open_sink: Callable[[], IO[bytes]],
        tell: Callable[[LinkEvent], None] = lambda _: None,
        shares: int | None = None,
        why_unfit: Callable[[NodeConfig], str] = lambda _: "",
    ) -> None:
        self.connected: tuple[int, ...] = ()  # node ids; replaced, never changed
        self.counters = Counters()  # messages; the driver counts the bytes
        self.bandwidths: dict[int, float] = {}  # of last uploads, by node id, in bits a second
        self._max_message_bytes, self._open_sink = max_message_bytes, open_sink
        self._reconnect_grace, self._shares = reconnect_grace, shares
        self._why_unfit, self._tell = why_unfit, tell
        self._peers: dict[int, Peer] = {}
        self._share_nodes: dict[Share, int] = {}  # the node that had each share last
        self._connections: dict[Line, Peer | None] = {}  # None until HELLO
        self._identities: dict[Line, Identity] = {}  # of the connections
        self._closing: Bye | None = None

    def post(self, deliveries: Iterable[Delivery], now: float) -> None:
        """Send each message to its node; one that cannot be sent has its outcome at once."""
        for delivery in deliveries:
            node = delivery.out.metadata.dst_node_id
            peer = self._peers.get(node)
            if peer is None or not peer.live:
                who = f"node {node}" if peer is None else f"client {peer.client_id!r}"
                error = Error(ErrorCode.NODE_UNAVAILABLE, f"{who} is not connected")
                delivery.settle(delivery, error)
                continue
            delivery.client_id = peer.client_id
            delivery.expires = now + delivery.timeout
            peer.pending[delivery.message_id] = delivery
            self._send_requests(peer)

    def hasten(self, deliveries: Iterable[Delivery], timeout: float, now: float) -> None:
        """Await these replies for ``timeout`` seconds from when they were posted."""
        for delivery in deliveries:
            delivery.expires += timeout - delivery.timeout
            delivery.timeout = timeout
        self.tick(now)

    def forget(self, deliveries: Iterable[Delivery]) -> None:
        """Await these replies no longer; only their clients are told."""
        for delivery in deliveries:
            peer = self._peers.get(delivery.out.metadata.dst_node_id)
            if peer is not None and delivery.message_id in peer.pending:
                self._release(peer, delivery, received=False)

    def shut(self, reason: str, *, failed: bool = False) -> None:
        """Give up what is pending, and say BYE to all clients, also those that come later.

        ``failed`` says that the run is not over, and that clients may wait for it to go on.
        """
        self._closing = Bye(ByeKind.FAILED if failed else ByeKind.FINISHED, reason)
        for peer in self._peers.values():
            self._fail_all(peer, f"the server was closed before client {peer.client_id!r} replied")
            peer.grace_ends = None
            self._send(peer, self._closing)

    def client_name(self, node: int) -> str:
        """Return a node's client id; the node id if no such client has been here."""
        peer = self._peers.get(node)
        return str(node) if peer is None else peer.client_id

    def connect(self, connection: Line, identity: Identity = ()) -> None:
        """Note a new connection; its client is unknown until its first frame.

        With an ``identity`` that frame must have the client id that it proves.
        """
        self._connections[connection] = None
        self._identities[connection] = identity

    def serves(self, connection: Line) -> bool:
        """Return whether frames from it are still read: not once it is lost, replaced, refused."""
        return connection in self._connections

    def receive(self, connection: Line, raw: bytes, now: float) -> None:
        """Take a frame; a client that breaks the rules is refused."""
        if connection not in self._connections:
            return
        peer = self._connections[connection]
        try:
            frame = frames.unpack(raw)
            if peer is None:
                self._admit(connection, frame)
            elif isinstance(frame, memoryview) and peer.upload is not None:
                self._feed(peer, peer.upload, frame, now)
            elif isinstance(frame, Begin):
                self._begin(peer, frame, now)
            else:
                raise CorruptStream(f"a frame of type {raw[0]} out of place")
        except CorruptStream as err:
            self.refuse(connection, err.what)

    def sent(self, connection: Line, delivery: Delivery, wire_bytes: int) -> None:
        """Note that all frames of a message are out."""
        peer = self._peers.get(delivery.out.metadata.dst_node_id)
        if peer is not None and peer.connection == connection:
            delivery.sent = True
        self.counters.messages_sent += 1
        sent = EventKind.SENT
        self._tell(LinkEvent(sent, delivery.client_id, delivery.message_id, wire_bytes))

    def lost(self, connection: Line, now: float) -> None:
        """Note that a connection is over; its client has a while to come back."""
        peer = self._drop(connection)
        if peer is not None:
            self._disconnect(peer, "server closed" if self._closing else "connection lost")
            peer.grace_ends = None if self._closing else now + self._reconnect_grace

    def refuse(self, connection: Line, reason: str) -> None:
        """End a connection for good; its replies are not awaited any more."""
        peer = self._say_bye(connection, Bye(ByeKind.REFUSED, reason))
        if peer is not None:
            self._disconnect(peer, reason)
            self._fail_all(peer, f"client {peer.client_id!r} was refused: {reason}")

    def revoke(self, serials: Collection[int]) -> None:
        """Refuse all connections that have shown a proof of one of these serial numbers."""
        for connection, identity in list(self._identities.items()):
            if reason := why_revoked(identity, serials):
                self.refuse(connection, reason)

    def next_deadline(self) -> float | None:
        """Return when `tick` is due; None while nothing is awaited."""
        expiries = [d.expires for peer in self._peers.values() for d in peer.pending.values()]
        graces = [p.grace_ends for p in self._peers.values() if p.grace_ends is not None]
        return min(expiries + graces, default=None)

    def tick(self, now: float) -> None:
        """Give up the replies and the clients whose time is over."""
        for peer in self._peers.values():
            who = f"client {peer.client_id!r}"
            for delivery in [d for d in peer.pending.values() if d.expires <= now]:
                reason = f"no reply from {who} within {delivery.timeout:g} s"
                if peer.upload_of(delivery):
                    reason += f", given up {peer.progress(delivery)}"
                self._fail(peer, delivery, reason)
            if peer.grace_ends is not None and peer.grace_ends <= now:
                peer.grace_ends = None
                late = f"did not return within {self._reconnect_grace:g} s"
                for delivery in list(peer.pending.values()):
                    reason = f"{who} left {delivery.mishap or peer.progress(delivery)} and {late}"
                    self._fail(peer, delivery, reason, ErrorCode.NODE_UNAVAILABLE)

    def _say_bye(self, connection: Line, bye: Bye) -> Peer | None:
        """Turn a connection away; return the client that it was admitted as."""
        peer = self._drop(connection)
        who = peer.client_id if peer else ""
        self._tell(LinkEvent(EventKind.REFUSED, who, detail=bye.reason))
        connection.put(bye)
        return peer

    def _drop(self, connection: Line) -> Peer | None:
        self._identities.pop(connection, None)
        return self._connections.pop(connection, None)

    def _send(self, peer: Peer, item: Control | Delivery) -> None:
        if peer.connection is not None:
            peer.connection.put(item)

    def _send_requests(self, peer: Peer) -> None:
        """Queue the requests that a connected client may have by now, the oldest ones."""
        for delivery in islice(peer.pending.values(), frames.MAX_UNANSWERED):
            if peer.connection is not None and not delivery.begun:
                delivery.begun = True
                self._send(peer, delivery)

    def _admit(self, connection: Line, hello: Control | memoryview) -> None:
        """Take a client; tell it and the sender what is still to do."""
        if not isinstance(hello, Hello):
            raise CorruptStream("the first frame is not HELLO")
        if hello.protocol != frames.PROTOCOL:
            ours = f"this server speaks {frames.PROTOCOL}"
            raise UnsupportedStream(f"protocol {hello.protocol}; {ours}")
        identity = self._identities[connection]
        if why := why_wrong(identity, hello.client_id):
            raise CorruptStream(why)
        if why := self._why_unfit(hello.node_config):
            raise CorruptStream(f"{hello.client_id!r} cannot take part: {why}")
        node = node_id(hello.client_id)
        if node not in self._peers and len(self._peers) >= MAX_PEERS:
            self._forget_absent_peers()
        peer = self._peers.setdefault(node, Peer(hello.client_id, node))
        try:
            if not peer.gives_way_to(hello, identity):
                raise Taken(f"the client id {hello.client_id!r} is in use")
            share = self._claim_share(peer, hello)
        except Taken as err:
            self._say_bye(connection, Bye(ByeKind.TAKEN, str(err)))
            return
        self._replace(peer)
        self._connections[connection] = peer
        peer.connection, peer.session_key = connection, hello.session_key
        peer.grace_ends = None
        self.connected = (*self.connected, node)
        have = peer.pending.keys() & set(hello.have)
        self._send(peer, Welcome(node, self._max_message_bytes, sorted(have), share))
        for delivery in peer.pending.values():
            delivery.begun = delivery.message_id in have
            delivery.sent = delivery.sent and delivery.begun
        self._send_requests(peer)
        joined = EventKind.JOINED
        self._tell(LinkEvent(joined, peer.client_id, node_config=hello.node_config))
        if self._closing is not None:
            self._send(peer, self._closing)

    def _replace(self, peer: Peer) -> None:
        """End the connection that a client has before another of its own."""
        if peer.connection is not None:
            reason = f"another connection came with the client id {peer.client_id!r}"
            self._send(peer, Bye(ByeKind.REPLACED, reason))
            self._drop(peer.connection)
            self._disconnect(peer, reason)

    def _claim_share(self, peer: Peer, hello: Hello) -> Share | None:
        """Note the share of the data that a client has from now on; return one it asked for.

        A client names its share, or asks for one. If it asks, it gets its last one, or one without
        a client so far, or one whose client is gone.

        Raises:
            Taken: the share is another live client's, or all are.
        """
        if self._shares is None or self._closing is not None:
            return None
        named = share = Share.of(hello.node_config)
        if hello.wants_share:
            every = [Share(index, self._shares) for index in range(self._shares)]
            own = (s for s in (peer.share, named) if s in every)
            fresh = (s for s in every if s not in self._share_nodes)
            free = (s for s in chain(own, fresh, every) if s and not self._rival(peer, s))
            share = next(free, None)
            if share is None:
                raise Taken(f"all {self._shares} shares of the data are taken")
        elif share is not None and (rival := self._rival(peer, share)):
            raise Taken(f"share {share} of the data is client {rival.client_id!r}'s")
        if peer.share is not None and self._share_nodes.get(peer.share) == peer.node_id:
            del self._share_nodes[peer.share]
        peer.share = share
        if share is not None:
            self._share_nodes[share] = peer.node_id
        return share if hello.wants_share else None

    def _rival(self, peer: Peer, share: Share) -> Peer | None:
        """Return another live client that has a share; None if there is none."""
        other = self._peers.get(self._share_nodes.get(share, peer.node_id))
        return other if other is not None and other is not peer and other.live else None

    def _forget_absent_peers(self) -> None:
        """Make room for clients of other ids."""
        absent = [peer.node_id for peer in self._peers.values() if not peer.live]
        for node in absent:
            del self._peers[node]
            self.bandwidths.pop(node, None)
        if not absent:
            raise CorruptStream(f"the server has its {MAX_PEERS} clients")

    def _begin(self, peer: Peer, begin: Begin, now: float) -> None:
        if peer.upload is not None:  # this one breaks it off
            peer.upload.drop()
        peer.upload = Upload(begin, None, now, limit=self._max_message_bytes)
        if begin.message_id in peer.pending:
            peer.upload.sink = self._open_sink()
        else:
            self._send(peer, Ack(begin.message_id, received=False))

    def _feed(self, peer: Peer, upload: Upload, piece: memoryview, now: float) -> None:
        try:
            upload.take(piece, now)
        except OSError as err:
            reason = f"the reply of client {peer.client_id!r} could not be stored: {err.strerror}"
            self._fail(peer, peer.pending[upload.message_id], reason)
        if not upload.complete:
            if (news := upload.news(peer.client_id, now)) is not None:
                self._tell(news)
            return
        peer.upload = None
        if (bandwidth := upload.bandwidth(now)) is not None:
            self.bandwidths[peer.node_id] = bandwidth
        detail = "" if upload.sink else "dropped: nobody waits for this reply any more"
        received, cost = EventKind.RECEIVED, upload.wire_bytes
        self.counters.messages_received += 1
        self._tell(LinkEvent(received, peer.client_id, upload.message_id, cost, detail))
        if upload.sink is not None:
            delivery = peer.pending[upload.message_id]
            self._release(peer, delivery, received=True)
            delivery.settle(delivery, Stored(upload.sink, upload.size))

    def _disconnect(self, peer: Peer, reason: str) -> None:
        peer.connection = None
        self.connected = tuple(node for node in self.connected if node != peer.node_id)
        for delivery in peer.pending.values():
            delivery.mishap = peer.progress(delivery)
        if peer.upload is not None:
            peer.upload.drop()
            peer.upload = None
        self._tell(LinkEvent(EventKind.LEFT, peer.client_id, detail=reason))

    def _fail_all(self, peer: Peer, reason: str) -> None:
        for delivery in list(peer.pending.values()):
            self._fail(peer, delivery, reason)

    def _fail(self, peer: Peer, delivery: Delivery, reason: str, code: int = _NO_REPLY) -> None:
        self._release(peer, delivery, received=False)
        failed, message_id = EventKind.FAILED, delivery.message_id
        self._tell(LinkEvent(failed, peer.client_id, message_id, detail=reason))
        delivery.settle(delivery, Error(code, reason))

    def _release(self, peer: Peer, delivery: Delivery, *, received: bool) -> None:
        """End an exchange; a connected client is told, so that it wastes no more on it."""
        del peer.pending[delivery.message_id]
        delivery.done = True
        if (upload := peer.upload_of(delivery)) is not None:
            upload.drop()
        self._send(peer, Ack(delivery.message_id, received))
        self._send_requests(peer)
