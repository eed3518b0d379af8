"""Who is at the other end: TLS, certificates, tokens, and the file of the fleet's clients.

A token is ``ID:SECRET``, with the client id in percent-encoding and 256 random bits in base64. The
server keeps its SHA-256: a slow or salted hash protects passwords that can be guessed, and 256
random bits cannot.

The file of clients has a line of JSON for each client's certificate or token. `fedsz keys` writes
it, and a server reads it again whenever it has changed.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
import secrets
import ssl
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple
from urllib.parse import quote, unquote

import grpc
import msgspec
from cryptography import x509
from cryptography.x509.oid import NameOID

from fedsz.errors import ConfigError, LinkError
from fedsz.system import shares
from fedsz.transport.channel import security
from fedsz.whole_files import Pathish, read_bytes

_SECRET_BYTES: Final = 32
_TOKEN: Final = re.compile(r"[\w.~%-]+:[\w-]+", re.ASCII)
_BEARER: Final = "Bearer "  # RFC 6750; what gRPC's access-token credentials write
Kind = Literal["certificate", "token"]


class Issued(msgspec.Struct, frozen=True, omit_defaults=True):
    """A client's certificate or token: one line of the file of clients."""

    serial: Annotated[str, msgspec.Meta(pattern="^[0-9A-Fa-f]+$")]  # a number in hex
    name: str  # the client id
    kind: Kind = "certificate"
    expires: str = ""  # a date; "" for never
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]*$")] = ""  # of a token, in hex
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
            what = "is no certificate or token of `fedsz keys`"
            raise ConfigError(f"{path}, line {number}, {what}") from None
    return found


def revoked_serials(issued: Iterable[Issued]) -> frozenset[int]:
    """Return the serial numbers that are valid no longer."""
    return frozenset(int(one.serial, 16) for one in issued if one.revoked)


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


def new_token(client_id: str) -> str:
    """Return a token of random bits for a client."""
    return f"{quote(client_id, safe='')}:{secrets.token_urlsafe(_SECRET_BYTES)}"


def token_hash(token: str) -> str:
    """Return what a server keeps of a token: its SHA-256, in hex."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def read_token(path: Pathish) -> str:
    """Return the token in a file.

    Raises:
        ConfigError: the file cannot be read, others can read it, or it holds no token.
    """
    token = read_private(path).decode(errors="replace").strip()
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{path} holds no token of `fedsz keys token`")
    return token


def own_id(cert: Pathish | None, token: Pathish | None) -> str:
    """Return the client id that a file with a certificate, or one with a token, proves.

    Without a file it is "".

    Raises:
        ConfigError: a file is not what it should be.
    """
    if token is not None:
        return unquote(read_token(token).partition(":")[0])
    return certified_id(load_certificate(cert)) if cert is not None else ""


class Identity(NamedTuple):
    """A client's certificate that a TLS handshake has verified, or its token."""

    client_id: str  # that it proves
    serial: int
    kind: Kind = "certificate"

    def __str__(self) -> str:
        return f"the {self.kind} of {self.client_id!r}, serial number {self.serial:x}"


class ClientFile:
    """A file of clients, as it is now. If it becomes unreadable, its last state stays.

    Args:
        path: the file; None revokes nothing, and asks for no token.

    Raises:
        ConfigError: the file cannot be read, or is not what it should be.
    """

    def __init__(self, path: Pathish | None) -> None:
        self._path = None if path is None else Path(path)
        self._revoked: frozenset[int] = frozenset()
        self._tokens: dict[str, list[Issued]] = {}  # by the client id in percent-encoding
        self._stamp: tuple[int, ...] = ()
        if self._path is not None:
            self._read(self._path)

    def revoked(self) -> frozenset[int]:
        """Return the serial numbers revoked now; read the file again if it has changed."""
        if self._path is not None and self._stamp != _stamp_of(self._path):
            try:
                self._read(self._path)
            except ConfigError as err:
                security.error("%s; its last state is still in force", err)
        return self._revoked

    def identity_of(self, context: grpc.aio.ServicerContext) -> Identity | None:
        """Return what a connection has proven; None if the server asks for no proof.

        A certificate proves the id if TLS has asked for one; else a token of the file does.

        Raises:
            LinkError: the certificate cannot be read, though OpenSSL has let it pass; or the token
                is missing or unknown.
        """
        (pem,) = context.auth_context().get("x509_pem_cert", (b"",))
        if not pem and self._path is None:
            return None
        if not pem:
            sent = dict(context.invocation_metadata() or ()).get("authorization", "")
            return self._identity_by_token(str(sent))
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            return Identity(certified_id(certificate), certificate.serial_number)
        except ValueError as err:
            raise LinkError(f"the certificate cannot be read: {err}") from None

    def _identity_by_token(self, authorization: str) -> Identity:
        if not authorization:
            raise LinkError("this server takes clients with a token: give --token-file")
        token = authorization.removeprefix(_BEARER)
        sha256 = token_hash(token)
        for one in self._tokens.get(token.partition(":")[0], ()):
            # Compared in a time that does not depend on how nearly they agree.
            if hmac.compare_digest(one.sha256, sha256):
                return Identity(one.name, int(one.serial, 16), one.kind)
        raise LinkError("the token is not one that this server knows")

    def _read(self, path: Path) -> None:
        self._stamp = _stamp_of(path)
        issued = read_issued(path)
        self._revoked, self._tokens = revoked_serials(issued), {}
        for one in issued:
            if one.kind == "token":
                self._tokens.setdefault(quote(one.name, safe=""), []).append(one)


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
    *,
    token: Pathish | None = None,
) -> grpc.ChannelCredentials:
    """Return what `run_client` needs to speak TLS.

    Args:
        ca: PEM file with the certificates that the server must be signed by; None means those
            that gRPC ships, for servers with a public certificate.
        cert: PEM file with the client's own certificate, for servers that ask for one.
        key: PEM file with its private key, not encrypted, which only its owner may read.
        token: file with the client's token, for servers that ask for one. gRPC sends it with each
            connection, over TLS only.

    Raises:
        ConfigError: a file is missing, or not what it should be; ``cert`` and ``key`` are not a
            pair; or the certificate has expired.
    """
    authority = None if ca is None else _authority(ca)
    if (cert is None) != (key is None):
        raise ConfigError("a client certificate needs both its cert and its key")
    pair = (None, None) if cert is None or key is None else _pair(cert, key)
    credentials = grpc.ssl_channel_credentials(authority, *pair)
    if token is None:
        return credentials
    bearer = grpc.access_token_call_credentials(read_token(token))
    return grpc.composite_channel_credentials(credentials, bearer)


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
