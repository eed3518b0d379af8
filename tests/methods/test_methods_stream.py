"""Streams of chains: what they say of themselves, and what of them, or of tensors, does not fit."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import fedsz
from fedsz.core.coders import PipelineCoder
from fedsz.core.decode import PipelineDecoder
from fedsz.core.encode import compress_measured
from fedsz.core.feedback import Update
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.core.tensors import Entry
from fedsz.errors import (
    ConfigError,
    CorruptStream,
    LimitExceeded,
    ReferenceMismatch,
    UnsupportedStream,
)
from fedsz.methods import Chain, Shared, TensorSpec, parse
from fedsz.methods.base import Kind, dense
from fedsz.methods.symbols import pack, read, unpack, write
from fedsz.methods.top_k import TopK
from fedsz.stream import CHAIN, CHAIN_DIFFERENCE, Part, Reader, Tensor
from fedsz.stream import Chain as Record
from fedsz.stream import write as write_stream
from tests.methods.test_methods_laws import WRITTEN, coded, ordinary, shared_of

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
        ({"indices": np.asarray(indices), "values": np.asarray(values, np.float32)},),
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


def test_compress_keeps_no_state() -> None:
    with pytest.raises(ConfigError, match="keeps state from round to round"):
        fedsz.compress(after(), chain="feedback>topk")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nope", "no method 'nope'"),
        ("topk:k=0", "number of elements"),
        ("feedback>topk", "no plain pipeline"),
        ("fedpaq", "no method 'fedpaq'"),
        (">".join(["topk"] * 9), "chain of 9 stages"),
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
    gaps = bytes([width]) + bytes(width) + unary.tobytes()
    length = bytes([len(gaps) & 0x7F | 0x80, len(gaps) >> 7 & 0x7F])
    data = b"\1" + length + gaps + raw((1, ONE))

    with pytest.raises(CorruptStream, match="gap out of range"):
        fedsz.decompress(stream(data), as_numpy=True)


def raw(*symbols: tuple[int, bytes]) -> bytes:
    """Symbols by their claimed counts; both numbers below 128."""
    return b"".join(bytes([count, len(data)]) + data for count, data in symbols)


ONE = np.ones(1, "<f4").tobytes()
FIRST = pack(Kind.INDICES, INDICES[:1])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (raw((1, FIRST), (1, np.array(np.inf, "<f4").tobytes())), "finite"),
        (raw((1, FIRST), (0, b"")), "0 values where 1"),
        (raw((1, pack(Kind.INDICES, INDICES)), (1, ONE)), "gaps do not decode"),
        (raw((1, FIRST), (1, ONE)) + b"\0", "behind the last symbols"),
        (raw((1, FIRST)), "ends early"),
        (raw((1, b"\61\0")), "no width"),
        (raw((0, b"")), "no width"),
        (b"\xff" * 12, "more than 9 bytes"),
    ],
)
def test_symbols_that_do_not_fit(data: bytes, why: str) -> None:
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
        st.tuples(
            st.just(Kind.LEVELS),
            npst.arrays(np.int64, **flat, elements=st.integers(-(1 << 22), 1 << 22)),
        ),
        st.tuples(
            st.just(Kind.INDICES),
            st.sets(st.integers(0, (1 << 40) - 1), max_size=300).map(
                lambda found: np.array(sorted(found), np.int64)
            ),
        ),
    )
)
def test_symbols_come_back(case: tuple[Kind, np.ndarray]) -> None:
    kind, symbols = case

    back = unpack(kind, pack(kind, symbols), symbols.size, TensorSpec((1 << 40,)))

    assert np.array_equal(back, symbols)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        *((text, (30, 20)) for text in ("topk:k=700", "rtopk:k=700,among=900", "randk:k=700")),
        *itertools.product(
            ("powersgd:rank=256", "atomo:rank=256"), ((30, 20), (1, 600), (600,), ())
        ),
    ],
)
def test_more_than_there_is_sends_the_tensor_as_it_is(text: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)

    _, y, _ = coded(parse(text), x, shared_of(x))

    assert np.array_equal(x, y)


@pytest.mark.parametrize("text", ["dgc>topk", "dgc:clip=1>topk"])
def test_a_state_of_another_model_is_begun_anew(text: str) -> None:
    ours, theirs = ordinary(3), ordinary(4, 900)
    coder, entry = PipelineCoder(parse(text)), Entry(0, "fc.weight", ours)
    before = coder.encode(Entry(0, "fc.weight", theirs), theirs).state
    assert before

    goes_on, fresh = coder.encode(entry, ours, before), coder.encode(entry, ours)

    assert goes_on.part == fresh.part
    assert goes_on.part is not None


def test_a_tensor_with_nan_forgets_its_state() -> None:
    x = ordinary(5)
    x[3, 4] = np.nan

    coded = PipelineCoder(parse("dgc>topk")).encode(Entry(0, "fc.weight", x), x)

    assert (coded.part, coded.state) == (None, {})


@pytest.mark.parametrize("text", ["randk:k=20%", "sketch", "rotate>sign"])
def test_another_seed_decodes_something_else(text: str) -> None:
    x, transform = ordinary(6), parse(text)
    spec = TensorSpec(x.shape, name="fc.weight")
    symbols, _ = transform.encode(x, {}, Shared(spec, seed=1))

    decoded = [dense(transform.decode(symbols, Shared(spec, seed=seed))) for seed in (1, 2)]

    same, other = (float(np.vdot(y, x) / np.vdot(x, x)) for y in decoded)
    assert same > 0.5
    assert abs(other) < 0.3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ecx:smooth=0>topk", "ecx smooth must lie above 0, up to 0.5, got 0"),
        ("ecx>qsgd", "grows without end: write qsgd:unbiased=0"),
        ("adaptive>feedback>sign", "adaptive needs a part with a k, such as topk"),
        ("adaptive>randk", "adaptive needs a part with a k, such as topk"),
        ("adaptive:times=0.5>topk", "adaptive times must be finite and at least 1, got 0.5"),
        ("adaptive:by=luck>topk", "must be one of change, variance, got 'luck'"),
        ("feedback>adaptive>topk", "adaptive must stand before feedback"),
        ("topk>feedback", "must stand before all stages"),
        ("ternary>uniform@std:1", "must come back exactly"),
        *(
            (f"{name}:k={k}", "a number of elements or a share")
            for name in ("topk", "rtopk", "randk", "sbc", "threshold")
            for k in ("0", "0%", "101%", "-1", "1.5", "nan", "inf", "few")
        ),
        ("powersgd:rank=0", "powersgd rank must lie in 1..256, got 0"),
        ("weight", "no update 'weight'; have weights,"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_written(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        Settings(update=text)


NEAR_THE_LARGEST = [
    *WRITTEN,
    "rotate>qsgd",
    "rotate>natural",
    "powersgd>zstd",
    "randk:k=50%>uniform@std:1",
    "adaptive>feedback>topk>ternary",
    "adaptive:by=variance>ecx>topk",
    "feedback>centroids",
]


@pytest.mark.parametrize("text", NEAR_THE_LARGEST)
@pytest.mark.filterwarnings("error")
def test_near_the_largest_number_what_is_written_decodes(text: str) -> None:
    rng = np.random.default_rng(8)
    for dtype in (np.float32, np.float64):
        largest = np.finfo(dtype).max
        for signs in (rng.choice([-1, 1], (30, 40)), rng.uniform(-1, 1, (30, 40)), np.eye(30, 40)):
            x = (signs * largest).astype(dtype)
            blob, report = compress_measured(
                {"w": x},
                Settings(threshold=0),
                pipeline=PipelineCoder(parse(text)),
                update=Update(Reference({}), {}),
            )
            (y,) = fedsz.decompress(blob, as_numpy=True).values()

            assert np.isfinite(y).all()
            assert all(np.isfinite(array).all() for array in report.states.get("w", {}).values())


@pytest.mark.parametrize("text", ["topk:k=3", "sign"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.filterwarnings("error")
def test_a_difference_beyond_the_largest_number_stops_there(text: str, dtype: type) -> None:
    largest = np.finfo(dtype).max
    base = {"w": np.full((30, 40), 0.9 * largest, dtype)}
    base["w"][0, :2] = np.inf, -np.inf
    x = np.full((30, 40), 0.5 * largest, dtype)
    blob = fedsz.compress({"w": x}, chain=text, threshold=0)
    reader = Reader(blob)
    ((payload, data, _),) = reader.payloads()
    decoder = PipelineDecoder.of(reader.header.chains[payload.codec_id])

    y = decoder.decode(data, x.shape, x.dtype, base["w"])

    step = decoder.decode(data, x.shape, x.dtype)
    with np.errstate(over="ignore"):
        whole = base["w"] + step
    assert np.array_equal(y, np.where(np.isinf(whole) & np.isfinite(base["w"]), largest, whole))
    assert (y == largest).any()
