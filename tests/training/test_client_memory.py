"""What a small device needs: no library that it does not train with, and 350 MB."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.project.test_imports import modules_after


@pytest.mark.slow
@pytest.mark.repository
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_client_trains_on_5000_images_in_350_mb(data_dir: Path) -> None:
    pytest.importorskip("benchmarks", reason="needs benchmarks")
    from benchmarks import load

    data = ("--dataset=cifar10", f"--data-dir={data_dir.resolve()}")
    more = ("--model=cnn", "--samples=5000", "--test-samples=100")
    found = load.measure(1, rounds=2, real=True, task="images", data=data, more=more)

    assert found["replayed"] == 2
    last = found["client_MB"][-1]
    # Of the same libraries 77 or 135 MB are in memory, as the kernel caches files.
    assert 120 < last["VmHWM"] - last["RssFile"] <= 350 - 77


def test_a_share_is_read_without_pandas(data_dir: Path) -> None:
    code = (
        "from pathlib import Path; from fedsz.training import datasets;"
        " shares = datasets.open_shares('cifar10', datasets.Division(9, samples=90),"
        f" data_dir=Path({str(data_dir)!r})); shares(0)"
    )

    assert not modules_after(code) & {"pandas", "datasets", "sklearn"}
