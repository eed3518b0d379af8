"""Who may join, over real links: certificates, tokens, and processes that take others' ids."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fedsz.errors import ConfigError, LinkError
from fedsz.transport import grpc_server
from fedsz.transport.authority import Authority
from fedsz.transport.credentials import (
    Identities,
    Token,
    certified_id,
    channel_credentials,
    load_certificate,
    server_credentials,
)
from fedsz.transport.frames import Hello, pack
from fedsz.transport.grpc_grid import GrpcGrid
from fedsz.transport.link_events import EventKind
from tests import certificates
from tests.links import LONG, Client, RawClient, Server, reasons, waiting_app

if TYPE_CHECKING:
    import grpc

    from tests.links import Serve, Spawn


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    monkeypatch.setattr(grpc_server, "_REVOCATION_SECONDS", 0.1)
    return Authority.create(tmp_path / "keys")


def pair(cert: Path) -> tuple[Path, Path]:
    return cert, cert.with_suffix(".key")


def options(authority: Authority, kind: str) -> dict[str, Any]:
    """Return how a server asks for certificates, or for tokens."""
    by_token = kind == "token"
    files = pair(authority.certify_server(["127.0.0.1"], 1))
    return {
        "credentials": server_credentials(*files, None if by_token else authority.ca),
        "identities": Identities(authority.clients, by_token=by_token),
    }


def proof(authority: Authority, kind: str, client_id: str) -> grpc.ChannelCredentials:
    """Return what a new certificate or token lets a client connect with."""
    if kind == "token":
        return channel_credentials(authority.ca, token=authority.make_token(client_id))
    return channel_credentials(authority.ca, *pair(authority.certify_client(client_id, 1)))


def refusal(server: Server, client_id: str, credentials: grpc.ChannelCredentials) -> str:
    """Return what a client is told that is turned away for good."""
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
    of_a = proof(authority, kind, "a")
    client = server.client("a", waiting_app(go), credentials=of_a)
    server.client("b", credentials=proof(authority, kind, "b"))
    assert refusal(server, "b", of_a) == f"the client id is 'b' and the {kind} that of 'a'"
    replies = server.stream()
    server.events.wait(EventKind.SENT, "a")
    authority.revoke("a")

    (told,) = reasons(list(replies))  # long before `a` has answered
    go.set()
    revoked = f"the {kind} of 'a', serial number {authority.issued()[1].serial}, is revoked"
    assert told == f"client 'a' was refused: {revoked}"
    assert revoked in str(client.ended())
    assert refusal(server, "a", of_a) == revoked
    (reply,) = server.ask()
    assert reply.has_content()
    assert server.events.count(EventKind.LEFT, "b") == 0


@pytest.mark.parametrize("kind", ["certificate", "token"])
def test_a_proof_is_rotated(authority: Authority, serve: Serve, kind: str) -> None:
    server = serve(**options(authority, kind))
    old = proof(authority, kind, "a")
    client = server.client("a", credentials=old)
    new = proof(authority, kind, "a")  # beside the old one, which the server takes still
    second = Client(server.address, "a", credentials=new)
    server.clients.append(second)
    assert second.events.wait(EventKind.WAITING).detail.startswith("the client id 'a' is in use")
    client.stop.set()
    assert client.ended() is None
    second.events.wait(EventKind.JOINED)  # though the first might return: it is the same client
    first = next(one for one in authority.issued() if one.name == "a")
    authority.revoke(first.serial)

    assert "is revoked" in refusal(server, "a", old)
    (reply,) = server.ask()
    assert reply.has_content()


@pytest.mark.parametrize(
    ("subject", "hosts", "uris", "client_id"),
    [
        ("of-subject", ("pi.example.org",), ("spiffe://fleet/pi",), "of-subject"),
        ("", ("pi.example.org",), ("spiffe://fleet/pi",), "spiffe://fleet/pi"),
        ("", ("pi.example.org", "other.example.org"), (), "pi.example.org"),
    ],
)
def test_a_certificate_is_of_one_client(
    tmp_path: Path,
    serve: Serve,
    subject: str,
    hosts: tuple[str, ...],
    uris: tuple[str, ...],
    client_id: str,
) -> None:
    ours = certificates.Authority(tmp_path, "ours")
    files = ours.issue(subject, hosts=hosts, uris=uris)
    assert certified_id(load_certificate(files[0])) == client_id
    server = serve(credentials=server_credentials(*ours.issue("server"), ours.ca))
    credentials = channel_credentials(ours.ca, *files)
    server.client(client_id, credentials=credentials)

    told = refusal(server, hosts[-1] + "x", credentials)
    assert told == f"the client id is {hosts[-1] + 'x'!r} and the certificate that of {client_id!r}"


def test_a_revoked_client_that_does_not_listen_leaves_its_place(
    authority: Authority, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsz.transport.grpc_server._BYE_SECONDS", 0.2)
    server = serve(**options(authority, "token"), max_connections=1)
    deaf = RawClient(
        server.address,
        pack(Hello(1, "a", {}, [])),
        credentials=proof(authority, "token", "a"),
    )
    with deaf:
        server.events.wait(EventKind.JOINED, "a")
        server.grid.push_messages(server.requests(size=4_000_000))  # more than a link holds
        authority.revoke("a")

        server.client("b", credentials=proof(authority, "token", "b"))


def test_wrong_tokens_are_refused(authority: Authority, serve: Serve, tmp_path: Path) -> None:
    server = serve(**options(authority, "token"))
    server.client("a", credentials=proof(authority, "token", "a"))
    known = Token.read(authority.make_token("b"))
    unknown, guessed = Token.new("b"), Token("b", known.serial, bytes(32))
    renamed = Token("a", known.serial, known.secret)  # the file says a, the server knows b
    path = tmp_path / "token"
    path.touch(0o600)
    for token, told in (
        (unknown, "the token is not one that this server knows"),
        (guessed, "the token is not one that this server knows"),
        (renamed, "the client id is 'a' and the token that of 'b'"),
    ):
        path.write_text(token.text())
        assert refusal(server, "a", channel_credentials(authority.ca, token=path)) == told
    told = "this server takes clients with a token: give --token-file"
    assert refusal(server, "a", channel_credentials(authority.ca)) == told
    assert server.events.count(EventKind.LEFT) == 0
    with pytest.raises(ConfigError, match="tokens need TLS"):
        GrpcGrid(identities=Identities(authority.clients, by_token=True))


def test_the_file_is_read_again_and_holds_as_it_was_once_it_is_unreadable(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    identities = Identities(authority.clients)
    authority.make_token("a")
    (gone,) = authority.revoke("a")
    revoked = {int(gone.serial, 16)}
    assert identities.revoked() == revoked
    for wrong in ('{"serial": "no hex", "kind": "token", "name": "a"}\n', "no JSON\n"):
        authority.clients.write_text(wrong)
        assert identities.revoked() == revoked
    authority.clients.unlink()
    assert identities.revoked() == revoked
    errors = [record.name for record in caplog.records if record.levelname == "ERROR"]
    assert errors == ["fedsz.security"] * 3


def test_a_process_that_takes_all_ids_gets_nothing(serve: Serve, spawn: Spawn) -> None:
    """tests/transport/test_session_claims.py has who may take an id."""
    server, ids = serve(), [f"client-{i}" for i in range(5)]
    victims = [server.client(client_id) for client_id in ids]
    spawn(server.address, 4, *ids)
    server.events.wait(EventKind.REFUSED, n=2 * len(ids))  # each asks again

    assert [reply.has_content() for reply in server.ask()] == [True] * len(ids)
    assert all(victim.events.count(EventKind.JOINED) == 1 for victim in victims)
    assert server.events.count(EventKind.LEFT) == 0
    assert all(victim.error is None for victim in victims)
