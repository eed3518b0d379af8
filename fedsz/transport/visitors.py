"""How many connections a server takes, in all and from one address, so that nobody takes them all.

Each connection is a file descriptor, and so is each reply that waits on disk.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from fedsz.transport.address import is_loopback, network_of

SPARE_DESCRIPTORS: Final = 128  # for all but connections and replies
# Streams whose clients have not said who they are, as they do at once. The oldest ends for another.
MAX_UNKNOWN: Final = 64  # of one address, which may be that of many devices
MAX_UNKNOWN_TOGETHER: Final = 8  # in one connection of TCP, which may be a proxy's

_FEWEST: Final = 16  # connections, whatever the limit of descriptors


def connections_for(descriptors: int) -> int:
    """Return how many connections so many file descriptors are enough for."""
    return max(_FEWEST, (descriptors - SPARE_DESCRIPTORS) // 2)


def address_of(peer: str) -> str:
    """Return the `network_of` the address in gRPC's name for a peer; the name if it has none."""
    host = peer.partition(":")[2].rpartition(":")[0].replace("%5B", "[").replace("%5D", "]")
    return network_of(host.strip("[]")) or peer


@dataclass(eq=False)
class Visit:
    """One connection, from its first frame on or before it."""

    peer: str  # gRPC's name for its other end
    address: str
    refused: str  # why it is to end; "" as long as it is not
    turned_out: asyncio.Event = field(default_factory=asyncio.Event)  # refused later than at once


class Visitors:
    """The connections that are open, by the addresses they come from.

    Args:
        most: connections in all.
        most_per_address: of one address; those of this machine are not limited by it.
    """

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most, self._most_per_address = most, most_per_address
        self._open: Counter[str] = Counter()
        self._unknown: defaultdict[str, list[Visit]] = defaultdict(list)  # the oldest first

    @contextmanager
    def visit(self, peer: str) -> Iterator[Visit]:
        """Count a connection for as long as the block takes; `Visit.refused` says if it is to end.

        ``peer`` is gRPC's name for its other end.
        """
        address = address_of(peer)
        visit = Visit(peer, address, self._refusal(address))
        self._open[address] += 1
        if not visit.refused:
            self._make_room(visit)
            self._unknown[address].append(visit)
        try:
            yield visit
        finally:
            self.identify(visit)
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    def identify(self, visit: Visit) -> None:
        """Note that a client has said who it is, or that its connection is over."""
        if visit in (unknown := self._unknown[visit.address]):
            unknown.remove(visit)
        if not unknown:
            del self._unknown[visit.address]

    def _make_room(self, newcomer: Visit) -> None:
        """Turn out the oldest stream of those who have not said who they are, if there are many."""
        unknown = self._unknown[newcomer.address]
        beside = [visit for visit in unknown if visit.peer == newcomer.peer]
        for visits, most in ((beside, MAX_UNKNOWN_TOGETHER), (unknown, MAX_UNKNOWN)):
            if len(visits) >= most:
                oldest = visits[0]
                oldest.refused = f"{most} streams of {oldest.address} have not said who they are"
                oldest.turned_out.set()
                unknown.remove(oldest)
                return

    def _refusal(self, address: str) -> str:
        if self._open.total() >= self._most:
            return f"the server has its {self._most} connections; try again in a while"
        if self._open[address] >= self._most_per_address and not is_loopback(address):
            return f"{address} has its {self._most_per_address} connections"
        return ""
