"""`atomo`: drawn singular values of a matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.contrib.powersgd import LowRank, scaled
from fedsz.methods.base import Shared, State


@dataclass(frozen=True)
class Atomo(LowRank):
    """ATOMO on singular values (Wang et al. 2018): some are drawn, and divided by their chance.

    The chance of a singular value is in proportion to it, and 1 at most; chances add up to the
    rank. They are drawn systematically, so that it is just as many; the source draws each apart.

    Attributes:
        rank: singular values to draw, 1 to 256.
    """

    name = "atomo"
    summary = "singular values of a matrix, drawn by their size"
    biased = False

    def factors(self, m: NDArray, state: State, shared: Shared) -> tuple[NDArray, NDArray, State]:
        m, largest = scaled(m)
        wide = m.shape[0] < m.shape[1]
        tall = m.T if wide else m
        basis, sizes = singular_vectors(tall)
        chances = inclusion(sizes, self.rank)
        reached = np.floor(np.cumsum(chances) - shared.draws().random())
        drawn = np.flatnonzero(np.diff(reached, prepend=-1.0))[: self.rank]
        long, short = (np.zeros((side, self.rank), m.dtype) for side in tall.shape)
        long[:, : drawn.size] = tall @ basis[:, drawn]
        lengths = np.linalg.norm(long[:, : drawn.size], axis=0)
        long[:, : drawn.size] /= np.where(lengths, lengths, 1)
        short[:, : drawn.size] = basis[:, drawn] * (lengths / chances[drawn]) * largest
        return (short, long, state) if wide else (long, short, state)


def singular_vectors(m: NDArray) -> tuple[NDArray, NDArray]:
    """Return right singular vectors of a matrix, as columns, and its descending singular values.

    They are eigenvectors of m^T m, which is far quicker than a decomposition of m. For any
    orthonormal basis v, m is the sum of all (m v) v^T. So the rounding of m^T m makes nothing
    biased, as long as no size is 0: none is below what rounding hides.
    """
    values, vectors = np.linalg.eigh(m.T @ m)
    hidden = np.finfo(m.dtype).eps * max(float(values[-1]), 0.0)
    sizes = np.sqrt(np.maximum(values.astype(np.float64), hidden))
    return vectors[:, ::-1], sizes[::-1]


def inclusion(sizes: NDArray, count: int) -> NDArray:
    """Return chances in proportion to ``sizes``, 1 at most, that add up to ``count``.

    Args:
        sizes: from 0, descending. Where no more than ``count`` are above 0, these have 1.
        count: at most as many as there are.
    """
    for certain in range(count):
        rest = sizes[certain:]
        if rest[0] * (count - certain) <= rest.sum():
            break
    else:
        certain, rest = count, np.zeros(sizes.size - count)
    share = (count - certain) / rest.sum() if rest.any() else 0.0
    return np.concatenate((np.ones(certain), rest * share))
