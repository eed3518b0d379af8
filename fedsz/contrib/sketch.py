"""`sketch`: few sums of many elements, which add up over senders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import CHUNK, NDArray, chunks, flat
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

SHARE: Final = 16  # of a tensor are so many elements decoded at a time, in float64 and all rows


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
        shrink = 1.0 if self.unbiased or not spec.size else 1 + self.variance(spec)
        scale = 1 / (self.rows * shrink)
        y = self.estimates(symbols[VALUES], shared, lambda rows: rows.sum(axis=0) * scale)
        return y.reshape(spec.shape)

    def estimates(
        self, values: NDArray, shared: Shared, combined: Callable[[NDArray], NDArray]
    ) -> NDArray:
        """Return a flat tensor, given the values of its sketch.

        Args:
            values: flat.
            shared: of `code`.
            combined: of elements' columns times their signs, float64 with a row for each row of
                the sketch, the elements.

        Raises:
            CorruptStream: values are of another sketch.
        """
        spec = shared.spec
        require_count("values", values, self.rows * self.columns.of(spec.size))
        require_drawable(spec)
        columns, key = flat(values).reshape(self.rows, -1), shared.key()
        y = np.empty(spec.size, spec.dtype)
        for here in chunks(spec.size, max(CHUNK, spec.size // (SHARE * self.rows))):
            rows = np.zeros((self.rows, y[here].size))
            for i, row in enumerate(columns):  # which a cache may hold
                _methods.add_from_sketch(key, i * spec.size + here.start, row, rows[i])
            y[here] = combined(rows)
        return y
