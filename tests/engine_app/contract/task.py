"""Points in clusters for softmax regression, and a model of any size around it."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord

POINTS, DIMENSIONS, CLASSES, HELD_OUT = 1500, 64, 10, 300


def shares(model: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Return the probabilities of the classes, (n, 10)."""
    scores = x @ model["weight"] + model["bias"]
    raised = np.exp(scores - scores.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def data(part: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points (n, 64) and classes (n,) of a client; the held-out ones if part is -1."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, DIMENSIONS))
    labels = rng.integers(CLASSES, size=POINTS)
    points = centres[labels] + rng.normal(0, 2.0, (POINTS, DIMENSIONS))
    end = POINTS - HELD_OUT
    mine = slice(end, None) if part < 0 else slice(part, end, parts)
    return points[mine].astype(np.float32), labels[mine]


def initial(megabytes: float) -> ArrayRecord:
    """Return the first model, padded to a size in megabytes by a tensor that training moves."""
    rng = np.random.default_rng(0)
    model = {
        "weight": np.zeros((DIMENSIONS, CLASSES), np.float32),
        "bias": np.zeros(CLASSES, np.float32),
    }
    if elements := round(megabytes * 1e6 / 4):
        model["padding"] = rng.normal(size=elements).astype(np.float32)
    return ArrayRecord({name: Array(x) for name, x in model.items()})
