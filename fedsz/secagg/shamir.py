"""Shamir's secret sharing over a prime field: any ``threshold`` shares have the secret, fewer none.

A. Shamir, "How to share a secret", 1979. A share is the value at one place of a polynomial whose
value at 0 is the secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

PRIME: Final = 2**256 + 297  # the smallest above all secrets of 32 bytes
SHARE_BYTES: Final = 33  # of an element of its field


def split(secret: int, places: Iterable[int], threshold: int, prime: int = PRIME) -> dict[int, int]:
    """Return a share of ``secret`` for each of ``places``, from fresh random coefficients.

    Args:
        secret: in [0, prime).
        places: different numbers in [1, prime).
        threshold: how many shares it takes, at least 1.
        prime: the size of the field.
    """
    drawn = (secrets.randbelow(prime) for _ in range(1, threshold))
    return shares_of([secret, *drawn], places, prime)


def shares_of(
    coefficients: Sequence[int], places: Iterable[int], prime: int = PRIME
) -> dict[int, int]:
    """Return the values of a polynomial at ``places``; its lowest coefficient is the secret."""
    found = {}
    for place in places:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * place + coefficient) % prime
        found[place] = value
    return found


def combine(shares: Mapping[int, int], prime: int = PRIME) -> int:
    """Return the secret that shares have, by their places: as many as the threshold, or more."""
    return value_at(0, shares, prime)


def value_at(place: int, shares: Mapping[int, int], prime: int = PRIME) -> int:
    """Return the value at ``place`` of the polynomial of lowest degree through ``shares``."""
    weights = lagrange_weights(place, tuple(shares), prime)
    return sum(w * share for w, share in zip(weights, shares.values(), strict=True)) % prime


@lru_cache(maxsize=256)
def lagrange_weights(place: int, places: tuple[int, ...], prime: int = PRIME) -> tuple[int, ...]:
    """Return what each share is multiplied with: ``w_i = prod_j (x - x_j) / (x_i - x_j)``, j != i.

    They are the same for all secrets of the same holders, and kept.
    """
    numerators, denominators = [], []
    for mine in places:
        above = below = 1
        for other in places:
            if other != mine:
                above = above * (place - other) % prime
                below = below * (mine - other) % prime
        numerators.append(above)
        denominators.append(below)
    inverted = _inverses(denominators, prime)
    return tuple(a * b % prime for a, b in zip(numerators, inverted, strict=True))


def _inverses(numbers: Sequence[int], prime: int) -> list[int]:
    """Return the inverses of numbers, by one inversion (Montgomery's trick)."""
    products = list(accumulate(numbers, lambda a, b: a * b % prime, initial=1))
    inverse = pow(products[-1], -1, prime)
    found = []
    for number, before in zip(reversed(numbers), reversed(products[:-1]), strict=True):
        found.append(inverse * before % prime)
        inverse = inverse * number % prime
    return found[::-1]
