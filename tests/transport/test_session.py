"""The sessions of both ends in any order of events: posts, frames, losses, returns, time."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from typing import IO, TYPE_CHECKING, Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedsz.transport import frames
from fedsz.transport.client_session import ClientSession
from fedsz.transport.credentials import Identity
from fedsz.transport.frames import MAX_UNANSWERED, PROTOCOL, Bye, ByeKind, Hello, Welcome, pack
from fedsz.transport.link_events import EventKind, LinkEvent
from fedsz.transport.node import node_id
from fedsz.transport.server_session import Delivery, ServerSession, Stored
from tests.transport.sessions import GRACE, LIMIT, Sink, delivery, encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fedsz.transport.message_format import EncodedMessage

CLIENTS = ("a", "b")
# What can happen on a link, and the apps' part; the server notices a loss after it has read all.
FRAMES = ("client writes", "server hears", "server writes", "client hears")
WAYS = (*FRAMES, "app answers", "server notices")
session_keys = itertools.count(1)  # of processes: each draws another one
clients = st.sampled_from(CLIENTS)


def reply_to(message_id: str, client_id: str) -> bytes:
    return f"the reply of {client_id} to {message_id}".encode()


class Link:
    """One connection, what is queued at either end, and what is under way on it.

    Attributes:
        up, down: frames that have been written and not yet read.
        lossy: the client is gone; what the server writes goes nowhere.
        welcome: the server has let the client in.
    """

    def __init__(self, device: Device) -> None:
        self.device, self.identity = device, device.identity
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.lossy = self.welcome = False
        self.bye: Bye | None = None
        self.queue: deque[Any] = deque()  # control frames and deliveries, of the server
        self.outbox: deque[EncodedMessage] = deque()  # replies, of the client
        self.uploading: EncodedMessage | None = None
        self.written, self.uploaded = self._written(), self._uploaded()

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

    def _written(self) -> Iterator[bytes | None]:
        """Yield what the server's driver writes, None while it has nothing to write."""
        while self.bye is None:
            item = self.queue.popleft() if self.queue else None
            if not isinstance(item, Delivery):
                yield None if item is None else pack(item)
                continue
            for raw in frames.frames(item.out.encoded):
                if item.done or self.bye is not None:
                    break
                yield raw
        yield pack(self.bye)

    def _uploaded(self) -> Iterator[bytes | None]:
        """Yield what the client's driver writes, None while it has nothing to write."""
        while True:
            self.uploading = reply = self.outbox.popleft() if self.outbox else None
            if reply is None:
                yield None
                continue
            for raw in frames.frames(reply):
                if self.device.session.reply(reply.message_id) is None:
                    break
                yield raw

    def begin_again(self) -> None:
        """Have the client break off the reply that it sends, and send it anew."""
        if self.uploading is not None:
            self.outbox.appendleft(self.uploading)
        self.uploaded = self._uploaded()


class Device:
    """A process that runs a client: its session, its link, and what its app has done."""

    def __init__(self, client_id: str, identity: Identity | None) -> None:
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

    def answer(self) -> bool:
        """Let the app answer its next request; say whether there was one."""
        request = self.session.take()
        if request is None:
            return False
        self.trained[request.message_id] += 1
        body = request.source.read(request.size)
        assert body == b"the message " + request.message_id.encode()
        self.session.hand_in(
            encoded(request.message_id, reply_to(request.message_id, self.client_id))
        )
        return True

    def hear(self, raw: bytes) -> None:
        """Read one frame; leave when the server has said goodbye."""
        self.session.receive(raw)
        frame = frames.unpack(raw)
        if isinstance(frame, Welcome):
            assert {*self.trained, *self.session.requests} & self.owed() <= {*frame.wanted}
        if self.session.bye is not None:
            self.leave()

    def owed(self) -> set[str]:
        """Return the messages that it still has to answer, or whose reply has no ACK."""
        return {*self.session._owed}

    def leave(self) -> None:
        """Lose the connection; the server has yet to notice."""
        assert self.link is not None
        self.link.lossy, self.link = True, None
        self.session.disconnect()


class Sessions(RuleBasedStateMachine):
    """A server and its clients; every rule is one thing that can happen next."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks = mock.patch.object(frames, "CHUNK_BYTES", 7)  # several frames a message
        self.chunks.start()
        self.now = 0.0
        self.devices: list[Device] = []
        self.posted: dict[str, Delivery] = {}
        self.forgotten: set[str] = set()
        self.outcomes: dict[str, list[Any]] = {}
        self.stored = 0  # replies that were told of and not dropped
        self.proven = False  # whether the server asks for certificates
        self.revoked: set[int] = set()  # serial numbers
        self.serials = {client_id: i for i, client_id in enumerate((*CLIENTS, "late"))}
        self.start_server()

    # What a driver does

    def start_server(self) -> None:
        """Start a server that knows nothing."""
        self.links: list[Link] = []  # that the server still serves
        self.sinks: list[Sink] = []
        self.present: Counter[str] = Counter()
        self.server = ServerSession(
            max_message_bytes=LIMIT,
            reconnect_grace=GRACE,
            open_sink=self.open_sink,
            tell=self.hear_event,
        )

    def open_sink(self) -> IO[bytes]:
        self.sinks.append(Sink())
        return self.sinks[-1]

    def hear_event(self, event: LinkEvent) -> None:
        self.stored += event.kind == EventKind.RECEIVED and not event.detail
        self.present[event.client_id] += event.kind == EventKind.JOINED
        self.present[event.client_id] -= event.kind == EventKind.LEFT

    def settle(self, settled: Delivery, outcome: Any) -> None:
        assert settled.done or "not connected" in outcome.reason
        self.outcomes[settled.message_id].append(outcome)
        if isinstance(outcome, Stored):
            with outcome.file as file:
                body = file.getvalue()  # type: ignore[attr-defined]
            assert body == reply_to(settled.message_id, settled.client_id)
            assert outcome.size == len(body)

    def connect(self, device: Device) -> None:
        device.link = Link(device)
        self.links.append(device.link)
        self.server.connect(device.link)
        device.link.up.append(device.session.connect())

    def move(self, link: Link, way: str) -> bool:
        """Move one frame of a link, if there is one to move this way; say whether there was."""
        device, raw = link.device, None
        if way == "client writes" and not link.lossy:
            if (raw := next(link.uploaded)) is not None:
                link.up.append(raw)
        elif way == "server hears" and link.up and self.server.serves(link):
            self.server.receive(link, raw := link.up.popleft(), self.now)
            if link.welcome and link.bye is not None and link.bye.kind == ByeKind.REFUSED:
                assert not self.awaited(device.client_id), "a refused client still owes"
        elif way == "server writes":
            if (raw := next(link.written, None)) is not None and not link.lossy:
                link.down.append(raw)
        elif way == "client hears" and link.down and not link.lossy:
            device.hear(raw := link.down.popleft())
        elif way == "server notices" and link.lossy:
            self.links.remove(link)
            self.server.lost(link, self.now)
            return True
        return raw is not None

    def step(self, way: str) -> bool:
        """Move one frame of every link that has one to move this way; say whether any had."""
        if way == "app answers":
            moved = [device.answer() for device in self.devices]
        else:
            moved = [self.move(link, way) for link in list(self.links)]
        return any(moved)

    def drain(self, ways: tuple[str, ...] = WAYS) -> None:
        """Let these things happen until none is left."""
        while any(self.step(way) for way in ways):
            pass

    # What is known of it

    def awaited(self, client_id: str) -> list[str]:
        """Return the messages to a client that have no outcome yet and may have one."""
        unsettled = [i for i, o in self.outcomes.items() if not o and i not in self.forgotten]
        return [i for i in unsettled if self.posted[i].client_id == client_id]

    def idle(self) -> bool:
        """Say whether the server waits for no reply, and for no client to return."""
        peers = self.server._peers.values()
        return not any(peer.pending or peer.grace_ends is not None for peer in peers)

    def identity(self, client_id: str) -> Identity | None:
        """Return the certificate of the next process of a client, if this server asks for it."""
        return Identity(client_id, self.serials[client_id]) if self.proven else None

    def linked(self, client_ids: tuple[str, ...] = CLIENTS) -> list[Link]:
        return [d.link for d in self.devices if d.link and d.client_id in client_ids]

    def alone(self) -> list[Device]:
        """Return the devices that may come back: those whose id is taken ask again."""
        return [
            d
            for d in self.devices
            if not d.link
            and (d.session.bye is None or d.session.bye.kind == ByeKind.TAKEN)
            and d.identity == self.identity(d.client_id)
        ]

    # What people and clocks do

    @initialize(proven=st.booleans())
    def everybody_joins(self, proven: bool) -> None:
        self.proven = proven
        for client_id in CLIENTS:
            self.a_device_starts(client_id)
        self.drain()

    @rule(
        client_ids=st.lists(clients, min_size=1, max_size=3),
        timeout=st.sampled_from([0.0, 15.0, 500.0, 600.0]),
    )
    def messages_are_posted(self, client_ids: list[str], timeout: float) -> None:
        deliveries = []
        for client_id in client_ids:
            message_id = f"m{len(self.posted)}"
            self.posted[message_id] = delivery(client_id, message_id, timeout, self.settle)
            self.outcomes[message_id] = []
            deliveries.append(self.posted[message_id])
        self.server.post(deliveries, self.now)

    @rule(seconds=st.sampled_from([1.0, GRACE, 20.0]))
    def time_goes_by(self, seconds: float) -> None:
        away = [c for c in CLIENTS if node_id(c) not in self.server.connected]
        end = self.now + seconds
        while self.now < end:  # with the ticks of the driver
            self.now = min(end, self.now + max(1.0, seconds / 20))
            self.server.tick(self.now)
        if seconds >= GRACE:
            assert not any(map(self.awaited, away)), "awaited after the grace"

    # What links and apps do

    @rule(
        ways=st.sampled_from([*((way,) for way in FRAMES), FRAMES[:2], FRAMES[2:]]),
        steps=st.integers(1, 6),
        answer=st.booleans(),
    )
    def frames_move(self, ways: tuple[str, ...], steps: int, answer: bool) -> None:
        """Move a few frames of every link one way, from end to end or not."""
        if answer:
            self.step("app answers")
        for way in ways * steps:
            self.step(way)

    @rule()
    def everything_under_way_arrives(self) -> None:
        self.drain(FRAMES)

    # What breaks

    @rule(
        client_id=clients,
        frames_lost=st.booleans(),
        then=st.sampled_from(["nothing", "the server notices", "the client returns"]),
    )
    def a_link_breaks(self, client_id: str, frames_lost: bool, then: str) -> None:
        for link in self.linked((client_id,))[-1:]:
            if frames_lost:
                link.up.clear()
            link.device.leave()
            if then == "the client returns":
                self.connect(link.device)
        if then == "the server notices":
            self.step("server notices")

    @rule()
    def clients_come_back(self) -> None:
        for device in self.alone():
            self.connect(device)

    @rule(client_id=clients)
    def a_device_starts(self, client_id: str) -> None:
        """Start one, maybe beside another of the same id: a twin."""
        self.devices.append(Device(client_id, self.identity(client_id)))
        self.connect(self.devices[-1])

    @rule(client_id=clients, kind=st.integers(0, 7))
    def something_rare_happens(self, client_id: str, kind: int) -> None:
        rare: tuple[Callable[[str], None], ...] = (
            self.the_server_crashes,
            self.a_reply_is_awaited_no_longer,
            self.a_deadline_is_nearer,
            self.the_disk_is_full_or_has_room,
            self.a_rule_is_broken,
            self.an_upload_begins_again,
            self.a_stranger_comes,
            self.a_client_is_revoked,
        )
        rare[kind](client_id)

    def the_server_crashes(self, _: str) -> None:
        for link in self.linked():
            link.device.leave()
        self.forgotten |= {i for i, outcomes in self.outcomes.items() if not outcomes}
        self.start_server()
        self.server.revoke(frozenset(self.revoked))

    def a_reply_is_awaited_no_longer(self, client_id: str) -> None:
        for message_id in self.awaited(client_id)[:1]:
            self.forgotten.add(message_id)
            self.server.forget([self.posted[message_id]])

    def a_deadline_is_nearer(self, _: str) -> None:
        self.server.hasten(list(self.posted.values()), 10.0, self.now)

    def the_disk_is_full_or_has_room(self, _: str) -> None:
        Sink.full = not Sink.full

    def a_rule_is_broken(self, client_id: str) -> None:
        for link in self.linked((client_id,))[-1:]:
            link.up.append(b"\xff")

    def an_upload_begins_again(self, client_id: str) -> None:
        for link in self.linked((client_id,))[-1:]:
            link.begin_again()

    def a_stranger_comes(self, client_id: str) -> None:
        """Have a process that proves another id, or none, ask for this one."""
        other = next(c for c in CLIENTS if c != client_id)
        self.devices.append(Device(client_id, self.identity(other)))
        self.connect(self.devices[-1])

    def a_client_is_revoked(self, client_id: str) -> None:
        """Disconnect its processes, and give it another certificate."""
        if self.proven:
            self.revoked.add(self.serials[client_id])
            self.serials[client_id] = max(self.serials.values()) + 1
            self.server.revoke(frozenset(self.revoked))
            assert not self.awaited(client_id) or not self.present[client_id]

    # How it ends

    def teardown(self) -> None:
        self.come_to_rest()
        self.time_goes_by(1000.0)
        for message_id, outcomes in self.outcomes.items():
            if message_id not in self.forgotten:
                assert len(outcomes) == 1, f"{message_id} has no outcome"
        assert self.idle()
        self.messages_are_posted(list(CLIENTS), 100.0)
        self.server.shut("over")
        self.a_device_starts("late")
        self.drain()
        assert all(device.link is None for device in self.devices)
        assert all(len(o) == 1 for o in list(self.outcomes.values())[-len(CLIENTS) :])
        Sink.full = False
        self.chunks.stop()

    def come_to_rest(self) -> None:
        """Let one device of each id come back and all that is under way arrive."""
        self.drain()
        self.time_goes_by(GRACE)  # for those who come in place of another process
        for client_id in CLIENTS:
            if node_id(client_id) not in self.server.connected:
                own = [d for d in self.alone() if d.client_id == client_id]
                if own:
                    self.connect(own[-1])
                else:
                    self.a_device_starts(client_id)
        self.drain()

        assert set(self.server.connected) == {node_id(client_id) for client_id in CLIENTS}
        assert self.idle(), "a reply is owed over a link that is up"
        assert all(sink.closed for sink in self.sinks)
        for link in self.linked():
            assert not link.device.owed() & self.posted.keys(), "a client still owes"

    # What holds at every moment

    @invariant()
    def nothing_has_two_outcomes(self) -> None:
        assert all(len(outcomes) <= 1 for outcomes in self.outcomes.values())
        unwanted = [i for i in self.forgotten if self.outcomes[i]]
        assert not unwanted, "a reply that nobody awaits has an outcome"

    @invariant()
    def a_reply_is_taken_once_and_trained_once(self) -> None:
        outcomes = [o for outcomes in self.outcomes.values() for o in outcomes]
        assert self.stored == sum(isinstance(outcome, Stored) for outcome in outcomes)
        assert all(max(d.trained.values(), default=0) <= 1 for d in self.devices)

    @invariant()
    def who_is_connected_is_known(self) -> None:
        present = [node_id(c) for c in CLIENTS if self.present[c]]
        assert sorted(self.server.connected) == sorted(present)
        assert all(n in (0, 1) for n in self.present.values())

    @invariant()
    def nothing_piles_up(self) -> None:
        open_sinks = sum(not sink.closed for sink in self.sinks)
        assert open_sinks <= len(self.server.connected)
        ended = [link for link in self.links if link.bye and link.bye.kind != "finished"]
        assert not any(map(self.server.serves, ended))
        for device in self.devices:
            assert len(device.owed() & self.posted.keys()) <= MAX_UNANSWERED
            assert {*device.session.requests} <= device.owed(), "what nobody waits for is kept"

    @invariant()
    def what_is_settled_is_not_sent(self) -> None:
        for message_id, outcomes in self.outcomes.items():
            settled = outcomes and "not connected" not in getattr(outcomes[0], "reason", "")
            assert not settled or self.posted[message_id].done


TestSessions = Sessions.TestCase
# More where the profile asks for more, as `make fuzz` does.
examples = max(200, settings.default.max_examples)
TestSessions.settings = settings(max_examples=examples, stateful_step_count=50, deadline=None)
