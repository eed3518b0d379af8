"""Certificates of any kind, also of those that `fedsz keys` does not issue."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedsz.transport.authority import Key, host_name, new_certificate

if TYPE_CHECKING:
    from pathlib import Path

PURPOSES = {"client": ExtendedKeyUsageOID.CLIENT_AUTH, "server": ExtendedKeyUsageOID.SERVER_AUTH}


class Authority:
    """A certificate authority, and PEM files of what it has signed."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self._own, self.key = new_certificate(name, None, timedelta(1), [constraints])
        self.ca, self.ca_key = folder / f"{name}.pem", folder / f"{name}.pem.key"
        self._write(self.ca, self.ca_key, self._own, self.key)

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
        names = [*map(host_name, hosts), *map(x509.UniformResourceIdentifier, uris)]
        extensions: list[x509.ExtensionType] = [x509.SubjectAlternativeName(names)]
        if purpose:
            extensions.append(x509.ExtendedKeyUsage([PURPOSES[purpose]]))
        since, until = (timedelta(day) for day in days)
        made = new_certificate(name, (self._own.subject, self.key), until, extensions, since)
        files = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        self._write(*files, *made)
        return files

    def _write(self, cert_file: Path, key_file: Path, cert: x509.Certificate, key: Key) -> None:
        cert_file.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(private_bytes(key, serialization.NoEncryption()))
        key_file.chmod(0o600)


def private_bytes(key: Key, encryption: serialization.KeySerializationEncryption) -> bytes:
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, pkcs8, encryption)
