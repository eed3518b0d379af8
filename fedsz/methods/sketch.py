"""`sketch`: few sums of many elements, which add up over senders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods.base import (
    VALUES,
    Kind,
    Part,
    Parts,
    Shared,
    State,
    TensorSpec,
    require_count,
    require_drawable,
)
from fedsz.methods.settings import Count, Flag, check_setting


@dataclass(frozen=True)
class Sketch(Part):
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
    planes = {VALUES: Kind.VALUES}  # noqa: RUF012
    linear = True

    columns: Count = Count("10%")  # noqa: RUF009
    rows: int = 1
    unbiased: Flag = Flag(1)  # noqa: RUF009

    def __post_init__(self) -> None:
        check_setting("sketch rows", self.rows, 1, 16)

    @property
    def biased(self) -> bool:
        """Whether what is decoded is smaller than what was encoded."""
        return not self.unbiased

    def variance(self, spec: TensorSpec) -> float:
        """Return w of E|Q(v) - v|^2 <= w |v|^2: (d - 1) / (rows columns)."""
        return (spec.size - 1) / (self.rows * self.columns.of(spec.size))

    def contraction(self, spec: TensorSpec) -> float:
        """Return 1 / (1 + w) where it is biased."""
        return 0.0 if self.unbiased else 1 / (1 + self.variance(spec))

    def gain(self, shared: Shared) -> NDArray | None:
        """Return how many elements each column is decoded to, times the square of their scale.

        None for several rows: an element is a sum over them, whose square no such numbers tell.
        """
        if self.rows > 1:
            return None
        ((column, _),) = self._hashed(shared)
        elements = np.bincount(column, minlength=self.columns.of(shared.spec.size))
        return elements * self._scale(shared.spec) ** 2

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Parts, State]:  # noqa: D102
        flat, width = x.reshape(-1), self.columns.of(x.size)
        rows = [
            np.bincount(column, weights=flat * sign, minlength=width)
            for column, sign in self._hashed(shared)
        ]
        return {VALUES: np.concatenate(rows).astype(x.dtype)}, state

    def values_spec(self, parts: Parts, spec: TensorSpec) -> TensorSpec:  # noqa: ARG002, D102
        return spec.values(self.rows * self.columns.of(spec.size))

    def decode(self, parts: Parts, shared: Shared, summands: int = 1) -> NDArray:  # noqa: ARG002, D102
        spec = shared.spec
        require_count("values", parts[VALUES], self.rows * self.columns.of(spec.size))
        rows = parts[VALUES].reshape(self.rows, -1)
        total = np.zeros(spec.size)
        for row, (column, sign) in zip(rows, self._hashed(shared), strict=True):
            total += row[column] * sign
        decoded: NDArray = (total * self._scale(spec)).astype(spec.dtype).reshape(spec.shape)
        return decoded

    def _scale(self, spec: TensorSpec) -> float:
        """Return what the sum over rows is multiplied by."""
        shrink = 1.0 if self.unbiased or not spec.size else 1 + self.variance(spec)
        return 1 / (self.rows * shrink)

    def _hashed(self, shared: Shared) -> list[tuple[NDArray, NDArray]]:
        """Return, by row, the column and the sign of each element."""
        require_drawable(shared.spec)
        size = shared.spec.size
        width = np.uint64(self.columns.of(size))
        hashed = []
        for row in range(self.rows):
            words = shared.words(size, row * size)
            column = ((words >> np.uint64(32)) * width >> np.uint64(32)).astype(np.int64)
            hashed.append((column, np.where(words & np.uint64(1), -1.0, 1.0)))
        return hashed
