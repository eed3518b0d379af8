"""Tokens of a ring in exactly their bits, in C++: compressors/ring.

Tokens and sums are uint8, uint16 or uint32, of at least ``bits`` bits, flat, contiguous and
aligned. An array of another kind is a TypeError, and a ValueError if it is misaligned or ``bits``
are not 1 to 32.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Buffer, NDArray

Doubles = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.unsignedinteger[Any]]

class CorruptPayload(ValueError):
    """The bytes are not that many packed tokens."""

def add_step(x: NDArray, start: NDArray, residual: NDArray, y: NDArray) -> bool:
    """Write x - start + residual to ``y``, and say whether all of it is finite.

    All are float32, of one size; ``residual`` may be empty.
    """

def quantise(
    y: NDArray,
    where: npt.NDArray[np.int64],
    steps: Doubles,
    drawn: Doubles,
    part: float,
    most: int,
    tokens: Tokens,
) -> tuple[float, int]:
    """Write tokens t + most, with t = round(y part / step + drawn) from -most to most.

    ``y`` is float32, and becomes what is left, y - (t - drawn) step / part, unless ``part`` is 0.
    ``where`` has positions in it; it is empty for all of it in order, and ``drawn`` for no dither.

    Returns:
        The sum of squares of y part / step, and how many t were limited.
    """

def dequantise(
    sums: Tokens,
    where: npt.NDArray[np.int64],
    steps: Doubles,
    drawn: Doubles,
    shift: float,
    factor: float,
    y: NDArray,
) -> int:
    """Write (sum - shift - drawn) step factor to ``y``, and return the largest sum.

    Arguments are as for `quantise`.
    """

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
