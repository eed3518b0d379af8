"""Who signs the keys of a round: a client's own certificate, that an authority has signed."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from contextlib import suppress

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedsz.errors import ConfigError, CorruptStream

_PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class CertificateVerifier:
    """Knows the clients whose certificates one of several authorities has signed.

    A certificate that says what it is for must be for clients: a server has one of its own.

    Args:
        authorities: their certificates, in PEM.
        revoked: serial numbers that are valid no longer.

    Raises:
        ConfigError: there are no certificates.
    """

    def __init__(self, authorities: bytes, revoked: Iterable[int] = ()) -> None:
        try:
            self._authorities = x509.load_pem_x509_certificates(authorities)
        except ValueError as err:
            raise ConfigError(f"no certificates of authorities: {err}") from err
        self._revoked = frozenset(revoked)

    def check(self, certificate: bytes, message: bytes, signature: bytes) -> str:
        """Return the subject of a certificate whose key has signed a message.

        Raises:
            CorruptStream: no authority has signed it, it is not valid now, or the signature is not
                of its key.
        """
        try:
            shown = x509.load_der_x509_certificate(certificate)
            subject = shown.subject.rfc4514_string()
            why = self._objection(shown)
            key = shown.public_key()
        except Exception as err:  # its readers raise many kinds, of which not all are documented
            raise CorruptStream(f"the certificate cannot be read: {err}") from None
        if why:
            raise CorruptStream(f"the certificate of {subject} {why}")
        try:
            if isinstance(key, ed25519.Ed25519PublicKey):
                key.verify(signature, message)
            elif isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, message, ec.ECDSA(SHA256()))
            else:
                raise CorruptStream(f"the certificate of {subject} has another kind of key")
        except InvalidSignature:
            raise CorruptStream(f"{subject} has not signed this") from None
        return subject

    def _objection(self, shown: x509.Certificate) -> str:
        """Return why a certificate is not a client's; "" if it is."""
        # Extensions are read of what an authority has signed, and of nothing else.
        if not any(_has_signed(authority, shown) for authority in self._authorities):
            return "is signed by no authority that is known here"
        now = datetime.datetime.now(datetime.UTC)
        if not shown.not_valid_before_utc <= now <= shown.not_valid_after_utc:
            return "is not valid now"
        if shown.serial_number in self._revoked:
            return "is revoked"
        with suppress(x509.ExtensionNotFound):
            purposes = shown.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            if ExtendedKeyUsageOID.CLIENT_AUTH not in purposes:
                return "is not a client's"
        return ""


class Identity(CertificateVerifier):
    """A client that signs by its own certificate, and knows the others by theirs.

    Args:
        certificate: in PEM, such as a client has for TLS.
        key: its private key in PEM, not encrypted: Ed25519, or on an elliptic curve.
        authorities: certificates in PEM of those who have signed the clients' certificates.

    Attributes:
        certificate: in DER.

    Raises:
        ConfigError: these are no such certificates, or no pair.
    """

    def __init__(self, certificate: bytes, key: bytes, authorities: bytes) -> None:
        super().__init__(authorities)
        try:
            shown = x509.load_pem_x509_certificate(certificate)
            private = load_pem_private_key(key, None)
        except (ValueError, TypeError) as err:
            raise ConfigError(f"no certificate, or no key without a passphrase: {err}") from err
        if not isinstance(private, _PrivateKey):
            raise ConfigError("the key is neither Ed25519 nor on an elliptic curve")
        if private.public_key() != shown.public_key():
            raise ConfigError("the key is not that of the certificate")
        self._key: _PrivateKey = private
        self.certificate = shown.public_bytes(Encoding.DER)

    def sign(self, message: bytes) -> bytes:
        """Return a signature: Ed25519, or ECDSA with SHA-256."""
        if isinstance(self._key, ed25519.Ed25519PrivateKey):
            return self._key.sign(message)
        return self._key.sign(message, ec.ECDSA(SHA256()))


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
