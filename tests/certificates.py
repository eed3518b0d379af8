"""Certificates of any kind, also of those that `fedsz keys` does not issue."""

from __future__ import annotations

import datetime
import ipaddress
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from pathlib import Path

PURPOSES = {"client": ExtendedKeyUsageOID.CLIENT_AUTH, "server": ExtendedKeyUsageOID.SERVER_AUTH}


class Authority:
    """A certificate authority, and PEM files of what it has signed."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.ca, self.ca_key = folder / f"{name}.pem", folder / f"{name}.pem.key"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        own = self._builder(self.name, self.key, (-1, 1))
        self._write(self.ca, own.add_extension(constraints, critical=True))
        self._write_key(self.ca_key, self.key)

    def issue(
        self,
        name: str,
        *,
        hosts: tuple[str, ...] = ("127.0.0.1",),
        uris: tuple[str, ...] = (),
        days: tuple[float, float] = (-1, 1),  # from now: valid since, valid until
        purpose: str = "",  # of PURPOSES; any without
    ) -> tuple[Path, Path]:
        """Return the files of a certificate and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = [*map(host_name, hosts), *map(x509.UniformResourceIdentifier, uris)]
        builder = self._builder(subject, key, days)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if purpose:
            usage = x509.ExtendedKeyUsage([PURPOSES[purpose]])
            builder = builder.add_extension(usage, critical=False)
        cert_file, key_file = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        self._write(cert_file, builder)
        self._write_key(key_file, key)
        return cert_file, key_file

    def revoke(self, cert: Path, revoked: Path) -> None:
        """Put a certificate's serial number into a file of those that are revoked."""
        certificate = x509.load_pem_x509_certificate(cert.read_bytes())
        with revoked.open("a") as file:
            file.write(f"{certificate.serial_number:x}\n")

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: tuple[float, float]
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return x509.CertificateBuilder(
            issuer_name=self.name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now + datetime.timedelta(days=days[0]),
            not_valid_after=now + datetime.timedelta(days=days[1]),
        )

    def _write(self, path: Path, builder: x509.CertificateBuilder) -> None:
        certificate = builder.sign(self.key, hashes.SHA256())
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _write_key(self, path: Path, key: ec.EllipticCurvePrivateKey) -> None:
        path.write_bytes(private_bytes(key, serialization.NoEncryption()))
        path.chmod(0o600)


def host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def private_bytes(
    key: ec.EllipticCurvePrivateKey, encryption: serialization.KeySerializationEncryption
) -> bytes:
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, pkcs8, encryption)
