"""docs/format.md is enough to read and to write `uniform`: a coder that knows no more agrees."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsz
from fedsz.codecs.uniform import Uniform
from fedsz.errors import CorruptStream
from fedsz.stream import Reader
from fedsz.stream.format import VERSION
from tests.codecs.uniform_cases import DTYPES, LEVELS, decode_at
from tests.codecs.uniform_edges import BAD, EDGE, GOOD
from tests.codecs.uniform_oracle import pieces, read, write
from tests.codecs.uniform_oracle_models import (
    BLOCKS,
    CODED,
    CONSTANT,
    NEIGHBOURS,
    NONE,
    PREDICTION,
    QUADS,
    SPARSE,
    Payload,
)
from tests.golden.make import CASES, FOLDER
from tests.strategies import layers, relative, seeds, specials


def ours(payload: bytes, n: int, dtype: Any) -> bytes | None:
    """The bytes of the elements as the codec reads them; None if it refuses them."""
    try:
        y = Uniform().decode(payload, (n,), dtype)
    except CorruptStream:
        return None
    for level in LEVELS:
        assert decode_at(level, payload, y).tobytes() == y.tobytes()
    return y.tobytes()


def agreed(payload: bytes, n: int, dtype: Any) -> Payload:
    """What the second decoder reads; the codec must read the same elements."""
    got = read(payload, n, dtype)
    assert got.elements.tobytes() == ours(payload, n, dtype)
    return got


def refused(payload: bytes, n: int, dtype: Any = np.float32, says: str | None = None) -> None:
    with pytest.raises(ValueError, match=says):
        read(payload, n, dtype)
    assert ours(payload, n, dtype) is None


def features(payload: Payload) -> set[str]:
    """What a payload has that others do not."""
    have = {
        "neighbours": payload.side == NEIGHBOURS,
        "prediction": payload.side == PREDICTION,
        "classes": payload.classes > 1,
        "low bits": payload.shift > 0,
        "chunks": payload.chunks > 1,
        "exceptions": bool(payload.exceptions),
        "4 states": payload.states == 4,
        "32 states": payload.states == 32,
    }
    mode = ("stored", "constant", "blocks", "coded", "sparse", "quads")[payload.mode]
    return {mode} | {name for name, has in have.items() if has}


GOLDEN = {
    "uniform": {"coded", "4 states", "exceptions"},
    "uniform-stored": {"stored"},
    "uniform-constant": {"constant", "exceptions"},
    "uniform-blocks": {"blocks"},
    "uniform-blocks-wide": {"blocks", "low bits"},
    "uniform-coded": {"coded", "4 states"},
    "uniform-coded-wide": {"coded", "4 states", "low bits"},
    "uniform-classes": {"coded", "4 states", "classes"},
    "uniform-neighbours": {"coded", "4 states", "neighbours"},
    "uniform-neighbours-5x5": {"coded", "4 states", "neighbours"},
    "uniform-neighbours-classes": {"coded", "4 states", "neighbours", "classes", "exceptions"},
    "uniform-prediction": {"coded", "4 states", "prediction"},
    "uniform-prediction-classes": {"coded", "32 states", "prediction", "classes"},
    "uniform-sparse": {"sparse", "exceptions"},
    "uniform-sparse-chunks": {"sparse", "chunks"},
    "uniform-quads": {"quads", "classes", "exceptions"},
    "uniform-quads-chunks": {"quads", "32 states", "chunks"},
    "uniform-exceptions": {"coded", "4 states", "exceptions"},
    "uniform-chunks": {"coded", "32 states", "chunks"},
    "uniform-float16": {"coded", "4 states"},
    "uniform-bfloat16": {"coded", "4 states"},
    "uniform-float64": {"coded", "4 states"},
    "uniform-float64-wide": {"coded", "4 states", "low bits"},
}


def uniform_payloads(path: Path) -> Iterator[tuple[str, bytes, int, np.dtype]]:
    """Name of the tensor, payload, number of elements and dtype."""
    reader = Reader(path.read_bytes())
    header = reader.header
    for payload, data, _ in reader.payloads():
        if payload.codec_id == Uniform.wire_id:
            tensor = header.tensors[payload.members[0]]
            yield tensor.name, bytes(data), tensor.size, tensor.dtype


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_payloads(name: str) -> None:
    path = FOLDER / f"v{VERSION}-{name}.fsz"
    shown = set()
    with np.load(path.with_suffix(".npz")) as expected:
        for tensor, payload, n, dtype in uniform_payloads(path):
            got = agreed(payload, n, dtype)
            assert got.elements.tobytes() == expected[tensor].tobytes()
            shown |= features(got)
    assert shown >= GOLDEN[name]


def test_every_golden_stream_of_uniform_is_read() -> None:
    stems = {path.stem for path in FOLDER.glob(f"v{VERSION}-uniform*.fsz")}

    assert stems == {f"v{VERSION}-{name}" for name in GOLDEN}
    planes = {
        read(payload, n, dtype).planes
        for name in GOLDEN
        if "neighbours" in name
        for _, payload, n, dtype in uniform_payloads(FOLDER / f"v{VERSION}-{name}.fsz")
    }
    assert planes == {9, 25}


def test_what_made_the_golden_streams_is_still_coded_in_every_way() -> None:
    shown = set()
    for name in GOLDEN:
        case = CASES[name]
        if case.bound is None:
            continue
        for x in case.arrays().values():
            payload = case.codec.encode(x, case.bound)
            shown |= features(agreed(payload, x.size, x.dtype))

    assert shown >= set.union(*GOLDEN.values())


@given(data=st.data(), dtype=st.sampled_from(DTYPES), effort=st.integers(0, 9), rel=relative)
def test_layers(data: st.DataObject, dtype: np.dtype, effort: int, rel: float) -> None:
    x = data.draw(layers(dtype) | specials(dtype))
    payload = Uniform(effort).encode(x, fedsz.ErrorBound.rel(rel).absolute(x))

    agreed(payload, x.size, dtype)


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    """Payloads of all kinds, most of which fedsz would never write."""
    rng = np.random.default_rng(draw(seeds))
    mode = draw(st.sampled_from([CONSTANT, BLOCKS, SPARSE, *[CODED] * 4, *[QUADS] * 2]))
    planes = draw(st.sampled_from([1, 1, 4, 9, 25, 40, 255]))
    channels = draw(st.integers(1, max(1, 200 // planes)))
    rows = draw(st.integers(1, 6000 // (channels * planes)))
    columns = channels * planes
    n = rows * columns
    token = st.integers(0, 255)
    spread = draw(st.sampled_from([0, 1, 4, 30, 300]))
    middle = draw(token)
    if mode == QUADS and (rows < 4 or columns < 16):
        mode = CODED
    if mode == QUADS:
        middle, spread = min(max(middle, 1), 254), draw(st.sampled_from([0.0, 0.3, 0.7]))
    tokens = np.clip(middle + spread * rng.laplace(size=n), 0, 255).astype(np.int64)
    shift = draw(st.sampled_from([0, 0, 1, 5, 14]))
    what: dict[str, Any] = {
        "step": np.float16(10.0 ** rng.uniform(-7, 4)),
        "base": draw(st.integers(-300, 0) | st.integers(-(2**31), 2**31 - 1)),
        "shift": shift,
        "low": rng.integers(0, 1 << shift, n),
        "chunk_bits": draw(st.sampled_from([12, 12, 12, 13, 24])),
        "states": draw(st.sampled_from([4, 32])),
        "bits": draw(st.integers(8, 12)),
        "rows": rows,
        "planes": planes,
        "width": draw(st.integers(1, 12) | st.just(255)),
        "centre": draw(token),
        "usual": middle if mode == QUADS or draw(st.booleans()) else draw(token),
        "spelled": draw(st.sampled_from([0.0, 0.1])),
        "seed": draw(seeds),
    }
    side = NONE if mode == QUADS else draw(st.sampled_from([NONE, NEIGHBOURS, PREDICTION]))
    rank = draw(st.integers(1, 4))
    if side == PREDICTION and (rows + columns) * rank > n:
        side = NONE
    if side == PREDICTION:
        most = draw(st.sampled_from([1, 20, 127]))
        what["left"] = rng.integers(-most, most, (rows, rank), endpoint=True)
        what["right"] = rng.integers(-most, most, (rank, columns), endpoint=True)
        what["scale"] = draw(st.integers(0, 20))
    if 4 * (rows + channels) <= n and draw(st.booleans()):
        most = draw(st.sampled_from([1, 10, 255]))
        what["row_classes"] = rng.integers(0, most, rows, endpoint=True)
        what["channel_classes"] = rng.integers(0, most, channels, endpoint=True)
        what["classes"] = draw(st.integers(2, {NONE: 255, NEIGHBOURS: 21, PREDICTION: 51}[side]))
        what["offset"] = draw(st.integers(-20, 20) | st.sampled_from([-1024, 1024]))
    count = draw(st.sampled_from([0, 0, 1, n // 10, n]))
    values = rng.choice([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5], count)
    what["exceptions"] = dict(zip(rng.choice(n, count, replace=False), values, strict=True))
    return Payload(mode=mode, dtype=draw(st.sampled_from(DTYPES)), side=side, tokens=tokens, **what)


@given(payload=payloads())
def test_any_choice_that_the_page_allows(payload: Payload) -> None:
    got = agreed(write(payload), payload.n, payload.dtype)

    assert (got.mode, got.exceptions.keys()) == (payload.mode, payload.exceptions.keys())
    if payload.mode in (CODED, QUADS):
        assert (got.side, got.states, got.classes) == (
            payload.side,
            payload.states,
            payload.classes,
        )


@given(payload=payloads(), data=st.data())
def test_both_refuse_the_same(payload: Payload, data: st.DataObject) -> None:
    written = pieces(payload)
    piece = data.draw(st.sampled_from(sorted(written)))
    damaged = bytearray(written[piece])
    at = data.draw(st.integers(0, min(len(damaged), 40)))
    end = at + data.draw(st.integers(0, 2))
    damaged[at:end] = data.draw(st.binary(max_size=2) | st.sampled_from([b"\0", b"\x80", b"\xff"]))
    forged = write(payload, **{piece: bytes(damaged)})

    try:
        agreed(forged, payload.n, payload.dtype)
    except ValueError:
        assert ours(forged, payload.n, payload.dtype) is None


every_good = pytest.mark.parametrize("name", GOOD)


@every_good
def test_payloads_by_hand(name: str) -> None:
    payload = GOOD[name]
    written = write(payload)

    got = agreed(written, payload.n, np.float32)

    assert (got.mode, got.side, got.classes) == (payload.mode, payload.side, payload.classes)
    if payload.mode == QUADS:
        expected = (payload.tokens * np.float32(payload.step)).astype(np.float32)
        expected[list(payload.exceptions)] = list(payload.exceptions.values())
        assert got.elements.tobytes() == expected.tobytes()
    for other in DTYPES[1:]:
        refused(written, payload.n, other)
    for more in (b"\0", b"\xff", bytes(4)):
        refused(written + more, payload.n)
    for end in range(len(written)):
        refused(written[:end], payload.n)


@pytest.mark.parametrize("name", EDGE)
def test_the_edge_of_what_is_allowed(name: str) -> None:
    agreed(*EDGE[name], np.float32)


@pytest.mark.parametrize("name", BAD)
def test_what_must_be_refused(name: str) -> None:
    payload, n, says = BAD[name]
    refused(payload, n, says=says)
