"""`sign` and `ternary`: one scale for all elements, and of each its sign."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.errors import CorruptStream
from fedsz.methods.base import Kind, Shared, Stage, Symbols, require_count
from fedsz.spec_strings import setting


@dataclass(frozen=True)
class Sign(Stage):
    """The sign of each element times their mean magnitude: EF-signSGD (Karimireddy et al. 2019).

    With v of d elements, (|v|_1 / d) sign(v); the sign of 0 is positive.
    """

    name = "sign"
    summary = "each element's sign, times the mean magnitude"
    symbols = {"scale": Kind.SCALES, "signs": Kind.SIGNS}

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        return {"scale": mean_magnitude(x), "signs": x < 0}

    def decode(self, symbols: Symbols, shared: Shared) -> NDArray:
        scale, signs = _scale(symbols["scale"]), symbols["signs"]
        require_count("signs", signs, shared.spec.size)
        return np.where(signs, -scale, scale).reshape(shared.spec.shape)


@dataclass(frozen=True)
class Ternary(Stage):
    """The sign of each element times one scale, and 0 for those that are small.

    The scale is the mean magnitude of the others. After `topk` that is sparse ternary compression
    (STC, Sattler et al. 2019).

    Attributes:
        threshold: elements of up to this share of the largest magnitude become 0; 0 to below 1.
    """

    name = "ternary"
    summary = "each element's sign, times the mean magnitude; small ones become 0"
    symbols = {"scale": Kind.SCALES, "levels": Kind.LEVELS}

    threshold: float = setting(0.0, 0, 0.999)

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        kept = np.abs(x) > self.threshold * np.abs(x).max(initial=0)
        trits = np.sign(x).astype(np.int8) * kept
        return {"scale": mean_magnitude(x[kept]), "levels": trits}

    def decode(self, symbols: Symbols, shared: Shared) -> NDArray:
        scale, levels = _scale(symbols["scale"]), symbols["levels"]
        require_count("levels", levels, shared.spec.size)
        if max(levels.max(initial=0), -levels.min(initial=0)) > 1:
            raise CorruptStream("a level beyond 1")
        return np.multiply(levels, scale, dtype=scale.dtype).reshape(shared.spec.shape)


def mean_magnitude(v: NDArray) -> NDArray:
    """Return the mean magnitude of a flat array in its dtype, of shape (1,); 0 of none."""
    mean = np.abs(v).mean(dtype=np.longdouble) if v.size else 0
    return np.array([mean], v.dtype)


def _scale(plane: NDArray) -> np.floating:
    """Return the one scale that a plane holds."""
    require_count("scales", plane, 1)
    scale: np.floating = plane[0]
    return scale
