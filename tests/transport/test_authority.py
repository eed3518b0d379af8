"""`fedsz keys`: the files of an authority, and who may read them."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from fedsz.errors import ConfigError
from fedsz.transport.credentials import own_id, read_issued, read_token, revoked_serials, token_hash
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
    for command in ("client", "token"):
        done = call("keys", command, "-d", folder, *ids)
        assert done.returncode == 0, done

    certs = list((folder / "clients").glob("*.pem"))
    assert {own_id(cert, None) for cert in certs} == set(ids)
    assert all(own_id(None, c.with_suffix(".token")) == own_id(c, None) for c in certs)
    secrets = [path for path in folder.rglob("*") if path.suffix in (".key", ".token")]
    assert len(secrets) == 2 + 2 * len(ids)
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}


def test_the_file_of_clients_has_the_hash_of_a_token_alone(folder: Path) -> None:
    done = call("keys", "token", "-d", folder, "pi-1")
    assert done.stdout == f"{folder}/clients/pi-1.token\n"
    token = read_token(folder / "clients" / "pi-1.token")
    (line,) = (folder / "clients.jsonl").read_text().splitlines()
    row = json.loads(line)
    serial = row.pop("serial")
    assert int(serial, 16) > 0
    assert row == {"kind": "token", "name": "pi-1", "sha256": token_hash(token)}
    secret = token.removeprefix("pi-1:")
    assert len(secret) == 43  # 32 bytes in base64
    for path in folder.rglob("*"):
        assert path.suffix == ".token" or not path.is_file() or secret not in path.read_text()


def test_a_token_file_is_read_as_it_was_written_and_no_other(folder: Path) -> None:
    call("keys", "token", "-d", folder, "a")
    path = folder / "clients" / "a.token"
    token = read_token(path)
    for wrong in ("", "a", "a:", f":{token}", f"{token} x", f"a\n{token}", "a:\x7f", "ü:x", "\0:x"):
        path.write_text(wrong)
        with pytest.raises(ConfigError) as caught:
            read_token(path)
        assert str(caught.value) == f"{path} holds no token of `fedsz keys token`"
    path.write_text(token)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="holds a secret and has mode 0640"):
        read_token(path)
    path.chmod(0o600)
    for others, why in (
        (("--insecure",), "a token needs TLS: give --tls-ca in place of --insecure"),
        (
            ("--tls-cert", "a.pem", "--tls-key", "a.key"),
            "give --token-file or --tls-cert, not both",
        ),
    ):
        says = refuse("client", "--token-file", path, *others)
        assert why in says
        assert token not in says


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


def test_certificates_and_tokens_are_listed_and_revoked(folder: Path) -> None:
    call("keys", "client", "-d", folder, "a", "b")
    call("keys", "token", "-d", folder, "a", "a")
    rows = json.loads(call("keys", "list", "-d", folder, "--json").stdout)
    assert [row["name"] for row in rows] == ["a", "b", "a", "a"]
    assert [row["kind"] for row in rows] == ["certificate"] * 2 + ["token"] * 2
    by_serial = call("keys", "revoke", "-d", folder, rows[2]["serial"]).stdout
    assert by_serial == f"revoked: {rows[2]['serial']} of a\n"
    by_name = call("keys", "revoke", "-d", folder, "a").stdout.splitlines()

    assert [line.split()[1] for line in by_name] == [rows[0]["serial"], rows[3]["serial"]]
    after = json.loads(call("keys", "list", "-d", folder, "--json").stdout)
    assert [row["revoked"] for row in after] == [True, False, True, True]
    serials = {int(row["serial"], 16) for row in after if row["revoked"]}
    assert revoked_serials(read_issued(folder / "clients.jsonl")) == serials
    assert "revoked" in call("keys", "list", "-d", folder).stdout
    again = "nothing valid has the client id or the serial number 'a'"
    assert refuse("keys", "revoke", "-d", folder, "a") == again


def test_mistakes_are_one_line_and_change_nothing(folder: Path, tmp_path: Path) -> None:
    files = set(folder.rglob("*"))
    for command, why in (
        (("init", "-d", folder, "--host", "x"), f"{folder} has an authority already"),
        (("client", "-d", tmp_path / "absent", "a"), "ca.pem: No such file"),
        (("client", "-d", folder, "x" * 65), "1 to 64 characters"),
        (("token", "-d", folder, ""), "1 to 64 characters"),
        (("server", "-d", folder, "--host", "a..b"), "neither a host's name"),
    ):
        assert why in refuse("keys", *command)
    (folder / "clients.jsonl").write_text("1f 127.0.0.1 2036-01-01\n")
    before = (folder / "clients.jsonl").read_bytes()
    for name in ("client", "token", "revoke"):
        why = refuse("keys", name, "-d", folder, "b")
        assert "clients.jsonl, line 1, is no certificate or token of `fedsz keys`" in why
    assert (folder / "clients.jsonl").read_bytes() == before
    (folder / "ca.key").chmod(0o644)
    why = "ca.key holds a secret and has mode 0644: chmod 600"
    assert why in refuse("keys", "client", "-d", folder, "a")
    assert set(folder.rglob("*")) == files
