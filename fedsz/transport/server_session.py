"""The server's part of the protocol: what each client owes, has, and is told. No sockets.

A `ServerSession` is a state machine. It is told what happens - messages posted, frames received,
connections lost, time gone by - and queues what is to be sent. It waits for nothing and reads no
clock, so a test can take it through any order of events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import IO, Final

from flwr.app import Error

from fedsz.errors import CorruptStream, UnsupportedStream
from fedsz.flower_compat import ErrorCode
from fedsz.transport import frames
from fedsz.transport.events import Counters, EventKind, LinkEvent, NodeConfig
from fedsz.transport.frames import Ack, Begin, Bye, ByeKind, Control, Hello, Welcome
from fedsz.transport.identity import Claims, Identity, why_revoked
from fedsz.transport.node import node_id
from fedsz.transport.peer import Delivery, Line, Peer, Stored, Taken, Upload
from fedsz.transport.shares import Claim, Shares

MAX_PEERS: Final = 1 << 16  # clients that are remembered; more are taken once some have left
_NO_REPLY: Final = ErrorCode.REPLY_MESSAGE_UNAVAILABLE


class ServerSession:
    """All clients of a server and the replies they owe.

    All times are seconds on one monotonic clock. What a delivery's ``settle`` and ``tell`` do must
    not call the session.

    Args:
        max_message_bytes: the largest reply accepted.
        reconnect_grace: seconds that a client has to come back.
        open_sink: makes a place for the bytes of one reply. The session closes those it drops; an
            OSError on writing fails the delivery.
        tell: hears of each event.
        shares: who has which share of the data; None leaves that to the clients.
        why_unfit: returns why a client that says this of itself is refused, "" if it is not.
    """

    def __init__(
        self,
        *,
        max_message_bytes: int,
        reconnect_grace: float,
        open_sink: Callable[[], IO[bytes]],
        tell: Callable[[LinkEvent], None] = lambda _: None,
        shares: Shares | None = None,
        why_unfit: Callable[[NodeConfig], str] | None = None,
    ) -> None:
        self.connected: tuple[int, ...] = ()  # node ids; replaced, never changed
        self.counters = Counters()  # of what has crossed the links; others count the bytes
        self.bandwidths: dict[int, float] = {}  # of last uploads, by node id, in bits a second
        self._max_message_bytes, self._open_sink = max_message_bytes, open_sink
        self._reconnect_grace, self._shares = reconnect_grace, shares
        self._why_unfit, self._tell = why_unfit, tell
        self._peers: dict[int, Peer] = {}
        self._connections: dict[Line, Peer | None] = {}  # None until HELLO
        self._identities: dict[Line, Identity] = {}  # of the connections
        self._claims = Claims()
        self._closing: Bye | None = None

    def post(self, deliveries: Iterable[Delivery], now: float) -> None:
        """Send each message to its node; what cannot be sent has its outcome at once."""
        for delivery in deliveries:
            node = delivery.out.metadata.dst_node_id
            peer = self._peers.get(node)
            if peer is None or (peer.connection is None and peer.grace_ends is None):
                who = f"node {node}" if peer is None else f"client {peer.client_id!r}"
                error = Error(ErrorCode.NODE_UNAVAILABLE, f"{who} is not connected")
                delivery.settle(delivery, error)
                continue
            delivery.client_id = peer.client_id
            delivery.expires = now + delivery.timeout
            peer.pending[delivery.message_id] = delivery
            self._send_requests(peer)

    def hasten(self, deliveries: Iterable[Delivery], timeout: float, now: float) -> None:
        """Await these replies for so long from when they were asked for, not as long as before."""
        for delivery in deliveries:
            delivery.expires += timeout - delivery.timeout
            delivery.timeout = timeout
        self.tick(now)

    def forget(self, deliveries: Iterable[Delivery]) -> None:
        """Await these replies no longer, and tell nobody but the clients."""
        for delivery in deliveries:
            peer = self._peers.get(delivery.out.metadata.dst_node_id)
            if peer is not None and delivery.message_id in peer.pending:
                self._release(peer, delivery, received=False)

    def shut(self, reason: str, *, failed: bool = False) -> None:
        """Give up what is pending and send all clients home, also those that come later.

        ``failed`` says that the run is not over, and that they may wait for it to go on.
        """
        self._closing = Bye(ByeKind.FAILED if failed else ByeKind.FINISHED, reason)
        for peer in self._peers.values():
            self._fail_all(peer, f"the server was closed before client {peer.client_id!r} replied")
            peer.grace_ends = None
            self._send(peer, self._closing)

    def client_name(self, node: int) -> str:
        """Return what a client calls itself; its node id if it has never been here."""
        peer = self._peers.get(node)
        return str(node) if peer is None else peer.client_id

    def connect(self, connection: Line, identity: Identity = ()) -> None:
        """Note a new connection; its client is unknown until its first frame.

        With an ``identity`` that frame must have a client id that it proves.
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
        sent = EventKind.SENT
        self.counters.messages_sent += 1
        self._tell(LinkEvent(sent, delivery.client_id, delivery.message_id, wire_bytes))

    def lost(self, connection: Line, now: float) -> None:
        """Note that a connection is over; its client has a while to come back."""
        peer = self._drop(connection)
        if peer is not None:
            self._disconnect(peer, "server closed" if self._closing else "connection lost")
            peer.grace_ends = None if self._closing else now + self._reconnect_grace

    def refuse(self, connection: Line, reason: str) -> None:
        """Send a client home for good; nothing is expected of it any more."""
        peer = self._turn_away(connection, reason, ByeKind.REFUSED)
        if peer is not None:
            self._disconnect(peer, reason)
            self._fail_all(peer, f"client {peer.client_id!r} was refused: {reason}")

    def revoke(self, serials: Collection[int]) -> None:
        """Send home all connections that have shown a proof of one of these serial numbers."""
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

    def _turn_away(self, connection: Line, reason: str, kind: ByeKind) -> Peer | None:
        """Say goodbye to a connection; return the client that it was admitted as."""
        peer = self._drop(connection)
        who = peer.client_id if peer else ""
        self._tell(LinkEvent(EventKind.REFUSED, who, detail=reason))
        connection.put(Bye(kind, reason))
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
        self._claims.check(identity, hello.client_id)
        if self._why_unfit is not None and (why := self._why_unfit(hello.node_config)):
            raise CorruptStream(f"{hello.client_id!r} cannot take part: {why}")
        node = node_id(hello.client_id)
        if node not in self._peers and len(self._peers) >= MAX_PEERS:
            self._forget_those_who_left()
        peer = self._peers.setdefault(node, Peer(hello.client_id, node))
        try:
            if not peer.gives_way_to(hello, identity):
                raise Taken(f"the client id {hello.client_id!r} is in use")
            share, borrower = self._share_of(peer, hello)
        except Taken as err:
            self._turn_away(connection, str(err), ByeKind.TAKEN)
            return
        reason = f"another connection came with the client id {peer.client_id!r}"
        self._end(peer, Bye(ByeKind.REPLACED, reason))
        if borrower is not None:
            self._send_away(self._peers[borrower], f"client {peer.client_id!r} has its share again")
        self._connections[connection] = peer
        peer.connection, peer.session_key = connection, hello.session_key
        peer.grace_ends = None
        self.connected = (*self.connected, node)
        have = peer.pending.keys() & set(hello.have)
        given = share if hello.wants_share else None
        self._send(peer, Welcome(node, self._max_message_bytes, sorted(have), given))
        for delivery in peer.pending.values():
            delivery.begun = delivery.message_id in have
            delivery.sent = delivery.sent and delivery.begun
        self._send_requests(peer)
        joined = EventKind.JOINED
        self._tell(LinkEvent(joined, peer.client_id, node_config=hello.node_config))
        if self._closing is not None:
            self._send(peer, self._closing)

    def _end(self, peer: Peer, bye: Bye) -> None:
        """End the connection of a client, if it has one."""
        if peer.connection is not None:
            self._send(peer, bye)
            self._drop(peer.connection)
            self._disconnect(peer, bye.reason)

    def _send_away(self, peer: Peer, reason: str) -> None:
        """Send a client home for now; it may ask for another share of the data."""
        self._end(peer, Bye(ByeKind.TAKEN, reason))
        peer.grace_ends = None
        self._fail_all(peer, f"client {peer.client_id!r} was sent away: {reason}")

    def _share_of(self, peer: Peer, hello: Hello) -> Claim:
        """Return the share of the data that a client has from now on; Taken if none is free."""
        if self._shares is None or self._closing is not None:
            return Claim(None)

        def rival(node: int) -> str:
            other = self._peers.get(node)
            return other.client_id if other is not None and other.live else ""

        return self._shares.claim(peer.node_id, hello, rival)

    def _forget_those_who_left(self) -> None:
        """Make room for clients of other ids."""
        left = [peer for peer in self._peers.values() if not peer.live]
        for peer in left:
            del self._peers[peer.node_id]
            if self._shares is not None:
                self._shares.forget(peer.node_id)
            self.bandwidths.pop(peer.node_id, None)
        if not left:
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
        known = self.bandwidths.get(peer.node_id, 0.0)
        self.bandwidths[peer.node_id] = upload.bandwidth(known, now)
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
