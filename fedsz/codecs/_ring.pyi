"""Tokens of a ring in exactly their bits, in C++: compressors/ring.

Tokens and sums are uint8, uint16 or uint32, of at least ``bits`` bits, flat, contiguous and
aligned. An array of another kind is a TypeError, and a ValueError if it is misaligned or ``bits``
are not 1 to 32.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Buffer

Tokens = npt.NDArray[np.unsignedinteger[Any]]

class CorruptPayload(ValueError):
    """The bytes are not that many packed tokens."""

def packed_size(count: int, bits: int) -> int:
    """Return the bytes that ``count`` tokens take."""

def pack(tokens: Tokens, bits: int) -> bytes:
    """Return tokens below 2^bits, the first in the lowest bits of the first byte.

    Bits behind the last token are 0.

    Raises:
        ValueError: a token is 2^bits or more.
    """

def unpack_add(packed: Buffer, bits: int, sums: Tokens) -> None:
    """Add packed tokens to as many sums, modulo 2^bits.

    Raises:
        CorruptPayload: they take another number of bytes, or a bit behind the last one is set; no
            sum has changed.
    """
