"""A task without torch, for try_images.py: least squares by gradient descent, in numpy.

The model takes half a megabyte, so that a client on a slow link can be killed in mid-upload.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Examples = tuple[Floats, Floats]  # x [rows, INPUTS] and y [rows, OUTPUTS], of y = x W + noise

INPUTS, OUTPUTS = 128, 1024
ROWS = 2000  # of all clients together
STEPS, RATE = 10, 0.1


class LeastSquares:
    """Learns W. Each client has other rows."""

    def build_model(self) -> dict[str, Floats]:
        """Return W, all zero."""
        return {"W": np.zeros((INPUTS, OUTPUTS), np.float32)}

    def load_share(self, index: int, count: int) -> Examples:
        """Return a client's rows."""
        return examples(ROWS // count, seed=index)

    def load_test(self) -> Examples:
        """Return rows that no client has."""
        return examples(200, seed=-1)

    def train(self, model: dict[str, Floats], share: Examples) -> dict[str, float]:
        """Take some steps down the gradient."""
        x, y = share
        for _ in range(STEPS):
            model["W"] -= RATE / len(x) * x.T @ (x @ model["W"] - y)
        return {"examples": len(x), **self.evaluate(model, share)}

    def evaluate(self, model: dict[str, Floats], test: Examples) -> dict[str, Any]:
        """Return the mean squared error."""
        x, y = test
        return {"loss": float(np.mean((x @ model["W"] - y) ** 2))}


def examples(rows: int, seed: int) -> Examples:
    """Return rows of the one W that all learn."""
    truth = np.random.default_rng(0).normal(size=(INPUTS, OUTPUTS))
    rng = np.random.default_rng(1000 + seed)
    x = rng.normal(size=(rows, INPUTS))
    y = x @ truth + rng.normal(size=(rows, OUTPUTS))
    return x.astype(np.float32), y.astype(np.float32)
