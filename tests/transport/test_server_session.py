"""Who has an id and a share of the data, broken rules, and the speed of uploads."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from flwr.app import Error
from hypothesis import example, given
from hypothesis import strategies as st

from fedsz.data_share import Share
from fedsz.flower_compat import ErrorCode
from fedsz.transport import server_session
from fedsz.transport.credentials import Identity
from fedsz.transport.frames import (
    CHUNK_BYTES,
    PROTOCOL,
    Ack,
    Begin,
    Bye,
    ByeKind,
    Hello,
    Welcome,
    pack,
)
from fedsz.transport.link_events import EventKind
from fedsz.transport.node import node_id
from fedsz.transport.server_session import Stored
from tests.transport.sessions import GRACE, Door, Sink

OWNER = Hello(PROTOCOL, "a", {}, [], b"the key of one process")
OTHER = Hello(PROTOCOL, "a", {}, [], b"another key")
KEYLESS = Hello(PROTOCOL, "a", {}, [])
CERTIFICATE = Identity("a", 1)
IN_USE = "the client id 'a' is in use"
SHARES = 3


@pytest.mark.parametrize("state", ["live", "away", "gone"])
@pytest.mark.parametrize("identity", [None, CERTIFICATE], ids=["plaintext", "certificate"])
@pytest.mark.parametrize("second", [OWNER, OTHER, KEYLESS], ids=["itself", "another", "a keyless"])
@pytest.mark.parametrize("first", [OWNER, KEYLESS], ids=["with a key", "without"])
def test_who_may_take_an_id(
    state: str, identity: Identity | None, first: Hello, second: Hello
) -> None:
    door = Door()
    door.knock("first", first, identity)
    if state != "live":
        door.lose("first")
    if state == "gone":
        door.wait(GRACE)

    door.events.clear()
    heard, before = door.knock("second", second, identity), door.lines["first"].heard[1:]

    same = second.session_key != b"" and second == first
    let_in = same or state == "gone" or (state == "away" and identity is not None)
    if let_in:
        assert isinstance(heard[0], Welcome)
    else:
        assert heard == [Bye(ByeKind.TAKEN, IN_USE)]
        assert not before
        assert door.serves("first") == (state == "live")
        assert not door.serves("second")
        # Displays must not take the victim for the one that was turned away.
        (event,) = door.events
        assert (event.kind, event.client_id) == (EventKind.REFUSED, "")
    assert [bye.kind for bye in before] == [ByeKind.REFUSED] * (let_in and state == "live")


def test_the_key_of_a_process_that_was_replaced_is_void() -> None:
    door = Door()
    door.knock("first", OWNER)
    door.lose("first")
    door.wait(GRACE)
    door.knock("second", OTHER)

    assert door.knock("third", OWNER) == [Bye(ByeKind.TAKEN, IN_USE)]


@pytest.mark.parametrize(
    ("raws", "why"),
    [
        ([b"\xff\x00garbage"], "no frame has type 255"),
        ([b""], "a frame without a type"),
        ([b"\x01\x94garbage"], "not a frame of type 1"),
        ([pack(Begin("x", 100))], "the first frame is not HELLO"),
        ([pack(Hello(99, "future", {}, []))], "protocol 99; this server speaks 1"),
        ([pack(OWNER), pack(Begin("x", 1 << 50))], "at most 0.0 MB"),
        ([pack(OWNER), b"\x04data"], "a frame of type 4 out of place"),
        ([pack(OWNER), pack(Begin("x", 10)), b"\x04too much data"], "1 to 10 were due"),
        ([pack(OWNER), pack(OWNER)], "a frame of type 1 out of place"),
    ],
)
def test_a_client_that_breaks_a_rule_is_refused_and_owes_nothing(
    raws: list[bytes], why: str
) -> None:
    door = Door()
    door.session.connect(door.lines["link"])
    door.says("link", *raws[:-1])
    door.post("a")
    *_, bye = door.says("link", raws[-1])

    assert isinstance(bye, Bye)
    assert bye.kind == ByeKind.REFUSED
    assert why in bye.reason
    assert not door.serves("link")
    (outcome,) = door.outcomes
    assert isinstance(outcome, Error)
    refused = f"client 'a' was refused: {bye.reason}"
    assert outcome.reason == (refused if raws[1:] else f"node {node_id('a')} is not connected")


def test_a_client_that_does_not_return_fails_its_messages_and_later_ones_at_once() -> None:
    door = Door()
    door.knock("link", OWNER)
    door.post("a")
    door.lose("link")
    door.wait(GRACE)
    door.post("a", "b")

    assert door.outcomes == [
        Error(ErrorCode.NODE_UNAVAILABLE, why)
        for why in (
            "client 'a' left and did not return within 10 s",
            "client 'a' is not connected",
            f"node {node_id('b')} is not connected",
        )
    ]


def test_a_reply_that_is_not_awaited_is_read_and_dropped() -> None:
    door = Door()
    (welcome,) = door.knock("link", Hello(PROTOCOL, "a", {}, ["stale"]))
    heard = door.says("link", pack(Begin("stale", 12)), b"\x04" + bytes(12))

    assert welcome.wanted == []
    assert heard == [Ack("stale", received=False)]
    event = door.events[-1]
    assert (event.kind, event.detail[:7]) == (EventKind.RECEIVED, "dropped")


@pytest.mark.parametrize("what", ["begun again", "cut", "too late"])
def test_a_part_of_a_reply_counts_for_nothing_and_the_reply_may_come_again(what: str) -> None:
    sinks: list[Sink] = []
    door = Door(open_sink=lambda: sinks.append(Sink()) or sinks[-1])  # type: ignore[func-returns-value]
    door.knock("link", OWNER)
    (awaited,) = door.post("a")
    begin, body = pack(Begin("m", 12)), b"the reply..."
    door.says("link", begin, b"\x04" + body[:5])
    line = "link"
    if what == "cut":
        door.lose(line)
        (welcome, *_) = door.knock(
            line := "next", Hello(PROTOCOL, "a", {}, ["m"], OWNER.session_key)
        )
        assert welcome.wanted == ["m"]
    elif what == "too late":
        door.session.forget([awaited])
    assert not door.outcomes
    door.says(line, begin, b"\x04" + body)

    stored = [o.file.getvalue() for o in door.outcomes if isinstance(o, Stored)]  # type: ignore[attr-defined]
    assert stored == [body] * (what != "too late")
    assert [sink.closed for sink in sinks] == [True, *([False] * len(stored))]


def test_clients_are_as_many_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_session, "MAX_CLIENTS", 2)
    door = Door()
    for name in ("a", "b"):
        door.knock(name, Hello(PROTOCOL, name, {}, []))
    (bye,) = door.knock("c", Hello(PROTOCOL, "c", {}, []))
    assert bye.reason == "the server has its 2 clients"
    for name in ("a", "b"):
        door.lose(name)
    door.wait(GRACE)

    assert isinstance(door.knock("d", Hello(PROTOCOL, "d", {}, []))[0], Welcome)
    assert list(door.session.names.values()) == ["b", "d"]


def test_an_upload_says_how_fast_it_was_or_how_far_it_came() -> None:
    door = Door(max_message_bytes=1 << 30)
    door.knock("link", OWNER)
    (awaited,) = door.post("a")
    size = 40 * CHUNK_BYTES
    door.says("link", pack(Begin("m", size)))
    for _ in range(40):
        door.wait(0.1)
        door.says("link", b"\x04" + bytes(CHUNK_BYTES))
    assert door.session.bandwidths == {node_id("a"): pytest.approx(8 * CHUNK_BYTES / 0.1)}

    (awaited,) = door.post("a")
    door.says("link", pack(Begin("m", 40_000_000)), b"\x04" + bytes(600_000))
    door.session.hasten([awaited], 3.0, door.now)
    door.wait(3.0)
    why = "no reply from client 'a' within 3 s, given up during upload (0.6 of 40.0 MB)"
    assert door.events[-1].detail == why


class Desk(Door):
    """A server that gives shares of the data, and forgets clients that were away for `GRACE`."""

    def __init__(self) -> None:
        super().__init__(shares=SHARES)
        self.links = itertools.count()

    def come(self, client_id: str, named: Share | None = None) -> tuple[int, Any]:
        """Return a connection of a client and the answer to its HELLO."""
        config = {} if named is None else dict(named.as_config())
        key = client_id.encode()
        hello = Hello(PROTOCOL, client_id, config, [], key, wants_share=named is None)
        link = next(self.links)
        return link, self.knock(link, hello)[0]


steps = st.lists(
    st.tuples(
        st.sampled_from(["comes", "leaves", "waits"]),
        st.sampled_from("abcde"),
        st.none() | st.integers(0, SHARES - 1),
    ),
    max_size=40,
)


# Where clients need no certificate, each may name any share: also that of one that is away.
@example([("comes", "a", 1), ("leaves", "a", None), ("comes", "b", 1), ("comes", "b", None)])
@given(steps)
def test_no_two_clients_have_one_share(done: list[tuple[str, str, int | None]]) -> None:
    desk, links, shares = Desk(), {}, {}  # type: ignore[var-annotated]
    for what, client_id, number in done:
        if what == "waits":
            desk.wait(GRACE)
            shares = {name: share for name, share in shares.items() if name in links}
        elif what == "leaves" and client_id in links:
            desk.lose(links.pop(client_id))
        elif what == "comes":
            named = None if number is None else Share(number, SHARES)
            link, answer = desk.come(client_id, named)
            if isinstance(answer, Welcome):
                links[client_id] = link
                assert (answer.share is None) == (named is not None)
                own = shares.get(client_id)
                assert named or own in (None, answer.share), "one that was away lost its share"
                shares[client_id] = named or answer.share
            else:
                assert answer.kind == ByeKind.TAKEN
                others = {share for name, share in shares.items() if name != client_id}
                assert named in others or len(others) == SHARES
        assert len(shares) == len(set(shares.values()))


def test_a_client_gets_its_share_back_and_hears_whose_another_is() -> None:
    desk = Desk()
    links = {name: desk.come(name) for name in "abc"}
    every = [Share(index, SHARES) for index in range(SHARES)]
    assert [answer.share for _, answer in links.values()] == every

    desk.lose(links["b"][0])
    none_free = Bye(ByeKind.TAKEN, f"all {SHARES} shares of the data are taken")
    assert desk.come("spare")[1] == none_free
    assert desk.come("b")[1].share == every[1]
    desk.lose(links["c"][0])
    desk.wait(GRACE)
    assert desk.come("spare")[1].share == every[2]
    assert desk.come("c")[1] == none_free

    _, named = desk.come("d", every[1])
    assert named == Bye(ByeKind.TAKEN, "share 1/3 of the data is client 'b''s")
    for client_id, share in (("e", Share(1, 2)), ("f", Share(0, 1)), ("g", Share(0, 1))):
        assert isinstance(desk.come(client_id, share)[1], Welcome)  # of another count, or of all


@pytest.mark.parametrize("config", [{"partition-id": "0"}, {"partition-id": True}, {}])
def test_a_config_without_a_share(config: dict[str, Any]) -> None:
    assert Share.of({"num-partitions": SHARES, **config}) is None
