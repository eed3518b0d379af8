"""The bitstream against damage: every prefix, every byte, every lie."""

from __future__ import annotations

import zlib
from typing import Any
from zlib import crc32 as crc

import msgspec
import numpy as np
import pytest

import fedsz
from fedsz.arrays import DTYPES
from fedsz.errors import (
    ChecksumMismatch,
    ConfigError,
    CorruptStream,
    LimitExceeded,
    TruncatedStream,
    UnsupportedStream,
)
from fedsz.stream import Limits, Reader
from fedsz.stream.format import PREFIX
from tests.hostile_headers import sealed, sealed_header


def state(n: int = 1500) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "conv.weight": rng.normal(size=(n // 10, 10)).astype(np.float32),
        "conv.bias": rng.normal(size=7).astype(np.float32),
        "steps": np.array(3),
        "empty": np.empty((0, 2), np.float32),
    }


@pytest.fixture(scope="module")
def blob() -> bytes:
    return fedsz.compress(state(), codec="zfp", lossless="zstd")


def decode(blob: bytes, **limits: int) -> dict[str, Any]:
    return fedsz.decompress(blob, as_numpy=True, limits=Limits(**limits))


def test_every_prefix_is_truncated(blob: bytes) -> None:
    for end in range(len(blob)):
        with pytest.raises(TruncatedStream):
            decode(blob[:end])
        with pytest.raises(TruncatedStream):
            fedsz.inspect(blob[:end])


def test_every_flipped_byte_is_refused(blob: bytes) -> None:
    for at in range(len(blob)):
        for flip in (1, 0x80, 0xFF):
            damaged = bytearray(blob)
            damaged[at] ^= flip
            with pytest.raises(CorruptStream):
                decode(bytes(damaged))


def test_bytes_after_the_end_are_refused(blob: bytes) -> None:
    for read in (decode, fedsz.inspect):
        with pytest.raises(CorruptStream, match="1 bytes after the end"):
            read(blob + b"\0")


def test_a_checksum_is_computed_once(blob: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, sums = Reader(blob), []
    monkeypatch.setattr("fedsz.stream.reader.zlib.crc32", lambda data: sums.append(1) or crc(data))

    for _ in range(3):
        reader.check()
        list(reader.payloads())

    assert len(sums) == len(reader.header.payloads)


def forge(blob: bytes, **changes: Any) -> bytes:
    """Return ``blob`` with another header and checksums that fit it."""
    stored = int.from_bytes(blob[12:16], "little")
    header = msgspec.msgpack.decode(zlib.decompress(blob[PREFIX : PREFIX + stored]))
    edit = changes.pop("edit", None)
    header.update(changes)
    if edit:
        edit(header)
    version = int.from_bytes(blob[8:10], "little")
    return sealed_header(header, blob[PREFIX + stored :], version=version)


def set_at(*path: Any, to: Any) -> dict[str, Any]:
    def edit(header: Any) -> None:
        for key in path[:-1]:
            header = header[key]
        header[path[-1]] = to

    return {"edit": edit}


LIES = {
    "10^18 bytes": (set_at("tensors", 0, 2, to=[10**9, 10**9 // 4]), LimitExceeded),
    "dimension too large": (set_at("tensors", 0, 2, to=[2**62]), CorruptStream),
    "negative dimension": (set_at("tensors", 0, 2, to=[-1]), CorruptStream),
    "65 dimensions": (set_at("tensors", 0, 2, to=[1] * 65), CorruptStream),
    "product of 64 large dimensions": (set_at("tensors", 0, 2, to=[2**40] * 64), LimitExceeded),
    "no elements, and a product of 2^94": (
        set_at("tensors", 3, 2, to=[0, 2**47, 2**47]),
        CorruptStream,
    ),
    "no elements, and a product of 2^57": (
        set_at("tensors", 3, 2, to=[2**47, 0, 1024]),
        CorruptStream,
    ),
    "other shape": (set_at("tensors", 0, 2, to=[1501]), CorruptStream),
    "unknown dtype": (set_at("tensors", 0, 1, to=200), UnsupportedStream),
    "negative dtype": (set_at("tensors", 0, 1, to=-1), UnsupportedStream),
    "same name twice": (set_at("tensors", 1, 0, to="conv.weight"), CorruptStream),
    "name is bytes": (set_at("tensors", 0, 0, to=b"x"), CorruptStream),
    "unknown codec": (set_at("payloads", 0, 0, to=255), UnsupportedStream),
    "lossless codec with a bound": (set_at("payloads", 0, 0, to=2), CorruptStream),
    "lossy codec without a bound": (set_at("payloads", 1, 0, to=18), CorruptStream),
    "unknown transform": (set_at("payloads", 0, 1, to=1), UnsupportedStream),
    "payload of 10^18 bytes": (set_at("payloads", 0, 2, to=10**18), TruncatedStream),
    "payload of -1 bytes": (set_at("payloads", 0, 2, to=-1), CorruptStream),
    "other checksum": (set_at("payloads", 0, 3, to=0), ChecksumMismatch),
    "negative bound": (set_at("payloads", 0, 4, to=-1.0), CorruptStream),
    "infinite bound": (set_at("payloads", 0, 4, to=float("inf")), CorruptStream),
    "bound of an integer tensor": (set_at("payloads", 2, 4, to=0.5), CorruptStream),
    "payload of nothing": (set_at("payloads", 0, 5, to=[]), CorruptStream),
    "payload of what is not there": (set_at("payloads", 0, 5, to=[99]), CorruptStream),
    "payload of index -1": (set_at("payloads", 0, 5, to=[-1]), CorruptStream),
    "tensor in two payloads": (set_at("payloads", 0, 5, to=[1]), CorruptStream),
    "mixed item sizes": (set_at("tensors", 1, 1, to=1), CorruptStream),
    "no payloads": ({"payloads": []}, CorruptStream),
    "a reference": ({"reference": b"a digest of 16 b"}, UnsupportedStream),
    "a reference of 6 bytes": ({"reference": b"digest"}, CorruptStream),
    "unknown key": ({"more": 1}, CorruptStream),
    "not a list": ({"tensors": 7}, CorruptStream),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies(blob: bytes, lie: str) -> None:
    changes, error = LIES[lie]

    with pytest.raises(error):
        decode(forge(blob, **dict(changes)))


def test_forging_without_a_change_is_accepted(blob: bytes) -> None:
    assert decode(forge(blob)).keys() == state().keys()


@pytest.mark.parametrize("shape", [(0, 2**47, 512), (2**47, 512, 0)])
@pytest.mark.parametrize("dtype", range(len(DTYPES)))
def test_what_has_no_elements_may_be_large_in_any_dtype(
    blob: bytes, shape: tuple[int, ...], dtype: int
) -> None:
    alone = fedsz.compress({"x": np.empty(0, DTYPES[dtype])})
    (x,) = decode(forge(alone, **set_at("tensors", 0, 2, to=shape))).values()

    assert (x.shape, x.dtype) == (shape, DTYPES[dtype])
    assert np.array_equal(decode(fedsz.compress({"x": x}))["x"], x)


def test_what_no_stream_has_is_not_written() -> None:
    x = np.empty((0, 2**47, 1024), np.uint8)

    with pytest.raises(ConfigError, match=r"has shape .* which streams do not have"):
        fedsz.compress({"x": x})


@pytest.mark.parametrize(
    "stored", [b"", b"\0", b"\xc1" * 9, b"\x80", b"\xdf\xff\xff\xff\xff", b"\x91" * 1_000_000]
)
def test_headers_that_are_none(stored: bytes) -> None:
    for body in (stored, zlib.compress(stored), zlib.compress(stored) + b"more"):
        with pytest.raises(CorruptStream):
            decode(sealed(body))


def test_versions_and_flags_that_nobody_knows_are_refused(blob: bytes) -> None:
    with pytest.raises(UnsupportedStream, match="version 99; this release reads 1"):
        decode(blob[:8] + (99).to_bytes(2, "little") + blob[10:])
    with pytest.raises(UnsupportedStream, match="flags"):
        decode(blob[:10] + b"\x01\x00" + blob[12:])


def test_a_header_bomb_stops_at_the_limit() -> None:
    bomb = zlib.compress(bytes(100 << 20), 9)

    with pytest.raises(LimitExceeded, match="inflates beyond"):
        decode(sealed(bomb))


def test_limits_are_the_callers(blob: bytes) -> None:
    decode(blob)

    with pytest.raises(LimitExceeded, match="tensors of"):
        decode(blob, decoded_bytes=1000, expansion=0)
    with pytest.raises(LimitExceeded, match="4 tensors"):
        decode(blob, tensors=3)
    with pytest.raises(LimitExceeded, match="header"):
        decode(blob, header_bytes=20)


def test_bools_are_0_or_1() -> None:
    blob = fedsz.compress({"mask": np.array([False, True])}, lossless="raw")
    bad = bytearray(blob)
    bad[-1] = 2
    checksum = zlib.crc32(bad[-2:])

    with pytest.raises(CorruptStream, match="bool"):
        decode(forge(bytes(bad), **set_at("payloads", 0, 3, to=checksum)))


def test_errors_say_where(blob: bytes) -> None:
    header = len(blob) - fedsz.inspect(blob).nbytes + fedsz.inspect(blob).header_bytes

    with pytest.raises(CorruptStream) as caught:
        decode(forge(blob, **set_at("tensors", 0, 2, to=[1501])))

    assert abs(caught.value.offset - header) < 20
