"""`natural`: stochastic rounding to powers of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import NDArray, chunks
from fedsz.errors import CorruptStream
from fedsz.methods.base import Kind, Shared, Stage, Symbols, require_count

MOST_OCTAVES: Final = 1 << 12  # between the largest and the smallest power; float64 has 2098


@dataclass(frozen=True)
class Natural(Stage):
    """Natural compression (Horváth et al. 2019): of 2^e f with f in [1, 2), 2^e or 2^(e + 1).

    The larger one has the probability f - 1, which is unbiased. The variance is at most an eighth
    of the energy. Magnitudes that would leave the dtype are rounded down.

    A level is the sign times 1 + the number of octaves below the largest power; 0 stands for 0.
    """

    name = "natural"
    summary = "powers of two, rounded stochastically"
    symbols = {"top": Kind.VALUES, "levels": Kind.LEVELS}
    biased = False
    contracts = True

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        half, above = np.frexp(np.abs(x))  # |x| = half 2^above, half in [1/2, 1)
        up = shared.draws().random(x.size, dtype=x.dtype.type) < 2 * half - 1
        exponents = np.minimum(above - 1 + up, np.finfo(x.dtype).maxexp - 1)
        some = x != 0
        top = exponents[some].max() if some.any() else 0
        levels = np.where(some, 1 + top - exponents, 0) * np.sign(x).astype(np.int32)
        return {"top": np.ldexp(np.ones(1, x.dtype), top), "levels": levels}

    def decode(self, symbols: Symbols, shared: Shared) -> NDArray:
        top, levels = symbols["top"], symbols["levels"]
        require_count("tops", top, 1)
        require_count("levels", levels, shared.spec.size)
        if max(levels.max(initial=0), -levels.min(initial=0)) > MOST_OCTAVES + 1:
            raise CorruptStream(f"a power more than {MOST_OCTAVES} octaves below the largest")
        y = np.empty(levels.size, top.dtype)
        for here in chunks(y.size):
            part = levels[here]
            octaves = np.maximum(np.abs(part), 1) - 1
            y[here] = np.ldexp(top, -octaves.astype(np.int32)) * np.sign(part).astype(top.dtype)
        return y.reshape(shared.spec.shape)
