"""Clients and a server joined by links in memory: what the drivers do, one step at a time."""

from __future__ import annotations

import io
import itertools
from collections import Counter, deque
from typing import IO, TYPE_CHECKING, Any

from flwr.app import Metadata

from fedsz.transport.client_session import ClientSession
from fedsz.transport.events import EventKind, LinkEvent
from fedsz.transport.frames import PROTOCOL, Ack, Bye, ByeKind, Hello, Welcome, frames, pack, unpack
from fedsz.transport.grid_base import Outgoing
from fedsz.transport.identity import Identity
from fedsz.transport.messages import EncodedMessage
from fedsz.transport.node import node_id
from fedsz.transport.peer import Delivery, Stored
from fedsz.transport.server_session import Output, Send, ServerSession, Settle

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

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


def delivery(client_id: str, message_id: str, timeout: float) -> Delivery:
    """Return a message for a client."""
    body = encoded(message_id, b"the message " + message_id.encode())
    metadata = Metadata(1, message_id, 1, node_id(client_id), "", "", 0.0, 0.0, "train")
    return Delivery(Outgoing(body, metadata), timeout, lambda *_: None)


def told(who: Hashable, outputs: list[Output]) -> list[Any]:
    """Return what is sent to a connection."""
    return [x.item for x in outputs if isinstance(x, Send) and x.connection == who]


class Door:
    """A server session that hears what a test says, and a clock."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        limits = {"max_message_bytes": LIMIT, "reconnect_grace": GRACE, "open_sink": Sink}
        self.session = ServerSession(**(limits | options))

    def says(self, who: Hashable, *raws: bytes) -> list[Output]:
        """Return what is to be done when these frames come."""
        return [x for raw in raws for x in self.session.receive(who, raw, self.now)]

    def knock(self, who: Hashable, hello: Hello, identity: Identity | None = None) -> list[Output]:
        """Return what is to be done when somebody says HELLO."""
        self.session.connect(who, identity)
        return self.says(who, pack(hello))

    def lose(self, who: Hashable) -> None:
        self.session.lost(who, self.now)

    def wait(self, seconds: float) -> list[Output]:
        self.now += seconds
        return self.session.tick(self.now)


class Link:
    """One connection with what is under way on it.

    Attributes:
        up, down: frames that have been written and not yet read.
        lossy: the client is gone; what the server writes goes nowhere.
        welcome: the server has let the client in.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.lossy = False
        self.welcome = False
        self.bye: Bye | None = None
        self.queue: deque[Any] = deque()  # control frames and deliveries, of the server
        self.outbox: deque[EncodedMessage] = deque()  # replies, of the client
        self.writing: tuple[Delivery, Iterator[bytes]] | None = None
        self.uploading: tuple[EncodedMessage, Iterator[bytes]] | None = None


class Device:
    """A process that runs a client: its session, its link, and what its app has done."""

    def __init__(self, client_id: str, identity: Identity | None = None) -> None:
        self.client_id, self.identity = client_id, identity
        hello = Hello(PROTOCOL, client_id, {}, [], next(session_keys).to_bytes(16))
        self.session = ClientSession(hello, max_message_bytes=LIMIT)
        self.link: Link | None = None
        self.trained: Counter[str] = Counter()

    def do(self, outputs: list[Any]) -> None:
        for output in outputs:
            if isinstance(output, EncodedMessage):
                assert self.link is not None, "a reply without a connection"
                self.link.outbox.append(output)

    def work(self) -> None:
        """Let the app answer its next request."""
        request = self.session.take()
        assert request is not None
        assert request.message_id in self.session._owed
        self.trained[request.message_id] += 1
        body = request.source.read(request.size)
        assert body == b"the message " + request.message_id.encode()
        reply = encoded(request.message_id, reply_to(request.message_id, self.client_id))
        self.do(self.session.hand_in(reply))

    def hear(self) -> None:
        """Read one frame; leave when the server has said goodbye."""
        assert self.link is not None
        raw = self.link.down.popleft()
        self.do(self.session.receive(raw))
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
            max_message_bytes=LIMIT, reconnect_grace=GRACE, open_sink=self.open_sink
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

    def do(self, outputs: list[Any]) -> None:
        for output in outputs:
            match output:
                case Send(Link() as link, item):
                    if isinstance(item, Welcome):
                        link.welcome = True
                        device = link.device
                        names = device.identity.names if device.identity else {device.client_id}
                        assert device.client_id in names, "a stranger was let in"
                    if isinstance(item, Bye):
                        replaced = item.kind == ByeKind.REPLACED
                        assert link.lossy or not replaced, "a live client was replaced"
                        link.bye = link.bye or item
                    link.queue.append(item)
                case Settle(settled, outcome):
                    self.settle(settled, outcome)
                case LinkEvent(EventKind.RECEIVED):
                    self.taken += not output.detail
                case LinkEvent(EventKind.JOINED | EventKind.LEFT as kind):
                    self.present[output.client_id] += 1 if kind == EventKind.JOINED else -1

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
            self.posted[message_id] = delivery(client_id, message_id, timeout)
            self.outcomes[message_id] = []
            deliveries.append(self.posted[message_id])
        self.do(self.server.post(deliveries, self.now))

    def connect(self, device: Device) -> None:
        device.link = Link(device)
        self.links.append(device.link)
        self.server.connect(device.link, device.identity)
        device.link.up.append(device.session.connect())

    def hear(self, link: Link) -> None:
        self.do(self.server.receive(link, link.up.popleft(), self.now))
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
                self.do(self.server.sent(link, message, 0))
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
        self.do(self.server.lost(link, self.now))

    def wait(self, seconds: float) -> None:
        """Let time go by, with the alarms that the driver would have set."""
        end = self.now + seconds
        while (due := self.server.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.do(self.server.tick(self.now))
            later = self.server.next_deadline()
            assert later is None or later > self.now, "an alarm that goes off for ever"
        self.now = end

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
