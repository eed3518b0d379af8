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

# Data is read once, not once a run: runs of a sweep follow each other in one process.
_load_test = lru_cache(maxsize=2)(datasets.load_test)


@lru_cache(maxsize=16)
def _shares(name: str, division: Division, data_dir: Path | None) -> Callable[[int], Examples]:
    return lru_cache(maxsize=None)(datasets.open_shares(name, division, data_dir=data_dir))


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

    def build_model(self) -> nn.Module:
        """Return the run's network, on its device, with the weights that its seed gives."""
        return build_model(self._config).to(self._device)

    def load_share(self, index: int, count: int) -> Examples:
        """Return a client's share; see `datasets.open_shares`."""
        division = Division.of(self._config, count)
        return _shares(self._config.dataset, division, self._data_dir)(index)

    def load_test(self) -> Examples:
        """Return the test images; see `datasets.load_test`."""
        samples = self._config.test_samples or None
        return _load_test(self._config.dataset, data_dir=self._data_dir, samples=samples)


def build_model(config: RunConfig) -> nn.Module:
    """Return the network of a run on images, with the weights that its seed gives."""
    spec = datasets.get(config.dataset)
    model = models.build(
        config.model, num_classes=spec.num_classes, in_channels=spec.shape[0], seed=config.seed
    )
    # Convolutions train 1.5 times as fast on a CPU when channels lie side by side.
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
