"""TLS on the link: who is let in, and what one is told who is not."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import grpc
import pytest
from cryptography.hazmat.primitives import serialization

from fedsz.errors import ConfigError, LinkError
from fedsz.transport.credentials import (
    channel_credentials,
    server_credentials,
)
from fedsz.transport.link_events import EventKind
from tests.certificates import Authority
from tests.links import Client, Server

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "theirs")


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
    ours: Authority, theirs: Authority, wrong: str, why: str
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
    with closing(Server(credentials=grpc.ssl_server_credentials([pair]))) as server:
        client = Client(server.address, "c", credentials=channel_credentials(ours.ca))

        assert isinstance(client.ended(), LinkError)
        assert f"no link to {server.address}: UNAVAILABLE: " in str(client.error)
        assert why in str(client.error)


@pytest.mark.parametrize(
    ("secure", "says"), [(True, "Then give --tls-ca"), (False, "speak TLS, and has")]
)
def test_a_client_is_told_what_may_be_wrong_if_one_end_alone_speaks_tls(
    ours: Authority, secure: bool, says: str
) -> None:
    ends = (server_credentials(*ours.issue("server")), None), (None, channel_credentials(ours.ca))
    own, credentials = ends[0] if secure else ends[1]
    with closing(Server(credentials=own)) as server:
        client = Client(server.address, "c", credentials=credentials)
        server.clients.append(client)

        assert says in client.events.wait(EventKind.WAITING).detail


def test_a_server_with_a_ca_takes_only_clients_it_signed(
    ours: Authority, theirs: Authority
) -> None:
    credentials = server_credentials(*ours.issue("server"), ours.ca)
    good = channel_credentials(ours.ca, *ours.issue("good"))
    with closing(Server(credentials=credentials)) as server:
        wrong = (
            channel_credentials(ours.ca),
            channel_credentials(ours.ca, *theirs.issue("bad")),
            channel_credentials(ours.ca, *ours.issue("server-too", purpose="server")),
        )
        for client in [
            Client(server.address, "bad", credentials=bad, max_wait=1.0) for bad in wrong
        ]:
            assert isinstance(client.ended(), LinkError)
            assert "has its --tls-ca signed this client's certificate?" in str(client.error)
        server.client("good", credentials=good)

        (reply,) = server.ask()
        assert reply.has_content()


def test_files_are_checked(ours: Authority, theirs: Authority, tmp_path: Path) -> None:
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
