"""Who may take the place of a client, while it is connected and afterwards."""

from __future__ import annotations

import pytest

from fedsz.errors import CorruptStream
from fedsz.transport.events import EventKind, LinkEvent
from fedsz.transport.frames import PROTOCOL, Bye, ByeKind, Hello, Welcome, pack
from fedsz.transport.identity import Claims, Identity
from fedsz.transport.server_session import Send, ServerSession
from tests.session_links import GRACE, Sink

OWNER = Hello(PROTOCOL, "a", {}, [], b"the key of one process")
KEYS = {"itself": OWNER.session_key, "another": b"another key", "an old one": b""}
CERTIFICATE = Identity("certificate", "1", frozenset(("a",)))


class Door:
    """A server session, and what it says to the last connection that came."""

    def __init__(self) -> None:
        self.now = 0.0
        self.session = ServerSession(max_message_bytes=1000, reconnect_grace=GRACE, open_sink=Sink)

    def knock(self, who: str, hello: Hello, identity: Identity | None = None) -> list[object]:
        """Return what is to be done when somebody says HELLO."""
        self.session.connect(who, identity)
        return list(self.session.receive(who, pack(hello), self.now))

    def lose(self, who: str) -> None:
        self.session.lost(who, self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.session.tick(self.now)


def told(who: str, outputs: list[object]) -> list[object]:
    """Return what is sent to a connection."""
    return [x.item for x in outputs if isinstance(x, Send) and x.connection == who]


@pytest.mark.parametrize("state", ["live", "away", "gone"])
@pytest.mark.parametrize("identity", [None, CERTIFICATE], ids=["plaintext", "certificate"])
@pytest.mark.parametrize("key", KEYS)
def test_who_may_take_an_id(state: str, identity: Identity | None, key: str) -> None:
    door = Door()
    door.knock("first", OWNER, identity)
    if state != "live":
        door.lose("first")
    if state == "gone":
        door.wait(GRACE)

    second = Hello(PROTOCOL, "a", {}, [], KEYS[key])
    outputs = door.knock("second", second, identity)

    let_in = key == "itself" or state == "gone" or (state == "away" and identity is not None)
    answer = told("second", outputs)[0]
    assert isinstance(answer, Welcome if let_in else Bye)
    if not let_in:
        assert isinstance(answer, Bye)
        assert answer.kind == (ByeKind.TAKEN if second.session_key else ByeKind.REFUSED)
        assert answer.reason == "the client id 'a' is in use"
        assert not told("first", outputs)
        assert door.session.serves("first") == (state == "live")
        assert not door.session.serves("second")
    replaced = [item for item in told("first", outputs) if isinstance(item, Bye)]
    assert [bye.kind for bye in replaced] == [ByeKind.REPLACED] * (let_in and state == "live")


def test_a_client_without_a_key_is_not_replaced_by_another_one_without() -> None:
    door, silent = Door(), Hello(PROTOCOL, "a", {}, [])
    door.knock("first", silent)

    (bye,) = told("second", door.knock("second", silent))

    assert isinstance(bye, Bye)
    assert bye.kind == ByeKind.REFUSED
    assert door.session.serves("first")


def test_the_key_of_a_process_that_was_replaced_is_void() -> None:
    door, other = Door(), Hello(PROTOCOL, "a", {}, [], b"another key")
    door.knock("first", OWNER)
    door.lose("first")
    door.wait(GRACE)
    door.knock("second", other)

    (bye,) = told("third", door.knock("third", OWNER))

    assert isinstance(bye, Bye)
    assert bye.kind == ByeKind.TAKEN


def test_a_refusal_is_told_without_the_name_of_the_victim() -> None:
    """Those who watch must not take the victim for the one that was sent home."""
    door = Door()
    door.knock("first", OWNER)
    outputs = door.knock("second", Hello(PROTOCOL, "a", {}, [], b"another key"))

    (event,) = [x for x in outputs if isinstance(x, LinkEvent)]
    assert (event.kind, event.client_id) == (EventKind.REFUSED, "")


def test_an_identity_is_of_one_client() -> None:
    claims = Claims()
    both = Identity("certificate", "1", frozenset(("a", "b")))
    claims.check(both, "a")
    claims.check(both, "a")  # it comes back
    claims.check(both._replace(serial="2"), "b")  # another certificate

    with pytest.raises(CorruptStream, match="'b', but this certificate has joined as client 'a'"):
        claims.check(both, "b")
    with pytest.raises(CorruptStream, match="is 'c' and the certificate that of 'a' or 'b'"):
        claims.check(both, "c")
    with pytest.raises(CorruptStream, match="that of nobody"):
        claims.check(Identity("certificate", "3", frozenset()), "a")
