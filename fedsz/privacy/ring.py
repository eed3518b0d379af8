"""The integers of a ring: tokens as packed bytes, and masks that are added to them.

A ring of b bits has the integers below 2^b, added modulo 2^b. Tokens are kept in the smallest
unsigned dtype that holds them, whose own overflow is a multiple of 2^b; so they are reduced once,
at the end. Packed, token i is bits i b to (i + 1) b - 1, the lowest bit of a byte first, and bits
behind the last token are 0: equal tokens are equal bytes.

A mask is the keystream of ChaCha20 (RFC 8439) under the seed as its key, with a nonce
of zeros: a seed makes one mask. As many low bits are used of one byte for rings of up to 8 bits, of
two up to 16, else of four, little-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedsz.arrays import Buffer
from fedsz.codecs import _ring
from fedsz.errors import ConfigError, CorruptStream

MIN_BITS: Final = 2  # of a secure sum
MAX_BITS: Final = 32

_NONCE: Final = bytes(16)
_PIECE: Final = 1 << 18  # bytes of keystream at a time, which stay in the cache
_ZEROS: Final = memoryview(bytes(_PIECE))

Tokens = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Ring:
    """The integers modulo 2^bits.

    Raises:
        ConfigError: bits are not in 1 to 32.
    """

    bits: int

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MAX_BITS:
            raise ConfigError(f"a ring has 1 to {MAX_BITS} bits, got {self.bits}")

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Of its tokens: the smallest of uint8, uint16 and uint32, little-endian."""
        width = 1 if self.bits <= 8 else 2 if self.bits <= 16 else 4
        return np.dtype(f"<u{width}")

    def packed_size(self, count: int) -> int:
        """Return the bytes that ``count`` tokens take."""
        return _ring.packed_size(count, self.bits)

    def pack(self, tokens: Tokens) -> bytes:
        """Return packed tokens.

        Raises:
            ValueError: a token is 2^bits or more.
        """
        return _ring.pack(tokens, self.bits)

    def unpack_add(self, packed: Buffer, sums: Tokens) -> None:
        """Add packed tokens to as many ``sums``, modulo 2^bits, in place.

        Raises:
            CorruptStream: they take another number of bytes, or a bit behind the last one is set.
                No sum has changed.
        """
        try:
            _ring.unpack_add(packed, self.bits, sums)
        except _ring.CorruptPayload as err:
            raise CorruptStream(f"packed tokens: {err}") from err

    def reduce(self, tokens: Tokens) -> None:
        """Take ``tokens`` of its dtype modulo 2^bits, in place."""
        if self.bits < 8 * self.dtype.itemsize:
            tokens &= self.dtype.type((1 << self.bits) - 1)

    def add_mask(self, tokens: Tokens, seed: bytes, *, subtract: bool = False) -> None:
        """Add the mask of a seed to ``tokens``, or subtract it, in place and without `reduce`.

        Args:
            tokens: flat, contiguous, of its dtype.
            seed: 32 bytes, used for this mask only.
            subtract: whether to undo what was added.
        """
        keystream = Cipher(ChaCha20(seed, _NONCE), mode=None).encryptor()
        apply = np.subtract if subtract else np.add
        drawn = np.empty(_PIECE, np.uint8)
        mask, step = drawn.view(self.dtype), _PIECE // self.dtype.itemsize
        for start in range(0, tokens.size, step):
            piece = tokens[start : start + step]
            keystream.update_into(_ZEROS[: piece.nbytes], drawn[: piece.nbytes].data)
            apply(piece, mask[: piece.size], out=piece)
