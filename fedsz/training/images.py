"""The task `images`: image classification on public data sets."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedsz.errors import ConfigError
from fedsz.training import datasets, loop, models
from fedsz.training.examples import Examples
from fedsz.training.options import RunConfig
from fedsz.training.task import Metrics

# Data is read once, not once a run: runs of a sweep follow each other in one process.
_load_test = lru_cache(maxsize=2)(datasets.load_test)


@lru_cache(maxsize=16)
def _shares(name: str, **division: Any) -> Callable[[int], Examples]:
    return lru_cache(maxsize=None)(datasets.open_shares(name, **division))


class ImagesTask:
    """A `fedsz.training.task.Task`: a network of `models` on a data set of `datasets`.

    Raises:
        ConfigError: a data set, model, partitioner or device that does not exist.
    """

    def __init__(self, config: RunConfig) -> None:
        if config.partitioner not in datasets.PARTITIONERS:
            have = ", ".join(datasets.PARTITIONERS)
            raise ConfigError(f"no partitioner {config.partitioner!r}; have {have}")
        datasets.get(config.dataset)
        models.require(config.model)
        self._config, self._device = config, loop.check_device(config.device)
        self._data_dir = Path(config.data_dir) if config.data_dir else None

    def build_model(self) -> nn.Module:
        """Return the run's network, on its device, with the weights that its seed gives."""
        return build_model(self._config).to(self._device)

    def load_share(self, index: int, count: int) -> Examples:
        """Return a client's share; see `datasets.load_partition`."""
        config = self._config
        shares = _shares(
            config.dataset,
            data_dir=self._data_dir,
            num_partitions=count,
            partitioner=config.partitioner,
            alpha=config.alpha,
            seed=config.seed,
            samples=config.samples or None,
        )
        return shares(index)

    def load_test(self) -> Examples:
        """Return the test images; see `datasets.load_test`."""
        samples = self._config.test_samples or None
        return _load_test(self._config.dataset, data_dir=self._data_dir, samples=samples)

    def train(self, model: nn.Module, share: Examples) -> Metrics:
        """Train by SGD; see `loop.train`."""
        result = loop.train_as(self._config, model, share)
        return {"loss": result.loss, "examples": result.examples}

    def evaluate(self, model: nn.Module, test: Examples) -> Metrics:
        """Return the mean cross-entropy in nats, and the share of right answers."""
        result = loop.evaluate(model, test, image_size=self._config.image_size)
        return {"loss": result.loss, "accuracy": result.accuracy}


def build_model(config: RunConfig) -> nn.Module:
    """Return the network of a run on images, with the weights that its seed gives."""
    spec = datasets.get(config.dataset)
    model = models.build(
        config.model, num_classes=spec.num_classes, in_channels=spec.shape[0], seed=config.seed
    )
    # Convolutions train 1.5 times as fast on a CPU when channels lie side by side.
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
