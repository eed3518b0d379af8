"""StreamingFedAvg: Flower's average, in the memory of one model, damage left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedsz.flower import FedSZGrid, StreamingFedAvg
from tests.federation import (
    BOUND,
    CLIENTS,
    app_of,
    grid_of,
    initial,
    moved,
    record_of,
    run,
    to_arrays,
)


def test_streaming_fedavg_is_fedavg() -> None:
    state = {name: x for name, x in initial().items() if x.dtype.kind == "f"}
    theirs = FedAvg().start(grid_of(app_of(mods=())), record_of(state), num_rounds=2)

    ours = StreamingFedAvg().start(grid_of(app_of(mods=())), record_of(state), num_rounds=2)

    for name, x in to_arrays(theirs.arrays).items():
        tolerance = 1e-2 if x.dtype == np.float16 else 1e-6  # theirs adds up in float16
        assert np.allclose(to_arrays(ours.arrays)[name], x, atol=tolerance), name
    losses = (result.train_metrics_clientapp[1]["loss"] for result in (ours, theirs))
    assert next(losses) == pytest.approx(next(losses))


def test_dtypes_survive_the_average() -> None:
    result = run(StreamingFedAvg(), FedSZGrid(grid_of(app_of()), BOUND), rounds=2)

    arrays = to_arrays(result.arrays)
    assert {name: x.dtype for name, x in arrays.items()} == {
        name: x.dtype for name, x in initial().items()
    }
    # 3 + the mean of 0..3 weighted by 1..4, rounded, twice
    assert arrays["bn.num_batches_tracked"] == 7
    assert arrays["mask"].tolist() == [True, False, True]


def test_what_evaluate_fn_keeps_stays() -> None:
    kept: list[ArrayRecord] = []

    def keep(number: int, arrays: ArrayRecord) -> MetricRecord:
        kept.append(arrays)
        return MetricRecord({"round": number})

    StreamingFedAvg(fraction_evaluate=0).start(
        grid=FedSZGrid(grid_of(app_of()), BOUND),
        initial_arrays=record_of(initial()),
        num_rounds=2,
        evaluate_fn=keep,
    )

    assert [list(arrays) for arrays in kept] == [list(initial())] * 3


def test_a_model_that_a_strategy_copies_is_sent_again_after_a_round_without_replies() -> None:
    class Copying(StreamingFedAvg):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            copy = ArrayRecord(dict(arrays))
            return super().configure_train(server_round, copy, config, grid)

    def edit(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        asked.append(list(arrays))
        if len(asked) <= CLIENTS:
            raise RuntimeError("no battery")
        return moved(arrays, client)

    asked: list[list[str]] = []
    result = run(Copying(fraction_evaluate=0), FedSZGrid(grid_of(app_of(edit)), BOUND), rounds=2)

    assert asked == [list(initial())] * 2 * CLIENTS
    assert list(result.arrays) == list(initial())


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), [1, 2], None])
def test_impossible_weights_are_left_out(weight: Any) -> None:
    def reply(client: int) -> Message:
        metrics = {"num-examples": weight if client == 1 else 1}
        if metrics["num-examples"] is None:
            metrics = {"other": 1}
        request = Message(RecordDict(), client, MessageType.TRAIN)
        arrays = record_of({"x": np.full(3, client, np.float32)})
        return Message(
            RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=request
        )

    grid_of(app_of())  # tells Flower who this process is
    arrays, _ = StreamingFedAvg().aggregate_train(1, (reply(i) for i in range(1, 4)))

    assert arrays is not None
    assert to_arrays(arrays)["x"].tolist() == [2.5, 2.5, 2.5]


def test_replies_are_consumed_one_at_a_time() -> None:
    alive: list[int] = []

    def replies() -> Iterable[Message]:
        import gc
        import weakref

        for client in range(5):
            request = Message(RecordDict(), client, MessageType.TRAIN)
            record = record_of({"x": np.zeros(1000, np.float32)})
            metrics = MetricRecord({"num-examples": 1})
            message = Message(RecordDict({"a": record, "m": metrics}), reply_to=request)
            watch.append(weakref.ref(record))
            del record, metrics
            yield message
            del message
            gc.collect()
            alive.append(sum(ref() is not None for ref in watch))

    watch: list[Any] = []
    grid_of(app_of())
    StreamingFedAvg().aggregate_train(1, replies())

    assert max(alive) <= 1
