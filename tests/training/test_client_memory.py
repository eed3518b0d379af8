"""What a small device needs: its share as files, no library it does not train with, and 350 MB."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from fedsz.errors import DataError
from fedsz.training import datasets, loop, models, parquet_images
from fedsz.training.examples import Examples
from fedsz.training.options import RunConfig
from tests.project.test_imports import modules_after

MB = 1_000_000


def share(data_dir: Path, samples: int) -> Examples:
    division = datasets.Division(1, samples=samples)
    return datasets.open_shares("cifar10", division, data_dir=data_dir)(0)


@pytest.mark.slow
@pytest.mark.repository
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_client_trains_on_5000_images_in_350_mb(data_dir: Path) -> None:
    pytest.importorskip("benchmarks", reason="needs benchmarks")
    from benchmarks import client_memory

    found = client_memory.measure(data_dir, images=5000, rounds=2)

    assert len(found["peaks_MB"]) == 3  # the model before training, and two rounds
    # Of the same libraries 77 or 135 MB are in memory, as the kernel caches files.
    assert 120 < found["peak_MB"] - found["files_MB"] <= 350 - 77


def test_a_share_is_trained_on_without_pyarrow_in_this_process(data_dir: Path) -> None:
    code = (
        "from pathlib import Path; from fedsz.training import datasets;"
        " shares = datasets.open_shares('cifar10', datasets.Division(9, samples=90),"
        f" data_dir=Path({str(data_dir)!r})); shares(0).x[:]"
    )

    used = modules_after(code)

    assert "PIL" in used
    assert not used & {"pyarrow", "pandas", "datasets", "sklearn"}


def test_a_share_is_kept_as_files_and_trains_as_its_pixels_do(data_dir: Path) -> None:
    lazy = share(data_dir, 64)
    eager = lazy.first(None)
    assert isinstance(lazy.x, datasets.EncodedImages)
    assert isinstance(eager.x, torch.Tensor)

    trained = []
    for images in (lazy, eager):
        model = models.build("cnn", num_classes=10, in_channels=3, seed=0)
        loop.train(model, images, RunConfig(learning_rate=0.1), 5)
        trained.append(model.state_dict())

    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


def test_images_come_in_the_order_that_was_asked_for(data_dir: Path) -> None:
    path = datasets.find_parquet(datasets.get("cifar10"), "test", data_dir)
    file = parquet_images.ParquetImages(path, "img", "label")
    rows = np.array([9000, 3, 9000, 5])

    together = file.images(rows)

    assert together[0] == together[2] == file.images(rows[:1])[0]
    assert together[1:2] + together[3:] == file.images(rows[[1, 3]])
    assert len(set(together)) == 3


def test_a_reader_that_dies_is_one_line(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_images, "WORKER", "no_such_module")

    with pytest.raises(DataError, match=r"cannot read .*train\.parquet: the process .* with 1"):
        share(data_dir, 10)
