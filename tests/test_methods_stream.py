"""Streams of chains: what they say of themselves, and what a reader refuses of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import fedsz
from fedsz.errors import (
    ConfigError,
    CorruptStream,
    LimitExceeded,
    ReferenceMismatch,
    UnsupportedStream,
)
from fedsz.methods import TensorSpec
from fedsz.methods.base import Kind
from fedsz.methods.combinators import Chain
from fedsz.methods.payload import read, write
from fedsz.methods.planes import pack, unpack
from fedsz.methods.top_k import TopK
from fedsz.stream import CHAIN, CHAIN_DIFFERENCE, Part, Tensor
from fedsz.stream import Chain as Record
from fedsz.stream import write as write_stream

SPEC = TensorSpec((40, 50))
TOPK = Chain((TopK(),))
INDICES = np.array([3, 4, 1999])


def before() -> dict[str, np.ndarray]:
    return {"fc.weight": np.ones((40, 50), np.float32), "fc.bias": np.ones(40, np.float32)}


def after() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {name: x + rng.laplace(size=x.shape).astype(x.dtype) for name, x in before().items()}


def topk(indices: Any = INDICES, values: Any = (1.0, 2.0, 3.0)) -> bytes:
    return write(
        TOPK,
        {"0.indices": np.asarray(indices), "values": np.asarray(values, np.float32)},
    )


def stream(
    data: bytes, text: str = "topk", *, chain: int = 0, transform: int = CHAIN, dtype: int = 0
) -> bytes:
    tensors = [Tensor("fc.weight", dtype, SPEC.shape)]
    return write_stream(
        tensors, [Part(chain, data, None, (0,), transform)], None, [Record(text, 0, 0, 0)]
    )


def test_inspect_tells_the_chain_and_what_it_coded() -> None:
    blob = fedsz.compress(after(), chain="topk:k=2%>ternary", reference=before(), threshold=100)

    told = {t.name: (t.codec, t.transform) for t in fedsz.inspect(blob).tensors}

    assert told["fc.weight"] == ("topk:k=2%>ternary", "delta")
    assert told["fc.bias"][0] != "topk:k=2%>ternary"


def test_a_difference_needs_its_reference() -> None:
    blob = fedsz.compress(after(), chain="topk", reference=before(), threshold=100)

    with pytest.raises(ReferenceMismatch):
        fedsz.decompress(blob)
    with pytest.raises(ReferenceMismatch):
        fedsz.decompress(blob, reference=after())


def test_a_tensor_that_is_not_finite_stays_lossless() -> None:
    x = after()
    x["fc.weight"][3, 4] = np.nan

    y = fedsz.decompress(fedsz.compress(x, chain="sign", threshold=100), as_numpy=True)

    assert np.array_equal(y["fc.weight"], x["fc.weight"], equal_nan=True)


def test_compress_keeps_no_state() -> None:
    with pytest.raises(ConfigError, match="keeps state from round to round"):
        fedsz.compress(after(), chain="feedback>topk")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nope", "no method 'nope'"),
        ("topk:k=0", "number of elements"),
        ("feedback>topk", "no plain chain"),
        ("*?topk|sign", "no plain chain"),
        ("fedpaq", "no method 'fedpaq'"),
        (">".join(["topk"] * 9), "chain of 9 parts"),
    ],
)
def test_chains_that_this_release_does_not_know(text: str, why: str) -> None:
    with pytest.raises(UnsupportedStream, match=why):
        fedsz.decompress(stream(topk(), text), as_numpy=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"chain": 1}, "no chain 1"),
        ({"transform": CHAIN_DIFFERENCE}, "unknown transform 4"),
        ({"dtype": 7}, "something else than one floating tensor"),
        ({"text": "x" * 1001}, "not a header"),
    ],
)
def test_headers_that_contradict_themselves(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(CorruptStream, match=why):
        fedsz.inspect(stream(topk(), **changes))


def test_indices_beyond_the_tensor() -> None:
    found = fedsz.decompress(stream(topk([3, 4, 1999])), as_numpy=True)["fc.weight"].reshape(-1)

    assert np.flatnonzero(found).tolist() == [3, 4, 1999]
    with pytest.raises(CorruptStream, match="out of range"):
        fedsz.decompress(stream(topk([3, 4, 2000])), as_numpy=True)


def test_a_gap_that_is_no_number_of_63_bits_is_no_index() -> None:
    """In 48 bits and a unary rest it would be -2^48, an index of no element."""
    width, unary = 48, np.packbits(np.arange(1 << 16) == (1 << 16) - 1, bitorder="little")
    gaps = bytes([0, width]) + bytes(width) + unary.tobytes()
    length = bytes([len(gaps) & 0x7F | 0x80, len(gaps) >> 7 & 0x7F])
    data = b"\1" + length + gaps + raw((1, ONE))

    with pytest.raises(CorruptStream, match="gap out of range"):
        fedsz.decompress(stream(data), as_numpy=True)


def raw(*planes: tuple[int, bytes]) -> bytes:
    """Planes by their claimed counts; both numbers below 128."""
    return b"".join(bytes([count, len(data)]) + data for count, data in planes)


ONE = np.ones(1, "<f4").tobytes()
FIRST = pack(Kind.INDICES, INDICES[:1])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (raw((1, FIRST), (1, np.array(np.inf, "<f4").tobytes())), "finite"),
        (raw((1, FIRST), (0, b"")), "0 values where 1"),
        (raw((1, pack(Kind.INDICES, INDICES)), (1, ONE)), "gaps do not decode"),
        (raw((1, FIRST), (1, ONE)) + b"\0", "behind the last plane"),
        (raw((1, FIRST)), "ends early"),
        (raw((1, b"\7\0")), "mode 7"),
        (raw((0, b"")), "without its first byte"),
        (b"\xff" * 12, "more than 9 bytes"),
    ],
)
def test_planes_that_do_not_fit(data: bytes, why: str) -> None:
    with pytest.raises(CorruptStream, match=why):
        read(TOPK, data, SPEC)


def test_a_claim_of_more_elements_than_the_tensor_takes_no_memory() -> None:
    huge = b"\xff\xff\xff\xff\xff\xff\x03"

    with pytest.raises(LimitExceeded, match="limit 2000"):
        read(TOPK, huge + b"\1\0", SPEC)


def test_a_gap_below_zero_is_no_index() -> None:
    with pytest.raises(fedsz.FedszError, match="do not ascend"):
        pack(Kind.INDICES, np.array([4, 3]))


flat = {"shape": st.integers(0, 300)}


@given(
    st.one_of(
        st.tuples(st.just(Kind.TRITS), npst.arrays(np.int8, **flat, elements=st.integers(-1, 1))),
        st.tuples(st.just(Kind.SIGNS), npst.arrays(np.bool_, **flat)),
        st.tuples(
            st.just(Kind.LEVELS),
            npst.arrays(np.int64, **flat, elements=st.integers(-(1 << 46), 1 << 46)),
        ),
        st.tuples(
            st.just(Kind.INDICES),
            st.sets(st.integers(0, (1 << 40) - 1), max_size=300).map(
                lambda found: np.array(sorted(found), np.int64)
            ),
        ),
    )
)
def test_planes_come_back(case: tuple[Kind, np.ndarray]) -> None:
    kind, plane = case

    back = unpack(kind, pack(kind, plane), plane.size, TensorSpec((1 << 40,)))

    assert np.array_equal(back, plane)
