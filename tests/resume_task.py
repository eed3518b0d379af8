"""A task of numpy alone, whose processes start quickly and train deterministically."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


class Regression:
    """Linear regression; every client has data of its own."""

    def build_model(self) -> dict[str, np.ndarray]:
        weights = np.full((60, 50), random.gauss(), np.float32)
        return {"w": weights, "b": np.zeros(50, np.float32)}

    def load_share(self, index: int, count: int) -> Any:
        rng = np.random.default_rng(index)
        x = rng.normal(size=(200, 60)).astype(np.float32)
        truth = np.linspace(-1, 1, 60 * 50, dtype=np.float32)
        return x, x @ truth.reshape(60, 50)

    def load_test(self) -> Any:
        return self.load_share(99, 100)

    def train(self, model: Any, share: Any) -> dict[str, float]:
        x, y = share
        for _ in range(5):
            some = random.sample(range(len(x)), 32)
            error = (x[some] @ model["w"] + model["b"] - y[some]) / len(some)
            model["w"] = model["w"] - 0.1 * (x[some].T @ error)
            model["b"] = model["b"] - 0.1 * error.sum(0)
        return {"examples": len(x), "loss": float((error**2).mean())}

    def evaluate(self, model: Any, test: Any) -> dict[str, float]:
        x, y = test
        return {"loss": float(((x @ model["w"] + model["b"] - y) ** 2).mean())}


class HeldRegression(Regression):
    """One whose clients wait in training for as long as their folder has a file named hold."""

    def train(self, model: Any, share: Any) -> dict[str, float]:
        while Path("hold").exists():
            time.sleep(0.01)
        return super().train(model, share)


class FailingRegression(Regression):
    """One that cannot be trained."""

    def train(self, model: Any, share: Any) -> dict[str, float]:
        raise ValueError("no data")


class ServersAlone(Regression):
    """One that no client can begin with."""

    def __init__(self) -> None:
        if "client" in sys.argv:
            raise ValueError("no data on this machine")
