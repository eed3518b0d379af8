"""Make a fleet's keys where there are none: first_start.py KEYS SERVER TRUST HOST...

KEYS gets what `fedsz keys init` makes, for a server that clients reach as one of HOST. It has the
authority's key, which signs for everybody, so no container that works has it. SERVER gets the
server's certificate and key, TRUST the authority's certificate, ca.pem, which is what clients need.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedsz.transport.authority import Authority
from fedsz.whole_files import write_whole

DAYS = 365


def main(keys: Path, server: Path, trust: Path, *hosts: str) -> None:
    """Make what is missing; what is there stays."""
    authority = Authority(keys) if (keys / "ca.key").exists() else Authority.create(keys)
    if not (keys / "server.pem").exists():
        authority.certify_server(hosts, DAYS)
    for name in ("server.pem", "server.key"):
        write_whole(server / name, (keys / name).read_bytes(), private=True)
    write_whole(trust / authority.ca.name, authority.ca.read_bytes())
    print(f"keys in {keys}, the server's in {server}, ca.pem in {trust}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *sys.argv[4:])
