"""A secret from its shares, some of which may be wrong."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final

from fedsz.errors import AbortedRound
from fedsz.secagg.keys import KEY_BYTES
from fedsz.secagg.shamir import combine, corrected

_MOST_SETS: Final = 1000  # of holders that are all tried: a tenth of a second's work


def corrects(shares: int, threshold: int) -> int:
    """Return how many of so many shares may be wrong, and `recover` has the secret for certain.

    Shares tell right from wrong ones if half of those beyond the threshold are wrong. What its
    owner has made public tells a right secret, so where there are few sets of holders, a single one
    that has it is enough.
    """
    beyond = max(shares - threshold, 0)
    return beyond if _few(shares, threshold) else beyond // 2


def recover(
    shares: Mapping[int, int],
    threshold: int,
    said: bytes,
    says: Callable[[bytes], bytes],
    suspects: Container[int] = (),
) -> tuple[bytes, set[int]]:
    """Return the secret that shares have, and the places of those that are found to be wrong.

    It has the secret if no more than `corrects` of them are wrong. They are found if no more than
    half of those beyond the threshold are, and the first that are used have not had it.

    Args:
        shares: by their places.
        threshold: how many have the secret.
        said: what its owner has made public of it.
        says: returns that of any 32 bytes.
        suspects: places whose shares of others have been wrong, and are used last.

    Raises:
        AbortedRound: there are fewer shares than the threshold, or too many are wrong.
    """
    if len(shares) < threshold:
        raise AbortedRound(f"{len(shares)} shares of a secret; it takes {threshold}")
    trusted = sorted(shares, key=lambda place: (place in suspects, place))
    for used, wrong in _candidates(shares, trusted, threshold):
        value = combine(used)
        if value >> 8 * KEY_BYTES:
            continue
        secret = value.to_bytes(KEY_BYTES, "little")
        if says(secret) == said:
            return secret, wrong
    raise AbortedRound(f"{len(shares)} shares of a secret do not agree; it takes {threshold}")


def _candidates(
    shares: Mapping[int, int], trusted: Sequence[int], threshold: int
) -> Iterator[tuple[dict[int, int], set[int]]]:
    """Yield ``threshold`` shares each that may all be right, and the places of wrong ones.

    A set that has the secret does not say that its shares are right: errors may cancel out.
    """
    first = sorted(trusted[:threshold])
    yield {place: shares[place] for place in first}, set()
    if right := corrected(shares, threshold):
        wrong = {place for place, share in shares.items() if share != right[place]}
        yield {place: right[place] for place in first}, wrong
    if _few(len(shares), threshold):
        for chosen in combinations(trusted, threshold):
            yield {place: shares[place] for place in chosen}, set()


def _few(shares: int, threshold: int) -> bool:
    return comb(shares, threshold) <= _MOST_SETS
