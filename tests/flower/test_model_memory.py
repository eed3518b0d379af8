"""How many copies of a model both ends hold, and that none of them is what a failure needs."""

from __future__ import annotations

import gc
import sys

import ml_dtypes
import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from fedsz.flower import FedSZGrid, StreamingFedAvg
from fedsz.flower.records import to_record, views_of
from tests.federation import (
    app_of,
    grid_of,
    initial,
    record_of,
)
from tests.peak_memory import linux

BF16 = np.dtype(ml_dtypes.bfloat16)
KEY = "arrays"


@linux
@pytest.mark.slow
@pytest.mark.repository
def test_a_model_in_half_precision_is_held_eight_and_ten_times_at_most() -> None:
    """Its largest tensor is most of it, and is coded in float32."""
    pytest.importorskip("benchmarks", reason="needs benchmarks")
    from benchmarks import large_models

    took = large_models.exchange("bfloat16", large_models.Size(layers=4, words=8192))

    assert 3 < took.server_memory <= 8
    assert 3 < took.client_memory <= 10


def test_arrays_of_a_record_are_views_of_its_bytes() -> None:
    record = to_record({"w": np.ones(1000, BF16), "steps": np.array(3)})

    for name, x in views_of(record).items():
        whole = np.frombuffer(record[name].data, np.uint8)
        assert np.shares_memory(x, whole)
        assert not x.flags.writeable


def test_the_loop_of_a_strategy_lets_go_of_the_model_it_began_with() -> None:
    began: list[bytes] = []
    holders: list[int] = []

    def first() -> ArrayRecord:
        record = record_of(initial())
        began.append(record["fc.weight"].data)
        return record

    def look(_: int, arrays: ArrayRecord) -> MetricRecord:
        del arrays
        gc.collect()
        holders.append(sys.getrefcount(began[0]) - 2)  # all but the list and the argument
        return MetricRecord({})

    StreamingFedAvg(fraction_evaluate=0).start(
        FedSZGrid(grid_of(app_of())), first(), num_rounds=3, evaluate_fn=look
    )

    assert holders[0] > 0  # before the first round
    assert holders[-1] == 0
