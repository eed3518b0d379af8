"""Labelled examples in memory: what `fedsz.training.loop` trains and tests on."""

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
        y: int64 classes [N] or [N, T], or float32 targets [N, 1].
    """

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.y)

    def first(self, count: int | None) -> Self:
        """Return the first ``count`` of them; all if there are fewer, or it is None."""
        return type(self)(self.x[:count], self.y[:count])
