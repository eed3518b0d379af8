"""Which share of the data each client has: no two clients that are here have the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from fedsz.data_share import Share
from fedsz.transport.frames import Hello
from fedsz.transport.peer import Taken


class Shares:
    """The shares of a data set, each of one live client at a time.

    A client names its share, or asks for one. It is then given the one that it had, or one that
    nobody has had, or one whose client is gone.

    Args:
        count: how many shares there are to give.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._holders: dict[Share, int] = {}  # the node that had each share last
        self._held: dict[int, Share] = {}  # the share of each of these nodes

    def claim(self, node: int, hello: Hello, rival: Callable[[int], str]) -> Share | None:
        """Return the share that a client has from now on; None if it neither names nor asks.

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
        self.forget(node)
        if share is not None:
            self._held.pop(self._holders.get(share, node), None)
            self._holders[share], self._held[node] = node, share
        return share

    def forget(self, node: int) -> None:
        """Let a node's share be one that nobody has had."""
        share = self._held.pop(node, None)
        if share is not None:
            del self._holders[share]

    def _free(self, node: int, kept: Share | None, rival: Callable[[int], str]) -> Share:
        every = [Share(index, self._count) for index in range(self._count)]
        had = [share for share in (kept, self._held.get(node)) if share in every]
        fresh = (share for share in every if share not in self._holders)
        left = (share for share in every if not self._rival(node, share, rival))
        share = next((s for s in had if not self._rival(node, s, rival)), None)
        share = share or next(chain(fresh, left), None)
        if share is None:
            raise Taken(f"all {self._count} shares of the data are taken")
        return share

    def _rival(self, node: int, share: Share, rival: Callable[[int], str]) -> str:
        """Return the id of another client that has a share now; "" if there is none."""
        holder = self._holders.get(share, node)
        return "" if holder == node else rival(holder)
