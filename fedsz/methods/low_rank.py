"""`powersgd` and `atomo`: a matrix as the product of two thin ones."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import CHUNK, NDArray, chunks
from fedsz.errors import CodecError
from fedsz.methods.base import (
    NOTHING,
    VALUES,
    Kind,
    Part,
    Planes,
    Shared,
    State,
    TensorSpec,
    require_count,
)
from fedsz.methods.settings import Flag
from fedsz.spec_strings import setting

FACTOR: Final = "factor"  # the state: what multiplies the next matrix


@dataclass(frozen=True)
class LowRank(Part):
    """Factors P and Q of a matrix, which mean P Q^T.

    Tensors that would not become smaller, such as vectors, are sent as they are.

    Where it is `linear`, both sides draw Q, and P alone is sent.

    Attributes:
        rank: columns of P and Q, 1 to 256.

    Raises:
        ConfigError: the rank is out of range.
    """

    planes = {VALUES: Kind.VALUES}

    rank: int = setting(4, 1, 256)

    @property
    def work(self) -> float:
        """A product and a sum for each column of the factors."""
        return max(self.rank / 8, 1.0)

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Planes, State]:
        if not self._pays(shared.spec):
            return {VALUES: x.reshape(-1)}, state
        try:
            factors, after = self._factors(x.reshape(_matrix(shared.spec)), state, shared)
        except np.linalg.LinAlgError as err:
            raise CodecError(f"{shared.spec.name!r} has no factors: {err}") from err
        return {VALUES: np.concatenate([factor.reshape(-1) for factor in factors])}, after

    def values_spec(self, planes: Planes, spec: TensorSpec) -> TensorSpec:
        if not self._pays(spec):
            return spec.values(spec.size)
        rows, columns = _matrix(spec)
        return spec.values(self.rank * (rows if self.linear else rows + columns))

    def decode(self, planes: Planes, shared: Shared) -> NDArray:
        spec, values = shared.spec, planes[VALUES].reshape(-1)
        require_count("values", values, self.values_spec(planes, spec).size)
        if not self._pays(spec):
            return values.reshape(spec.shape)
        rows, columns = _matrix(spec)
        p, q = (part.reshape(-1, self.rank) for part in np.split(values, [rows * self.rank]))
        q = drawn_factor(shared, self.rank) if self.linear else q
        m = np.zeros((rows, columns), spec.dtype)
        height = max(CHUNK // columns, 1)  # of a piece that a cache holds
        for at in range(0, rows, height):
            for here in chunks(columns):
                piece = m[at : at + height, here]
                product = np.empty_like(piece)
                for i in range(self.rank):  # one by one, so that all machines round alike
                    np.multiply.outer(p[at : at + height, i], q[here, i], out=product)
                    piece += product
        return m.reshape(spec.shape)

    @abstractmethod
    def _factors(self, m: NDArray, state: State, shared: Shared) -> tuple[list[NDArray], State]:
        """Return what is sent of the factors of a matrix, and the state after it.

        Raises:
            LinAlgError: it has none.
        """

    def _pays(self, spec: TensorSpec) -> bool:
        """Say whether factors are smaller than the tensor; their rank fits it then, too."""
        return self.rank * sum(_matrix(spec)) < spec.size


@dataclass(frozen=True)
class PowerSgd(LowRank):
    """PowerSGD (Vogels et al. 2019): one step of subspace iteration, begun where the last ended.

    With M the tensor as a matrix, rows by its first dimension, and Q kept from the round before:

        P = orthonormal(M Q);  Q = M^T P;  send P and Q, which mean P Q^T

    Each sender has factors of its own, so that no second exchange is needed.

    The source adds up P over all senders, and then Q: two exchanges. With ``shared``, the one
    exchange is that of P = M Q, for a Q that all sides draw anew in each round. So P adds up, and
    is a sketch (Halko, Martinsson and Tropp 2011) in place of a step of the iteration. The choice
    is ours. Each row of Q has one element, with a drawn sign; its columns have length 1.

    Attributes:
        rank: columns of P and Q, 1 to 256.
        shared: whether all senders have one Q.

    Raises:
        ConfigError: the rank is out of range.
    """

    name = "powersgd"
    summary = "a matrix as the product of two thin ones, from those of the round before"

    shared: Flag = Flag.NO

    @property
    def linear(self) -> bool:
        """Whether all senders have one Q."""
        return bool(self.shared)

    @property
    def stateful(self) -> bool:
        """Whether a sender keeps its own Q."""
        return not self.shared

    def gain(self, shared: Shared) -> float | None:
        """Return 1 where Q is shared: its columns are orthonormal."""
        return 1.0 if self.shared else None

    def init(self, spec: TensorSpec) -> State:
        """Return a factor that is drawn by the tensor's name; nothing where it is shared."""
        if self.shared or not self._pays(spec):
            return NOTHING
        _, columns = _matrix(spec)
        draws = Shared(spec).draws()
        return {FACTOR: draws.normal(size=(columns, self.rank)).astype(spec.dtype)}

    def _factors(self, m: NDArray, state: State, shared: Shared) -> tuple[list[NDArray], State]:
        if self.shared:
            return [m @ drawn_factor(shared, self.rank)], state
        m, largest = _scaled(m)
        kept = (state or self.init(shared.spec))[FACTOR]
        p, _ = np.linalg.qr(m @ (kept / (np.abs(kept).max() or 1)))
        q = m.T @ p * largest
        return [p, q], {FACTOR: q}


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

    def _factors(self, m: NDArray, state: State, shared: Shared) -> tuple[list[NDArray], State]:
        m, largest = _scaled(m)
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
        return [short, long] if wide else [long, short], state


def drawn_factor(shared: Shared, rank: int) -> NDArray:
    """Return a Q of orthonormal columns, without any rounding that machines differ in."""
    _, columns = _matrix(shared.spec)
    words = shared.words(columns)
    place = ((words >> np.uint64(32)) * np.uint64(rank) >> np.uint64(32)).astype(np.int64)
    sizes = np.sqrt(np.bincount(place, minlength=rank).astype(np.float64))
    q = np.zeros((columns, rank))
    q[np.arange(columns), place] = np.where(words & np.uint64(1), -1.0, 1.0) / sizes[place]
    return q.astype(shared.spec.dtype)


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


def _matrix(spec: TensorSpec) -> tuple[int, int]:
    """Return rows and columns of a tensor: its first dimension, and all others."""
    rows = spec.shape[0] if spec.shape else 1
    return rows, math.prod(spec.shape[1:])


def _scaled(m: NDArray) -> tuple[NDArray, NDArray]:
    """Return m over its largest magnitude, so that no product leaves the dtype, and that."""
    largest = np.abs(m).max() or m.dtype.type(1)
    return m / largest, largest
