"""Who is at the other end of a connection: what its certificate and its token prove."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import grpc
from cryptography import x509
from cryptography.x509.oid import NameOID

from fedsz.errors import ConfigError, CorruptStream, LinkError
from fedsz.transport.channel import security
from fedsz.transport.private_files import parse_lines
from fedsz.transport.tls import load_certificate
from fedsz.transport.tokens import Token, TokenHash, read_hashes
from fedsz.whole_files import Pathish

_BEARER: Final = "Bearer "  # RFC 6750; what gRPC's access-token credentials write
T = TypeVar("T")


class Proof(NamedTuple):
    """What one certificate or token proves."""

    kind: str  # "certificate" or "token"
    serial: int
    names: frozenset[str]  # the client ids that it may be used with
    mark: str  # tells proofs apart: serial numbers of two authorities may be the same


Identity = tuple[Proof, ...]  # all that a connection has shown; none where nobody asks


def why_revoked(identity: Identity, revoked: Collection[int]) -> str:
    """Return which proof is among serial numbers that are revoked; "" if none is."""
    for proof in identity:
        if proof.serial in revoked:
            whose = ", ".join(sorted(proof.names))
            return f"the {proof.kind} of {whose!r}, serial number {proof.serial:x}, is revoked"
    return ""


class Claims:
    """Which client each proof of identity has been used for: a certificate is one client."""

    def __init__(self) -> None:
        self._client_ids: dict[str, str] = {}  # by the mark of a proof

    def check(self, identity: Identity, client_id: str) -> None:
        """Note that an identity is used as ``client_id``.

        Raises:
            CorruptStream: a proof is not of this client, or has been used as another one.
        """
        for proof in identity:
            if client_id not in proof.names:
                names = " or ".join(sorted(map(repr, proof.names))) or "nobody"
                what = f"the client id is {client_id!r} and the {proof.kind} that of {names}"
                raise CorruptStream(what)
        for proof in identity:
            first = self._client_ids.setdefault(proof.mark, client_id)
            if first != client_id:
                what = f"this {proof.kind} has joined as client {first!r} before"
                raise CorruptStream(f"the client id is {client_id!r}, but {what}")


class Identities:
    """Who may connect to a server.

    A certificate proves its common name and the DNS names and URIs among its subject's alternative
    names. With ``tokens``, every connection needs a token as well, which proves one client id.

    Both files are read again when they have changed. If that fails, what was read before holds.

    Args:
        tokens: file with the hashes of the clients' tokens, as `fedsz keys` writes it.
        revoked: file with the serial numbers, in hex and one a line, of certificates and tokens
            that are valid no longer; what follows ``#`` is a comment.

    Raises:
        ConfigError: a file cannot be read, or is not what it should be.
    """

    def __init__(self, tokens: Pathish | None = None, revoked: Pathish | None = None) -> None:
        self._tokens = None if tokens is None else _Watched(tokens, read_hashes)
        self._revoked = None if revoked is None else _Watched(revoked, read_serials)

    @property
    def by_token(self) -> bool:
        """Whether a connection needs a token."""
        return self._tokens is not None

    def revoked(self) -> frozenset[int]:
        """Return the serial numbers that are revoked now."""
        return frozenset() if self._revoked is None else self._revoked.read()

    def of(self, context: grpc.aio.ServicerContext) -> Identity:
        """Return what a connection has proven.

        Raises:
            LinkError: it lacks a proof, or one is wrong or revoked.
        """
        (pem,) = context.auth_context().get("x509_pem_cert", (b"",))
        by_certificate = (_certificate_in(pem),) if pem else ()
        by_token = () if self._tokens is None else (_token_of(context, self._tokens.read()),)
        identity = by_certificate + by_token
        if why := why_revoked(identity, self.revoked()):
            raise LinkError(why)
        return identity


def _token_of(context: grpc.aio.ServicerContext, hashes: Mapping[int, TokenHash]) -> Proof:
    sent = dict(context.invocation_metadata() or ()).get("authorization", "")
    if not sent:
        raise LinkError("this server takes clients with a token: give --token-file")
    try:
        token = Token.parse(str(sent).removeprefix(_BEARER))
    except ConfigError:
        raise LinkError("this is not a token of fedsz") from None
    known = hashes.get(token.serial)
    if known is None or not known.fits(token):
        raise LinkError("the token is not one that this server knows")
    return Proof("token", token.serial, frozenset((known.client_id,)), f"{token.serial:x}")


def _certificate_in(pem: bytes) -> Proof:
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate_names(certificate)
    except ValueError as err:  # which OpenSSL has let pass
        raise LinkError(f"the certificate cannot be read: {err}") from None
    mark = hashlib.sha256(pem).hexdigest()
    return Proof("certificate", certificate.serial_number, names, mark)


class _Watched(Generic[T]):
    """What a file holds, read again whenever it has changed."""

    def __init__(self, path: Pathish, parse: Callable[[Path], T]) -> None:
        self._path, self._parse = Path(path), parse
        self._stamp = self._look()
        self._value = parse(self._path)

    def read(self) -> T:
        """Return what the file holds now; if it cannot be read, what it held before."""
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._value = self._parse(self._path)
            except ConfigError as err:
                security.error("%s; what it held before is still in force", err)
        return self._value

    def _look(self) -> tuple[int, ...]:
        try:
            about = self._path.stat()
        except OSError:
            return ()
        return about.st_ino, about.st_size, about.st_mtime_ns


def certificate_names(certificate: x509.Certificate) -> frozenset[str]:
    """Return what a client with this certificate may be called.

    Raises:
        ValueError: the certificate is not as X.509 has it.
    """
    names = {
        str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    }
    with suppress(x509.ExtensionNotFound):
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names.update(extension.value.get_values_for_type(x509.DNSName))
        names.update(extension.value.get_values_for_type(x509.UniformResourceIdentifier))
    return frozenset(names)


def read_serials(path: Path) -> frozenset[int]:
    """Return the serial numbers in a file of those that are revoked.

    Raises:
        ConfigError: it cannot be read, or has a line that is no serial number.
    """

    def serial(line: str) -> int | None:
        digits = line.partition("#")[0].strip().replace(":", "")
        return int(digits, 16) if digits else None

    return frozenset(s for s in parse_lines(path, serial, "no serial number") if s is not None)


def own_name(cert: Pathish | None, token: Pathish | None) -> str:
    """Return the one client id that a certificate or a token is for; "" if there are several.

    Raises:
        ConfigError: a file is not what it should be.
    """
    if token is not None:
        return Token.read(token).client_id
    if cert is None:
        return ""
    names = certificate_names(load_certificate(cert))
    return next(iter(names)) if len(names) == 1 else ""
