"""``fedsz keys``: the certificates and tokens of a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fedsz.cli.options import PATH, Decorator, json_option
from fedsz.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from fedsz.transport.authority import Authority

_folder: Final[Decorator] = click.option(
    "--dir", "-d", "folder", type=PATH, default="keys", show_default=True,
    help="Folder of the authority. Its ca.key stays there.",
)  # fmt: skip
_days: Final[Decorator] = click.option(
    "--days", type=click.IntRange(1, 36500), default=365, show_default=True,
    help="Days that a certificate is valid.",
)  # fmt: skip
_host: Final[Decorator] = click.option(
    "--host", multiple=True, required=True,
    help="DNS name or IP address that clients connect to; may be repeated.",
)  # fmt: skip
_ids: Final[Decorator] = click.argument("client_ids", nargs=-1, required=True, metavar="ID...")


@click.group("keys")
def keys() -> None:
    """Make, rotate and revoke the certificates and tokens of a fleet."""


def _authority(folder: Path) -> Authority:
    from fedsz.transport.authority import Authority

    return Authority(folder)


@keys.command("init")
@_host
@_folder
@_days
def init(*, host: tuple[str, ...], folder: Path, days: int) -> None:
    """Make a certificate authority, and a certificate for the server."""
    from fedsz.transport.authority import Authority

    authority = Authority.create(folder)
    cert = authority.certify_server(host, days)
    say(f"{authority.ca}\n{cert}")
    tls = f"--tls-cert {cert} --tls-key {cert.with_suffix('.key')}"
    clients = f"--client-file {authority.clients}"
    say(f"for certificates: fedsz server {tls} --tls-ca {authority.ca} {clients}")
    say(f"for tokens: fedsz server {tls} {clients}")


@keys.command("server")
@_host
@_folder
@_days
def server(*, host: tuple[str, ...], folder: Path, days: int) -> None:
    """Make another certificate for the server: before the old one expires, or for other hosts."""
    say(str(_authority(folder).certify_server(host, days)))


@keys.command("client")
@_ids
@_folder
@_days
def client(client_ids: tuple[str, ...], *, folder: Path, days: int) -> None:
    """Make a certificate for each client. A client that has one gets another.

    ID is the id of a client.
    """
    authority = _authority(folder)
    for client_id in client_ids:
        say(str(authority.certify_client(client_id, days)))


@keys.command("token")
@_ids
@_folder
def token(client_ids: tuple[str, ...], *, folder: Path) -> None:
    """Make a token for each client. A client that has one gets another.

    ID is the id of a client.
    """
    authority = _authority(folder)
    for client_id in client_ids:
        say(str(authority.make_token(client_id)))


@keys.command("revoke")
@click.argument("what", nargs=-1, required=True)
@_folder
def revoke(what: tuple[str, ...], *, folder: Path) -> None:
    """Revoke a certificate or token, or all of a client. A running server refuses it.

    WHAT is a serial number, or the id of a client.
    """
    authority = _authority(folder)
    for each in what:
        for one in authority.revoke(each):
            say(f"revoked: {one.serial} of {one.name}")


@keys.command("list")
@_folder
@json_option
def list_issued(*, folder: Path, json: bool) -> None:
    """List the clients' certificates and tokens, and say which are revoked."""
    columns = ("serial", "kind", "name", "expires", "revoked")
    issued = _authority(folder).issued()
    rows = [{column: getattr(one, column) for column in columns} for one in issued]
    if json:
        print_json(rows)
        return
    order = ("kind", "name", "expires", "revoked", "serial")
    shown = ({**row, "revoked": "revoked" if row["revoked"] else ""} for row in rows)
    cells = [[str(row[column]) for column in order] for row in shown]
    print_table(("kind", "client", "expires", "", "serial number"), cells)
