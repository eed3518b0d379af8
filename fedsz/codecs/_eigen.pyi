"""Bases along the axes of tensors, in C++: compressors/eigen.

Arrays are flat, contiguous and aligned; x is float32 or float64. A tensor is seen as outer x length
x inner elements, of which the middle is the axis, cut into blocks of ``block`` elements at most. An
array of another kind is a TypeError, sizes that do not fit together are a ValueError. An empty
level is the best instruction set that this machine has.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[Any]
Singles = npt.NDArray[np.float32]

def add_products(
    x: Floats,
    outer: int,
    length: int,
    inner: int,
    block: int,
    decay: float,
    products: Singles,
    level: str = "",
) -> bool:
    """Multiply ``products`` by ``decay`` and add those of the slices of x, of trace 1.

    False, with nothing changed, where an element is not finite or all are 0.
    """

def eigenvectors(products: Singles, length: int, block: int, vectors: Singles) -> None:
    """Fill ``vectors`` with the eigenvectors of each block, as columns, largest first."""

def rotate(
    x: Floats,
    outer: int,
    length: int,
    inner: int,
    block: int,
    vectors: Singles,
    back: bool,
    level: str = "",
) -> None:
    """Multiply x along the axis by the transposed vectors, or back by the vectors, in place."""

def levels() -> list[str]:
    """Return the instruction sets this machine can run, the best one last."""
