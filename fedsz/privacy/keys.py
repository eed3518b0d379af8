"""A client's secrets of one round, and the keys that it agrees on with its neighbours.

A client draws two X25519 pairs (RFC 7748), one for the keys that shares are sealed with and one for
the seeds of masks, and the seed of its own mask. Keys are derived by HKDF with SHA-256 (RFC 5869):
what they are for, the round and both public keys go into its info. Shares are sealed with
ChaCha20-Poly1305 (RFC 8439) under a random nonce; who sends them to whom is authenticated.

Secrets are shared over a prime field: any ``threshold`` shares have the secret, fewer say nothing
of it (A. Shamir, "How to share a secret", 1979). A share is the value at one place of a polynomial
whose value at 0 is the secret.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedsz.errors import CorruptStream

KEY_BYTES: Final = 32
COMMITMENT_BYTES: Final = 32
NONCE_BYTES: Final = 12
SEALED_BYTES: Final = NONCE_BYTES + 16  # that sealing adds

_SHARES, _MASK, _OWN_MASK = b"shares", b"mask", b"own mask"
PROTOCOL: Final = b"fedsz secagg 3 "

PRIME: Final = 2**256 + 297  # the smallest above all secrets of 32 bytes
SHARE_BYTES: Final = 33  # of an element of its field


class Secrets(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a client keeps to itself in a round; each has 32 bytes.

    Attributes:
        cipher: private key that shares are sealed with.
        mask: private key of the masks that cancel; its shares go to the neighbours.
        own: seed of the client's own mask; its shares too.
    """

    cipher: bytes
    mask: bytes
    own: bytes

    @classmethod
    def draw(cls) -> Secrets:
        """Return fresh ones."""
        cipher, mask, own = (secrets.token_bytes(KEY_BYTES) for _ in range(3))
        return cls(cipher, mask, own)


def public_key(private: bytes) -> bytes:
    """Return the public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def check_public(public: bytes) -> None:
    """Raise `CorruptStream` for a public key that makes every agreed secret known."""
    _agreed(secrets.token_bytes(KEY_BYTES), public)


def commitment(own: bytes, round_id: bytes) -> bytes:
    """Return what a client says of its own mask's seed before anyone has shares of it."""
    return hashlib.sha256(PROTOCOL + b"commitment" + round_id + own).digest()


def own_seed(own: bytes, round_id: bytes) -> bytes:
    """Return what a client's own mask is expanded from."""
    return _derive(own, _OWN_MASK, round_id)


def pair_seed(private: bytes, theirs: bytes, round_id: bytes, about: bytes) -> bytes:
    """Return what the mask of two clients is expanded from, the same for both.

    Of two that differ in what their tokens are ``about``, 32 bytes, the masks do not cancel.

    Raises:
        CorruptStream: their public key is one of few that make every secret known.
    """
    first, second = sorted((public_key(private), theirs))
    return _derive(_agreed(private, theirs), _MASK, round_id, about, first, second)


def seal(private: bytes, theirs: bytes, plain: bytes, about: bytes, round_id: bytes) -> bytes:
    """Return ``plain`` for the owner of a public key alone; ``about`` is authenticated with it.

    Raises:
        CorruptStream: as `pair_seed`.
    """
    mine, nonce = public_key(private), secrets.token_bytes(NONCE_BYTES)
    key = _derive(_agreed(private, theirs), _SHARES, round_id, mine, theirs)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, about)


def unseal(private: bytes, theirs: bytes, sealed: bytes, about: bytes, round_id: bytes) -> bytes:
    """Return what the owner of a public key has sealed.

    Raises:
        CorruptStream: nobody has, or for somebody else, or about something else.
    """
    key = _derive(_agreed(private, theirs), _SHARES, round_id, theirs, public_key(private))
    nonce, data = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, data, about)
    except InvalidTag:
        raise CorruptStream("a sealed share is not what its sender has sealed") from None


def _agreed(private: bytes, theirs: bytes) -> bytes:
    try:
        public = X25519PublicKey.from_public_bytes(theirs)
        return X25519PrivateKey.from_private_bytes(private).exchange(public)
    except ValueError as err:  # of low order: the secret would be zero
        raise CorruptStream("a public key of low order") from err


def _derive(secret: bytes, purpose: bytes, round_id: bytes, *public: bytes) -> bytes:
    info = PROTOCOL + b" ".join((purpose, round_id, *public))
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def split(secret: int, places: Iterable[int], threshold: int) -> dict[int, int]:
    """Return a share of ``secret`` for each of ``places``, from fresh random coefficients.

    Args:
        secret: in [0, `PRIME`).
        places: different numbers in [1, `PRIME`).
        threshold: how many shares it takes, at least 1.
    """
    return shares_of([secret, *(secrets.randbelow(PRIME) for _ in range(1, threshold))], places)


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
    """Return the secret that shares have, by their places: as many as the threshold, or more.

    It is the value at 0 of the polynomial of lowest degree through them.
    """
    weights = _weights(tuple(shares), prime)
    return sum(w * share for w, share in zip(weights, shares.values(), strict=True)) % prime


@lru_cache(maxsize=256)  # in a small fleet, most secrets have the same holders
def _weights(places: tuple[int, ...], prime: int) -> tuple[int, ...]:
    """Return Lagrange's weights at 0: ``w_i = prod_j x_j / (x_j - x_i)``, j != i."""
    found = []
    for mine in places:
        above = below = 1
        for other in places:
            if other != mine:
                above = above * other % prime
                below = below * (other - mine) % prime
        found.append(above * pow(below, -1, prime) % prime)
    return tuple(found)
