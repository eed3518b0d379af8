"""docs/format.md is enough to read what `uniform` writes: a decoder that knows no more agrees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsz
from fedsz.codecs.uniform import Uniform
from fedsz.stream import Reader
from fedsz.stream.format import VERSION
from tests.golden.make import CASES, FOLDER
from tests.strategies import layers, relative, specials
from tests.uniform_cases import DTYPES
from tests.uniform_oracle import NEIGHBOURS, PREDICTION, Read, read
from tests.uniform_readers import ours


def features(payload: Read) -> set[str]:
    """What a payload has that others do not."""
    have = {
        "neighbours": payload.side == NEIGHBOURS,
        "prediction": payload.side == PREDICTION,
        "classes": payload.classes > 1,
        "low bits": payload.shift > 0,
        "chunks": payload.chunks > 1,
        "exceptions": payload.exceptions > 0,
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
            got = read(payload, n, dtype)
            assert got.elements.tobytes() == expected[tensor].tobytes()
            assert ours(payload, n, dtype) == expected[tensor].tobytes()
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
            got = read(payload, x.size, x.dtype)
            assert got.elements.tobytes() == ours(payload, x.size, x.dtype)
            shown |= features(got)

    assert shown >= set.union(*GOLDEN.values())


@given(data=st.data(), dtype=st.sampled_from(DTYPES), effort=st.integers(0, 9), rel=relative)
def test_layers(data: st.DataObject, dtype: np.dtype, effort: int, rel: float) -> None:
    x = data.draw(layers(dtype) | specials(dtype))
    payload = Uniform(effort).encode(x, fedsz.ErrorBound.rel(rel).absolute(x))

    assert read(payload, x.size, dtype).elements.tobytes() == ours(payload, x.size, dtype)
