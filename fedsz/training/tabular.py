"""The task `tabular`: rows of numbers, on tables that come with scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from torch import nn

from fedsz.errors import DataError
from fedsz.training import loop
from fedsz.training.datasets import (
    PARTITIONERS,
    TABLES,
    Division,
    Ints,
    hold_out,
    read_table,
)
from fedsz.training.examples import Examples
from fedsz.training.options import RunConfig

MODELS: Final = ("mlp", "linear")
_HIDDEN: Final = 128


class TabularTask(loop.TorchTask):
    """A `fedsz.training.task.Task`: an MLP or a linear model on one of `TABLES`.

    Raises:
        ConfigError: a table, model, partitioner or device that does not exist.
    """

    def __init__(self, config: RunConfig) -> None:
        have = {"dataset": TABLES, "model": MODELS, "partitioner": PARTITIONERS}
        super().__init__(config, "tables", **have)
        self._train, self._test = _table(config.dataset)
        self._division = lru_cache(maxsize=1)(self._divide)  # many clients may be in this process
        self._classes = int(self._train.y.max()) + 1

    def build_model(self) -> nn.Module:
        """Return a network of two hidden layers, or a linear one."""
        inputs, outputs = self._train.x.shape[1], self._classes
        if self._config.model == "linear":
            return nn.Linear(inputs, outputs).to(self._device)
        return nn.Sequential(
            nn.Linear(inputs, _HIDDEN), nn.ReLU(),
            nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU(),
            nn.Linear(_HIDDEN, outputs),
        ).to(self._device)  # fmt: skip

    def load_share(self, index: int, count: int) -> Examples:
        """Return a client's rows of the table."""
        return self._train.rows(torch.from_numpy(self._division(count)(index)))

    def _divide(self, count: int) -> Callable[[int], Ints]:
        labels, what = self._train.y.numpy(), f"rows of {self._config.dataset}"
        return Division.of(self._config, count).of_labels(labels, what)

    def load_test(self) -> Examples:
        """Return the fifth of the rows that no share contains, or so many of them."""
        wanted = self._config.test_samples or len(self._test)
        if wanted > len(self._test):
            raise DataError(f"{self._config.dataset} has {len(self._test)} test rows, not {wanted}")
        return self._test.first(wanted)


def _table(name: str) -> tuple[Examples, Examples]:
    """Return a table's rows for training and for testing; features have mean 0 and variance 1."""
    x, y = read_table(name)
    # Everybody has the whole table, so its means are nobody's secret.
    x = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    table = Examples(torch.from_numpy(x).float(), torch.from_numpy(y))
    train, test = (table.rows(torch.from_numpy(rows)) for rows in hold_out(y))
    return train, test
