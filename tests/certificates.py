"""Certificates of any kind, also of those that `fedsz keys` does not issue."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedsz.transport import authority
from fedsz.transport.authority import host_name, new_certificate

if TYPE_CHECKING:
    from pathlib import Path

PURPOSES = {"client": ExtendedKeyUsageOID.CLIENT_AUTH, "server": ExtendedKeyUsageOID.SERVER_AUTH}


class Authority:
    """A certificate authority, and PEM files of what it has signed."""

    def __init__(self, folder: Path, name: str) -> None:
        self._own = authority.Authority.create(folder / name)
        self.ca, self.ca_key = self._own.ca, self._own.ca.with_suffix(".key")
        self.key = self._own._key

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
        signer = (self._own._certificate.subject, self.key)
        file = self._own.folder / f"{name}.crt"
        authority._write_pair(file, *new_certificate(name, signer, until, extensions, since))
        return file, file.with_suffix(".key")
