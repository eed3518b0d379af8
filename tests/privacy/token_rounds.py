"""Models, plans and rounds of tokens, for tests of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsz.privacy.quantizer import Encoded, TokenCodec, TokenPlan, scales_of
from fedsz.privacy.ring import Ring

Model = dict[str, np.ndarray]
SHAPES = {"conv.weight": (12, 10, 3, 3), "fc.weight": (40, 50), "fc.bias": (40,)}


def model(dtype: Any = np.float32) -> Model:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}


def stepped(start: Model, seed: int, size: float = 1e-2) -> Model:
    """The model after a step that is large in few directions, the same for all seeds."""
    rng, found = np.random.default_rng(seed), {}
    for name, x in start.items():
        fixed = np.random.default_rng(len(name))
        rows = max(len(x) if x.ndim else 1, 1)
        flat = x.reshape(rows, -1)
        left, right = (fixed.normal(size=(n, 2)) for n in flat.shape)
        step = left @ rng.normal(size=(2, 2)) @ right.T + 0.1 * rng.normal(size=flat.shape)
        found[name] = (x + size * step.reshape(x.shape)).astype(x.dtype)
    return found


def plan_of(start: Model, **changes: Any) -> TokenPlan:
    told = {"clients": 4, "bits": 8, "cap": 1000, "scales": scales_of(start)}
    return TokenPlan(**(told | changes))


@dataclass
class Round:
    """A round of clients, and what their plain sum is."""

    codec: TokenCodec
    encoded: list[Encoded]

    @classmethod
    def of(
        cls,
        codec: TokenCodec,
        trained: list[Model],
        weights: list[int],
        residuals: list[Mapping[str, np.ndarray]] | None = None,
    ) -> Round:
        kept = residuals or [{} for _ in trained]
        encoded = [codec.encode(x, w, r) for x, w, r in zip(trained, weights, kept, strict=True)]
        return cls(codec, encoded)

    @property
    def clients(self) -> int:
        return len(self.encoded)

    @property
    def sums(self) -> np.ndarray:
        """Through packed bytes."""
        bits = self.codec.plan.bits
        sums = np.zeros(self.codec.count, self.codec.dtype)
        for one in self.encoded:
            Ring(bits).unpack_add(Ring(bits).pack(one.tokens), sums)
        return sums

    @property
    def plain(self) -> np.ndarray:
        total = np.sum([one.tokens.astype(np.int64) for one in self.encoded], axis=0)
        return total % (1 << self.codec.plan.bits)
