"""FedSZMod and FedSZGrid with Flower's own strategies, on an in-process Grid."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg

import fedsz
from fedsz.control.record import RoundRecord
from fedsz.core.protocol import Request
from fedsz.core.settings import Settings
from fedsz.errors import CodecUnavailable, ConfigError
from fedsz.flower import FedSZGrid, Rules, StreamingFedAvg
from fedsz.flower.records import STYPE, is_sealed, note_of
from tests.federation import (
    BOUND,
    CLIENTS,
    Watched,
    app_of,
    bound_of,
    grid_of,
    initial,
    moved,
    record_of,
    run,
    to_arrays,
)


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg, FedMedian, FedTrimmedAvg])
def test_strategies_get_what_they_would_within_the_bound(strategy: type[FedAvg]) -> None:
    plain = to_arrays(run(strategy(), grid_of(app_of(mods=()))).arrays)

    ours = to_arrays(run(strategy(), FedSZGrid(grid_of(app_of()), BOUND)).arrays)

    assert list(ours) == list(plain)
    for name, x in plain.items():
        assert ours[name].shape == x.shape
        tolerance = 1e-6
        if "weight" in name:
            tolerance += max(bound_of(moved(initial(), i)[name]) for i in range(CLIENTS))
        difference = np.abs(ours[name].astype(np.float64) - x.astype(np.float64))
        assert difference.max(initial=0.0) <= tolerance, name


def test_arrays_that_a_strategy_widened_go_out_in_the_models_dtypes() -> None:
    seen: list[dict[str, Any]] = []

    def edit(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append({name: x.dtype for name, x in arrays.items()})
        return moved(arrays, client)

    run(FedAvg(), FedSZGrid(grid_of(app_of(edit)), BOUND), rounds=2)

    assert all(dtypes == seen[0] for dtypes in seen)
    assert seen[0]["bn.num_batches_tracked"] == np.int64


def stream_of(content: RecordDict) -> bytes:
    (array,) = content.array_records["arrays"].values()
    assert (array.stype, array.dtype) == (STYPE, "uint8")
    return array.data


def test_one_stream_crosses_the_wire_each_way() -> None:
    grid = Watched(grid_of(app_of()))
    ours, state = FedSZGrid(grid, BOUND), record_of(initial())
    messages = list(FedAvg().configure_train(1, state, ConfigRecord(), ours))
    contents = [message.content for message in messages]

    assert len(list(ours.send_and_receive(messages))) == CLIENTS

    assert len(grid.down) == len(grid.up) == CLIENTS
    down, up = (fedsz.inspect(stream_of(contents[0])) for contents in (grid.down, grid.up))
    assert all(tensor.bound is None for tensor in down.tensors)
    assert [tensor.codec for tensor in up.tensors if tensor.bound] == ["uniform", "uniform"]
    assert all(m.content is content for m, content in zip(messages, contents, strict=True))
    assert not is_sealed(contents[0].array_records["arrays"])  # nor is it written into
    assert len({id(content) for content in grid.down}) == 1  # and is packed once


def test_traffic_is_counted() -> None:
    grid = FedSZGrid(inner := Watched(grid_of(app_of())), BOUND, codec="zfp")

    run(FedAvg(fraction_evaluate=0), grid)
    traffic = grid.take_traffic()

    raw = sum(x.nbytes for x in initial().values())
    assert (traffic.raw_up, traffic.raw_down) == (CLIENTS * raw, CLIENTS * raw)
    assert traffic.sent_up == sum(len(stream_of(content)) for content in inner.up)
    assert traffic.sent_down == sum(len(stream_of(content)) for content in inner.down)
    assert traffic.ratio == traffic.raw_up / traffic.sent_up > 1
    assert (traffic.replies, traffic.failures) == (CLIENTS, [])
    assert traffic.encode_seconds > 0
    assert traffic.decode_seconds > 0
    assert 0 < traffic.max_error <= 1
    assert grid.take_traffic().raw_up == 0


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"fc.weight": np.ones((60, 9))}, "has shape (60, 9) where the model has (60, 50)"),
        ({"fc.bias": None}, "'fc.bias' of shape (60,) is missing"),
        ({"head": np.zeros(2)}, "'head' of shape (2,) is not in the model"),
    ],
    ids=["shape", "missing", "additional"],
)
def test_another_model_is_left_out_and_named(
    strategy: type[FedAvg], change: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    def edit(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        changed = arrays | change if client == 1 else arrays
        return {name: x for name, x in changed.items() if x is not None}

    grid = FedSZGrid(grid_of(app_of(edit)), BOUND)

    with caplog.at_level(logging.WARNING, "fedsz"):
        result = run(strategy(fraction_evaluate=0), grid)

    traffic = grid.take_traffic()
    assert traffic.replies == CLIENTS - 1
    (reason,) = (failure.reason for failure in traffic.failures)
    assert f"{says}; if clients are to reply so, FedSZGrid takes same_model=False" in reason
    assert reason in caplog.text
    weight = to_arrays(result.arrays)["fc.weight"]
    assert np.abs(weight - initial()["fc.weight"]).max() <= bound_of(initial()["fc.weight"]) + 1e-6


@pytest.mark.parametrize("same_model", [True, False])
def test_rules_say_nothing_of_the_model(same_model: bool) -> None:
    """Replies may differ on purpose, with limits of norms and weights, too."""

    class Unaveraged(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return None, None

    def edit(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return arrays if client else {"adapter.weight": np.ones((50, 60), np.float32)}

    grid = FedSZGrid(grid_of(app_of(edit)), BOUND, rules=Rules(), same_model=same_model)
    run(Unaveraged(fraction_evaluate=0), grid, rounds=1)

    assert len(grid.take_traffic().failures) == (1 if same_model else 0)


def test_a_codec_that_a_client_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FedSZGrid(grid_of(app_of()), BOUND, codec="zfp")
    monkeypatch.setattr(type(fedsz.codecs.get("zfp")), "library", "zfpy_that_is_not_there")

    run(StreamingFedAvg(fraction_evaluate=0), grid)

    failures = grid.take_traffic().failures
    assert len(failures) == CLIENTS
    assert "CodecUnavailable: codec 'zfp' needs the package" in failures[0].reason


@pytest.mark.parametrize("options", [{"codec": "sz4"}, {"lossless": "sz2"}, {"rule": "some"}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        FedSZGrid(grid_of(app_of()), **options)


def test_settings_reach_the_clients() -> None:
    inner = Watched(grid_of(app_of()))
    grid = FedSZGrid(
        inner, "abs:0.05", codec="zfp:precision=11", lossless="zstd:level=9", rule="ndim"
    )

    run(FedAvg(fraction_evaluate=0), grid)

    request = Request.decode(note_of(inner.down[0]))
    assert (len(request.run), request.round, request.trains) == (8, 1, True)
    assert (request.base, request.reference) == ({}, {})  # the downlink is exact
    assert request.settings == Settings(
        error_bound="abs:0.05", codec="zfp:precision=11", lossless="zstd:level=9", rule="ndim"
    )
    tensors = fedsz.inspect(stream_of(inner.up[0])).tensors
    assert {tensor.codec for tensor in tensors} <= {"zfp", "zstd", "raw"}


def test_a_missing_codec_is_refused_by_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(fedsz.codecs.get("zfp")), "library", "zfpy_that_is_not_there")

    with pytest.raises(CodecUnavailable):
        FedSZGrid(grid_of(app_of()), codec="zfp")


def test_what_is_told_of_rounds_cannot_end_them(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: RoundRecord) -> None:
        raise OSError("the disk is full")

    grid = FedSZGrid(grid_of(app_of()), BOUND, on_round=fail)

    assert run(StreamingFedAvg(), grid, rounds=2).arrays
    assert "on_round failed on round 1" in caplog.text
