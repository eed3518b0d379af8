"""Tokens of a ring as bytes, in exactly as many bits as they have.

Token i is bits i b to (i + 1) b - 1 of the packed bytes, the lowest bit of a byte first. Bits
behind the last token are 0. So equal tokens are equal bytes, as many as can be told beforehand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Buffer
from fedsz.codecs import _ring
from fedsz.errors import CorruptStream

Tokens = npt.NDArray[np.unsignedinteger[Any]]  # flat; uint8, uint16 or uint32


def packed_size(count: int, bits: int) -> int:
    """Return the bytes that ``count`` tokens of ``bits`` bits, 1 to 32, take."""
    return _ring.packed_size(count, bits)


def pack(tokens: Tokens, bits: int) -> bytes:
    """Return packed tokens.

    Raises:
        ValueError: a token is 2^bits or more.
    """
    return _ring.pack(tokens, bits)


def unpack_add(packed: Buffer, bits: int, sums: Tokens) -> None:
    """Add packed tokens to as many ``sums``, modulo 2^bits, in place.

    Raises:
        CorruptStream: they take another number of bytes, or a bit behind the last one is set. No
            sum has changed.
    """
    try:
        _ring.unpack_add(packed, bits, sums)
    except _ring.CorruptPayload as err:
        raise CorruptStream(f"packed tokens: {err}") from err
