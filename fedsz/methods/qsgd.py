"""`qsgd`: stochastic rounding to levels of a bucket's norm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.errors import CorruptStream
from fedsz.methods.base import Kind, Shared, Stage, Symbols, TensorSpec, require_count
from fedsz.spec_strings import Choice, setting


class Norm(Choice):
    """Of a bucket."""

    L2 = "l2"  # the root of the sum of squares
    MAX = "max"  # the largest magnitude


@dataclass(frozen=True)
class Qsgd(Stage):
    """QSGD (Alistarh et al. 2017): |v|_2 sign(v_i) l_i / s, with l_i rounded stochastically.

    With the largest magnitude for |v|_2 it is stochastic rounding to 2s + 1 equidistant levels;
    with s = 1 also, TernGrad (Wen et al. 2017).

    With s = 2^(bits - 1) - 1 levels, l_i is s |v_i| / |v|_2 rounded up with the probability of its
    fraction, else down. v is a bucket of elements, in C order.

    Attributes:
        bits: of a level with its sign, 2 to 16.
        bucket: elements that have a norm of their own; 0 for all of a tensor.
        unbiased: without it, what is decoded is divided by 1 + w, with w the variance, which makes
            a contraction of it, for `feedback`.
        norm: of a bucket: ``l2``, or ``max`` for the largest magnitude.
    """

    name = "qsgd"
    summary = "levels of each bucket's norm, rounded stochastically"
    symbols = {"norms": Kind.VALUES, "levels": Kind.LEVELS}

    bits: int = setting(4, 2, 16)
    bucket: int = setting(512, 0, 1 << 40)
    unbiased: int = setting(1, 0, 1)
    norm: Norm = Norm.L2

    @property
    def biased(self) -> bool:
        """Whether what is decoded is smaller than what was encoded."""
        return not self.unbiased

    @property
    def _levels(self) -> int:
        return (1 << self.bits - 1) - 1

    def _width(self, spec: TensorSpec) -> int:
        """Return how many elements a bucket has."""
        return min(self.bucket or spec.size, spec.size) or 1

    def variance(self, spec: TensorSpec) -> float:
        """Return w of E|Q(v) - v|^2 <= w |v|^2: min(d / s^2, sqrt(d) / s), with d the bucket.

        It holds for ``max``, too: that is at most the norm, and rounding errs in proportion.
        """
        d, s = self._width(spec), self._levels
        return min(d / s**2, math.sqrt(d) / s)

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        buckets = self._buckets(x, shared.spec)
        norms = self._norms(buckets).astype(x.dtype)
        s = self._levels
        levels = np.abs(buckets)
        np.divide(levels, norms, out=levels, where=norms > 0)
        levels *= s
        levels += shared.draws().random(levels.shape, dtype=x.dtype.type)
        np.minimum(np.floor(levels, out=levels), s, out=levels)
        signed = np.copysign(levels, buckets, out=levels).astype(np.int32)
        return {"norms": norms.reshape(-1), "levels": signed.reshape(-1)[: x.size]}

    def decode(self, symbols: Symbols, shared: Shared) -> NDArray:
        spec, levels, norms = shared.spec, symbols["levels"], symbols["norms"]
        require_count("levels", levels, spec.size)
        require_count("norms", norms, -(-spec.size // self._width(spec)))
        if max(levels.max(initial=0), -levels.min(initial=0)) > self._levels:
            raise CorruptStream(f"a level beyond {self._levels}")
        share = 1 / self._levels / (1 if self.unbiased else 1 + self.variance(spec))
        y = levels.astype(spec.dtype)
        y *= spec.dtype.type(share)
        width = self._width(spec)
        whole = spec.size // width
        y[: whole * width].reshape(whole, width)[:] *= norms[:whole, None]
        y[whole * width :] *= norms[whole:]
        return y.reshape(spec.shape)

    def _norms(self, rows: NDArray) -> NDArray:
        """Return the norm of each row, as a column in float64; inf where the dtype has none."""
        if self.norm is Norm.L2:
            squares: NDArray = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
            return np.sqrt(squares)[:, None]
        largest: NDArray = np.abs(rows).max(axis=1, initial=0, keepdims=True)
        return largest

    def _buckets(self, x: NDArray, spec: TensorSpec) -> NDArray:
        """Return a flat array with a row for each bucket, the last filled up with 0."""
        width = self._width(spec)
        return np.pad(x, (0, -x.size % width)).reshape(-1, width)
