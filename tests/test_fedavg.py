"""StreamingFedAvg: Flower's average, in the memory of one model, damage left out."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedsz.flower import FedSZGrid, StreamingFedAvg
from fedsz.flower.records import KEY, STYPE
from fedsz.flower.wrapped_grid import WrappedGrid
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
    theirs = FedAvg().start(grid_of(app_of(mod=False)), record_of(state), num_rounds=2)

    ours = StreamingFedAvg().start(grid_of(app_of(mod=False)), record_of(state), num_rounds=2)

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


class Tampering(WrappedGrid):
    """A Grid on which one client's reply is not what it sent."""

    def __init__(self, inner: Any, tamper: Callable[[bytes], bytes]) -> None:
        super().__init__(inner)
        self.tamper = tamper

    def stream_replies(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        for reply in super().stream_replies(messages, timeout=timeout):
            if reply.content["metrics"]["num-examples"] == 3:  # client 2
                (array,) = reply.content["arrays"].values()
                data = self.tamper(array.data)
                reply.content["arrays"] = ArrayRecord(
                    {KEY: Array("uint8", (len(data),), STYPE, data)}
                )
            yield reply


DAMAGE = {
    "cut": lambda data: data[:-1],
    "empty": lambda data: b"",
    "flipped": lambda data: data[:-50] + bytes([data[-50] ^ 1]) + data[-49:],
    "version": lambda data: data[:8] + b"\x63\x00" + data[10:],
    "extended": lambda data: data + b"more",
}


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_reply_leaves_no_trace(strategy: type[FedAvg], damage: str) -> None:
    grid = FedSZGrid(Tampering(grid_of(app_of()), DAMAGE[damage]), BOUND)

    result = run(strategy(fraction_evaluate=0), grid)

    traffic = grid.take_traffic()
    assert traffic.replies == CLIENTS - 1
    assert len(traffic.failures) == 1
    others = [moved(initial(), i)["fc.bias"] * (i + 1) for i in (0, 1, 3)]
    mean = np.sum(others, axis=0) / 7
    assert np.allclose(to_arrays(result.arrays)["fc.bias"], mean, atol=1e-6)


def test_a_payload_that_lies_late_in_the_stream_leaves_no_trace() -> None:
    """All checksums fit, the last payload does not decode: nothing of the reply may be added."""

    def forge(data: bytes) -> bytes:
        from tests.test_stream import forge as forged
        from tests.test_stream import set_at

        return forged(data, **set_at("tensors", 0, 1, to=0), payloads=bad(data))

    def bad(data: bytes) -> list[Any]:

        import msgspec

        stored = int.from_bytes(data[12:16], "little")
        payloads = msgspec.msgpack.decode(zlib.decompress(data[20 : 20 + stored]))["payloads"]
        payloads[-1][0] = 2  # another codec than it was packed by
        return payloads

    grid = FedSZGrid(Tampering(grid_of(app_of()), forge), BOUND)

    result = run(StreamingFedAvg(fraction_evaluate=0), grid)

    (reason,) = (failure.reason for failure in grid.take_traffic().failures)
    assert "CorruptStream" in reason
    expected = np.sum([moved(initial(), i)["fc.bias"] * (i + 1) for i in (0, 1, 3)], axis=0) / 7
    assert np.allclose(to_arrays(result.arrays)["fc.bias"], expected, atol=1e-6)


def test_a_round_without_replies_keeps_the_model() -> None:
    def fail(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise RuntimeError("no battery")

    grid = FedSZGrid(grid_of(app_of(fail)), BOUND)

    strategy = StreamingFedAvg(fraction_evaluate=0)
    replies = grid.stream_replies(
        strategy.configure_train(1, record_of(initial()), ConfigRecord(), grid)
    )

    assert strategy.aggregate_train(1, replies) == (None, None)


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
