"""How many connections a server takes, in all and from one address, so that nobody takes them all.

Each connection is a file descriptor, and so is each reply that waits on disk.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

SPARE_DESCRIPTORS: Final = 128  # for all but connections and replies
MAX_UNKNOWN: Final = 64  # connections of one address whose clients have not said who they are

_DESCRIPTORS: Final = 1 << 20  # that a process asks for where there is no limit
_FEWEST: Final = 16  # connections, whatever the limit of descriptors


def raise_descriptor_limit() -> int:
    """Let this process open as many files as it may, and return how many those are."""
    try:
        import resource
    except ImportError:
        return _DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has another limit beside this one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return _DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def connections_for(descriptors: int) -> int:
    """Return how many connections so many file descriptors are enough for."""
    return max(_FEWEST, (descriptors - SPARE_DESCRIPTORS) // 2)


def address_of(peer: str) -> str:
    """Return the address in gRPC's name for a peer, without its port; of IPv6, the /64 network.

    Whoever has one IPv6 address commonly has all of its /64.
    """
    host = peer.partition(":")[2].rpartition(":")[0].replace("%5B", "[").replace("%5D", "]")
    with suppress(ValueError):
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        if mapped.version == 4 or mapped.is_loopback:
            return str(mapped)
        return str(ipaddress.ip_network((mapped, 64), strict=False))
    return peer


def is_loopback(address: str) -> bool:
    """Say whether an address from `address_of` is of this machine."""
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


class Visitors:
    """The connections that are open, by the addresses they come from.

    Args:
        most: connections in all.
        most_per_address: of one address; those of this machine are not limited by it.
    """

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most, self._most_per_address = most, most_per_address
        self._open: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()

    @contextmanager
    def visit(self, peer: str) -> Iterator[Visit]:
        """Count a connection for as long as the block takes; `Visit.refused` says if it is to end.

        ``peer`` is gRPC's name for its other end.
        """
        visit = Visit(self._unknown, address := address_of(peer), self._refusal(address))
        self._open[address] += 1
        self._unknown[address] += 1
        try:
            yield visit
        finally:
            visit.identify()
            _uncount(self._open, address)

    def _refusal(self, address: str) -> str:
        if self._open.total() >= self._most:
            return f"the server has its {self._most} connections; try again in a while"
        if self._open[address] >= self._most_per_address and not is_loopback(address):
            return f"{address} has its {self._most_per_address} connections"
        if self._unknown[address] >= MAX_UNKNOWN:
            return f"{MAX_UNKNOWN} connections of {address} have not said who they are"
        return ""


class Visit:
    """One connection: why it is refused, or ""; until it is identified nobody knows whose it is."""

    def __init__(self, unknown: Counter[str], address: str, refused: str) -> None:
        self.address, self.refused = address, refused
        self._unknown: Counter[str] | None = unknown

    def identify(self) -> None:
        """Note that its client has said who it is, or that it is over."""
        if self._unknown is not None:
            _uncount(self._unknown, self.address)
            self._unknown = None


def _uncount(counter: Counter[str], address: str) -> None:
    counter[address] -= 1
    if not counter[address]:
        del counter[address]
