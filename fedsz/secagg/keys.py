"""A client's secrets of one round, and the keys that it agrees on with its neighbours.

A client draws two X25519 pairs (RFC 7748), one for the keys that shares are sealed with and one for
the seeds of masks, and the seed of its own mask. Keys are derived by HKDF with SHA-256 (RFC 5869):
what they are for, the round and both public keys go into its info. Shares are sealed with
ChaCha20-Poly1305 (RFC 8439) under a random nonce; who sends them to whom is authenticated.
"""

from __future__ import annotations

import hashlib
import secrets
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
OWN, MASK = 0, 1  # secrets that shares are of
NONCE_BYTES: Final = 12
SEALED_BYTES: Final = NONCE_BYTES + 16  # that sealing adds

_SHARES, _MASK, _OWN_MASK = b"shares", b"mask", b"own mask"
PROTOCOL: Final = b"fedsz secagg 2 "  # with the version of `messages`


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


def share_commitment(share: bytes, of: int, about: bytes) -> bytes:
    """Return what a client says of a share for a neighbour, for the server to know it by.

    Shares are of 256 bits: of one that is not known, this tells nothing that can be found out.

    Args:
        share: as it is sealed.
        of: `OWN` or `MASK`.
        about: round, client and neighbour.
    """
    return hashlib.sha256(PROTOCOL + b"share %d " % of + about + share).digest()


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
