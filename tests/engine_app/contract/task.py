"""Digits for softmax regression in numpy, and a model of any size around it."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord
from sklearn.datasets import load_digits

HELD_OUT = 297  # digits, the last ones


def shares(model: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Return the probabilities of the classes, (n, 10)."""
    scores = x @ model["weight"] + model["bias"]
    raised = np.exp(scores - scores.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def data(part: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels (n, 64) and labels (n,) of a client; of the held-out digits if part is -1."""
    pixels, labels = load_digits(return_X_y=True)
    end = len(labels) - HELD_OUT
    mine = slice(end, None) if part < 0 else slice(part, end, parts)
    return pixels[mine].astype(np.float32) / 16, labels[mine]


def initial(megabytes: float) -> ArrayRecord:
    """Return the first model, padded to a size in megabytes by a tensor that training moves."""
    rng = np.random.default_rng(0)
    model = {"weight": np.zeros((64, 10), np.float32), "bias": np.zeros(10, np.float32)}
    if elements := round(megabytes * 1e6 / 4):
        model["padding"] = rng.normal(size=elements).astype(np.float32)
    return ArrayRecord({name: Array(x) for name, x in model.items()})
