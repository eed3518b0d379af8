"""Clients and a server joined by links in memory: what the drivers do, one step at a time."""

from __future__ import annotations

import io
import itertools
from collections import Counter, defaultdict, deque
from typing import IO, TYPE_CHECKING, Any

from flwr.app import Metadata

from fedsz.transport.client_session import ClientSession
from fedsz.transport.credentials import Identity
from fedsz.transport.frames import PROTOCOL, Ack, Bye, ByeKind, Hello, Welcome, frames, pack, unpack
from fedsz.transport.grid_base import Outgoing
from fedsz.transport.link_events import EventKind, LinkEvent
from fedsz.transport.message_format import EncodedMessage
from fedsz.transport.node import node_id
from fedsz.transport.server_session import Delivery, Outcome, ServerSession, Settler, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT = 1000  # bytes of a message
GRACE = 10.0
session_keys = itertools.count(1)  # of processes: each draws another one
# What can happen on a link, and the apps' part; the server notices a loss after it has read all.
FRAMES = ("client writes", "server hears", "server writes", "client hears")
WAYS = (*FRAMES, "app answers", "server notices")


def encoded(message_id: str, body: bytes) -> EncodedMessage:
    return EncodedMessage(message_id, (body,), len(body))


def reply_to(message_id: str, client_id: str) -> bytes:
    return f"the reply of {client_id} to {message_id}".encode()


class Sink(io.BytesIO):
    """A place for a reply, on a disk that may be full."""

    full = False

    def write(self, piece: Any, /) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(piece)


def delivery(client_id: str, message_id: str, timeout: float, settle: Settler) -> Delivery:
    """Return a message for a client."""
    body = encoded(message_id, b"the message " + message_id.encode())
    metadata = Metadata(1, message_id, 1, node_id(client_id), "", "", 0.0, 0.0, "train")
    return Delivery(Outgoing(body, metadata), timeout, settle)


class Line:
    """A connection that keeps what is queued on it."""

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.heard: list[Any] = []

    def put(self, item: Any, /) -> None:
        self.heard.append(item)


class Door:
    """A server session, the connections of a test, and a clock.

    Attributes:
        lines: connections, by the names that a test gives them.
        events: of the session.
        outcomes: of the messages that were posted.
    """

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.lines: defaultdict[Any, Line] = defaultdict(Line)
        self.events: list[LinkEvent] = []
        self.outcomes: list[Outcome] = []
        limits = {"max_message_bytes": LIMIT, "reconnect_grace": GRACE, "open_sink": Sink}
        self.session = ServerSession(**(limits | options), tell=self.events.append)

    def says(self, who: Any, *raws: bytes) -> list[Any]:
        """Return the server's answer to these frames on a connection."""
        line = self.lines[who]
        before = len(line.heard)
        for raw in raws:
            self.session.receive(line, raw, self.now)
        return line.heard[before:]

    def knock(self, who: Any, hello: Hello, identity: Identity | None = None) -> list[Any]:
        """Return the answer to HELLO on a new connection."""
        self.lines[who].identity = identity
        self.session.connect(self.lines[who])
        return self.says(who, pack(hello))

    def serves(self, who: Any) -> bool:
        return self.session.serves(self.lines[who])

    def lose(self, who: Any) -> None:
        self.session.lost(self.lines[who], self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.session.tick(self.now)

    def post(self, *client_ids: str) -> list[Delivery]:
        """Post a message for each of these."""
        posted = [
            delivery(name, "m", 100.0, lambda _, outcome: self.outcomes.append(outcome))
            for name in client_ids
        ]
        self.session.post(posted, self.now)
        return posted


class Link:
    """One connection with what is under way on it.

    Attributes:
        up, down: frames that have been written and not yet read.
        lossy: the client is gone; what the server writes goes nowhere.
        welcome: the server has let the client in.
    """

    def __init__(self, device: Device) -> None:
        self.device, self.identity = device, device.identity
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.lossy = False
        self.welcome = False
        self.bye: Bye | None = None
        self.queue: deque[Any] = deque()  # control frames and deliveries, of the server
        self.outbox: deque[EncodedMessage] = deque()  # replies, of the client
        self.writing: tuple[Delivery, Iterator[bytes]] | None = None
        self.uploading: tuple[EncodedMessage, Iterator[bytes]] | None = None

    def put(self, item: Any, /) -> None:
        """Queue what the server sends."""
        if isinstance(item, Welcome):
            self.welcome = True
            proven = self.identity is None or self.identity.client_id == self.device.client_id
            assert proven, "a stranger was let in"
        if isinstance(item, Bye):
            replaced = item.reason.startswith("another connection")
            assert self.lossy or not replaced, "a live client was replaced"
            self.bye = self.bye or item
        self.queue.append(item)


class Device:
    """A process that runs a client: its session, its link, and what its app has done."""

    def __init__(self, client_id: str, identity: Identity | None = None) -> None:
        self.client_id, self.identity = client_id, identity
        hello = Hello(PROTOCOL, client_id, {}, [], next(session_keys).to_bytes(16))
        self.session = ClientSession(
            hello, max_message_bytes=LIMIT, send=self.send, tell=lambda _: None
        )
        self.link: Link | None = None
        self.trained: Counter[str] = Counter()

    def send(self, reply: EncodedMessage) -> None:
        assert self.link is not None, "a reply without a connection"
        self.link.outbox.append(reply)

    def work(self) -> None:
        """Let the app answer its next request."""
        request = self.session.take()
        assert request is not None
        assert request.message_id in self.session._owed
        self.trained[request.message_id] += 1
        body = request.source.read(request.size)
        assert body == b"the message " + request.message_id.encode()
        reply = encoded(request.message_id, reply_to(request.message_id, self.client_id))
        self.session.hand_in(reply)

    def hear(self) -> None:
        """Read one frame; leave when the server has said goodbye."""
        assert self.link is not None
        raw = self.link.down.popleft()
        self.session.receive(raw)
        frame = unpack(raw)
        if isinstance(frame, Ack):
            assert frame.message_id not in self.session._owed, "acknowledged, and still owed"
        if isinstance(frame, Welcome):
            known = {*self.trained, *self.session.requests}
            assert self.session._owed.keys() & set(known) <= set(frame.wanted)
        if self.session.bye is not None:
            self.leave()

    def write(self) -> None:
        """Write one frame of the reply on its way, or take up the next one."""
        link = self.link
        assert link is not None
        if link.uploading is None:
            link.uploading = (reply := link.outbox.popleft()), frames(reply)
        reply, raws = link.uploading
        raw = next(raws, None)
        if raw is None or reply.message_id not in self.session._owed:
            link.uploading = None
        else:
            link.up.append(raw)

    def leave(self) -> None:
        """Lose the connection; the server has yet to notice."""
        assert self.link is not None
        self.link.lossy = True
        self.link = None
        self.session.disconnect()


class World:
    """A server, its devices, and everything that a driver would have to remember."""

    def __init__(self) -> None:
        self.now = 0.0
        self.devices: list[Device] = []
        self.posted: dict[str, Delivery] = {}
        self.forgotten: set[str] = set()
        self.outcomes: dict[str, list[Any]] = {}
        self.present: Counter[str] = Counter()
        self.taken = 0  # replies that were told of and not dropped
        self.start()

    def start(self) -> None:
        """Start a server that knows nothing."""
        self.links: list[Link] = []  # that the server still serves
        self.sinks: list[Sink] = []
        self.present.clear()
        self.server = ServerSession(
            max_message_bytes=LIMIT,
            reconnect_grace=GRACE,
            open_sink=self.open_sink,
            tell=self.tell,
        )

    def crash(self) -> None:
        """Lose the server with all it knew."""
        for device in self.devices:
            if device.link is not None:
                device.leave()
        self.forgotten |= {i for i, outcomes in self.outcomes.items() if not outcomes}
        self.start()

    def open_sink(self) -> IO[bytes]:
        self.sinks.append(Sink())
        return self.sinks[-1]

    def tell(self, event: LinkEvent) -> None:
        if event.kind == EventKind.RECEIVED:
            self.taken += not event.detail
        elif event.kind in (EventKind.JOINED, EventKind.LEFT):
            self.present[event.client_id] += 1 if event.kind == EventKind.JOINED else -1

    def settle(self, settled: Delivery, outcome: Any) -> None:
        assert settled.done or "not connected" in outcome.reason
        self.outcomes[settled.message_id].append(outcome)
        if isinstance(outcome, Stored):
            with outcome.file as file:
                wanted = reply_to(settled.message_id, settled.client_id)
                assert file.getvalue() == wanted  # type: ignore[attr-defined]
                assert outcome.size == len(wanted)

    def post(self, client_ids: list[str], timeout: float) -> None:
        deliveries = []
        for client_id in client_ids:
            message_id = f"m{len(self.posted)}"
            self.posted[message_id] = delivery(client_id, message_id, timeout, self.settle)
            self.outcomes[message_id] = []
            deliveries.append(self.posted[message_id])
        self.server.post(deliveries, self.now)

    def connect(self, device: Device) -> None:
        device.link = Link(device)
        self.links.append(device.link)
        self.server.connect(device.link)
        device.link.up.append(device.session.connect())

    def hear(self, link: Link) -> None:
        self.server.receive(link, link.up.popleft(), self.now)
        if link.welcome and link.bye is not None and link.bye.kind == ByeKind.REFUSED:
            assert not self.awaited(link.device.client_id), "a refused client still owes"

    def awaited(self, client_id: str) -> list[str]:
        """Return the messages to a client that have no outcome yet and may have one."""
        open_ids = [i for i, o in self.outcomes.items() if not o and i not in self.forgotten]
        return [i for i in open_ids if self.posted[i].client_id == client_id]

    def write(self, link: Link) -> None:
        """Write one frame, or take up what comes next; BYE comes before all that is queued."""
        if link.writing is not None:
            message, raws = link.writing
            raw = next(raws, None)
            if raw is None:
                self.server.sent(message)
            if raw is None or message.done or link.bye is not None:
                link.writing = None
                return
        elif link.bye is not None:
            raw, link.queue = pack(link.bye), deque()
        elif isinstance(item := link.queue.popleft(), Delivery):
            link.writing = item, frames(item.out.encoded)
            return
        else:
            raw = pack(item)
        if not link.lossy:
            link.down.append(raw)

    def notice(self, link: Link) -> None:
        """Let the server notice that a client is gone."""
        self.links.remove(link)
        self.server.lost(link, self.now)

    def wait(self, seconds: float) -> None:
        """Let time go by, with the ticks of the driver."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + max(1.0, seconds / 20))
            self.server.tick(self.now)

    def idle(self) -> bool:
        """Say whether the server waits for no reply, and for no client to return."""
        peers = self.server._peers.values()
        return not any(peer.pending or peer.grace_ends is not None for peer in peers)

    def step(self, way: str) -> bool:
        """Move one frame of every link that has one to move this way; say whether any had."""
        links, linked = self.links, [device for device in self.devices if device.link]
        ways: dict[str, tuple[list[Any], Callable[[Any], None]]] = {
            "server hears": ([x for x in links if x.up and self.server.serves(x)], self.hear),
            "server writes": ([x for x in links if x.writing or x.queue], self.write),
            "server notices": ([x for x in links if x.lossy], self.notice),
            "client hears": ([d for d in linked if d.link.down], Device.hear),
            "client writes": (
                [d for d in linked if d.link.uploading or d.link.outbox],
                Device.write,
            ),
            "app answers": ([d for d in self.devices if d.session.requests], Device.work),
        }
        busy, act = ways[way]
        for one in busy:
            act(one)
        return bool(busy)

    def drain(self, ways: tuple[str, ...] = WAYS) -> None:
        """Let these things happen until none is left."""
        while any(self.step(way) for way in ways):
            pass
