"""Which share of the data each client has: no two clients that are here have the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import NamedTuple

from fedsz.data_share import Share
from fedsz.transport.frames import Hello
from fedsz.transport.peer import Taken


class Claim(NamedTuple):
    """What a client has from now on."""

    share: Share | None
    borrower: int | None = None  # the node that had it while this client was away, and must leave


class Shares:
    """The shares of a data set, each of one live client at a time.

    A client names its share, or asks for one. It is then given the one that it had, or one that
    nobody has had, or one whose client is gone.

    A share is its first client's, for as long as that client has no other. Another one may borrow
    it meanwhile: an id that never comes back must not keep its data out of the run, and one that is
    away must not lose its place to whoever names its share.

    Args:
        count: how many shares there are to give.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._owners: dict[Share, int] = {}  # the node that had each share first,
        self._holders: dict[Share, int] = {}  # and last

    def claim(self, node: int, hello: Hello, rival: Callable[[int], str]) -> Claim:
        """Return the share that a client has from now on; none if it neither names nor asks.

        Args:
            node: the client's node id.
            hello: what it says.
            rival: returns the id of the client of a node, "" if that client is gone.

        Raises:
            Taken: it is another's, or all are.
        """
        share = Share.of(hello.node_config)
        if hello.wants_share:
            share = self._free(node, share, rival)
        elif share is not None and (other := self._rival(node, share, rival)):
            raise Taken(f"share {share} of the data is client {other!r}'s")
        if share is None or _share_of(node, self._owners) != share:
            self.forget(node)
        if share is None:
            return Claim(None)
        self._owners.setdefault(share, node)
        before = self._holders.get(share, node)
        self._holders[share] = node
        return Claim(share, before if before != node and rival(before) else None)

    def forget(self, node: int) -> None:
        """Let a node's share be its borrower's, or one that nobody has had."""
        if (held := _share_of(node, self._holders)) is not None:
            del self._holders[held]
        if (owned := _share_of(node, self._owners)) is not None:
            del self._owners[owned]
            if (borrower := self._holders.get(owned)) is not None:
                self._owners[owned] = borrower

    def _free(self, node: int, kept: Share | None, rival: Callable[[int], str]) -> Share:
        every = [Share(index, self._count) for index in range(self._count)]
        had = (_share_of(node, self._owners), kept, _share_of(node, self._holders))
        wanted = (share for share in had if share in every)
        fresh = (share for share in every if share not in self._owners)
        free = (s for s in chain(wanted, fresh, every) if not self._rival(node, s, rival))
        share = next(free, None)
        if share is None:
            raise Taken(f"all {self._count} shares of the data are taken")
        return share

    def _rival(self, node: int, share: Share, rival: Callable[[int], str]) -> str:
        """Return the id of another client that has a share now; "" if there is none."""
        if self._owners.get(share, node) == node:
            return ""
        holder = self._holders.get(share, node)
        return "" if holder == node else rival(holder)


def _share_of(node: int, nodes: Mapping[Share, int]) -> Share | None:
    return next((share for share, other in nodes.items() if other == node), None)
