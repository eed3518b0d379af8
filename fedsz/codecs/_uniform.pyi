"""The uniform codec in C++: compressors/uniform.

Arrays are flat, contiguous, aligned to their elements, and seen as bytes. Sizes that do not fit
together, and settings out of range, are a ValueError.
"""

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Buffer

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
    base: Octets | None = None,
    step: float = 0.0,
    residual: Octets | None = None,
    weight: float = 1.0,
    left: Octets | None = None,
) -> tuple[bytes, float, float]:
    """Return the payload and the largest error, of x or, with a base, of x - base.

    An empty level is the best this machine has. A base is for float32 and float64. With a step
    above 0 nothing is lost, whatever the bound, but the sign of -0; its multiples are small.

    A residual is for these dtypes, too: x + weight * residual takes the place of x. What a decoder
    lacks of that goes to ``left``; the last that is returned is the sum of its squares.
    """

def decode(
    payload: Buffer, dtype: int, y: Octets, threads: int, level: str, base: Octets | None = None
) -> None:
    """Fill ``y``, with the sums of a base and the elements if there is one.

    Raises:
        CorruptPayload: the payload holds something else.
    """

def accumulate(
    payload: Buffer, dtype: int, weight: float, sums: Octets, threads: int, level: str
) -> None:
    """Add ``weight`` times the elements to ``sums``, float64 for float64 and else float32.

    Raises:
        CorruptPayload: the payload holds something else; no sum has changed.
    """

class Opened:
    """A payload of ``n`` elements that has been decoded, and is kept as a byte an element at most.

    A base, of the elements' dtype, is what the energy is to be of the distance from.

    Raises:
        CorruptPayload: the payload holds something else.
    """

    def __init__(
        self,
        payload: Buffer,
        dtype: int,
        n: int,
        threads: int,
        level: str,
        base: Octets | None = None,
    ) -> None: ...
    @property
    def energy(self) -> float:
        """The sum of squares, not finite where one of them is not."""

    def add(self, weight: float, sums: Octets) -> None:
        """Add ``weight`` times the elements to ``sums``, as `accumulate`; it cannot fail."""

def compare(
    x: Octets,
    base: Octets,
    dtype: int,
    deviation: bool,
    energies: bool,
    threads: int,
    level: str,
    residual: Octets | None = None,
    weight: float = 1.0,
) -> tuple[float, float, float, float, float, float, float]:
    """Return the least and the greatest of m, those of m - base, and its standard deviation.

    m is x + weight * residual. Then come the sums of squares of x - base and of m - base. These and
    the deviation are 0 unless asked for; extremes of nothing are NaN.
    """

def value_range(x: Octets, dtype: int, level: str) -> float:
    """Return the greatest finite element less the least; 0 if there are none."""

def standard_deviation(x: Octets, dtype: int, level: str) -> float:
    """Return that of the finite elements; 0 if there are none."""

def energy(
    x: Octets, dtype: int, base: Octets | None, masked: bool, threads: int, level: str
) -> float:
    """Return the sum of squares of x, or of x - base: bit by bit that which `compare` finds.

    The dtype is any, and the base's, too; squares are of the type of the sums of `accumulate`. If
    ``masked``, what is not finite in a base, and the same in x, is no difference.
    """

def levels() -> list[str]:
    """Return the instruction sets this machine can run the codec with, the best one last."""
