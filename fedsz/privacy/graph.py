"""Who shares secrets with whom: a k-regular graph over a random order, and how many must answer.

The graph is Harary's: clients stand in a circle, and each is the neighbour of k/2 on either side. k
is the smallest for which all of this holds, in the notation of Bell et al. 2020, section 3, with n
clients of which C collude and D drop out:

- *privacy of shares*: for every client, fewer neighbours collude than the threshold t, but for a
  probability of 2^-security;
- *correctness*: for every client, t neighbours stay, but for a probability of 2^-failures;
- *privacy of sums*: those who neither collude nor drop out are connected, but for 2^-security. In a
  circle they are unless two runs of k/2 clients are removed; so the probability is at most
  ``n (n-1)/2 * binom(n-k, C+D-k) / binom(n, C+D)``, and 0 if k > C+D. The paper's bound is of one
  run.

The first two are tails of hypergeometric laws, summed exactly, times n.

Who drops out is drawn by nobody then. A server may name other survivors to one neighbour than to
another, so that some reveal a share of a client's own mask, and others one of its mask key. Each
honest neighbour reveals one, and each colluding one both: with c for the most colluding neighbours,
``2t > k + c`` keeps one of the two secrets. That holds for every round.

Where keys are signed, a server cannot pose as clients, and t is more than ``k/2 + c``. Say it could
take the sums of two sets of honest survivors apart. A client's own mask is opened by t neighbours
that know it as a survivor, so t - c of its honest neighbours, more than k/2, are in its set. Two
clients of different sets that stand next to each other, but for colluding ones, have at most k
honest neighbours between them, too few for both. If everybody is everybody's neighbour,
``2t > k + c`` is enough for that too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import ceil, comb
from typing import Annotated, Final, NamedTuple

import msgspec

from fedsz.errors import ConfigError

SECURITY: Final = 40  # bits
FAILURES: Final = 20  # bits, of a round of which no more drop out than is assumed
MOST_DEGREE: Final = 1024  # neighbours: a client makes shares for each

_ROUNDING: Final = 1e-9  # of a share times a number of clients


class Assumptions(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a round withstands, but for 2^-`SECURITY`; a round fails but for 2^-`FAILURES`.

    Attributes:
        corrupt: share of the clients that may collude with the server, in [0, 1).
        dropout: share of the clients that may drop out before the round's end, in [0, 1).
        signed: whether keys are signed, so that a server cannot pose as clients.
    """

    corrupt: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.1
    dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.2
    signed: bool = False

    def __post_init__(self) -> None:
        # An integer would be other bytes here than for whoever has read it, and so another digest.
        for name in ("corrupt", "dropout"):
            msgspec.structs.force_setattr(self, name, float(getattr(self, name)))


class Plan(NamedTuple):
    """What follows from the number of clients.

    Attributes:
        clients: how many advertised keys.
        degree: how many neighbours each has.
        threshold: shares that have a secret.
        least: survivors, and shares of secrets, without which nothing is revealed.
        consents: signatures of the survivors that a client must see; 0 if keys are not signed.
        corrupt: how many may collude, at most.
    """

    clients: int
    degree: int
    threshold: int
    least: int
    consents: int
    corrupt: int


@lru_cache(maxsize=64)
def plan(clients: int, assumed: Assumptions) -> Plan:
    """Return a small degree that ``assumed`` allows, and a threshold.

    The threshold is above half of the neighbours and of those who collude among them, so that no
    server gets both secrets of a client by two lists of survivors.

    Raises:
        ConfigError: there are fewer than two clients, or no threshold withstands this with up to
            `MOST_DEGREE` neighbours.
    """
    if clients < 2:
        raise ConfigError(f"a secure sum needs two clients, got {clients}")
    # Of two clients each knows the other's tokens by the sum: who colludes leaves two at least.
    colluding = min(most_corrupt(clients, assumed), clients - 2)
    dropped = int(assumed.dropout * clients + _ROUNDING)
    least = max(clients - dropped, 2)
    consents = (clients + colluding) // 2 + 1 if assumed.signed else 0
    for degree in _degrees(clients):
        complete = degree == clients - 1
        near = _most(clients, colluding, degree, SECURITY)
        gone = _most(clients, dropped, degree, FAILURES)
        threshold = (degree + near) // 2 + 1
        if assumed.signed and not complete:
            threshold = degree // 2 + near + 1
        connected = complete or _connected(clients, colluding + dropped, degree, SECURITY)
        if connected and threshold <= degree - gone and consents <= least:
            return Plan(clients, degree, threshold, least, consents, colluding)
    who = f"{clients} clients of which {colluding} may collude and {dropped} drop out"
    raise ConfigError(f"no secure sum of {who}: lower corrupt or dropout")


def _degrees(clients: int) -> Iterator[int]:
    """Yield degrees to try, upwards: up to 64 each, then by a sixteenth more."""
    degree = 2
    while degree < min(clients - 1, MOST_DEGREE + 1):
        yield degree
        degree += max(2, degree // 32 * 2)
    if clients - 1 <= MOST_DEGREE:
        yield clients - 1


def most_corrupt(clients: int, assumed: Assumptions) -> int:
    """Return how many of so many clients may collude, at most."""
    return ceil(assumed.corrupt * clients - _ROUNDING)


def neighbours(order: Sequence[int], client: int, degree: int) -> list[int]:
    """Return whom ``client`` shares secrets with, of clients in a circle of this order.

    ``degree`` is even, or that of everybody to everybody.
    """
    at, count = order.index(client), len(order)
    if degree == count - 1:
        return [other for other in order if other != client]
    half = range(1, degree // 2 + 1)
    return [order[(at + sign * step) % count] for sign in (-1, 1) for step in half]


def _most(clients: int, marked: int, degree: int, bits: int) -> int:
    """Return how many of ``marked`` clients are a client's neighbours, at most.

    But for 2^-bits, of ``clients`` that may each have more.
    """
    others = clients - 1
    allowed = comb(others, degree)
    most, tail = min(marked, degree), 0
    ways = comb(marked, most) * comb(others - marked, degree - most)
    while most > 0:
        tail += ways
        if (tail * clients) << bits > allowed:
            break
        ways *= most * (others - marked - degree + most)
        ways //= (marked - most + 1) * (degree - most + 1)
        most -= 1
    return most


def _connected(clients: int, removed: int, degree: int, bits: int) -> bool:
    """Say whether those not removed are connected, but for 2^-bits."""
    if removed < degree:
        return True
    cuts = comb(clients, 2) * comb(clients - degree, removed - degree)
    return cuts << bits <= comb(clients, removed)
