"""What earlier broadcasts predict of an update: the variance of each of its coefficients.

Along each axis of a tensor, the eigenvalues of a `History`'s products say how much of the steps lay
in each direction. Their product over the axes is a coefficient's variance, if the axes are
independent, as Shampoo (Gupta et al. 2018) takes them. A basis fits the steps that it is of better
than later ones, and one client's update spreads further than the mean of all. So predictions are
to the power of 3/4. All of it is of elementwise float64 arithmetic, exact sums and
compressors/eigen: whoever has the same history has the same bits.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.codecs import _eigen
from fedsz.methods.eigen import Axis, Basis, History

LEAST: Final = 1e-4  # of the mean variance: what no broadcast has shown may still come
_MIXED: Final = 1e-3  # of the mean eigenvalue, added to each: few broadcasts show few directions


def variances(history: History, name: str, shape: tuple[int, ...]) -> tuple[Basis, NDArray] | None:
    """Return the basis of a tensor and the variances of its coefficients over their mean.

    Returns:
        The variances as flat float64, `LEAST` or more; None where no broadcast has shown a basis.
    """
    basis = history.basis(name, shape)
    if basis is None:
        return None
    found = np.ones(math.prod(shape))
    parts = zip(basis.axes, history.products[name], basis.vectors, strict=True)
    for axis, products, vectors in parts:
        along = found.reshape(axis.outer, axis.length, axis.inner)
        along *= _eigenvalues(axis, products, vectors)[:, None]
    return basis, np.maximum(found, LEAST)


def _eigenvalues(axis: Axis, products: NDArray, vectors: NDArray) -> NDArray:
    """Return those of an axis to the power of 3/4, over their mean, float64.

    Eigenvalues are the diagonal of V^T P V, block by block.
    """
    values, start = [], 0
    for size in axis.sizes:
        here = slice(start, start + size * size)
        turned = products[here].copy()
        _eigen.rotate(turned, 1, size, size, size, vectors[here], back=False)
        _eigen.rotate(turned, size, size, 1, size, vectors[here], back=False)
        values.append(turned.reshape(size, size).diagonal().astype(np.float64))
        start = here.stop
    all_values = np.maximum(np.concatenate(values), 0.0)
    mean = math.fsum(all_values) / axis.length
    if not mean:
        return np.ones(axis.length)
    relative = all_values / mean + _MIXED
    flatter = np.sqrt(relative * np.sqrt(relative))  # roots are exact everywhere, powers are not
    return np.asarray(flatter * (axis.length / math.fsum(flatter)))
