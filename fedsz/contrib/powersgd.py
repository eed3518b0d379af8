"""`powersgd`: a matrix as the product of two thin ones."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import CHUNK, NDArray
from fedsz.errors import CodecError
from fedsz.methods.base import (
    NOTHING,
    VALUES,
    Kind,
    Shared,
    Stage,
    State,
    Symbols,
    TensorSpec,
    require_count,
)
from fedsz.spec_strings import setting

FACTOR: Final = "powersgd.factor"  # the state: Q, by which the next matrix is multiplied


@dataclass(frozen=True)
class LowRank(Stage):
    """Factors P and Q of a matrix, which mean P Q^T.

    Tensors that would not become smaller, such as vectors, are sent as they are.

    Attributes:
        rank: columns of P and Q, 1 to 256.

    Raises:
        ConfigError: the rank is out of range.
    """

    symbols = {VALUES: Kind.VALUES}

    rank: int = setting(4, 1, 256)

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Symbols, State]:
        if not self.pays(shared.spec):
            return {VALUES: x.reshape(-1)}, state
        try:
            p, q, after = self.factors(x.reshape(matrix_of(shared.spec)), state, shared)
        except np.linalg.LinAlgError as err:
            raise CodecError(f"{shared.spec.name!r} has no factors: {err}") from err
        return {VALUES: np.concatenate((p.reshape(-1), q.reshape(-1)))}, after

    def values_spec(self, symbols: Symbols, spec: TensorSpec) -> TensorSpec:
        if not self.pays(spec):
            return spec.values(spec.size)
        rows, columns = matrix_of(spec)
        return spec.values(self.rank * (rows + columns))

    def decode(self, symbols: Symbols, shared: Shared) -> NDArray:
        spec, values = shared.spec, symbols[VALUES].reshape(-1)
        require_count("values", values, self.values_spec(symbols, spec).size)
        if not self.pays(spec):
            return values.reshape(spec.shape)
        rows, columns = matrix_of(spec)
        p, q = (part.reshape(-1, self.rank) for part in np.split(values, [rows * self.rank]))
        m = np.zeros((rows, columns), spec.dtype)
        height = max(CHUNK // columns, 1)  # of a piece that a cache holds
        for at in range(0, rows, height):
            piece = m[at : at + height]
            product = np.empty_like(piece)
            for i in range(self.rank):  # one by one, so that all machines round alike
                np.multiply.outer(p[at : at + height, i], q[:, i], out=product)
                piece += product
        return m.reshape(spec.shape)

    @abstractmethod
    def factors(self, m: NDArray, state: State, shared: Shared) -> tuple[NDArray, NDArray, State]:
        """Return P and Q of a matrix, and the state after it.

        Raises:
            LinAlgError: it has none.
        """

    def pays(self, spec: TensorSpec) -> bool:
        """Say whether factors are smaller than the tensor; their rank fits it then, too."""
        return self.rank * sum(matrix_of(spec)) < spec.size


@dataclass(frozen=True)
class PowerSgd(LowRank):
    """PowerSGD (Vogels et al. 2019): one step of subspace iteration, begun where the last ended.

    With M the tensor as a matrix, rows by its first dimension, and Q kept from the round before:

        P = orthonormal(M Q);  Q = M^T P;  send P and Q, which mean P Q^T

    Each sender has factors of its own, so that no second exchange is needed. The source adds up P
    over all senders, and then Q: two exchanges.

    Attributes:
        rank: columns of P and Q, 1 to 256.

    Raises:
        ConfigError: the rank is out of range.
    """

    name = "powersgd"
    summary = "a matrix as the product of two thin ones, from those of the round before"

    def init(self, spec: TensorSpec) -> State:
        """Return a factor that is drawn by the tensor's name."""
        if not self.pays(spec):
            return NOTHING
        _, columns = matrix_of(spec)
        draws = Shared(spec).draws()
        return {FACTOR: draws.normal(size=(columns, self.rank)).astype(spec.dtype)}

    def factors(self, m: NDArray, state: State, shared: Shared) -> tuple[NDArray, NDArray, State]:
        m, largest = scaled(m)
        kept = (state or self.init(shared.spec))[FACTOR]
        p, _ = np.linalg.qr(m @ (kept / (np.abs(kept).max() or 1)))
        q = m.T @ p * largest
        return p, q, {FACTOR: q}


def matrix_of(spec: TensorSpec) -> tuple[int, int]:
    """Return rows and columns of a tensor: its first dimension, and all others."""
    rows = spec.shape[0] if spec.shape else 1
    return rows, math.prod(spec.shape[1:])


def scaled(m: NDArray) -> tuple[NDArray, NDArray]:
    """Return m over its largest magnitude, so that no product leaves the dtype, and that."""
    largest = np.abs(m).max() or m.dtype.type(1)
    return m / largest, largest
