"""The sessions of both ends in any order of events: posts, frames, losses, returns, time."""

from __future__ import annotations

from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fedsz.transport import frames
from fedsz.transport.credentials import Identity
from fedsz.transport.frames import MAX_UNANSWERED, ByeKind
from fedsz.transport.node import node_id
from fedsz.transport.server_session import Stored
from tests.session_links import FRAMES, GRACE, Device, Sink, World

CLIENTS = ("a", "b")
RARE = (
    "a twin",
    "a crash",
    "a change of mind",
    "a nearer deadline",
    "a full disk",
    "a broken rule",
    "an upload begun again",
    "a stranger",
    "a revocation",
)
clients = st.sampled_from(CLIENTS)
picks = st.integers(0, 99)  # of whatever there is to pick from


class Sessions(RuleBasedStateMachine):
    """A server and its clients; every rule is one thing that can happen next."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks = mock.patch.object(frames, "CHUNK_BYTES", 7)  # several frames a message
        self.chunks.start()
        self.world = World()
        self.proven = False  # whether the server asks for certificates
        self.revoked: set[int] = set()  # serial numbers
        self.serials = {client_id: i for i, client_id in enumerate((*CLIENTS, "late"))}

    def teardown(self) -> None:
        self.come_to_rest()
        self.world.wait(1000.0)
        for message_id, outcomes in self.world.outcomes.items():
            if message_id not in self.world.forgotten:
                assert len(outcomes) == 1, f"{message_id} has no outcome"
        assert self.world.idle()
        self.world.post(list(CLIENTS), 100.0)
        self.world.server.shut("over")
        self.a_device_starts("late")
        self.world.drain()
        assert all(device.link is None for device in self.world.devices)
        assert all(len(o) == 1 for o in list(self.world.outcomes.values())[-len(CLIENTS) :])
        Sink.full = False
        self.chunks.stop()

    def identity(self, client_id: str) -> Identity | None:
        """Return the certificate of the next process of a client, if this server asks for it."""
        return Identity(client_id, self.serials[client_id]) if self.proven else None

    def linked(self) -> list[Device]:
        return [device for device in self.world.devices if device.link]

    def alone(self) -> list[Device]:
        """Return the devices that may come back: those whose id is taken ask again."""
        ended = (None, ByeKind.TAKEN)
        kinds = [(d, d.session.bye and d.session.bye.kind) for d in self.world.devices]
        return [
            d
            for d, kind in kinds
            if not d.link and kind in ended and d.identity == self.identity(d.client_id)
        ]

    @initialize(proven=st.booleans())
    def everybody_joins(self, proven: bool) -> None:
        self.proven = proven
        for client_id in CLIENTS:
            self.a_device_starts(client_id)
        self.world.drain()

    # What people and clocks do

    @rule(
        client_ids=st.lists(clients, min_size=1, max_size=3),
        timeout=st.sampled_from([0.0, 15.0, 500.0, 600.0]),
    )
    def messages_are_posted(self, client_ids: list[str], timeout: float) -> None:
        self.world.post(client_ids, timeout)

    @rule(seconds=st.sampled_from([1.0, GRACE, 20.0]))
    def time_goes_by(self, seconds: float) -> None:
        away = [c for c in CLIENTS if node_id(c) not in self.world.server.connected]
        self.world.wait(seconds)
        if seconds >= GRACE:
            assert not any(map(self.world.awaited, away)), "awaited after the grace"

    # What links and apps do

    @rule(
        ways=st.sampled_from([*((way,) for way in FRAMES), FRAMES[:2], FRAMES[2:]]),
        steps=st.integers(1, 6),
        answer=st.booleans(),
    )
    def frames_move(self, ways: tuple[str, ...], steps: int, answer: bool) -> None:
        """Move a few frames of every link one way, from end to end or not."""
        if answer:
            self.world.step("app answers")
        for _ in range(steps):
            for way in ways:
                self.world.step(way)

    @rule()
    def everything_under_way_arrives(self) -> None:
        self.world.drain(FRAMES)

    # What breaks

    @precondition(lambda self: self.linked())
    @rule(
        pick=picks,
        frames_lost=st.booleans(),
        then=st.sampled_from(["nothing", "the server notices", "the client returns"]),
    )
    def a_link_breaks(self, pick: int, frames_lost: bool, then: str) -> None:
        device = self.linked()[pick % len(self.linked())]
        assert device.link is not None
        if frames_lost:
            device.link.up.clear()
        device.leave()
        if then == "the client returns":
            self.world.connect(device)
        elif then == "the server notices":
            self.world.step("server notices")

    @precondition(lambda self: self.alone())
    @rule()
    def clients_come_back(self) -> None:
        for device in self.alone():
            self.world.connect(device)

    @rule(client_id=clients, kind=st.sampled_from(RARE))
    def something_rare_happens(self, client_id: str, kind: str) -> None:
        linked = [d.link for d in self.linked() if d.link and d.client_id == client_id]
        awaited = self.world.awaited(client_id)
        if kind == "a twin":
            self.a_device_starts(client_id)
        elif kind == "a crash":
            self.world.crash()
            self.world.server.revoke(frozenset(self.revoked))
        elif kind == "a change of mind" and awaited:
            self.world.forgotten.add(awaited[0])
            self.world.server.forget([self.world.posted[awaited[0]]])
        elif kind == "a nearer deadline":
            posted = list(self.world.posted.values())
            self.world.server.hasten(posted, 10.0, self.world.now)
        elif kind == "a full disk":
            Sink.full = not Sink.full
        elif kind == "a broken rule" and linked:
            linked[-1].uploading = None
            linked[-1].up.append(b"\xff")
        elif kind == "a stranger":
            self.a_stranger_comes(client_id)
        elif kind == "a revocation" and self.proven:
            self.a_client_is_revoked(client_id)
        elif kind == "an upload begun again" and linked and linked[-1].uploading:
            linked[-1].outbox.appendleft(linked[-1].uploading[0])
            linked[-1].uploading = None

    def a_device_starts(self, client_id: str) -> None:
        """Start one, maybe beside another of the same id."""
        self.world.devices.append(Device(client_id, self.identity(client_id)))
        self.world.connect(self.world.devices[-1])

    def a_stranger_comes(self, client_id: str) -> None:
        """Have a process that proves another id, or none, ask for this one."""
        other = next(c for c in CLIENTS if c != client_id)
        self.world.devices.append(Device(client_id, self.identity(other)))
        self.world.connect(self.world.devices[-1])

    def a_client_is_revoked(self, client_id: str) -> None:
        """Disconnect its processes, and give it another certificate."""
        self.revoked.add(self.serials[client_id])
        self.serials[client_id] = max(self.serials.values()) + 1
        self.world.server.revoke(frozenset(self.revoked))
        assert not self.world.awaited(client_id) or not self.world.present[client_id]

    def come_to_rest(self) -> None:
        """Let one device of each id come back and all that is under way arrive."""
        self.world.drain()
        self.world.wait(GRACE)  # for those who come in place of another process
        for client_id in CLIENTS:
            own = [d for d in self.alone() if d.client_id == client_id]
            if node_id(client_id) not in self.world.server.connected:
                device = own[-1] if own else Device(client_id, self.identity(client_id))
                self.world.devices += [device] * (not own)
                self.world.connect(device)
        self.world.drain()

        assert set(self.world.server.connected) == {node_id(client_id) for client_id in CLIENTS}
        assert self.world.idle(), "a reply is owed over a link that is up"
        assert all(sink.closed for sink in self.world.sinks)
        for device in self.linked():
            assert not device.session._owed.keys() & self.world.posted.keys(), "a client still owes"

    # What holds at every moment

    @invariant()
    def nothing_has_two_outcomes(self) -> None:
        assert all(len(outcomes) <= 1 for outcomes in self.world.outcomes.values())
        unwanted = [i for i in self.world.forgotten if self.world.outcomes[i]]
        assert not unwanted, "a reply that nobody awaits has an outcome"

    @invariant()
    def a_reply_is_taken_once(self) -> None:
        outcomes = [o for outcomes in self.world.outcomes.values() for o in outcomes]
        assert self.world.taken == sum(isinstance(outcome, Stored) for outcome in outcomes)

    @invariant()
    def no_device_trains_a_message_twice(self) -> None:
        assert all(max(d.trained.values(), default=0) <= 1 for d in self.world.devices)

    @invariant()
    def who_is_connected_is_known(self) -> None:
        present = [node_id(c) for c in CLIENTS if self.world.present[c]]
        assert sorted(self.world.server.connected) == sorted(present)
        assert all(n in (0, 1) for n in self.world.present.values())

    @invariant()
    def nothing_piles_up(self) -> None:
        open_sinks = sum(not sink.closed for sink in self.world.sinks)
        assert open_sinks <= len(self.world.server.connected)
        ended = [link for link in self.world.links if link.bye and link.bye.kind != "finished"]
        assert not any(map(self.world.server.serves, ended))
        for device in self.world.devices:
            owed = [i for i in self.world.posted if i in device.session._owed]
            assert len(owed) <= MAX_UNANSWERED
            assert set(device.session.requests) <= set(owed), "what nobody waits for is kept"

    @invariant()
    def what_is_settled_is_not_sent(self) -> None:
        for message_id, outcomes in self.world.outcomes.items():
            settled = outcomes and "not connected" not in getattr(outcomes[0], "reason", "")
            assert not settled or self.world.posted[message_id].done


TestSessions = Sessions.TestCase
# More where the profile asks for more, as `make fuzz` does.
examples = max(200, settings.default.max_examples)
TestSessions.settings = settings(max_examples=examples, stateful_step_count=50, deadline=None)
