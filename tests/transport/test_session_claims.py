"""Who may take the place of a client, and what a server says to those who break its rules."""

from __future__ import annotations

import pytest
from flwr.app import Error

from fedsz.flower_compat import ErrorCode
from fedsz.transport import server_session
from fedsz.transport.credentials import Identity, Kind, Proof, why_wrong
from fedsz.transport.frames import PROTOCOL, Ack, Begin, Bye, ByeKind, Hello, Welcome, pack
from fedsz.transport.link_events import EventKind
from fedsz.transport.node import node_id
from tests.session_links import GRACE, Door

OWNER = Hello(PROTOCOL, "a", {}, [], b"the key of one process")
OTHER = Hello(PROTOCOL, "a", {}, [], b"another key")
KEYLESS = Hello(PROTOCOL, "a", {}, [])
CERTIFICATE = (Proof(Kind.CERTIFICATE, 1, "a"),)
IN_USE = "the client id 'a' is in use"


@pytest.mark.parametrize("state", ["live", "away", "gone"])
@pytest.mark.parametrize("identity", [(), CERTIFICATE], ids=["plaintext", "certificate"])
@pytest.mark.parametrize("second", [OWNER, OTHER, KEYLESS], ids=["itself", "another", "a keyless"])
@pytest.mark.parametrize("first", [OWNER, KEYLESS], ids=["with a key", "without"])
def test_who_may_take_an_id(state: str, identity: Identity, first: Hello, second: Hello) -> None:
    door = Door()
    door.knock("first", first, identity)
    if state != "live":
        door.lose("first")
    if state == "gone":
        door.wait(GRACE)

    door.events.clear()
    heard, before = door.knock("second", second, identity), door.lines["first"].heard[1:]

    same = second.session_key != b"" and second == first
    let_in = same or state == "gone" or (state == "away" and identity != ())
    if let_in:
        assert isinstance(heard[0], Welcome)
    else:
        assert heard == [Bye(ByeKind.TAKEN, IN_USE)]
        assert not before
        assert door.serves("first") == (state == "live")
        assert not door.serves("second")
        # Those who watch must not take the victim for the one that was sent home.
        (event,) = door.events
        assert (event.kind, event.client_id) == (EventKind.REFUSED, "")
    assert [bye.kind for bye in before] == [ByeKind.REPLACED] * (let_in and state == "live")


def test_the_key_of_a_process_that_was_replaced_is_void() -> None:
    door = Door()
    door.knock("first", OWNER)
    door.lose("first")
    door.wait(GRACE)
    door.knock("second", OTHER)

    assert door.knock("third", OWNER) == [Bye(ByeKind.TAKEN, IN_USE)]


def test_an_identity_is_of_one_client() -> None:
    both = (*CERTIFICATE, Proof(Kind.TOKEN, 1, "b"))

    assert why_wrong(CERTIFICATE, "a") == ""
    assert why_wrong(CERTIFICATE, "b") == "the client id is 'b' and the certificate that of 'a'"
    assert why_wrong(both, "a") == "the client id is 'a' and the token that of 'b'"
    assert why_wrong((), "a") == ""


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
def test_who_breaks_the_rules_is_refused_and_owes_nothing(raws: list[bytes], why: str) -> None:
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


def test_a_timeout_tells_how_far_the_upload_was() -> None:
    door = Door(max_message_bytes=1 << 30)
    door.knock("link", OWNER)
    (awaited,) = door.post("a")
    door.session.sent(door.lines["link"], awaited, 0)
    door.says("link", pack(Begin("m", 40_000_000)), b"\x04" + bytes(600_000))
    door.session.hasten([awaited], 3.0, door.now)

    door.wait(3.0)
    why = door.events[-1].detail

    assert why == "no reply from client 'a' within 3 s, given up during upload (0.6 of 40.0 MB)"


def test_a_reply_nobody_waits_for_is_read_and_dropped() -> None:
    door = Door()
    (welcome,) = door.knock("link", Hello(PROTOCOL, "a", {}, ["stale"]))
    heard = door.says("link", pack(Begin("stale", 12)), b"\x04" + bytes(12))

    assert welcome.wanted == []
    assert heard == [Ack("stale", received=False)]
    event = door.events[-1]
    assert (event.kind, event.detail[:7]) == (EventKind.RECEIVED, "dropped")


def test_a_message_to_nobody_is_an_error_at_once() -> None:
    door = Door()
    door.knock("link", OWNER)
    door.lose("link")
    door.wait(GRACE)
    door.post("a", "b")

    assert door.outcomes == [
        Error(ErrorCode.NODE_UNAVAILABLE, f"{who} is not connected")
        for who in ("client 'a'", f"node {node_id('b')}")
    ]


def test_clients_who_left_are_forgotten_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_session, "MAX_PEERS", 2)
    door = Door()
    for name in ("a", "b"):
        door.knock(name, Hello(PROTOCOL, name, {}, []))
    (bye,) = door.knock("c", Hello(PROTOCOL, "c", {}, []))
    assert bye.reason == "the server has its 2 clients"
    for name in ("a", "b"):
        door.lose(name)
    door.wait(GRACE)

    assert isinstance(door.knock("d", Hello(PROTOCOL, "d", {}, []))[0], Welcome)
    assert door.session.client_name(door.session.connected[0]) == "d"
