"""What is hot in `fedsz.methods`, in C++: compressors/methods.

Arrays are flat, contiguous and aligned. Floats are float32 or float64, all of one call alike but
where a dtype is said. An array of another kind is a TypeError, sizes that do not fit together are a
ValueError.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Buffer

Floats = npt.NDArray[Any]
Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

class CorruptPayload(ValueError):
    """The bytes are no code of that many gaps."""

def words(key: int, start: int, out: npt.NDArray[np.uint64]) -> None:
    """Fill ``out`` with random words of a key, from number ``start`` on; see `Shared.words`."""

def uniforms(key: int, start: int, out: Doubles) -> None:
    """Fill ``out`` with words as multiples of 2^-53 in [0, 1): the upper 53 bits of each."""

def hexagonal_dither(key: int, start: int, x: Doubles, y: Doubles) -> None:
    """Fill x and y with points that are uniform in the cell of 0 of the hexagonal lattice.

    The points of that are a (1, 0) + b (1/2, sqrt(3)/2). Point ``start`` + i takes two words, from
    number 2 (``start`` + i) on.
    """

def nearest_hexagonal(x: Doubles, y: Doubles) -> None:
    """Replace points by the a and b of the lattice's nearest ones, whole numbers up to 2^50."""

def nearest_points(
    x: Singles,
    residual: Singles,
    weight: float,
    start: Singles,
    step: float,
    points: Singles,
    left: Singles,
    level: str = "",
) -> bool:
    """Fill ``points`` with start plus the multiples of ``step`` nearest to x + weight residual.

    All are float32, the weight too, and ``left`` is what that differs from the points. A residual
    or a start of no elements is 0; ``left`` may have none. Return whether float32 holds all points,
    and neither side is beyond 2^53 steps. ``level`` is one of `point_levels`; "" is the best.
    """

def comes_back(x: Singles, base: Singles) -> bool:
    """Return whether base + (x - base) is x, of float32."""

def point_levels() -> list[str]:
    """Return the names of the instruction sets that there are kernels for here."""

def cluster(
    x: Floats,
    bounds: Doubles,
    labels: npt.NDArray[np.int16],
    sums: Doubles,
    counts: npt.NDArray[np.int64],
) -> None:
    """Label each element with the number of bounds below it; ``bounds`` ascend.

    Add it to the sum of its label, and 1 to the count: there is one more of each than of bounds.
    """

def flip_signs(key: int, x: Floats) -> None:
    """Negate x[i], in place, where the highest bit of word i is set."""

def add_to_sketch(key: int, start: int, x: Floats, columns: Doubles) -> None:
    """Add each element to its column, with the sign of its word: one row of `Sketch`."""

def add_from_sketch(key: int, start: int, columns: Floats, x: Doubles) -> None:
    """Add to each element its column, with the sign of its word."""

def hadamard(x: Floats, width: int) -> None:
    """Multiply blocks of ``width`` elements by the Hadamard matrix over sqrt(width), in place.

    Sums and differences at distance 1, then 2, 4 and so on, each rounded: all machines agree.
    """

def add_sparse(indices: npt.NDArray[np.int64], values: Floats, weight: float, sums: Floats) -> None:
    """Add ``weight`` times values[k], rounded, to sums[indices[k]].

    Raises:
        IndexError: there is no such sum; those of the indices before have been added.
    """

def decode_gaps(code: Buffer, width: int, gaps: npt.NDArray[np.int64]) -> None:
    """Fill ``gaps`` from their code after Golomb and Rice, of which ``width`` bits are plain.

    Raises:
        CorruptPayload: it is another code.
    """
