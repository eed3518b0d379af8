"""Say by the exit status whether the container's fedsz is healthy: health.py server|ready|client.

A server is healthy if it answers, and ready while it serves clients. A client is healthy while it
has a connection to its server.
"""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path

ESTABLISHED = "01"  # tcp_states.h of Linux, as /proc/net/tcp has it
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def server_answers(path: str) -> bool:
    """Ask the server's metrics port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:9090/{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def client_is_connected() -> bool:
    """Look for a connection; a client holds no other than the one to its server."""
    tables = (Path(table).read_text().splitlines()[1:] for table in TABLES if Path(table).exists())
    return any(line.split()[3] == ESTABLISHED for table in tables for line in table)


if __name__ == "__main__":
    healthy = {
        "server": lambda: server_answers("healthz"),
        "ready": lambda: server_answers("readyz"),
        "client": client_is_connected,
    }
    sys.exit(not healthy[sys.argv[1]]())
