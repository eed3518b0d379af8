"""`ternary`: one scale for all elements, and the sign of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.errors import CorruptStream
from fedsz.methods.base import Kind, Shared, Stage, Symbols, require_count
from fedsz.spec_strings import setting


@dataclass(frozen=True)
class Ternary(Stage):
    """The sign of each element times one scale, and 0 for those that are small.

    The scale is the mean magnitude of the others. Of a tensor v without zeros, with d elements,
    that is EF-signSGD, (|v|_1 / d) sign(v) (Karimireddy et al. 2019). After `topk` it is sparse
    ternary compression (STC, Sattler et al. 2019).

    Attributes:
        threshold: elements of up to this share of the largest magnitude become 0; 0 to below 1.
    """

    name = "ternary"
    summary = "each element's sign, times the mean magnitude; small ones become 0"
    symbols = {"scale": Kind.VALUES, "levels": Kind.LEVELS}

    threshold: float = setting(0.0, 0, 0.999)

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        large = np.abs(x) > self.threshold * np.abs(x).max(initial=0)
        levels = np.sign(x).astype(np.int8) * large
        return {"scale": mean_magnitude(x[large]), "levels": levels}

    def decode(self, symbols: Symbols, shared: Shared) -> NDArray:
        scale, levels = symbols["scale"], symbols["levels"]
        require_count("scales", scale, 1)
        require_count("levels", levels, shared.spec.size)
        if max(levels.max(initial=0), -levels.min(initial=0)) > 1:
            raise CorruptStream("a level beyond 1")
        y: NDArray = np.multiply(levels, scale[0], dtype=scale.dtype)
        return y.reshape(shared.spec.shape)


def mean_magnitude(v: NDArray) -> NDArray:
    """Return the mean magnitude of a flat array in its dtype, of shape (1,); 0 of none."""
    mean = np.abs(v).mean(dtype=np.longdouble) if v.size else 0
    return np.array([mean], v.dtype)
