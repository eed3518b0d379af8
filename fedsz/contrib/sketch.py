"""`sketch`: few sums of many elements, which add up over senders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import CHUNK, NDArray, flat
from fedsz.codecs import _methods
from fedsz.methods.base import (
    VALUES,
    Count,
    Kind,
    Shared,
    Stage,
    Symbols,
    TensorSpec,
    require_count,
    require_drawable,
)
from fedsz.spec_strings import setting

SHARE: Final = 16  # of a tensor are so many elements decoded at a time, in float64


@dataclass(frozen=True)
class Sketch(Stage):
    """A count sketch (Charikar et al. 2002), as in FetchSGD (Rothchild et al. 2020).

    In each row, each element is added to a drawn column with a drawn sign. An element is decoded as
    the mean over rows of its column times its sign, which is linear and unbiased.

    Attributes:
        columns: of a row: a number, or a share of the tensor's elements.
        rows: 1 to 16.
        unbiased: without it, what is decoded is divided by 1 + w, with w the variance, which makes
            a contraction of it, for `feedback`.

    Raises:
        ConfigError: rows are out of range.
    """

    name = "sketch"
    summary = "sums of elements with drawn signs, which add up over senders"
    symbols = {VALUES: Kind.VALUES}

    columns: Count = Count("10%")
    rows: int = setting(1, 1, 16)
    unbiased: int = setting(1, 0, 1)

    @property
    def biased(self) -> bool:
        """Whether what is decoded is smaller than what was encoded."""
        return not self.unbiased

    def variance(self, spec: TensorSpec) -> float:
        """Return w of E|Q(v) - v|^2 <= w |v|^2: (d - 1) / (rows columns)."""
        return (spec.size - 1) / (self.rows * self.columns.of(spec.size))

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        require_drawable(shared.spec)
        rows = np.zeros((self.rows, self.columns.of(x.size)))
        for i, row in enumerate(rows):
            _methods.add_to_sketch(shared.key(), i * x.size, flat(x), row)
        return {VALUES: rows.reshape(-1).astype(x.dtype)}

    def values_spec(self, symbols: Symbols, spec: TensorSpec) -> TensorSpec:
        return spec.values(self.rows * self.columns.of(spec.size))

    def decode(self, symbols: Symbols, shared: Shared) -> NDArray:
        spec = shared.spec
        require_count("values", symbols[VALUES], self.rows * self.columns.of(spec.size))
        require_drawable(spec)
        rows, key = flat(symbols[VALUES]).reshape(self.rows, -1), shared.key()
        y = np.empty(spec.size, spec.dtype)
        step = max(CHUNK, spec.size // SHARE)
        for start in range(0, spec.size, step):
            total = np.zeros(min(step, spec.size - start))
            for i, row in enumerate(rows):  # which a cache may hold
                _methods.add_from_sketch(key, i * spec.size + start, row, total)
            total *= self._scale(spec)
            y[start : start + step] = total
        return y.reshape(spec.shape)

    def medians(self, values: NDArray, shared: Shared) -> NDArray:
        """Return the median over rows of each element's column times its sign, flat."""
        spec, width = shared.spec, self.columns.of(shared.spec.size)
        rows = np.zeros((self.rows, spec.size))
        for i, row in enumerate(rows):
            columns = flat(values[i * width : (i + 1) * width])
            _methods.add_from_sketch(shared.key(), i * spec.size, columns, row)
        return np.asarray(np.median(rows, axis=0).astype(spec.dtype))

    def _scale(self, spec: TensorSpec) -> float:
        """Return what the sum over rows is multiplied by."""
        shrink = 1.0 if self.unbiased or not spec.size else 1 + self.variance(spec)
        return 1 / (self.rows * shrink)
