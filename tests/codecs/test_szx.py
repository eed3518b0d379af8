"""SZx beyond what every codec is tested for: its payload, and bad ones."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given

import fedsz
from fedsz.errors import CorruptStream
from tests.strategies import KIND, relative, specials

BLOCK = 128
STORED, CODED = 0, 1

szx = fedsz.codecs.get("szx")


def normal(n: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(n).normal(size=n) * scale).astype(np.float32)


def errors(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(x.astype(np.float64) - y.astype(np.float64))


def decode_as_documented(payload: bytes, n: int) -> np.ndarray:
    """A second decoder, from docs/format.md alone; it trusts its input."""
    if payload[0] == STORED:
        return np.frombuffer(payload[1:], "<f4")
    blocks = -(-n // BLOCK)
    bitmap, at = payload[1:], 1 + -(-blocks // 8)
    out: list[np.ndarray] = []
    for block in range(blocks):
        count = min(BLOCK, n - block * BLOCK)
        if not bitmap[block // 8] >> block % 8 & 1:
            out.append(np.full(count, np.frombuffer(payload[at : at + 4], "<f4")[0]))
            at += 4
            continue
        bits, at = payload[at], at + 1
        middle = np.float32(0)
        if bits < 32:
            middle, at = np.frombuffer(payload[at : at + 4], "<f4")[0], at + 4
        codes, at = payload[at:], at + -(-count // 4)
        width, word, words = -(-bits // 8), 0, []
        for i in range(count):
            fresh = width - (codes[i // 4] >> 2 * (i % 4) & 3)
            low = int.from_bytes(payload[at : at + fresh], "little")
            word = word >> 8 * fresh << 8 * fresh | low
            words.append(word << 32 - bits)
            at += fresh
        values = np.array(words, np.uint32).view(np.float32)
        out.append(values if bits == 32 else middle + values)
    assert at == len(payload)
    return np.concatenate(out) if out else np.empty(0, np.float32)


@given(x=specials(), rel=relative)
def test_the_document_is_enough_to_decode(x: np.ndarray, rel: float) -> None:
    payload = szx.encode(x, fedsz.ErrorBound.rel(rel).absolute(x))

    with np.errstate(all="ignore"):
        documented = decode_as_documented(payload, x.size)

    y = szx.decode(payload, (x.size,))
    assert np.array_equal(y.view(np.uint32), documented.view(np.uint32))


def test_a_block_within_the_bound_costs_four_bytes_and_a_bit() -> None:
    x = normal(64 * BLOCK)

    encoded = szx.encode_measured(x, 10.0)

    assert encoded.payload[:9] == bytes([CODED]) + bytes(8)
    assert len(encoded.payload) == 9 + 4 * 64
    blocks = x.reshape(64, BLOCK)
    middles = ((blocks.min(1).astype(np.float64) + blocks.max(1)) / 2).astype(np.float32)
    assert encoded.payload[9:] == middles.tobytes()


def test_a_block_takes_the_bits_above_its_bound() -> None:
    x = np.zeros(BLOCK, np.float32)
    x[0], x[1], x[2:] = -1.0, 1.0, np.linspace(-1, 1, BLOCK - 2)

    for exponent in range(1, 21):  # a radius of 2^0, a bound of 2^-exponent: that much mantissa
        payload = szx.encode(x, 2.0**-exponent)
        assert payload[:3] == bytes([CODED, 1, 9 + exponent])


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC12345, 0x7F800000, 0xFF800000])
def test_only_the_block_of_a_nan_is_exact(bits: int) -> None:
    x = normal(4 * BLOCK)
    plain = szx.encode(x, 0.05)
    x.view(np.uint32)[2 * BLOCK + 5] = bits

    payload = szx.encode(x, 0.05)
    y = szx.decode(payload, x.shape)

    exact = slice(2 * BLOCK, 3 * BLOCK)
    assert np.array_equal(x[exact].view(np.uint32), y[exact].view(np.uint32))
    assert errors(x[: exact.start], y[: exact.start]).any()
    assert len(payload) - len(plain) < 4 * BLOCK


def test_what_does_not_shrink_is_stored() -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 5000, dtype=np.uint32).view(np.float32)

    payload = szx.encode(x, 0.0)

    assert payload == bytes([STORED]) + x.tobytes()
    assert szx.decode(payload, x.shape).tobytes() == x.tobytes()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025])
def test_sizes_around_a_block(n: int) -> None:
    x = normal(n)

    for bound in (0.0, 1e-3, 0.1, 10.0):
        payload = szx.encode(x, bound)
        assert len(payload) <= 64 + x.nbytes
        assert errors(x, szx.decode(payload, x.shape)).max(initial=0.0) <= bound


@pytest.mark.parametrize("kind", KIND)
def test_rounding_never_breaks_a_bound_near_the_last_bit(kind: str) -> None:
    x = KIND[kind](np.random.default_rng(1), 4 * BLOCK).astype(np.float32)

    for bound in np.spacing(np.abs(x).max()) * np.geomspace(0.2, 5, 40):
        encoded = szx.encode_measured(x, float(bound))
        error = errors(x, szx.decode(encoded.payload, x.shape)).max()
        assert error == encoded.max_error <= bound


@pytest.mark.parametrize("head", [b"\0", b"\1", b"\2", b""])
def test_counts_are_refused_before_memory_is_taken(head: bytes) -> None:
    for n in (10**9, 2**60):  # 2^60 elements could not be taken: MemoryError, not CorruptStream
        with pytest.raises(CorruptStream):
            szx.decode(head + bytes(1 << 20), (n,))


def block(bits: int, codes: bytes, data: bytes, middle: float = 0.0, bitmap: int = 1) -> bytes:
    """The payload of one block."""
    start = b"" if bits == 32 else struct.pack("<f", middle)
    return bytes([CODED, bitmap, bits]) + start + codes + data


def test_a_block_made_by_hand() -> None:
    # The upper halves of 1.0, 1.5, 1.25 and -2.0. Three begin with 0x3F, which is written once.
    payload = block(16, bytes([0b00_01_01_00]), bytes.fromhex("803F C0 A0 00C0"), middle=0.25)

    assert szx.decode(payload, (4,)).tolist() == [1.25, 1.75, 1.5, -1.75]


@pytest.mark.parametrize(
    ("payload", "n", "says"),
    [
        (block(8, b"\0", bytes(4)), 4, "a block of 8 bits"),
        (block(33, b"\0", bytes(20)), 4, "a block of 33 bits"),
        (block(16, b"\3", bytes(8)), 4, "omits 3 bytes of 2"),
        (block(17, b"\0", b"\0\0\2" + bytes(9)), 4, "more than 17 bits"),
        (block(16, b"\x40", bytes(6)), 3, "codes beyond"),
        (block(16, b"\0", bytes(8), bitmap=3), 4, "bits beyond"),
        (block(16, b"\0", bytes(7)), 4, "a block needs 8 bytes, has 7"),
        (bytes([CODED, 1, 16, 0, 0]), 4, "of 5 bytes for 4 elements"),
        (bytes([CODED, 1, 16, 0, 0, 0]), 4, "the middle of a block needs 4 bytes, has 3"),
        (bytes([CODED, 1, 16, 0, 0, 0, 0]), 4, "the codes of a block needs 1 bytes, has 0"),
        (bytes([STORED]) + bytes(17), 4, "stored payload of 18 bytes"),
        (b"\xff" + bytes(17), 4, "mode 255"),
        (b"", 4, "empty"),
    ],
)
def test_malformed_payloads(payload: bytes, n: int, says: str) -> None:
    with pytest.raises(CorruptStream, match=says):
        szx.decode(payload, (n,))
