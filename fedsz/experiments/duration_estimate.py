"""How long runs would take: a few training steps of each kind, timed, times their number."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import torch

from fedsz.arrays import as_arrays
from fedsz.core.decode import decompress
from fedsz.core.encode import compress_measured
from fedsz.errors import FedszError
from fedsz.training import datasets, loop
from fedsz.training.examples import Examples
from fedsz.training.images import build_model
from fedsz.training.options import RunConfig

TEST_BATCH: Final = 256
# Options that runs are alike in which take the same time to train, and to compress.
TRAINED: Final = ("model", "dataset", "image_size", "batch_size", "device")
SENT: Final = ("model", "dataset", "codec", "lossless", "error_bound", "rule")


def seconds(run: RunConfig) -> float | None:
    """Return about how long a run takes in one process; None where that cannot be told.

    Training and testing are timed on random images of the data set's shape, codecs on the model's
    first weights. Of other tasks than images it cannot be told.
    """
    if run.task != RunConfig.task:
        return None
    try:
        train_images, test_images = _images(run.dataset, run.data_dir)
        step, test = _step_seconds(_alike(run, TRAINED))
        code = _code_seconds(_alike(run, SENT))
    except FedszError:
        return None
    training = min(run.clients_per_round or run.clients, run.clients)
    samples = (run.samples or train_images) * training / run.clients
    steps = run.epochs * samples / run.batch_size
    tests = (run.test_samples or test_images) / TEST_BATCH
    return run.rounds * (steps * step + tests * test + training * code)


def _alike(run: RunConfig, names: tuple[str, ...]) -> RunConfig:
    return RunConfig.of({name: getattr(run, name) for name in names})


@lru_cache(maxsize=16)
def _images(dataset: str, data_dir: str) -> tuple[int, int]:
    """Return how many images a data set has for training and for testing."""
    spec = datasets.get(dataset)
    if spec.hub_id is None:
        train = datasets.open_shares(dataset, datasets.Division(1), data_dir=None)(0)
        return len(train), len(datasets.load_test(dataset, data_dir=None))
    if not data_dir:
        raise FedszError("the hub does not say without a download")
    found = [datasets.find_parquet(spec, split, Path(data_dir)) for split in ("train", "test")]
    train_rows, test_rows = (pq.read_metadata(path).num_rows for path in found)
    return train_rows, test_rows


@lru_cache(maxsize=64)
def _step_seconds(run: RunConfig) -> tuple[float, float]:
    """Return the seconds of a training step, and of testing a batch of `TEST_BATCH`."""
    spec = datasets.get(run.dataset)
    model = build_model(run).to(loop.check_device(run.device))

    def images(count: int) -> Examples:
        x = torch.randint(0, 256, (count, *spec.shape), dtype=torch.uint8)
        return Examples(x, torch.arange(count) % spec.num_classes)

    gently = replace(run, epochs=1, learning_rate=1e-4, momentum=0.0)
    two_steps = partial(loop.train, model, images(2 * run.batch_size), gently, 0)
    test = partial(loop.evaluate, model, images(TEST_BATCH), image_size=run.image_size)
    return _timed(two_steps) / 2, _timed(test)


@lru_cache(maxsize=64)
def _code_seconds(run: RunConfig) -> float:
    state = as_arrays(build_model(run).state_dict())
    config = run.compression
    return _timed(lambda: decompress(compress_measured(state, config)[0], as_numpy=True))


def _timed(action: Callable[[], object]) -> float:
    """Return the least of three times; the first pays for what is set up once."""
    return min(timeit.repeat(action, number=1, repeat=3))
