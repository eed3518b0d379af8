"""`fedsz keys`: the files of an authority, and who may read them."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from fedsz.transport.credentials import certified_id, load_certificate, revoked_serials
from tests.cli.test_cli import call, refuse

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    done = call("keys", "init", "--dir", folder, "--host", "127.0.0.1", "--host", "x.org")
    assert done.returncode == 0, done
    return folder


def test_keys_are_their_owners_alone_and_files_name_their_clients(folder: Path) -> None:
    ids = ("pi-3/0/4", "..", "a.2", "größe", "a b")
    done = call("keys", "client", "-d", folder, *ids)
    assert done.returncode == 0, done

    certs = list((folder / "clients").glob("*.pem"))
    assert {certified_id(load_certificate(cert)) for cert in certs} == set(ids)
    keys = list(folder.rglob("*.key"))
    assert len(keys) == 2 + len(ids)
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}


def test_a_certificate_is_for_one_end_and_some_days(folder: Path) -> None:
    call("keys", "client", "-d", folder, "a", "--days", 7)
    ends = {"server.pem": "serverAuth", "clients/a.pem": "clientAuth"}
    for file, purpose in ends.items():
        certificate = x509.load_pem_x509_certificate((folder / file).read_bytes())
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert [oid._name for oid in usage] == [purpose]
    valid = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert valid.days == 7
    before = (folder / "server.pem").read_bytes()
    another = call("keys", "server", "-d", folder, "--host", "y.org")
    assert another.stdout == f"{folder}/server.2.pem\n"
    assert (folder / "server.pem").read_bytes() == before


def test_certificates_are_listed_and_revoked(folder: Path) -> None:
    for client_id in ("a", "b", "a", "a"):
        call("keys", "client", "-d", folder, client_id)
    rows = json.loads(call("keys", "list", "-d", folder, "--json").stdout)
    assert [row["name"] for row in rows] == ["a", "b", "a", "a"]
    by_serial = call("keys", "revoke", "-d", folder, rows[2]["serial"]).stdout
    assert by_serial == f"revoked: {rows[2]['serial']} of a\n"
    by_name = call("keys", "revoke", "-d", folder, "a").stdout.splitlines()

    assert [line.split()[1] for line in by_name] == [rows[0]["serial"], rows[3]["serial"]]
    after = json.loads(call("keys", "list", "-d", folder, "--json").stdout)
    assert [row["revoked"] for row in after] == [True, False, True, True]
    serials = {int(row["serial"], 16) for row in after if row["revoked"]}
    assert revoked_serials(folder / "clients.jsonl") == serials
    assert "revoked" in call("keys", "list", "-d", folder).stdout
    again = "nothing valid has the client id or the serial number 'a'"
    assert refuse("keys", "revoke", "-d", folder, "a") == again


def test_mistakes_are_one_line_and_change_nothing(folder: Path, tmp_path: Path) -> None:
    files = set(folder.rglob("*"))
    for command, why in (
        (("init", "-d", folder, "--host", "x"), f"{folder} has an authority already"),
        (("client", "-d", tmp_path / "absent", "a"), "ca.pem: No such file"),
        (("client", "-d", folder, "x" * 65), "1 to 64 characters"),
        (("server", "-d", folder, "--host", "a..b"), "neither a host's name"),
    ):
        assert why in refuse("keys", *command)
    (folder / "clients.jsonl").write_text("1f 127.0.0.1 2036-01-01\n")
    before = (folder / "clients.jsonl").read_bytes()
    for name in ("client", "revoke"):
        why = refuse("keys", name, "-d", folder, "b")
        assert "clients.jsonl, line 1, is no certificate of `fedsz keys`" in why
    assert (folder / "clients.jsonl").read_bytes() == before
    (folder / "ca.key").chmod(0o644)
    why = "ca.key holds a secret and has mode 0644: chmod 600"
    assert why in refuse("keys", "client", "-d", folder, "a")
    assert set(folder.rglob("*")) == files
