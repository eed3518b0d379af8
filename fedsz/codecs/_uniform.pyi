"""The uniform codec in C++: compressors/uniform. Arrays are flat, contiguous, and seen as bytes."""

import numpy as np
import numpy.typing as npt

from fedsz.codecs.base import Buffer

Octets = npt.NDArray[np.uint8]

class CorruptPayload(ValueError):
    """The payload is not one of that many elements of that dtype."""

def encode(
    x: Octets,
    dtype: int,
    rows: int,
    columns: int,
    planes: int,
    width: int,
    bound: float,
    effort: int,
    threads: int,
    level: str,
) -> tuple[bytes, float]:
    """Return the payload and the largest error. An empty level is the best this machine has."""

def decode(payload: Buffer, dtype: int, y: Octets, threads: int, level: str) -> None:
    """Fill ``y``.

    Raises:
        CorruptPayload: the payload holds something else.
    """

def accumulate(
    payload: Buffer, dtype: int, weight: float, sums: Octets, threads: int, level: str
) -> None:
    """Add ``weight`` times the elements to ``sums``, float64 for float64 and else float32.

    Raises:
        CorruptPayload: the payload holds something else; the sums are as before, but for rounding.
    """

def levels() -> list[str]:
    """Return the instruction sets this machine can run the codec with, the best one last."""
