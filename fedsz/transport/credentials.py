"""Who is at the other end: TLS, certificates, and the file of the fleet's clients.

The file of clients has a line of JSON for each client's certificate. `fedsz keys` writes it, and a
server reads it again whenever it has changed.
"""

from __future__ import annotations

import datetime
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import grpc
import msgspec
from cryptography import x509
from cryptography.x509.oid import NameOID

from fedsz.errors import ConfigError, LinkError
from fedsz.system import shares
from fedsz.transport.channel import security
from fedsz.whole_files import Pathish, read_bytes


class Issued(msgspec.Struct, frozen=True, omit_defaults=True):
    """A client's certificate: one line of the file of clients."""

    serial: Annotated[str, msgspec.Meta(pattern="^[0-9A-Fa-f]+$")]  # a number in hex
    name: str  # the client id
    expires: str = ""  # a date; "" for never
    revoked: bool = False


_decoder: Final = msgspec.json.Decoder(Issued)


def read_issued(path: Pathish) -> list[Issued]:
    """Return the lines of a file of clients.

    Raises:
        ConfigError: it cannot be read, or one of its lines.
    """
    found = []
    for number, line in enumerate(read_bytes(path).splitlines(), 1):
        try:
            found.append(_decoder.decode(line))
        except ValueError:
            what = "is no certificate of `fedsz keys`"
            raise ConfigError(f"{path}, line {number}, {what}") from None
    return found


def revoked_serials(path: Pathish) -> frozenset[int]:
    """Return the serial numbers that a file of clients revokes; raises like `read_issued`."""
    return frozenset(int(one.serial, 16) for one in read_issued(path) if one.revoked)


def read_private(path: Pathish) -> bytes:
    """Return the bytes of a file with a secret.

    Raises:
        ConfigError: it cannot be read, or its owner, who reads it, lets others read it too.
    """
    raw = read_bytes(path)
    # As ssh has it: a file of another user is that user's business, such as a container's secrets.
    if shares(Path(path)):
        mode = stat.S_IMODE(Path(path).stat().st_mode)
        raise ConfigError(f"{path} holds a secret and has mode {mode:04o}: chmod 600 {path}")
    return raw


def load_certificate(path: Pathish) -> x509.Certificate:
    """Return the first certificate in a PEM file.

    Raises:
        ConfigError: there is none.
    """
    pem = read_bytes(path)
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as err:
        raise ConfigError(f"{path} holds no certificate: {err}") from err


def certified_id(certificate: x509.Certificate) -> str:
    """Return the client id that a certificate proves; "" if it names no client.

    It is the common name; without one, the first URI, else the first DNS name, among the subject's
    alternative names.

    Raises:
        ValueError: the certificate is not as X.509 has it.
    """
    names = [
        str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    ]
    with suppress(x509.ExtensionNotFound):
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        for kind in (x509.UniformResourceIdentifier, x509.DNSName):
            names += extension.value.get_values_for_type(kind)
    return next(iter(names), "")


class Identity(NamedTuple):
    """A client's certificate that a TLS handshake has verified."""

    client_id: str  # that it proves
    serial: int

    def __str__(self) -> str:
        return f"the certificate of {self.client_id!r}, serial number {self.serial:x}"


def identity_of(context: grpc.aio.ServicerContext) -> Identity | None:
    """Return what a connection has proven; None if the server asks for no certificate.

    Raises:
        LinkError: the certificate cannot be read, though OpenSSL has let it pass.
    """
    (pem,) = context.auth_context().get("x509_pem_cert", (b"",))
    if not pem:
        return None
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        return Identity(certified_id(certificate), certificate.serial_number)
    except ValueError as err:
        raise LinkError(f"the certificate cannot be read: {err}") from None


class Revocations:
    """The serial numbers that a file of clients revokes. If it becomes unreadable, they stay.

    Args:
        path: the file; None revokes nothing.

    Raises:
        ConfigError: the file cannot be read, or is not what it should be.
    """

    def __init__(self, path: Pathish | None) -> None:
        self._path = None if path is None else Path(path)
        self._serials: frozenset[int] = frozenset()
        self._stamp: tuple[int, ...] = ()
        if self._path is not None:
            self._stamp = _stamp_of(self._path)
            self._serials = revoked_serials(self._path)

    def serials(self) -> frozenset[int]:
        """Return those that are revoked now; read the file again if it has changed."""
        if self._path is not None and self._stamp != (stamp := _stamp_of(self._path)):
            self._stamp = stamp
            try:
                self._serials = revoked_serials(self._path)
            except ConfigError as err:
                security.error("%s; its last state is still in force", err)
        return self._serials


def _stamp_of(path: Path) -> tuple[int, ...]:
    """Return what differs once a file has changed."""
    try:
        about = path.stat()
    except OSError:
        return ()
    return about.st_ino, about.st_size, about.st_mtime_ns


def server_credentials(
    cert: Pathish, key: Pathish, ca: Pathish | None = None
) -> grpc.ServerCredentials:
    """Return what `GrpcGrid` needs to speak TLS.

    Args:
        cert: PEM file with the server's certificate, then any intermediate ones.
        key: PEM file with its private key, not encrypted, which only its owner may read.
        ca: PEM file with the certificates that clients must be signed by; None admits every client.

    Raises:
        ConfigError: a file is missing, or not what it should be, or the certificate has expired.
    """
    pair = _pair(cert, key)
    if ca is None:
        return grpc.ssl_server_credentials([pair])
    return grpc.ssl_server_credentials([pair], _authority(ca), require_client_auth=True)


def channel_credentials(
    ca: Pathish | None = None,
    cert: Pathish | None = None,
    key: Pathish | None = None,
) -> grpc.ChannelCredentials:
    """Return what `run_client` needs to speak TLS.

    Args:
        ca: PEM file with the certificates that the server must be signed by; None means those
            that gRPC ships, for servers with a public certificate.
        cert: PEM file with the client's own certificate, for servers that ask for one.
        key: PEM file with its private key, not encrypted, which only its owner may read.

    Raises:
        ConfigError: a file is missing, or not what it should be; ``cert`` and ``key`` are not a
            pair; or the certificate has expired.
    """
    authority = None if ca is None else _authority(ca)
    if (cert is None) != (key is None):
        raise ConfigError("a client certificate needs both its cert and its key")
    pair = (None, None) if cert is None or key is None else _pair(cert, key)
    return grpc.ssl_channel_credentials(authority, *pair)


def _pair(cert: Pathish, key: Pathish) -> tuple[bytes, bytes]:
    """Return the bytes of a key and of its certificate chain; gRPC would not say what is wrong."""
    chain_bytes, key_bytes = read_bytes(cert), read_private(key)
    if b"ENCRYPTED" in key_bytes:
        raise ConfigError(f"{key}: the private key is encrypted; gRPC cannot ask for a passphrase")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except ssl.SSLError as err:
        raise ConfigError(f"{cert} and {key} are no certificate and its key: {err}") from err
    # The other end would say no more than that the link is broken.
    certificate, now = load_certificate(cert), datetime.datetime.now(datetime.UTC)
    if now > certificate.not_valid_after_utc:
        raise ConfigError(f"{cert} expired on {certificate.not_valid_after_utc:%Y-%m-%d}")
    if now < certificate.not_valid_before_utc:
        raise ConfigError(f"{cert} is valid from {certificate.not_valid_before_utc:%Y-%m-%d} on")
    return key_bytes, chain_bytes


def _authority(ca: Pathish) -> bytes:
    """Return the bytes of a file of CA certificates."""
    raw = read_bytes(ca)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=ca)
    except ssl.SSLError as err:
        raise ConfigError(f"{ca} holds no certificates: {err}") from err
    return raw
