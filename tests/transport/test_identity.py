"""Who may join, over real links: TLS, certificates, tokens, and processes that take ids."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsz.errors import ConfigError, LinkError
from fedsz.transport import channel
from fedsz.transport.authority import Authority
from fedsz.transport.channel import METHOD, SERVICE
from fedsz.transport.credentials import (
    ClientFile,
    certified_id,
    channel_credentials,
    load_certificate,
    new_token,
    server_credentials,
)
from fedsz.transport.frames import Bye, ByeKind, Hello, pack, unpack
from fedsz.transport.grpc_grid import GrpcGrid
from fedsz.transport.link_events import EventKind
from tests import certificates
from tests.links import LONG, Client, RawClient, Server, closing_all, reasons, waiting_app

if TYPE_CHECKING:
    from tests.links import Serve, Spawn


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "keys")


@pytest.fixture
def ours(tmp_path: Path) -> certificates.Authority:
    return certificates.Authority(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> certificates.Authority:
    return certificates.Authority(tmp_path, "theirs")


def options(authority: Authority, kind: str = "certificate") -> dict[str, Any]:
    """Return the options of a server that asks for certificates, or for tokens."""
    cert = authority.certify_server(["127.0.0.1"], 1)
    ca = authority.ca if kind == "certificate" else None
    credentials = server_credentials(cert, cert.with_suffix(".key"), ca)
    return {"credentials": credentials, "client_file": authority.clients}


def proof(
    authority: Authority, client_id: str, kind: str = "certificate"
) -> grpc.ChannelCredentials:
    """Return a new certificate or token of a client, to connect with."""
    if kind == "token":
        return channel_credentials(authority.ca, token=authority.make_token(client_id))
    cert = authority.certify_client(client_id, 1)
    return channel_credentials(authority.ca, cert, cert.with_suffix(".key"))


def refusal(server: Server, client_id: str, credentials: grpc.ChannelCredentials) -> str:
    """Return the reason for which a client is refused."""
    error = Client(server.address, client_id, credentials=credentials, max_wait=LONG).ended()
    assert isinstance(error, LinkError)
    start = f"{server.address} has refused this client: "
    assert str(error).startswith(start)
    assert "\n" not in str(error)
    return str(error).removeprefix(start)


@pytest.mark.parametrize("kind", ["certificate", "token"])
def test_a_client_is_who_its_proof_says_until_that_is_revoked(
    authority: Authority, serve: Serve, kind: str
) -> None:
    server, go = serve(**options(authority, kind)), threading.Event()
    of_a = proof(authority, "a", kind)
    client = server.client("a", waiting_app(go), credentials=of_a)
    server.client("b", credentials=proof(authority, "b", kind))
    (first, *_) = authority.issued()
    whose = f"the {kind} of 'a', serial number {first.serial}"
    assert refusal(server, "b", of_a) == f"the client id is 'b'; this is {whose}"
    replies = server.stream()
    client.events.wait(EventKind.RECEIVED)
    authority.revoke("a")

    (reason,) = reasons(list(replies))  # long before `a` has answered
    go.set()
    assert reason == f"client 'a' was refused: {whose}, is revoked"
    assert f"{whose}, is revoked" in str(client.ended())
    assert refusal(server, "a", of_a) == f"{whose}, is revoked"
    (reply,) = server.ask()
    assert reply.has_content()
    assert server.events.count(EventKind.LEFT, "b") == 0


@pytest.mark.parametrize("kind", ["certificate", "token"])
def test_a_proof_is_rotated(authority: Authority, serve: Serve, kind: str) -> None:
    server = serve(**options(authority, kind))
    old = proof(authority, "a", kind)
    client = server.client("a", credentials=old)
    new = proof(authority, "a", kind)  # beside the old one, which is still valid
    second = Client(server.address, "a", credentials=new)
    server.clients.append(second)
    assert second.events.wait(EventKind.WAITING).detail.startswith("the client id 'a' is in use")
    client.stop.set()
    assert client.ended() is None
    second.events.wait(EventKind.JOINED)  # though the first might return: it is the same client
    authority.revoke(authority.issued()[0].serial)

    assert "is revoked" in refusal(server, "a", old)
    (reply,) = server.ask()
    assert reply.has_content()


def test_a_revoked_client_that_does_not_listen_leaves_its_place(
    authority: Authority, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsz.transport.grpc_server._BYE_SECONDS", 0.2)
    soon = {**dict(channel.SERVER_OPTIONS), "grpc.max_connection_idle_ms": 200}
    monkeypatch.setattr("fedsz.transport.grpc_grid.SERVER_OPTIONS", tuple(soon.items()))
    server = serve(**options(authority), max_connections=1)
    deaf = RawClient(server.address, pack(Hello(1, "a", {}, [])), credentials=proof(authority, "a"))
    with deaf:
        server.events.wait(EventKind.JOINED, "a")
        server.grid.push_messages(server.requests(size=4_000_000))  # more than a link holds
        authority.revoke("a")

        server.client("b", credentials=proof(authority, "b"))


def test_the_file_is_read_again_and_holds_as_it_was_once_it_is_unreadable(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    clients = ClientFile(authority.clients)
    authority.certify_client("a", 1)
    (gone,) = authority.revoke("a")
    revoked = {int(gone.serial, 16)}
    assert clients.revoked() == revoked
    for wrong in ('{"serial": "no hex", "name": "a"}\n', "no JSON\n"):
        authority.clients.write_text(wrong)
        assert clients.revoked() == revoked
    authority.clients.unlink()
    assert clients.revoked() == revoked
    errors = [record.name for record in caplog.records if record.levelname == "ERROR"]
    assert errors == ["fedsz.security"] * 3


def test_a_server_knows_the_tokens_of_its_file_alone(
    authority: Authority, serve: Serve, tmp_path: Path
) -> None:
    """Nor does it ask for one where TLS has asked for a certificate."""
    server = serve(**options(authority, "token"))
    of_a = authority.make_token("a")
    server.client("a", credentials=channel_credentials(authority.ca, token=of_a))
    secret = of_a.read_text().partition(":")[2]
    renamed, other = tmp_path / "renamed", tmp_path / "other"
    for path, text in ((renamed, f"b:{secret}"), (other, new_token("a"))):
        path.touch(0o600)
        path.write_text(text)
        credentials = channel_credentials(authority.ca, token=path)
        unknown = "the token is not one that this server knows"
        assert refusal(server, "b", credentials) == unknown
    missing = "this server takes clients with a token: give --token-file"
    assert refusal(server, "a", channel_credentials(authority.ca)) == missing
    assert server.events.count(EventKind.LEFT) == 0
    with pytest.raises(ConfigError, match="a file of clients needs TLS"):
        GrpcGrid(client_file=authority.clients)

    certified = serve(**options(authority))
    certified.client("c", credentials=proof(authority, "c"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path, str]]:
    """A server that asks for tokens, the authority of its certificate, and a token of its file."""
    authority = Authority.create(tmp_path_factory.mktemp("guarded") / "keys")
    token = authority.make_token("a").read_text().strip()
    with closing_all(Server) as make:
        yield make(**options(authority, "token")), authority.ca, token


def first_frame(port: int, ca: Path, authorization: bytes) -> Any:
    """Return what a server answers to a header with any bytes: gRPC's own clients send few."""

    def text(raw: bytes) -> bytes:  # RFC 7541, 5.2
        return bytes([len(raw)]) + raw if len(raw) < 127 else bytes([127, len(raw) - 127]) + raw

    def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:  # RFC 9113, 4.1
        return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body

    headers = {
        b":method": b"POST",
        b":scheme": b"https",
        b":path": f"/{SERVICE}/{METHOD}".encode(),
        b":authority": b"127.0.0.1",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
        b"authorization": authorization,
    }
    block = b"".join(b"\0" + text(name) + text(value) for name, value in headers.items())
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), LONG) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as link,
        link.makefile("rb") as received,
    ):
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        link.sendall(frame(1, 4, 1, block))
        while len(head := received.read(9)) == 9:
            body = received.read(int.from_bytes(head[:3]))
            if head[3] == 0:  # DATA
                return unpack(body[5:])
    return None


@settings(max_examples=60, deadline=None)
@given(
    raw=st.binary(max_size=200),
    begin=st.sampled_from([b"", b"Bearer ", b"Bearer a:"]),
    cut=st.integers(1, 45),
)
@example(raw=b"\xff\n\0", begin=b"Bearer a:", cut=1)
@example(raw=b"", begin=b"", cut=1)
def test_any_bytes_in_place_of_a_token_are_refused_in_one_line(
    guarded: tuple[Server, Path, str], raw: bytes, begin: bytes, cut: int
) -> None:
    server, ca, token = guarded
    known = f"Bearer {token}".encode()
    for sent in (begin + raw, known[:-cut], known + b"x"):
        bye = first_frame(server.grid.port, ca, sent)
        assert isinstance(bye, Bye)
        assert bye.kind == ByeKind.REFUSED
        assert "\n" not in bye.reason
        assert "token" in bye.reason
    assert server.events.count(EventKind.JOINED) == 0


def test_names_of_any_kind_have_tokens(authority: Authority, serve: Serve) -> None:
    server = serve(**options(authority, "token"))
    for name in ("größe", "a:b/ü", "a b", "..", "%41"):
        server.client(name, credentials=proof(authority, name, "token"))


def test_a_process_that_takes_all_ids_gets_nothing(serve: Serve, spawn: Spawn) -> None:
    """tests/transport/test_server_session.py has who may take an id."""
    server, ids = serve(), [f"client-{i}" for i in range(5)]
    victims = [server.client(client_id) for client_id in ids]
    spawn(server.address, 4, *ids)
    server.events.wait(EventKind.REFUSED, n=2 * len(ids))  # each asks again

    assert [reply.has_content() for reply in server.ask()] == [True] * len(ids)
    assert all(victim.events.count(EventKind.JOINED) == 1 for victim in victims)
    assert server.events.count(EventKind.LEFT) == 0
    assert all(victim.error is None for victim in victims)


@pytest.mark.parametrize(
    ("subject", "hosts", "uris", "client_id"),
    [
        ("of-subject", ("pi.example.org",), ("spiffe://fleet/pi",), "of-subject"),
        ("", ("pi.example.org",), ("spiffe://fleet/pi",), "spiffe://fleet/pi"),
        ("", ("pi.example.org", "other.example.org"), (), "pi.example.org"),
    ],
)
def test_a_certificate_is_of_one_client(
    ours: certificates.Authority,
    subject: str,
    hosts: tuple[str, ...],
    uris: tuple[str, ...],
    client_id: str,
) -> None:
    cert, _ = ours.issue(subject, hosts=hosts, uris=uris)

    assert certified_id(load_certificate(cert)) == client_id


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("signed by another", "CERTIFICATE_VERIFY_FAILED"),
        ("self-signed", "CERTIFICATE_VERIFY_FAILED"),
        ("expired", "CERTIFICATE_VERIFY_FAILED"),
        ("for another host", "Hostname Verification Check failed"),
        ("a client's", "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_a_wrong_server_ends_the_client_at_once(
    ours: certificates.Authority,
    theirs: certificates.Authority,
    serve: Serve,
    wrong: str,
    why: str,
) -> None:
    files = {
        "signed by another": lambda: theirs.issue("server"),
        "self-signed": lambda: (theirs.ca, theirs.ca_key),
        "expired": lambda: ours.issue("server", days=(-9, -2)),
        "for another host": lambda: ours.issue("server", hosts=("192.0.2.1", "example.org")),
        "a client's": lambda: ours.issue("127.0.0.1", purpose="client"),
    }[wrong]()
    # The pair itself, for `server_credentials` refuses what has expired.
    pair = files[1].read_bytes(), files[0].read_bytes()
    server = serve(credentials=grpc.ssl_server_credentials([pair]))
    client = Client(server.address, "c", credentials=channel_credentials(ours.ca))

    assert isinstance(client.ended(), LinkError)
    assert f"no link to {server.address}: UNAVAILABLE: " in str(client.error)
    assert why in str(client.error)


@pytest.mark.parametrize(
    ("secure", "says"), [(True, "Then give --tls-ca"), (False, "speak TLS, and has")]
)
def test_a_client_says_what_may_be_wrong_if_one_end_alone_speaks_tls(
    ours: certificates.Authority, serve: Serve, secure: bool, says: str
) -> None:
    ends = (server_credentials(*ours.issue("server")), None), (None, channel_credentials(ours.ca))
    own, credentials = ends[0] if secure else ends[1]
    server = serve(credentials=own)
    client = Client(server.address, "c", credentials=credentials)
    server.clients.append(client)

    assert says in client.events.wait(EventKind.WAITING).detail


def test_a_server_with_a_ca_takes_only_clients_it_signed(
    ours: certificates.Authority, theirs: certificates.Authority, serve: Serve
) -> None:
    server = serve(credentials=server_credentials(*ours.issue("server"), ours.ca))
    wrong = (
        channel_credentials(ours.ca),
        channel_credentials(ours.ca, *theirs.issue("bad")),
        channel_credentials(ours.ca, *ours.issue("server-too", purpose="server")),
    )
    for client in [Client(server.address, "bad", credentials=bad, max_wait=1.0) for bad in wrong]:
        assert isinstance(client.ended(), LinkError)
        assert "has its --tls-ca signed this client's certificate?" in str(client.error)
    server.client("good", credentials=channel_credentials(ours.ca, *ours.issue("good")))

    (reply,) = server.ask()
    assert reply.has_content()


def test_files_are_checked(
    ours: certificates.Authority, theirs: certificates.Authority, tmp_path: Path
) -> None:
    cert, key = ours.issue("server")
    _, other_key = theirs.issue("other")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no PEM at all")
    locked = tmp_path / "locked.key"
    encryption = serialization.BestAvailableEncryption(b"secret")
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    locked.write_bytes(ours.key.private_bytes(pem, pkcs8, encryption))
    locked.chmod(0o600)
    expired, future = ours.issue("expired", days=(-9, -2)), ours.issue("future", days=(2, 9))

    for wrong, why in (
        (lambda: server_credentials(tmp_path / "absent", key), "absent: No such file"),
        (lambda: server_credentials(cert, other_key), "no certificate and its key"),
        (lambda: server_credentials(garbage, key), "no certificate and its key"),
        (lambda: server_credentials(cert, locked), "encrypted"),
        (lambda: server_credentials(cert, key, garbage), "holds no certificates"),
        (lambda: channel_credentials(tmp_path), "Is a directory"),
        (lambda: server_credentials(*expired), r"expired.crt expired on \d{4}-\d\d-\d\d"),
        (lambda: channel_credentials(ours.ca, *expired), "expired.crt expired on"),
        (lambda: channel_credentials(ours.ca, *future), "future.crt is valid from"),
        (lambda: channel_credentials(ours.ca, cert), "both its cert and its key"),
    ):
        with pytest.raises(ConfigError, match=why) as caught:
            wrong()
        assert "\n" not in str(caught.value)
    for mode in (0o640, 0o604, 0o644, 0o620):
        key.chmod(mode)
        why = f"{key} holds a secret and has mode {mode:04o}: chmod"
        with pytest.raises(ConfigError, match=why):
            server_credentials(cert, key)
