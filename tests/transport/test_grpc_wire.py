"""The link's frames and messages: what goes in comes out, and nothing else is believed."""

from __future__ import annotations

import contextlib
import io
import math
import struct

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedsz import flower_compat as compat
from fedsz.errors import ConfigError, CorruptStream, LimitExceeded, TruncatedStream
from fedsz.transport import frames
from fedsz.transport.frames import Ack, Begin, Bye, ByeKind, Hello, Incoming, Welcome, pack, unpack
from fedsz.transport.message_format import decode_message, encode_content, encode_message

CHUNK = frames.CHUNK_BYTES
METADATA = compat.Metadata(
    run_id=2**63 + 5,
    message_id="request",
    src_node_id=1,
    dst_node_id=2**62,
    reply_to_message_id="",
    group_id="3",
    created_at=1.5,
    ttl=60.0,
    message_type="train.custom",
)

EVERY_KIND = RecordDict(
    {
        "arrays": ArrayRecord(
            {
                "float": Array(np.linspace(0, 1, 7, dtype=np.float32)),
                "scalar": Array(np.array(3, dtype=np.int64)),
                "empty": Array("float32", (0, 4), "fedsz.v1", b""),
                "stream": Array("uint8", (5,), "fedsz.v1", b"\x00\xff123"),
            }
        ),
        "no arrays": ArrayRecord(),
        "metrics": MetricRecord(
            {"loss": 0.5, "n": -3, "big": 2**63 + 1, "many": [1.0, math.inf], "ints": [1, -2]}
        ),
        "config": ConfigRecord(
            {
                "flag": True,
                "name": "ünï",
                "blob": b"\x00\x01",
                "x": 1e-300,
                "flags": [True, False],
                "names": ["a", ""],
                "blobs": [b"", b"x"],
                "none": [],
            }
        ),
        "no config": ConfigRecord(),
    }
)

CONTENTS = {
    "every kind": EVERY_KIND,
    "nothing": RecordDict(),
    "no arrays": RecordDict({"metrics": MetricRecord({"n": 1})}),
}

CONTROLS: list[frames.Control] = [
    Hello(1, "pi-3", {"partition-id": 3, "site": "lab", "share": 0.5, "gpu": False}, ["a", "b"]),
    Welcome(2**62, 4 << 30, ["a"]),
    Begin("a", 1 << 40),
    Ack("a", received=True),
    Bye(ByeKind.REFUSED, "another connection"),
]


def to_message(content: RecordDict | None = None) -> Message:
    return compat.make_message(METADATA, content=RecordDict() if content is None else content)


def bytes_of(message: Message) -> bytes:
    return b"".join(map(bytes, encode_message(message, "request").segments))


def decode(raw: bytes) -> Message:
    return decode_message(io.BytesIO(raw), len(raw))


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_content_round_trip(content: RecordDict) -> None:
    before = {k: dict(v) for k, v in content.items()}
    raw = bytes_of(to_message(content))
    source = io.BytesIO(raw + b"the next message")
    message = decode_message(source, len(raw))

    assert source.tell() == len(raw)
    assert message.content == content
    assert list(message.content) == list(content)  # their order, too
    assert vars(message.metadata) == vars(METADATA)
    assert not message.has_error()
    assert {k: dict(v) for k, v in content.items()} == before


@pytest.mark.parametrize("reason", ["ValueError: no data", None])
def test_error_round_trip(reason: str | None) -> None:
    message = decode(bytes_of(compat.make_message(METADATA, error=Error(2, reason))))

    assert message.error == Error(2, reason)
    assert not message.has_content()


def test_lists_of_bytes_may_be_larger_than_a_head() -> None:
    """As the masked vectors of Flower's SecAgg+ are."""
    content = RecordDict({"masked": ConfigRecord({"vectors": [bytes(3 << 20), b"", b"x"]})})

    again = decode(bytes_of(to_message(content)))

    assert again.content == content


def test_large_arrays_are_referred_to_not_copied() -> None:
    array = Array(np.zeros(1 << 20, dtype=np.float32))
    content = encode_content(RecordDict({"a": ArrayRecord({"x": array})}))
    for message_id in ("one", "two"):
        encoded = encode_message(to_message(), message_id, content)
        assert encoded.segments[1] is content.head
        segment = encoded.segments[2]
        assert isinstance(segment, memoryview)
        assert segment.obj is array.data


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_damaged_messages_are_refused_or_decode(content: RecordDict) -> None:
    raw = bytes_of(to_message(content))
    for size in range(len(raw)):
        with pytest.raises(CorruptStream):
            decode(raw[:size])
        with pytest.raises(TruncatedStream):  # a file that is shorter than it was said to be
            decode_message(io.BytesIO(raw[:size]), len(raw))
        flipped = bytearray(raw)
        flipped[size] ^= 1 << 5 * size % 8
        with contextlib.suppress(CorruptStream):
            decode(bytes(flipped))
    with pytest.raises(CorruptStream, match="1 bytes too many"):
        decode(raw + b"\x00")


def test_lengths_are_not_believed() -> None:
    class Greedy(io.BytesIO):
        def read(self, n: int | None = -1, /) -> bytes:
            assert n is not None
            assert n <= 100, "read more than the message can hold"
            return super().read(n)

    for lengths in ((1 << 31, 0), (0, 1 << 31), (1 << 20, 1 << 20), (2**32 - 1, 2**32 - 1)):
        raw = struct.pack("<II", *lengths) + b"x" * 92
        with pytest.raises(CorruptStream):
            decode_message(Greedy(raw), len(raw))


def test_neither_content_nor_error_is_refused() -> None:
    envelope = compat.ProtoMessage(metadata=compat.metadata_to_proto(METADATA)).SerializeToString()
    with pytest.raises(CorruptStream, match="not a Flower message"):
        decode(struct.pack("<II", len(envelope), 0) + envelope)


def test_an_array_that_protobuf_cannot_name_is_refused() -> None:
    huge = Array("uint8", (1 << 40,), "fedsz.v1", b"")  # for protobuf
    with pytest.raises(ConfigError, match="cannot be sent"):
        encode_content(RecordDict({"a": ArrayRecord({"x": huge})}))


@pytest.mark.parametrize("frame", CONTROLS, ids=lambda f: type(f).__name__)
def test_control_frames_round_trip_and_damaged_ones_are_refused_or_read(
    frame: frames.Control,
) -> None:
    raw = pack(frame)
    assert unpack(raw) == frame
    for size in range(len(raw)):
        with pytest.raises(CorruptStream):
            unpack(raw[:size])
    for position in range(8, 8 * len(raw)):
        flipped = bytearray(raw)
        flipped[position // 8] ^= 1 << position % 8
        with contextlib.suppress(CorruptStream):
            unpack(bytes(flipped))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00",
        b"\x07",
        b"\xffgarbage",
        pack(Hello(1, "", {}, [])),
        pack(Hello(1, "x" * 257, {}, [])),
        pack(Begin("", 100)),
        pack(Begin("x", 7)),
        pack(Begin("x", -1)),
        pack(Ack("x" * 65, received=True)),
        pack(Ack("x", received=True)).replace(b"x", b"\xff"),
        b"\x05\x93\xa1x\xc3" + b"\x91" * 200_000 + b"\x90",
    ],
    ids=lambda raw: f"{len(raw)} bytes",
)
def test_frames_out_of_range_are_refused(raw: bytes) -> None:
    with pytest.raises(CorruptStream):
        unpack(raw)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 200, CHUNK, 3 * CHUNK + 1])
def test_frames_rebuild_the_message(size: int) -> None:
    arrays = ArrayRecord({f"{i}": Array("uint8", (size,), "raw", bytes(size)) for i in range(3)})
    content = encode_content(RecordDict({"arrays": arrays}))
    encoded = encode_message(to_message(), "request", content)
    begin, *data = raws = list(frames.frames(encoded))
    announced = unpack(begin)
    assert isinstance(announced, Begin)
    incoming = Incoming(announced, buffer := io.BytesIO(), limit=encoded.size)
    for raw in data:
        piece = unpack(raw)
        assert isinstance(piece, memoryview)
        assert not incoming.complete
        incoming.feed(piece)

    assert incoming.complete
    buffer.seek(0)
    assert decode_message(buffer, incoming.size).content["arrays"] == arrays
    assert max(map(len, raws)) <= CHUNK + 1 < frames.MAX_FRAME_BYTES
    assert all(len(raw) == CHUNK + 1 for raw in data[:-1])


def test_an_arrival_takes_what_was_announced_and_no_more() -> None:
    with pytest.raises(LimitExceeded, match=r"20\.0 MB, at most 10\.0 MB"):
        Incoming(Begin("x", 20_000_000), None, limit=10_000_000)
    incoming = Incoming(Begin("x", 10), None, limit=10)
    incoming.feed(memoryview(bytes(8)))
    for piece in (b"", bytes(3)):
        with pytest.raises(CorruptStream, match="1 to 2 were due"):
            incoming.feed(memoryview(piece))
