"""A client's work in a round: train the model it was sent on its share of the data."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord

from fedsz.training.build import build_model, check_device, load
from fedsz.training.datasets import Images
from fedsz.training.loop import TrainResult
from fedsz.training.options import RunConfig

if TYPE_CHECKING:
    from torch import nn


def train_share(
    config: RunConfig,
    arrays: ArrayRecord,
    server_round: int,
    share: tuple[int, int],
    *,
    data_dir: str,
    device: str,
) -> tuple[nn.Module, TrainResult]:
    """Do a client's work in a round: train the model it was sent on its share of the data.

    Args:
        config: the run.
        arrays: the model's.
        server_round: from 1.
        share: which part of the data, of how many.
        data_dir: where the data is, or "" for the hub.
        device: where to train.

    Raises:
        ConfigError: no such device here.
        DataError: the data is not there.
        ModelMismatch: the arrays are those of another model.
    """
    from fedsz.training import loop as training

    images = _partition(config, data_dir, *share)
    model = build_model(config).to(check_device(device))
    load(model, arrays)
    result = training.train(
        model,
        images,
        epochs=config.epochs,
        lr=config.learning_rate,
        momentum=config.momentum,
        batch_size=config.batch_size,
        # Another order each round and each client, the same in each run.
        seed=hash((config.seed, server_round, share[0])) % 2**32,
        image_size=config.image_size,
    )
    return model, result


def _partition(config: RunConfig, data_dir: str, index: int, count: int) -> Images:
    return _cached_partition(
        config.dataset, data_dir, index, count,
        config.partitioner, config.alpha, config.seed, config.samples,
    )  # fmt: skip


@lru_cache(maxsize=64)  # a device has one share; a trial in one process may have a few
def _cached_partition(
    dataset: str,
    data_dir: str,
    index: int,
    count: int,
    partitioner: str,
    alpha: float,
    seed: int,
    samples: int,
) -> Images:
    """Decode a client's images once, not once a round."""
    from fedsz.training import datasets

    return datasets.load_partition(
        dataset,
        data_dir=folder(data_dir),
        partition=index,
        num_partitions=count,
        partitioner=partitioner,
        alpha=alpha,
        seed=seed,
        samples=samples or None,
    )


def folder(path: str) -> Path | None:
    """Return a data folder; None, the hub, for ""."""
    return Path(path) if path else None
