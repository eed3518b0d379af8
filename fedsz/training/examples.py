"""Labelled examples: what `fedsz.training.loop` trains and tests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs, and what a model should answer to each.

    Attributes:
        x: the inputs, one a row: uint8 [N, C, H, W] for images, which become float32 a batch at a
            time; anything else goes into the model as it is.
        y: int64 classes [N] or [N, T].
    """

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, rows: slice | torch.Tensor) -> Self:
        """Return some of them."""
        return type(self)(self.x[rows], self.y[rows])

    def first(self, count: int | None) -> Self:
        """Return the first ``count`` of them; all if there are fewer, or it is None."""
        return self.rows(slice(count))
