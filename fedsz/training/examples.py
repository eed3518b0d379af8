"""Labelled examples: what `fedsz.training.loop` trains and tests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import torch


class Inputs(Protocol):
    """Inputs, of which some are taken at a time: a tensor, or what makes one when it is asked."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: torch.Tensor | slice, /) -> torch.Tensor: ...


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs, and what a model should answer to each.

    Attributes:
        x: the inputs, one a row: uint8 [N, C, H, W] for images, which become float32 a batch at a
            time; anything else goes into the model as it is.
        y: int64 classes [N] or [N, T], or float32 targets [N, 1].
    """

    x: Inputs
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.y)

    def first(self, count: int | None) -> Self:
        """Return the first ``count`` of them, as tensors; all if there are fewer, or it is None."""
        return type(self)(self.x[:count], self.y[:count])
