"""Where a process listens, as text and as a socket, and how many connections it may have.

Each connection takes a file descriptor, and so does each client's reply that waits on disk. A
process divides its descriptors: some for itself, some for each of its two web servers (the live
page and the metrics), the rest for clients and their replies.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from contextlib import suppress
from typing import Final, NamedTuple, Self

from fedsz.errors import ConfigError, LinkError
from fedsz.system import raise_descriptor_limit

LOOPBACK = "127.0.0.1"
OWN_DESCRIPTORS: Final = 64  # for all but connections and replies
MOST_WEB_CONNECTIONS: Final = 100  # to one web server; a page in a browser holds one
_FEWEST: Final = 4  # connections, whatever the limit of descriptors


class Address(NamedTuple):
    """A host and a port; port 0 is any that is free."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, port: int) -> Self:
        """Return the address in ``PORT``, ``HOST`` or ``HOST:PORT``; loopback without a host.

        Args:
            text: may hold an IPv6 host in brackets.
            port: where ``text`` has none.

        Raises:
            ConfigError: the port is none.
        """
        host, colon, number = text.rpartition(":")
        if text.startswith("[") and text.endswith("]"):
            host, number = text, ""
        elif not colon:
            host, number = ("", text) if text.isdecimal() else (text, "")
        if number and not (number.isdecimal() and int(number) <= 65535):
            raise ConfigError(f"an address is HOST:PORT with a port up to 65535, got {text!r}")
        return cls(host.strip("[]") or LOOPBACK, int(number) if number else port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    def listen(self) -> socket.socket:
        """Return a socket that listens there.

        Raises:
            LinkError: the port is in use, or the host is not this machine's.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family)
        except OSError as err:
            # The text of an error of Python's own repeats the address.
            why = os.strerror(err.errno) if err.errno and err.errno > 0 else err.strerror or err
            raise LinkError(f"cannot listen on {self}: {why}") from err

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine, by its address or as ``localhost``."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def connections_for_web() -> int:
    """Return how many connections this process may have to each of its web servers."""
    spare = raise_descriptor_limit() - OWN_DESCRIPTORS
    return min(MOST_WEB_CONNECTIONS, max(_FEWEST, spare // 8))


def connections_for_clients() -> int:
    """Return how many connections of clients this process may have."""
    spare = raise_descriptor_limit() - OWN_DESCRIPTORS - 2 * connections_for_web()
    return max(_FEWEST, spare // 2)
