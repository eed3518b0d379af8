"""`fedsz keys`: the files of an authority, and who may read them."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from fedsz.errors import ConfigError
from fedsz.transport.authority import Authority
from fedsz.transport.credentials import Token, own_id, read_issued, revoked_serials
from tests.cli.test_cli import call, refuse

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    done = call("keys", "init", "--dir", folder, "--host", "127.0.0.1", "--host", "x.org")
    assert done.returncode == 0, done
    return folder


def test_secrets_are_their_owners_alone(folder: Path) -> None:
    assert call("keys", "client", "-d", folder, "a").returncode == 0
    assert call("keys", "token", "-d", folder, "a").returncode == 0

    secrets = [path for path in folder.rglob("*") if path.suffix in (".key", ".token")]
    assert len(secrets) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    token = Token.read(folder / "clients" / "a.token")
    for path in folder.rglob("*"):
        if path.is_file() and path not in secrets:
            assert token.secret.hex() not in path.read_text()
    assert token.secret.hex() not in repr(token)


def test_a_client_is_named_by_its_files(folder: Path) -> None:
    for client_id in ("pi-3/0/4", "..", "a.2", "größe", "a b"):
        call("keys", "client", "-d", folder, client_id)
        done = call("keys", "token", "-d", folder, client_id)
        assert done.returncode == 0, done
    certs = list((folder / "clients").glob("*.pem"))

    assert {own_id(cert, None) for cert in certs} == {"pi-3/0/4", "..", "a.2", "größe", "a b"}
    for cert in certs:
        assert own_id(None, cert.with_suffix(".token")) == own_id(cert, None)


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


def test_what_was_issued_is_listed_and_revoked(folder: Path) -> None:
    call("keys", "client", "-d", folder, "a", "b")
    call("keys", "token", "-d", folder, "a", "a")
    rows = json.loads(call("keys", "list", "-d", folder, "--json").stdout)
    assert [(row["kind"], row["name"]) for row in rows] == [
        *(("server", "127.0.0.1"), ("certificate", "a"), ("certificate", "b")),
        *(("token", "a"), ("token", "a")),
    ]
    by_serial = call("keys", "revoke", "-d", folder, rows[3]["serial"]).stdout
    assert by_serial == f"revoked: token {rows[3]['serial']} of a\n"
    by_name = call("keys", "revoke", "-d", folder, "a").stdout.splitlines()

    assert [line.split()[1] for line in by_name] == ["certificate", "token"]
    after = json.loads(call("keys", "list", "-d", folder, "--json").stdout)
    assert [row["revoked"] for row in after] == [False, True, False, True, True]
    assert revoked_serials(read_issued(folder / "clients.jsonl")) == {
        int(rows[i]["serial"], 16) for i in (1, 3, 4)
    }
    assert "revoked" in call("keys", "list", "-d", folder).stdout
    again = "nothing valid has the client id or the serial number 'a'"
    assert refuse("keys", "revoke", "-d", folder, "a") == again
    assert "nothing valid" in refuse("keys", "revoke", "-d", folder, "127.0.0.1")


def test_mistakes_are_one_line(folder: Path, tmp_path: Path) -> None:
    assert (
        refuse("keys", "init", "-d", folder, "--host", "x") == f"{folder} has an authority already"
    )
    assert "ca.pem: No such file" in refuse("keys", "client", "-d", tmp_path / "absent", "a")
    assert "1 to 64 characters" in refuse("keys", "client", "-d", folder, "x" * 65)
    assert "at least one character" in refuse("keys", "token", "-d", folder, "")
    assert "neither a host's name" in refuse("keys", "server", "-d", folder, "--host", "a..b")
    (folder / "ca.key").chmod(0o644)
    assert "ca.key holds a secret and has mode 0644: chmod 600" in refuse(
        "keys", "client", "-d", folder, "a"
    )
    path = Authority.create(tmp_path / "own").make_token("a")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="holds a secret and has mode 0640"):
        Token.read(path)


def test_a_token_is_read_as_it_was_written_and_no_other(tmp_path: Path) -> None:
    path, token = tmp_path / "token", Token.new("a:b/ü")
    path.touch(0o600)
    path.write_text(token.text() + "\n")
    assert Token.read(path) == token
    text = token.text()
    for wrong in ("", "a", "a:b", text[:-2], f"{text}00", text.upper(), f"{text}:", "a:zz:00"):
        path.write_text(wrong)
        with pytest.raises(ConfigError) as caught:
            Token.read(path)
        assert str(caught.value) == f"{path}: not a token, which is CLIENT:SERIAL:SECRET"


def test_only_the_hash_of_a_token_is_kept(folder: Path) -> None:
    call("keys", "token", "-d", folder, "a")
    token = Token.read(folder / "clients" / "a.token")
    (known,) = (one for one in read_issued(folder / "clients.jsonl") if one.kind == "token")

    assert known.secret_hash == token.secret_hash()
    assert known.secret_hash != Token("a", token.serial, bytes(32)).secret_hash()
    assert token.secret.hex() not in (folder / "clients.jsonl").read_text()


def test_a_folder_with_a_file_that_cannot_be_read_is_left_as_it_is(folder: Path) -> None:
    (folder / "clients.jsonl").write_text("1f server 127.0.0.1 2036-01-01\n")
    before = (folder / "clients.jsonl").read_bytes()

    for command in ("client", "token", "revoke"):
        told = refuse("keys", command, "-d", folder, "b")
        assert "clients.jsonl, line 1, is no certificate or token" in told
    assert (folder / "clients.jsonl").read_bytes() == before
    assert not list((folder / "clients").iterdir())
