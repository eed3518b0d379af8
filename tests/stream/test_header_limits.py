"""Headers of streams that ask for more than their bytes have paid for."""

from __future__ import annotations

import io
import struct

import msgspec
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedsz
from fedsz.arrays import Layout
from fedsz.errors import CorruptStream, LimitExceeded
from fedsz.flower import FedSZGrid, LocalGrid
from fedsz.flower_compat import ProtoRecordDict
from fedsz.stream import Limits, Reader
from fedsz.stream.format import FREE_TENSORS
from fedsz.transport.message_format import (
    MOST_FIELDS,
    decode_message,
    encode_content,
    encode_message,
    most_fields_of,
    require_few_fields,
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


def test_fields_are_counted_before_anything_is_made_of_them() -> None:
    """A record and its entry and key; for each array its entry, key and value."""
    proto, _ = msgspec.msgpack.decode(encode_content(named_arrays(2000)).head)
    fields = 3 + 3 * 2000

    require_few_fields(proto, ProtoRecordDict.DESCRIPTOR, fields)
    with pytest.raises(LimitExceeded, match=f"more than {fields - 1} fields"):
        require_few_fields(proto, ProtoRecordDict.DESCRIPTOR, fields - 1)
    many = RecordDict({"metrics": MetricRecord({"losses": [0.5] * 80_000})})
    proto, _ = msgspec.msgpack.decode(encode_content(many).head)
    require_few_fields(proto, ProtoRecordDict.DESCRIPTOR, 8 + 10_000)
    with pytest.raises(LimitExceeded):
        require_few_fields(proto, ProtoRecordDict.DESCRIPTOR, 7 + 10_000)
    endless = b"\x08" + b"\xff" * 1_000_000  # a number that has no end
    require_few_fields(endless, ProtoRecordDict.DESCRIPTOR, 200_000)
    with pytest.raises(LimitExceeded):
        require_few_fields(endless, ProtoRecordDict.DESCRIPTOR, 100)


def test_a_message_of_names_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody expects it: neither a client of its server, nor a server of its client's model."""
    LocalGrid(ClientApp(), [])  # Flower's messages have a sender, which a Grid says
    names = encode_message(Message(named_arrays(1), dst_node_id=2, message_type="train"), "id")
    head = msgspec.msgpack.encode((b"\x0a\x00" * 10_001, []))
    lengths, envelope = names.segments[0][:4], names.segments[0][8:]
    raw = b"".join((lengths, struct.pack("<I", len(head)), envelope, head))
    monkeypatch.setattr(ProtoRecordDict, "FromString", None)

    with pytest.raises(LimitExceeded, match="more than 10000 fields"):
        decode_message(io.BytesIO(raw), len(raw), 10_000)
    sizes = msgspec.msgpack.encode((b"", [0] * (MOST_FIELDS + 1)))
    raw = b"".join((lengths, struct.pack("<I", len(sizes)), envelope, sizes))
    with pytest.raises(CorruptStream, match="array"):
        decode_message(io.BytesIO(raw), len(raw))


def test_a_reply_of_names_is_refused_by_the_model_that_was_sent() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, _: Context) -> Message:
        fields = most_fields_of(len(initial()) + 1)  # and the stream
        return Message(named_arrays(fields // 3), reply_to=message)

    grid = FedSZGrid(LocalGrid(app, [{}]))
    run(FedAvg(fraction_evaluate=0, min_available_nodes=1, min_train_nodes=1), grid)

    (failure,) = grid.take_traffic().failures
    assert "fields beside arrays" in failure.reason
