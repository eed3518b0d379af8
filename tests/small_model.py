"""A model of three layers, for tests of what clients keep and are sent."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

SHAPES: Final = {"conv.weight": (12, 10, 3, 3), "fc.weight": (40, 50), "fc.bias": (40,)}


def model(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}
