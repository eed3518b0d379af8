"""``fedsz keys``: who may join a fleet, by certificates and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsz.cli.options import Json
from fedsz.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from fedsz.transport.authority import Authority

app = typer.Typer(
    help="Make, rotate and revoke the certificates and tokens of a fleet.", no_args_is_help=True
)

Folder = Annotated[
    Path, typer.Option("--dir", "-d", help="Folder of the authority. Its ca.key stays there.")
]
Ids = Annotated[list[str], typer.Argument(help="Client ids.", metavar="ID...")]
Hosts = Annotated[
    list[str],
    typer.Option("--host", help="DNS name or IP address that clients connect to; may be repeated."),
]
Days = Annotated[int, typer.Option(help="Days that a certificate is valid.", min=1, max=36500)]

KEYS = Path("keys")


def _authority(folder: Path) -> Authority:
    from fedsz.transport.authority import Authority

    return Authority(folder)


@app.command("init")
def init(*, host: Hosts, folder: Folder = KEYS, days: Days = 365) -> None:
    """Make a certificate authority, and a certificate for the server."""
    from fedsz.transport.authority import Authority

    authority = Authority.create(folder)
    cert = authority.certify_server(host, days)
    say(f"{authority.ca}\n{cert}")
    tls = f"--tls-cert {cert} --tls-key {cert.with_suffix('.key')}"
    clients = f"--client-file {authority.clients}"
    say(f"for certificates: fedsz server {tls} --tls-ca {authority.ca} {clients}")
    say(f"for tokens: fedsz server {tls} {clients}")


@app.command("server")
def server(*, host: Hosts, folder: Folder = KEYS, days: Days = 365) -> None:
    """Make another certificate for the server: before the old one expires, or for other hosts."""
    say(str(_authority(folder).certify_server(host, days)))


@app.command("client")
def client(client_ids: Ids, *, folder: Folder = KEYS, days: Days = 365) -> None:
    """Make a certificate for each client. A client that has one gets another."""
    authority = _authority(folder)
    for client_id in client_ids:
        say(str(authority.certify_client(client_id, days)))


@app.command("token")
def token(client_ids: Ids, *, folder: Folder = KEYS) -> None:
    """Make a token for each client. A client that has one gets another."""
    authority = _authority(folder)
    for client_id in client_ids:
        say(str(authority.make_token(client_id)))


@app.command("revoke")
def revoke(
    what: Annotated[list[str], typer.Argument(help="Serial numbers, or ids of clients.")],
    *,
    folder: Folder = KEYS,
) -> None:
    """Revoke a certificate or token, or all of a client. A running server refuses it."""
    authority = _authority(folder)
    for each in what:
        for one in authority.revoke(each):
            say(f"revoked: {one.kind} {one.serial} of {one.name}")


@app.command("list")
def list_issued(*, folder: Folder = KEYS, json: Json = False) -> None:
    """List the certificates and tokens, and say which are revoked."""
    columns = ("serial", "kind", "name", "expires", "revoked")
    issued = _authority(folder).issued()
    rows = [{column: getattr(one, column) for column in columns} for one in issued]
    if json:
        print_json(rows)
        return
    order = ("kind", "name", "expires", "revoked", "serial")
    shown = ({**row, "revoked": "revoked" if row["revoked"] else ""} for row in rows)
    cells = [[str(row[column]) for column in order] for row in shown]
    print_table(("kind", "name", "expires", "", "serial number"), cells)
