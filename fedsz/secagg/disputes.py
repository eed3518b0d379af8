"""Who lies about shares, as far as that can be told, and so is left out of later rounds.

The server has a commitment to each share, from its owner, and whoever is to hold it says whether
the sealed share is what was committed to. A holder that has said so, and reveals another one, has
lied. So has an owner if shares that it has committed to do not have its secret.

A share that does not open sets two clients against each other: its owner, who has sent it, and its
holder, who was to keep it. One of them has lied, and nobody can prove which: the holder's key would
open it, and with it all others. So pairs are counted, as protocols with dispute control do
(Beerliova-Trubiniova and Hirt, TCC 2006). An honest client is in dispute with liars alone. So
whoever is in dispute with more clients than may lie has lied: EIFFeL (Roy Chowdhury et al., CCS
2022) excludes by the same count. Where a round did not count, and nobody is told by that, both of a
pair go, as in player elimination (Hirt, Maurer and Przydatek, ASIACRYPT 2000): an accusation costs
the accuser as much as the accused. No client is in two of these pairs.

What holds, with C for the clients that may lie, as many as may collude with the server:

- C liars end C rounds at most: each round that they end takes one of them out.
- An honest client is left out only with a liar who is, in a round that did not count, and each liar
  takes one at most; or if more lie than C.
- A pair in dispute costs nothing as long as rounds count. It is remembered: neighbours change with
  each round, so that a liar meets others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

Pair = tuple[int, int]


class Disputes:
    """The disputes of a run, from round to round.

    Attributes:
        left_out: clients that take part in no further round.
        pairs: disputes that are not settled, each pair in order.
    """

    def __init__(self, left_out: Iterable[int] = (), pairs: Iterable[Pair] = ()) -> None:
        self.left_out, self.pairs = set(left_out), {_ordered(pair) for pair in pairs}

    def judge(
        self, found: Iterable[Pair], corrupt: int, *, counts: bool, liars: Iterable[int] = ()
    ) -> set[int]:
        """Take the disputes of a round that is over, and return who is left out from now on.

        Args:
            found: pairs of clients, of whom one at least has lied in this round.
            corrupt: how many may lie, of all clients that were asked in the run: of a round's few
                members, all of these may be there.
            counts: whether the round had a sum.
            liars: who has lied in this round for certain.
        """
        named, new = set(liars), {_ordered(pair) for pair in found}
        named |= _outnumbered(_without(self.pairs | new, named), corrupt)
        new = _without(new, named)
        self.pairs = _without(self.pairs, named) | new
        if not counts and not named:
            for pair in sorted(new):
                if named.isdisjoint(pair):  # or a liar would take all it is in dispute with
                    named |= set(pair)
                    self.pairs.discard(pair)
        self.left_out |= named
        return named


def _without(pairs: Iterable[Pair], clients: set[int]) -> set[Pair]:
    return {pair for pair in pairs if clients.isdisjoint(pair)}


def _outnumbered(pairs: Iterable[Pair], most: int) -> set[int]:
    """Return who is in dispute with more than ``most`` others; not those whose accusers are told.

    Whoever has most disputes comes first, and those with it say nothing of others any more.
    """
    left, found = set(pairs), set[int]()
    while left:
        count = Counter(client for pair in left for client in pair)
        largest = max(count.values())
        if largest <= most:
            break
        found |= (worst := {client for client, times in count.items() if times == largest})
        left = {pair for pair in left if worst.isdisjoint(pair)}
    return found


def _ordered(pair: Pair) -> Pair:
    return min(pair), max(pair)
