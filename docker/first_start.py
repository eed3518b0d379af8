"""Make a fleet's keys where there are none: first_start.py KEYS TRUST HOST...

KEYS gets what `fedsz keys init` makes, for a server that clients reach as one of HOST. TRUST gets
the authority's certificate, ca.pem, and no key: it is what clients need.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedsz.transport.authority import Authority
from fedsz.whole_files import write_whole

DAYS = 365


def main(keys: Path, trust: Path, *hosts: str) -> None:
    """Make what is missing; what is there stays."""
    authority = Authority(keys) if (keys / "ca.key").exists() else Authority.create(keys)
    if not (keys / "server.pem").exists():
        authority.certify_server(hosts, DAYS)
    write_whole(trust / authority.ca.name, authority.ca.read_bytes())
    print(f"keys in {keys}, ca.pem in {trust}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
