"""What compressors/ring computes of coefficients, once more by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np


def quantised(
    y: np.ndarray, where: np.ndarray, steps: np.ndarray, drawn: Any, part: float, most: int
) -> tuple[np.ndarray, np.ndarray, float, int]:
    """Return tokens from 0 on, what is left of y, the energy, and how many were limited."""
    y = y.copy()
    z = y[where].astype(np.float64)
    z *= part
    z /= steps
    tokens = np.rint(z + drawn)
    limited = np.clip(tokens, -most, most)
    clipped = int(np.count_nonzero(tokens != limited))
    found = limited.astype(np.int64) + most
    if part:
        limited -= drawn
        limited *= steps
        limited /= part
        y[where] -= limited
    return found, y, float(np.dot(z, z)), clipped


def dequantised(
    y: np.ndarray,
    sums: np.ndarray,
    where: np.ndarray,
    steps: np.ndarray,
    drawn: Any,
    shift: int,
    factor: float,
) -> np.ndarray:
    y = y.copy()
    y[where] = (sums.astype(np.float64) - shift - drawn) * steps * factor
    return y
