"""The server's part of the protocol: its clients, their requests and their replies. No sockets.

A `ServerSession` is a state machine. Its driver reports each event - messages posted, frames
received, connections lost, time gone by - and sends the frames that the session queues. The session
waits for nothing and reads no clock, so a test can take it through any order of events.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
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
from fedsz.transport.credentials import Identity
from fedsz.transport.frames import Ack, Begin, Bye, ByeKind, Control, Hello, Incoming, Welcome
from fedsz.transport.grid_base import Outgoing
from fedsz.transport.link_events import EventKind, LinkEvent, NodeConfig
from fedsz.transport.node import node_id

MAX_CLIENTS: Final = 1 << 16  # that are connected or may return, and ids that are remembered
TIMED_BYTES: Final = 64 << 10  # of the smallest upload that gives a bandwidth
_NO_REPLY: Final = ErrorCode.REPLY_MESSAGE_UNAVAILABLE


class Line(Protocol):
    """A connection, as the session writes to it."""

    identity: Identity | None
    """The client's certificate or token, if the server asks for one."""

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
    client_id: str = ""  # of its client, once it is posted
    begun: bool = False  # the client has it, or it is queued on its connection
    done: bool = False  # the reply is not awaited any more: the rest need not be sent
    expires: float = 0.0

    @property
    def message_id(self) -> str:
        """The id of the message."""
        return self.out.encoded.message_id


class Upload(Incoming):
    """A reply on its way into a sink; without a sink it is dropped, as it is not awaited."""

    sink: IO[bytes] | None

    def __init__(self, begin: Begin, sink: IO[bytes] | None, now: float, *, limit: int) -> None:
        super().__init__(begin, sink, limit=limit)
        self.since = now

    def drop(self) -> None:
        """Discard its bytes."""
        if self.sink is not None:
            with suppress(OSError):  # a full disk may refuse what is still buffered
                self.sink.close()
            self.sink = None


@dataclass(eq=False)
class Peer:
    """A client that is connected, or may still return."""

    client_id: str
    node_id: int
    session_key: bytes = b""  # of the process that was connected last
    share: Share | None = None  # of the data
    connection: Line | None = None
    pending: dict[str, Delivery] = field(default_factory=dict)
    upload: Upload | None = None  # in progress
    grace_ends: float | None = None  # while it is not connected

    def gives_way_to(self, hello: Hello, identity: Identity | None) -> bool:
        """Return whether a connection may take this client's place.

        The process that was connected last may at any time: it lost its link before the server
        noticed. Another one that proves the same id may when the link is dead, and one without
        proof may not, until the client has not come back in time.
        """
        same = hmac.compare_digest(hello.session_key, self.session_key)
        return (same and self.session_key != b"") or (
            self.connection is None and identity is not None
        )

    def put(self, item: Control | Delivery) -> None:
        """Queue a frame or a message on its connection, if there is one."""
        if self.connection is not None:
            self.connection.put(item)

    def put_requests(self) -> None:
        """Queue the requests that a connected client may have by now, the oldest ones."""
        for delivery in islice(self.pending.values(), frames.MAX_UNANSWERED):
            if self.connection is not None and not delivery.begun:
                delivery.begun = True
                self.put(delivery)

    def upload_of(self, delivery: Delivery) -> Upload | None:
        """Return the upload in progress if it is the reply to this message."""
        upload = self.upload
        return upload if upload and upload.message_id == delivery.message_id else None


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
        shares: of the data, of which each is one client's; None leaves shares to the clients.
        why_unfit: returns why a client with this config is refused, "" if it is not.

    Attributes:
        connected: node ids; replaced, never changed.
        names: client ids by node id, also of clients that left.
        bandwidths: of last uploads, by node id, in bits a second.
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
        self.connected: tuple[int, ...] = ()
        self.names: dict[int, str] = {}
        self.bandwidths: dict[int, float] = {}
        self._max_message_bytes, self._open_sink = max_message_bytes, open_sink
        self._reconnect_grace, self._shares = reconnect_grace, shares
        self._why_unfit, self._tell = why_unfit, tell
        self._peers: dict[int, Peer] = {}
        self._connections: dict[Line, Peer | None] = {}  # None until HELLO
        self._revoked: frozenset[int] = frozenset()
        self._closing: Bye | None = None

    def post(self, deliveries: Iterable[Delivery], now: float) -> None:
        """Send each message to its node; one that cannot be sent has its outcome at once."""
        for delivery in deliveries:
            node = delivery.out.metadata.dst_node_id
            peer = self._peers.get(node)
            if peer is None:
                who = f"client {self.names[node]!r}" if node in self.names else f"node {node}"
                error = Error(ErrorCode.NODE_UNAVAILABLE, f"{who} is not connected")
                delivery.settle(delivery, error)
                continue
            delivery.client_id = peer.client_id
            delivery.expires = now + delivery.timeout
            peer.pending[delivery.message_id] = delivery
            peer.put_requests()

    def hasten(self, deliveries: Iterable[Delivery], timeout: float, now: float) -> None:
        """Await these replies for ``timeout`` seconds from when they were posted."""
        for delivery in deliveries:
            delivery.expires += timeout - delivery.timeout
            delivery.timeout = timeout
        self.tick(now)

    def forget(self, deliveries: Iterable[Delivery]) -> None:
        """Await these replies no longer: they get no outcome."""
        for delivery in deliveries:
            peer = self._peers.get(delivery.out.metadata.dst_node_id)
            if peer is not None and delivery.message_id in peer.pending:
                self._release(peer, delivery, received=False)

    def shut(self, reason: str, *, failed: bool = False) -> None:
        """Give up what is pending, and say BYE to all clients, also those that come later.

        ``failed`` says that the run is not over, and that clients may wait for it to go on.
        """
        self._closing = Bye(ByeKind.FAILED if failed else ByeKind.FINISHED, reason)
        for peer in list(self._peers.values()):
            self._fail_all(peer, f"the server was closed before client {peer.client_id!r} replied")
            peer.put(self._closing)
            if peer.connection is None:
                self._forget(peer)

    def connect(self, connection: Line) -> None:
        """Note a new connection; its client is unknown until its first frame."""
        self._connections[connection] = None
        self._refuse_revoked(connection)

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

    def lost(self, connection: Line, now: float) -> None:
        """Note that a connection is over; its client has a while to come back."""
        peer = self._connections.pop(connection, None)
        if peer is not None:
            self._disconnect(peer, "server closed" if self._closing else "connection lost")
            peer.grace_ends = now + self._reconnect_grace
            if self._closing is not None:
                self._forget(peer)

    def refuse(self, connection: Line, reason: str) -> None:
        """End a connection for good; its replies are not awaited any more."""
        peer = self._say_bye(connection, Bye(ByeKind.REFUSED, reason))
        if peer is not None:
            self._disconnect(peer, reason)
            self._fail_all(peer, f"client {peer.client_id!r} was refused: {reason}")
            self._forget(peer)

    def revoke(self, serials: frozenset[int]) -> None:
        """Refuse all connections, now and later, with a proof of these serial numbers."""
        if serials != self._revoked:
            self._revoked = serials
            for connection in list(self._connections):
                self._refuse_revoked(connection)

    def tick(self, now: float) -> None:
        """Give up the replies and the clients whose time is over."""
        for peer in list(self._peers.values()):
            who = f"client {peer.client_id!r}"
            for delivery in [d for d in peer.pending.values() if d.expires <= now]:
                reason = f"no reply from {who} within {delivery.timeout:g} s"
                if (upload := peer.upload_of(delivery)) is not None:
                    passed = f"{upload.received / 1e6:.1f} of {megabytes(upload.size)}"
                    reason += f", given up during upload ({passed})"
                self._fail(peer, delivery, reason)
            if peer.grace_ends is not None and peer.grace_ends <= now:
                late = f"{who} left and did not return within {self._reconnect_grace:g} s"
                self._fail_all(peer, late, ErrorCode.NODE_UNAVAILABLE)
                self._forget(peer)

    def _refuse_revoked(self, connection: Line) -> None:
        identity = connection.identity
        if identity is not None and identity.serial in self._revoked:
            self.refuse(connection, f"{identity}, is revoked")

    def _say_bye(self, connection: Line, bye: Bye) -> Peer | None:
        """Turn a connection away; return the client that it was admitted as."""
        peer = self._connections.pop(connection, None)
        who = peer.client_id if peer else ""
        self._tell(LinkEvent(EventKind.REFUSED, who, detail=bye.reason))
        connection.put(bye)
        return peer

    def _admit(self, connection: Line, hello: Control | memoryview) -> None:
        """Take a client; tell it and the sender what is still to do."""
        if not isinstance(hello, Hello):
            raise CorruptStream("the first frame is not HELLO")
        if hello.protocol != frames.PROTOCOL:
            ours = f"this server speaks {frames.PROTOCOL}"
            raise UnsupportedStream(f"protocol {hello.protocol}; {ours}")
        identity = connection.identity
        if identity is not None and identity.client_id != hello.client_id:
            raise CorruptStream(f"the client id is {hello.client_id!r}; this is {identity}")
        if why := self._why_unfit(hello.node_config):
            raise CorruptStream(f"{hello.client_id!r} cannot take part: {why}")
        node = node_id(hello.client_id)
        if node not in self._peers and len(self._peers) >= MAX_CLIENTS:
            raise CorruptStream(f"the server has its {MAX_CLIENTS} clients")
        peer = self._peers.get(node) or Peer(hello.client_id, node)
        try:
            if node in self._peers and not peer.gives_way_to(hello, identity):
                raise Taken(f"the client id {hello.client_id!r} is in use")
            peer.share = share = self._share_of(peer, hello)
        except Taken as err:
            self._say_bye(connection, Bye(ByeKind.TAKEN, str(err)))
            return
        self._replace(peer)
        self._connections[connection], self._peers[node] = peer, peer
        self._remember(peer)
        peer.connection, peer.session_key = connection, hello.session_key
        peer.grace_ends = None
        self.connected = (*self.connected, node)
        have = peer.pending.keys() & set(hello.have)
        lent = share if hello.wants_share else None
        peer.put(Welcome(node, self._max_message_bytes, sorted(have), lent))
        for delivery in peer.pending.values():
            delivery.begun = delivery.message_id in have
        peer.put_requests()
        joined = EventKind.JOINED
        self._tell(LinkEvent(joined, peer.client_id, node_config=hello.node_config))
        if self._closing is not None:
            peer.put(self._closing)

    def _replace(self, peer: Peer) -> None:
        """End the connection that a client has before another of its own."""
        if peer.connection is not None:
            reason = f"another connection came with the client id {peer.client_id!r}"
            peer.put(Bye(ByeKind.REFUSED, reason))
            del self._connections[peer.connection]
            self._disconnect(peer, reason)

    def _remember(self, peer: Peer) -> None:
        """Keep the name of a client for when it has left."""
        self.names[peer.node_id] = peer.client_id
        if len(self.names) > MAX_CLIENTS:
            del self.names[next(iter(self.names))]

    def _share_of(self, peer: Peer, hello: Hello) -> Share | None:
        """Return the share of the data that a client has from now on; None if it names none.

        A client names its share, or asks for one. If it asks, it gets its last one, else the one
        that it names, else the first one without a client.

        Raises:
            Taken: the share is another client's, or all are.
        """
        named = Share.of(hello.node_config)
        if self._shares is None or self._closing or (named is None and not hello.wants_share):
            return None
        owners = {other.share: other for other in self._peers.values() if other is not peer}
        if not hello.wants_share:
            if named in owners:
                owner = owners[named].client_id
                raise Taken(f"share {named} of the data is client {owner!r}'s")
            return named
        every = (Share(index, self._shares) for index in range(self._shares))
        own = (s for s in (peer.share, named) if s and s.num_partitions == self._shares)
        share = next((s for s in chain(own, every) if s not in owners), None)
        if share is None:
            raise Taken(f"all {self._shares} shares of the data are taken")
        return share

    def _begin(self, peer: Peer, begin: Begin, now: float) -> None:
        if peer.upload is not None:  # this one breaks it off
            peer.upload.drop()
        peer.upload = Upload(begin, None, now, limit=self._max_message_bytes)
        if begin.message_id in peer.pending:
            peer.upload.sink = self._open_sink()
        else:
            peer.put(Ack(begin.message_id, received=False))

    def _feed(self, peer: Peer, upload: Upload, piece: memoryview, now: float) -> None:
        try:
            upload.feed(piece)
            if upload.sink is not None and upload.complete:
                upload.sink.flush()  # a full disk is noticed here, where it fails this reply alone
        except OSError as err:
            reason = f"the reply of client {peer.client_id!r} could not be stored: {err.strerror}"
            self._fail(peer, peer.pending[upload.message_id], reason)
        if upload.complete:
            self._finish_upload(peer, upload, now)

    def _finish_upload(self, peer: Peer, upload: Upload, now: float) -> None:
        peer.upload = None
        if upload.size >= TIMED_BYTES and now > upload.since:
            self.bandwidths[peer.node_id] = 8 * upload.size / (now - upload.since)
        detail = "" if upload.sink else "dropped: this reply is not awaited any more"
        kind, about = EventKind.RECEIVED, (peer.client_id, upload.message_id)
        self._tell(LinkEvent(kind, *about, detail, size=upload.size))
        if upload.sink is not None:
            delivery = peer.pending[upload.message_id]
            self._release(peer, delivery, received=True)
            delivery.settle(delivery, Stored(upload.sink, upload.size))

    def _disconnect(self, peer: Peer, reason: str) -> None:
        peer.connection = None
        self.connected = tuple(node for node in self.connected if node != peer.node_id)
        if peer.upload is not None:
            peer.upload.drop()
            peer.upload = None
        self._tell(LinkEvent(EventKind.LEFT, peer.client_id, detail=reason))

    def _forget(self, peer: Peer) -> None:
        """Let another process have this client's id and share from now on."""
        del self._peers[peer.node_id]
        self.bandwidths.pop(peer.node_id, None)

    def _fail_all(self, peer: Peer, reason: str, code: int = _NO_REPLY) -> None:
        for delivery in list(peer.pending.values()):
            self._fail(peer, delivery, reason, code)

    def _fail(self, peer: Peer, delivery: Delivery, reason: str, code: int = _NO_REPLY) -> None:
        self._release(peer, delivery, received=False)
        failed, message_id = EventKind.FAILED, delivery.message_id
        self._tell(LinkEvent(failed, peer.client_id, message_id, detail=reason))
        delivery.settle(delivery, Error(code, reason))

    def _release(self, peer: Peer, delivery: Delivery, *, received: bool) -> None:
        """End an exchange, and tell a connected client, so that it wastes no more on it."""
        del peer.pending[delivery.message_id]
        delivery.done = True
        if (upload := peer.upload_of(delivery)) is not None:
            upload.drop()
        peer.put(Ack(delivery.message_id, received))
        peer.put_requests()
