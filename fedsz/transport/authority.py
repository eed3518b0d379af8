"""A fleet's certificate authority in a folder, and the certificates and tokens that it issues.

    ca.pem, ca.key          the authority; the key stays here
    server.pem, .key        the server's certificate, for TLS
    clients/ID.pem, .key    a client's certificate; ID in percent-encoding
    clients/ID.token        a client's token, in place of a certificate
    clients.jsonl           a line for each client's certificate or token, for the server

A second certificate or token of the same client is ID.2.pem or ID.2.token: both are valid until the
first is revoked.
"""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import json, structs

from fedsz.errors import ConfigError, cannot
from fedsz.transport.credentials import (
    Issued,
    load_certificate,
    new_token,
    read_issued,
    read_private,
    token_hash,
)
from fedsz.whole_files import Pathish, write_whole

Key = ec.EllipticCurvePrivateKey

CA_DAYS: Final = 3650
_SERIAL_BITS: Final = 64  # as many as public authorities must draw, and few enough to be read
_CLOCK_SKEW: Final = datetime.timedelta(hours=1)  # of devices behind the machine that signs
_NAME_LENGTH: Final = 64  # characters of a common name: RFC 5280, ub-common-name


class Authority:
    """The authority of a fleet, in a folder.

    Raises:
        ConfigError: there is none in the folder, or a file is not what it should be.
    """

    def __init__(self, folder: Pathish) -> None:
        self.folder = Path(folder)
        self.ca, self.clients = self.folder / "ca.pem", self.folder / "clients.jsonl"
        key_file = self.folder / "ca.key"
        self._certificate = load_certificate(self.ca)
        key_bytes = read_private(key_file)
        try:
            key = load_pem_private_key(key_bytes, None)
        except (ValueError, TypeError) as err:
            raise ConfigError(f"{key_file} holds no private key without a passphrase") from err
        if not isinstance(key, Key):
            raise ConfigError(f"{key_file} is no key on an elliptic curve")
        self._key = key
        self.issued()  # raises here if lines would be added to a file that cannot be read

    @classmethod
    def create(cls, folder: Pathish) -> Authority:
        """Make an authority in a folder that has none, for ten years.

        Raises:
            ConfigError: there is one, or the folder cannot be written.
        """
        path = Path(folder)
        if (path / "ca.key").exists():
            raise ConfigError(f"{path} has an authority already")
        with cannot(f"write to {path}"):
            (path / "clients").mkdir(parents=True, exist_ok=True)
            (path / "clients.jsonl").touch()
            (path / ".gitignore").write_text("*.key\n*.token\n")
        only_signs = x509.BasicConstraints(ca=True, path_length=0)
        until = datetime.timedelta(days=CA_DAYS)
        made = new_certificate(f"fedsz {secrets.token_hex(8)}", None, until, [only_signs])
        _write_pair(path / "ca.pem", *made)
        return cls(path)

    def certify_server(self, hosts: Iterable[str], days: int) -> Path:
        """Issue a certificate for a server that clients reach as one of ``hosts``.

        Args:
            hosts: DNS names and IP addresses.
            days: how long it is valid.

        Returns:
            The certificate's file; the key is beside it.
        """
        names = [host_name(host) for host in hosts]
        extension = x509.SubjectAlternativeName(names)
        return self._certify(self.folder / "server", str(names[0].value), days, [extension])

    def certify_client(self, client_id: str, days: int) -> Path:
        """Issue a certificate for a client; return its file. The key is beside it."""
        return self._certify(self._path_of(client_id), client_id, days)

    def make_token(self, client_id: str) -> Path:
        """Issue a token for a client; return its file."""
        path, token = _free(self._path_of(client_id), ".token"), new_token(client_id)
        serial = f"{secrets.randbits(_SERIAL_BITS) or 1:x}"
        hashed = token_hash(token)
        self._write([*self.issued(), Issued(serial, client_id, "token", sha256=hashed)])
        write_whole(path, token.encode() + b"\n", private=True)
        return path

    def issued(self) -> list[Issued]:
        """Return the clients' certificates and tokens, in the order of their issue."""
        return read_issued(self.clients)

    def revoke(self, what: str) -> list[Issued]:
        """Revoke one serial number, in hex, or all that a client has; return that.

        Raises:
            ConfigError: nothing valid has that serial number or client id.
        """
        issued = self.issued()
        found = [one for one in issued if what in (one.name, one.serial) and not one.revoked]
        if not found:
            raise ConfigError(f"nothing valid has the client id or the serial number {what!r}")
        self._write(structs.replace(one, revoked=one.revoked or one in found) for one in issued)
        return found

    def _certify(
        self, path: Path, name: str, days: int, hosts: Sequence[x509.ExtensionType] = ()
    ) -> Path:
        # A client's certificate must not do for a server, nor the server's for a client.
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        extensions = [*hosts, x509.ExtendedKeyUsage([purpose])]
        until, signer = datetime.timedelta(days=days), (self._certificate.subject, self._key)
        signed, key = new_certificate(name[:_NAME_LENGTH], signer, until, extensions)
        file = _free(path, ".pem")
        if not hosts:  # before the certificate is there: no client has one that is not listed
            ends = f"{signed.not_valid_after_utc:%Y-%m-%d}"
            self._write([*self.issued(), Issued(f"{signed.serial_number:x}", name, expires=ends)])
        _write_pair(file, signed, key)
        return file

    def _path_of(self, client_id: str) -> Path:
        """Return where a client's files are, without their suffix."""
        if not 0 < len(client_id) <= _NAME_LENGTH:
            raise ConfigError(f"a client id has 1 to {_NAME_LENGTH} characters, got {client_id!r}")
        # Dots too: "..", and "a.2", which is what a second certificate of "a" is called.
        return self.folder / "clients" / quote(client_id, safe="").replace(".", "%2E")

    def _write(self, issued: Iterable[Issued]) -> None:
        """Write the file of clients, which a server may be reading."""
        write_whole(self.clients, b"".join(json.encode(one) + b"\n" for one in issued))


def _free(path: Path, suffix: str) -> Path:
    """Return a path with a suffix, after a number from 2 on if that file is there."""
    numbered = (path.with_name(f"{path.name}.{i}{suffix}") for i in itertools.count(2))
    files = itertools.chain([path.with_name(f"{path.name}{suffix}")], numbered)
    return next(file for file in files if not file.exists())


def host_name(host: str) -> x509.GeneralName:
    """Return an IP address or a DNS name as a certificate has it; ConfigError if it is neither."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host.encode("idna").decode())
    except ValueError as err:
        raise ConfigError(f"neither a host's name nor an IP address: {host!r}") from err


def new_certificate(
    name: str,
    signer: tuple[x509.Name, Key] | None,
    until: datetime.timedelta,
    extensions: Iterable[x509.ExtensionType] = (),
    since: datetime.timedelta = -_CLOCK_SKEW,
) -> tuple[x509.Certificate, Key]:
    """Return a certificate and its key.

    Args:
        name: its subject's common name; "" for none.
        signer: the subject and the key of who signs it; None for its own.
        until: how long it is valid from now on.
        extensions: what it says beside the keys; what limits a CA is critical.
        since: when it begins to be valid, from now.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])
    issuer, issuer_key = signer or (subject, key)
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=secrets.randbits(_SERIAL_BITS) or 1,
        not_valid_before=now + since,
        not_valid_after=now + until,
    )
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    for extension in (own, signed_by, *extensions):
        critical = isinstance(extension, x509.BasicConstraints)
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(issuer_key, hashes.SHA256()), key


def _write_pair(path: Path, certificate: x509.Certificate, key: Key) -> None:
    """Write a certificate, and beside it its private key, which only its owner may read."""
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_whole(path.with_suffix(".key"), pem, private=True)
    write_whole(path, certificate.public_bytes(Encoding.PEM))
