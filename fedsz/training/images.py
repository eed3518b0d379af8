"""The task `images`: image classification on public data sets."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import nn

from fedsz.training import datasets, loop, models
from fedsz.training.datasets import Division
from fedsz.training.examples import Examples
from fedsz.training.options import RunConfig


class ImagesTask(loop.TorchTask):
    """A `fedsz.training.task.Task`: a network of `models` on a data set of `datasets`.

    Raises:
        ConfigError: a data set, model, partitioner or device that does not exist.
    """

    def __init__(self, config: RunConfig) -> None:
        Division.of(config, 1)
        datasets.get(config.dataset)
        models.require(config.model)
        super().__init__(config)
        self._data_dir = Path(config.data_dir) if config.data_dir else None
        self._shares = lru_cache(maxsize=1)(self._open)  # many clients may be in this process

    def build_model(self) -> nn.Module:
        """Return the run's network, on its device, with the weights that its seed gives."""
        return build_model(self._config).to(self._device)

    def load_share(self, index: int, count: int) -> Examples:
        """Return a client's share; see `datasets.open_shares`."""
        return self._shares(count)(index)

    def _open(self, count: int) -> Callable[[int], Examples]:
        division = Division.of(self._config, count)
        return datasets.open_shares(self._config.dataset, division, data_dir=self._data_dir)

    def load_test(self) -> Examples:
        """Return the test images; see `datasets.load_test`."""
        samples = self._config.test_samples or None
        return datasets.load_test(self._config.dataset, data_dir=self._data_dir, samples=samples)


def build_model(config: RunConfig) -> nn.Module:
    """Return the network of a run on images, with the weights that its seed gives."""
    spec = datasets.get(config.dataset)
    model = models.build(
        config.model, num_classes=spec.num_classes, in_channels=spec.shape[0], seed=config.seed
    )
    # Convolutions train 1.5 times as fast on a CPU when channels lie side by side.
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
