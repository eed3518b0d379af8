"""SZx in C++: compressors/szx."""

from fedsz.arrays import Buffer
from fedsz.codecs.base import Array

class CorruptPayload(ValueError):
    """The payload is not one of that many elements."""

def encode(x: Array, bound: float) -> tuple[bytes, float]:
    """Return the payload of a flat, contiguous ``x``, and the largest error it makes.

    Raises:
        ValueError: ``x`` is not aligned, or ``bound`` is negative or NaN.
    """

def decode(payload: Buffer, n: int) -> Array:
    """Return the ``n`` elements of ``payload``.

    Raises:
        CorruptPayload: it holds something else. What it is too short for is not allocated.
    """
