"""Broadcasts of models that are not all float32, and of models that are too small to compress."""

from __future__ import annotations

import numpy as np

from fedsz.core.broadcast import Broadcast
from fedsz.core.decode import arrays_of
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.flower import FedSZGrid, LocalGrid, StreamingFedAvg
from fedsz.stream import Reader
from tests.federation import app_of, record_of, to_arrays


def test_a_client_that_has_missed_rounds_gets_tensors_of_all_dtypes() -> None:
    draws = np.random.default_rng(0)
    dtypes = {"single": np.float32, "half": np.float16, "double": np.float64}
    model = {name: draws.normal(size=3000).astype(dtype) for name, dtype in dtypes.items()}
    settings = Settings(error_bound="step:1", threshold=0, downlink="step:1")
    broadcast, held = Broadcast(), []
    for _ in range(4):
        held.append(broadcast.publish(model, settings))
        model = {k: (x + draws.normal(0, 0.1, 3000)).astype(x.dtype) for k, x in model.items()}

    for before in held[:-1]:
        stream = broadcast.since(before.digest)
        assert stream is not None
        found = Reference(arrays_of(Reader(stream), Reference(before.arrays)))
        assert found.digest == held[-1].digest


def test_a_model_below_1_kb_goes_both_ways_as_it_is() -> None:
    start = {"w": np.random.default_rng(0).normal(size=100).astype(np.float32)}
    app = app_of(lambda i, model: {"w": model["w"] * np.float32(1 + i)})
    finals = []
    for wrap in (lambda grid: grid, lambda grid: FedSZGrid(grid)):
        grid = wrap(LocalGrid(app, [{"partition-id": i} for i in range(2)]))
        result = StreamingFedAvg(fraction_evaluate=0).start(grid, record_of(start), num_rounds=3)
        finals.append(to_arrays(result.arrays)["w"])

    np.testing.assert_array_equal(*finals)
