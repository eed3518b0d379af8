"""`sketch`: few sums of many elements, which add up over senders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.codecs import _methods
from fedsz.codecs.base import flat
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
        require_drawable(shared.spec)
        width = self.columns.of(shared.spec.size)
        column = (shared.words(shared.spec.size) >> np.uint64(32)) * np.uint64(width)
        elements = np.bincount((column >> np.uint64(32)).astype(np.int64), minlength=width)
        return elements * self._scale(shared.spec) ** 2

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Parts, State]:  # noqa: D102
        require_drawable(shared.spec)
        rows = np.zeros((self.rows, self.columns.of(x.size)))
        for i, row in enumerate(rows):
            _methods.add_to_sketch(shared.key(), i * x.size, flat(x), row)
        return {VALUES: rows.reshape(-1).astype(x.dtype)}, state

    def values_spec(self, parts: Parts, spec: TensorSpec) -> TensorSpec:  # noqa: ARG002, D102
        return spec.values(self.rows * self.columns.of(spec.size))

    def decode(self, parts: Parts, shared: Shared, summands: int = 1) -> NDArray:  # noqa: ARG002, D102
        spec = shared.spec
        require_count("values", parts[VALUES], self.rows * self.columns.of(spec.size))
        require_drawable(spec)
        width, total = self.columns.of(spec.size), np.zeros(spec.size)
        for i in range(self.rows):
            row = flat(parts[VALUES][i * width : (i + 1) * width])
            _methods.add_from_sketch(shared.key(), i * spec.size, row, total)
        decoded: NDArray = (total * self._scale(spec)).astype(spec.dtype).reshape(spec.shape)
        return decoded

    def _scale(self, spec: TensorSpec) -> float:
        """Return what the sum over rows is multiplied by."""
        shrink = 1.0 if self.unbiased or not spec.size else 1 + self.variance(spec)
        return 1 / (self.rows * shrink)
