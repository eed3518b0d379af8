"""TLS on the link: who is let in, and what one is told who is not."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedsz.errors import ConfigError, LinkError
from fedsz.transport.probe import probe
from fedsz.transport.tls import channel_credentials, mismatch, server_credentials
from tests.links import LONG, Client, Server

if TYPE_CHECKING:
    from pathlib import Path


class Authority:
    """A certificate authority, and PEM files of what it has signed."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.ca = folder / f"{name}.pem"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        own = self._builder(self.name, self.key).add_extension(constraints, critical=True)
        self.ca.write_bytes(self._sign(own))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return the files of a certificate for 127.0.0.1 and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = self._builder(subject, key).add_extension(address, critical=False)
        cert_file, key_file = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        cert_file.write_bytes(self._sign(builder))
        key_file.write_bytes(private_bytes(key, serialization.NoEncryption()))
        return cert_file, key_file

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return x509.CertificateBuilder(
            issuer_name=self.name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(hours=1),
            not_valid_after=now + datetime.timedelta(hours=1),
        )

    def _sign(self, builder: x509.CertificateBuilder) -> bytes:
        certificate = builder.sign(self.key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM)


def private_bytes(
    key: ec.EllipticCurvePrivateKey, encryption: serialization.KeySerializationEncryption
) -> bytes:
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, pkcs8, encryption)


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "theirs")


def test_a_run_over_tls(ours: Authority) -> None:
    credentials = server_credentials(*ours.issue("server"))
    with closing(Server(credentials=credentials)) as server:
        server.client("c", credentials=channel_credentials(ours.ca))

        (reply,) = server.grid.send_and_receive(server.requests(), timeout=LONG)
        assert reply.has_content()


def test_a_server_signed_by_somebody_else_ends_the_client_at_once(
    ours: Authority, theirs: Authority
) -> None:
    credentials = server_credentials(*theirs.issue("server"))
    with closing(Server(credentials=credentials)) as server:
        client = Client(server.address, "c", credentials=channel_credentials(ours.ca))

        assert isinstance(client.ended(), LinkError)
        assert f"no link to {server.address}" in str(client.error)
        assert "CERTIFICATE_VERIFY_FAILED" in str(client.error)


def test_a_plaintext_client_is_told_that_its_server_speaks_tls(ours: Authority) -> None:
    credentials = server_credentials(*ours.issue("server"))
    with closing(Server(credentials=credentials)) as server:
        client = Client(server.address, "c")  # which waits for ever where this is not known

        assert isinstance(client.ended(), LinkError)
        says = (
            f"no link to {server.address}: the server speaks TLS and this client plaintext: start"
        )
        assert str(client.error).startswith(says)
        with pytest.raises(LinkError, match="speaks TLS"):
            probe(server.address)


def test_a_tls_client_is_told_that_its_server_speaks_plaintext(ours: Authority) -> None:
    credentials = channel_credentials(ours.ca)
    with closing(Server()) as server:
        client = Client(server.address, "c", credentials=credentials)

        assert isinstance(client.ended(), LinkError)
        says = (
            f"no link to {server.address}: the server speaks plaintext and this client TLS: start"
        )
        assert str(client.error).startswith(says)
        with pytest.raises(LinkError, match="speaks plaintext"):
            probe(server.address, credentials=credentials)


@pytest.mark.parametrize("answer", [b"", b"\x16", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_a_server_answers_to_tls_tells_whether_it_speaks_it(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer_once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=answer_once)
        thread.start()
        wrong = mismatch(server, secure=True)
        thread.join(LONG)

    assert bool(wrong) == answer.startswith(b"HTTP")
    assert mismatch(server, secure=True) == mismatch(server, secure=False) == ""  # it is gone


def test_a_server_with_a_ca_takes_only_clients_it_signed(
    ours: Authority, theirs: Authority
) -> None:
    credentials = server_credentials(*ours.issue("server"), ours.ca)
    good = channel_credentials(ours.ca, *ours.issue("good"))
    with closing(Server(credentials=credentials)) as server:
        for bad in (
            channel_credentials(ours.ca),
            channel_credentials(ours.ca, *theirs.issue("bad")),
        ):
            assert isinstance(
                Client(server.address, "bad", credentials=bad, max_wait=0.1).ended(), LinkError
            )
        server.client("good", credentials=good)

        (reply,) = server.grid.send_and_receive(server.requests(), timeout=LONG)
        assert reply.has_content()


def test_files_are_checked(ours: Authority, theirs: Authority, tmp_path: Path) -> None:
    cert, key = ours.issue("server")
    _, other_key = theirs.issue("other")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no PEM at all")
    locked = tmp_path / "locked.key"
    locked.write_bytes(private_bytes(ours.key, serialization.BestAvailableEncryption(b"secret")))

    for wrong, why in (
        (lambda: server_credentials(tmp_path / "absent", key), "absent: No such file"),
        (lambda: server_credentials(cert, other_key), "no certificate and its key"),
        (lambda: server_credentials(garbage, key), "no certificate and its key"),
        (lambda: server_credentials(cert, locked), "encrypted"),
        (lambda: server_credentials(cert, key, garbage), "holds no certificates"),
        (lambda: channel_credentials(tmp_path), "Is a directory"),
        (lambda: channel_credentials(ours.ca, cert), "both its cert and its key"),
    ):
        with pytest.raises(ConfigError, match=why) as caught:
            wrong()
        assert "\n" not in str(caught.value)
