"""A secret from its shares, some of which may be wrong."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Container, Mapping
from typing import Final

from fedsz.errors import AbortedRound
from fedsz.secagg.keys import KEY_BYTES
from fedsz.secagg.shamir import combine, value_at

_TRIES: Final = 400  # sets of holders; a second's work at a threshold of 50
_random: Final = secrets.SystemRandom()


def recover(
    shares: Mapping[int, int],
    threshold: int,
    said: bytes,
    says: Callable[[bytes], bytes],
    suspects: Container[int] = (),
) -> tuple[bytes, set[int]]:
    """Return the secret that shares have, and the places of those that are found to be wrong.

    If some are wrong, sets of ``threshold`` holders are drawn until one has the secret. That finds
    it if few are.

    Args:
        shares: by their places.
        threshold: how many have the secret.
        said: what its owner has made public of it.
        says: returns that of any 32 bytes.
        suspects: places whose shares of others have been wrong, and are used last.

    Raises:
        AbortedRound: there are fewer shares than the threshold, or no set was found.
    """
    if len(shares) < threshold:
        raise AbortedRound(f"{len(shares)} shares of a secret; it takes {threshold}")
    trusted = sorted(shares, key=lambda place: (place in suspects, place))
    for tried in range(_TRIES if len(shares) > threshold else 1):
        chosen = trusted[:threshold] if tried == 0 else _random.sample(trusted, threshold)
        used = {place: shares[place] for place in sorted(chosen)}
        value = combine(used)
        if value >> 8 * KEY_BYTES:
            continue
        secret = value.to_bytes(KEY_BYTES, "little")
        if says(secret) == said:
            wrong = {p for p, share in shares.items() if tried and value_at(p, used) != share}
            return secret, wrong
    raise AbortedRound(f"{len(shares)} shares of a secret do not agree; it takes {threshold}")
