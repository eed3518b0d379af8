"""Headers of streams that ask for more than their bytes have paid for."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedsz
from fedsz.arrays import Layout
from fedsz.errors import ConfigError, LimitExceeded
from fedsz.flower import FedSZGrid, LocalGrid
from fedsz.flower_compat import ProtoRecordDict
from fedsz.stream import Limits, Reader
from fedsz.stream.format import FREE_TENSORS
from fedsz.transport.message_format import (
    MAX_HEAD_BYTES,
    decode_message,
    encode_message,
    reply_head,
)
from tests.federation import initial, run
from tests.hostile_headers import empty_tensors, header_of, sealed_header

MODEL = {f"layer.{i}.weight": np.zeros((8, 3), np.float32) for i in range(20)}


def test_a_short_stream_may_have_some_thousand_tensors_and_a_long_one_more() -> None:
    few, many = (sealed_header(empty_tensors(FREE_TENSORS + more)) for more in (0, 1))
    state = {f"experts.{i}": np.full(64, i, np.uint32) for i in range(FREE_TENSORS + 1)}

    for blob, limits in (
        (few, Limits()),
        (fedsz.compress(state, lossless="raw"), Limits()),
        (many, Limits(tensor_bytes=0)),
    ):
        assert len(Reader(blob, limits).header.tensors) >= FREE_TENSORS
    with pytest.raises(LimitExceeded, match=f"{FREE_TENSORS + 1} tensors; limit {FREE_TENSORS}"):
        Reader(many)


def test_what_is_written_of_many_small_tensors_can_be_read() -> None:
    state = {f"experts.{i}": np.full(16, i, np.float32) for i in range(12_000)}

    back = fedsz.decompress(fedsz.compress(state), as_numpy=True)

    assert back.keys() == state.keys()
    assert all(np.array_equal(back[name], x) for name, x in state.items())
    with pytest.raises(LimitExceeded, match=r"see fedsz\.Limits"):
        fedsz.decompress(fedsz.compress({f"{i}": np.zeros(0) for i in range(FREE_TENSORS + 1)}))


def test_a_known_model_limits_tensors_and_header() -> None:
    limits = Limits.of_model(Layout.of(MODEL))
    more = {f"more.{i}": np.zeros(3, np.float32) for i in range(49)}

    for config in ({"codec": "raw", "lossless": "raw"}, {"threshold": 0}, {"codec": "szx"}):
        Reader(fedsz.compress(MODEL, **config), limits)  # type: ignore[arg-type]
    with pytest.raises(LimitExceeded, match="49 tensors; limit 48"):
        Reader(fedsz.compress(more), limits)
    wordy = empty_tensors(20)
    wordy["tensors"][0][0] = "x" * 10_000
    with pytest.raises(LimitExceeded, match="header"):
        Reader(sealed_header(wordy), limits)


@pytest.mark.parametrize(
    ("elements", "most"), [(1000, 2000), (1 << 28, (1 << 28) + (8 << 20))], ids=["small", "large"]
)
def test_a_known_model_limits_size(elements: int, most: int) -> None:
    limits = Limits.of_model(Layout({"w": (elements,)}, {"w": np.dtype(np.float32)}))

    def stream_of(size: int) -> bytes:
        return sealed_header(header_of([["w", 0, [size]]], [[0, 0, 0, 0, None, [0]]]))

    assert Reader(stream_of(most), limits).header.decoded_bytes == 4 * most
    with pytest.raises(LimitExceeded, match=f"limit {4 * most}"):
        Reader(stream_of(most + 1), limits)


def test_a_model_of_many_or_long_names_is_within_its_own_limits() -> None:
    many = {f"{i}": np.zeros(1, np.float32) for i in range(2 * FREE_TENSORS)}
    long = {"n" * 5000 + str(i): np.zeros((1,) * 64, np.float64) for i in range(3)}
    for state in (many, long, {}):
        for lossless in ("raw", "zstd"):
            blob = fedsz.compress(state, lossless=lossless, threshold=0)
            Reader(blob, Limits.of_model(Layout.of(state)))


def test_bytes_of_any_length_do_not_allow_more_tensors() -> None:
    layout = Layout.of({"trees": np.zeros(10, np.uint8)})
    limits = Limits.of_model(layout)

    Reader(fedsz.compress({"trees": np.ones(100_000, np.uint8)}), limits)
    with pytest.raises(LimitExceeded, match="11 tensors; limit 10"):
        Reader(fedsz.compress({f"{i}": np.ones(9, np.uint8) for i in range(11)}), limits)


def named_arrays(count: int) -> RecordDict:
    empty = Array("", (), "", b"")
    return RecordDict({"arrays": ArrayRecord({str(i): empty for i in range(count)})})


def test_the_head_of_a_message_is_not_parsed_if_it_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither by a client of its server, nor by a server of its client's model."""
    LocalGrid(ClientApp(), [])  # Flower's messages have a sender, which a Grid says
    message = Message(named_arrays(2000), dst_node_id=2, message_type="train")
    encoded = encode_message(message, "id")
    raw = b"".join(map(bytes, encoded.segments))
    head = len(encoded.segments[1])
    assert len(decode_message(io.BytesIO(raw), len(raw), head).content["arrays"]) == 2000
    monkeypatch.setattr(ProtoRecordDict, "FromString", None)

    why = f"names, numbers and text of {head} bytes; the most is {head - 1}"
    with pytest.raises(LimitExceeded, match=why):
        decode_message(io.BytesIO(raw), len(raw), head - 1)
    lengths = struct.pack("<II", len(encoded.segments[0]) - 8, MAX_HEAD_BYTES + 1)
    raw = b"".join((lengths, encoded.segments[0][8:], bytes(MAX_HEAD_BYTES + 1)))
    with pytest.raises(LimitExceeded):
        decode_message(io.BytesIO(raw), len(raw))
    bulky = RecordDict({"config": ConfigRecord({"text": "x" * MAX_HEAD_BYTES})})
    with pytest.raises(ConfigError, match="put bulk data into an ArrayRecord"):
        encode_message(Message(bulky, dst_node_id=2, message_type="train"), "id")


def test_a_reply_of_names_is_refused_by_the_model_that_was_sent() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, _: Context) -> Message:
        most = reply_head(len(initial()) + 1)  # and the stream
        return Message(named_arrays(most // 10), reply_to=message)

    grid = FedSZGrid(LocalGrid(app, [{}]))
    run(FedAvg(fraction_evaluate=0, min_available_nodes=1, min_train_nodes=1), grid)

    (failure,) = grid.take_traffic().failures
    assert "names, numbers and text of" in failure.reason
