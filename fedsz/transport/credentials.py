"""Who is at the other end: by TLS, certificates, tokens, and the file of the fleet's clients.

A token is a serial number and 256 random bits. Its client shows it on every connection, over TLS
alone. The server keeps its SHA-256: a slow or salted hash protects passwords that can be guessed,
and 256 bits cannot.

The file of clients has a line of JSON for each certificate and token. `fedsz keys` writes it, and
a server reads it again whenever it has changed.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import secrets
import ssl
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NamedTuple, Self
from urllib.parse import quote, unquote

import grpc
import msgspec
from cryptography import x509
from cryptography.x509.oid import NameOID

from fedsz.errors import ConfigError, LinkError
from fedsz.system import shares
from fedsz.transport.channel import security
from fedsz.whole_files import Pathish, read_bytes

_SERIAL_BYTES, _SECRET_BYTES = 8, 32
_BEARER: Final = "Bearer "  # RFC 6750; what gRPC's access-token credentials write


class Kind(StrEnum):
    """Of what has been issued."""

    CERTIFICATE = "certificate"
    TOKEN = "token"  # noqa: S105 - the word, not a secret
    SERVER = "server"  # the server's own certificate


class Issued(msgspec.Struct, frozen=True, omit_defaults=True):
    """A certificate or a token: one line of the file of clients."""

    serial: Annotated[str, msgspec.Meta(pattern="^[0-9A-Fa-f]+$")]  # a number in hex
    kind: Kind
    name: str  # the client id; the server's first host
    expires: str = ""  # a date; "" for never
    secret_hash: str = ""  # of a token: the SHA-256 of its secret, in hex
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


def revoked_serials(issued: Collection[Issued]) -> frozenset[int]:
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


@dataclass(frozen=True)
class Token:
    """The secret of one client."""

    client_id: str
    serial: int  # tells the tokens of a server apart, and is no secret
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls, client_id: str) -> Self:
        """Return a token of random bits."""
        serial = int.from_bytes(secrets.token_bytes(_SERIAL_BYTES))
        return cls(client_id, serial, secrets.token_bytes(_SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the token that ``text`` has written.

        Raises:
            ConfigError: it is none; the message does not repeat it.
        """
        name, serial, secret = [*text.strip().split(":"), "", ""][:3]
        try:
            token = cls(unquote(name), int(serial, 16), bytes.fromhex(secret))
        except ValueError:
            raise ConfigError("not a token, which is CLIENT:SERIAL:SECRET") from None
        if text.strip() != token.text() or len(token.secret) != _SECRET_BYTES:
            raise ConfigError("not a token, which is CLIENT:SERIAL:SECRET")
        return token

    @classmethod
    def read(cls, path: Pathish) -> Self:
        """Return the token in a file.

        Raises:
            ConfigError: the file cannot be read, others can read it, or it holds no token.
        """
        text = read_private(path).decode(errors="replace")
        try:
            return cls.parse(text)
        except ConfigError as err:
            raise ConfigError(f"{path}: {err}") from None

    def text(self) -> str:
        """Return it in the printable ASCII that files and HTTP headers take."""
        return f"{quote(self.client_id, safe='')}:{self.serial:x}:{self.secret.hex()}"

    def secret_hash(self) -> str:
        """Return what a server keeps of it."""
        return hashlib.sha256(self.secret).hexdigest()


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
    """Return the client id that a certificate proves; "" if it names nobody.

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


def own_id(cert: Pathish | None, token: Pathish | None) -> str:
    """Return the client id that this client's certificate or token is for; "" without any.

    Raises:
        ConfigError: a file is not what it should be.
    """
    if token is not None:
        return Token.read(token).client_id
    return certified_id(load_certificate(cert)) if cert is not None else ""


class Proof(NamedTuple):
    """A certificate or token that a connection has shown."""

    kind: Kind
    serial: int
    client_id: str  # that it proves


Identity = tuple[Proof, ...]  # all that a connection has shown; empty if the server asks for none


def why_revoked(identity: Identity, revoked: Collection[int]) -> str:
    """Return which proof is among serial numbers that are revoked; "" if none is."""
    for proof in identity:
        if proof.serial in revoked:
            whose = f"{proof.client_id!r}, serial number {proof.serial:x}"
            return f"the {proof.kind} of {whose}, is revoked"
    return ""


def why_wrong(identity: Identity, client_id: str) -> str:
    """Return which proof is not this client's; "" if all are."""
    for proof in identity:
        if proof.client_id != client_id:
            return (
                f"the client id is {client_id!r} and the {proof.kind} that of {proof.client_id!r}"
            )
    return ""


class Identities:
    """Who may connect to a server.

    If TLS asks for a client's certificate, that proves its id: see `certified_id`.

    Args:
        clients: the file of clients. A certificate or token that is revoked there is refused. If
            the file cannot be read again after a change, its last state holds.
        by_token: whether each connection must show a token of that file.

    Raises:
        ConfigError: the file cannot be read, or is not what it should be.
    """

    def __init__(self, clients: Pathish | None = None, *, by_token: bool = False) -> None:
        if by_token and clients is None:
            raise ConfigError("tokens are in a file of clients, and none is given")
        self.by_token = by_token
        self._path = None if clients is None else Path(clients)
        self._stamp: tuple[int, ...] = ()
        self._revoked: frozenset[int] = frozenset()
        self._tokens: Mapping[int, Issued] = {}
        if self._path is not None:
            self._read(self._path)

    def revoked(self) -> frozenset[int]:
        """Return the serial numbers that are revoked now."""
        self._refresh()
        return self._revoked

    def of(self, context: grpc.aio.ServicerContext) -> Identity:
        """Return what a connection has proven.

        Raises:
            LinkError: it lacks a proof, or one is wrong or revoked.
        """
        self._refresh()
        (pem,) = context.auth_context().get("x509_pem_cert", (b"",))
        identity: Identity = (_proof_of(pem),) if pem else ()
        if self.by_token:
            sent = dict(context.invocation_metadata() or ()).get("authorization", "")
            identity += (self._proof_of_token(str(sent)),)
        if why := why_revoked(identity, self._revoked):
            raise LinkError(why)
        return identity

    def _proof_of_token(self, authorization: str) -> Proof:
        if not authorization:
            raise LinkError("this server takes clients with a token: give --token-file")
        try:
            token = Token.parse(authorization.removeprefix(_BEARER))
        except ConfigError:
            raise LinkError("this is not a token of fedsz") from None
        known = self._tokens.get(token.serial)
        # Compared in a time that does not tell how nearly they agree.
        if known is None or not hmac.compare_digest(known.secret_hash, token.secret_hash()):
            raise LinkError("the token is not one that this server knows")
        return Proof(Kind.TOKEN, token.serial, known.name)

    def _refresh(self) -> None:
        """Read the file again if it has changed."""
        if self._path is None or self._stamp == _stamp_of(self._path):
            return
        try:
            self._read(self._path)
        except ConfigError as err:
            security.error("%s; its last state is still in force", err)

    def _read(self, path: Path) -> None:
        self._stamp = _stamp_of(path)
        issued = read_issued(path)
        self._revoked = revoked_serials(issued)
        self._tokens = {int(one.serial, 16): one for one in issued if one.kind == Kind.TOKEN}


def _stamp_of(path: Path) -> tuple[int, ...]:
    """Return what differs once a file has changed."""
    try:
        about = path.stat()
    except OSError:
        return ()
    return about.st_ino, about.st_size, about.st_mtime_ns


def _proof_of(pem: bytes) -> Proof:
    """Return what a certificate proves that the TLS handshake has verified."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        return Proof(Kind.CERTIFICATE, certificate.serial_number, certified_id(certificate))
    except ValueError as err:  # which OpenSSL has let pass
        raise LinkError(f"the certificate cannot be read: {err}") from None


def server_credentials(
    cert: Pathish, key: Pathish, ca: Pathish | None = None
) -> grpc.ServerCredentials:
    """Return what `GrpcGrid` needs to speak TLS.

    Args:
        cert: PEM file with the server's certificate, then any intermediate ones.
        key: PEM file with its private key, not encrypted, which nobody else may read.
        ca: PEM file with the certificates that clients must be signed by; None admits everybody.

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
        key: PEM file with its private key, not encrypted, which nobody else may read.
        token: file with the client's token, for servers that ask for one. It goes with each
            connection; gRPC sends it over TLS only.

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
    bearer = grpc.access_token_call_credentials(Token.read(token).text())
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
