"""Headers of streams that ask for more than their bytes have paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import fedsz
from fedsz.arrays import Layout
from fedsz.errors import LimitExceeded
from fedsz.stream import Limits, Reader
from fedsz.stream.format import FREE_TENSORS
from tests.hostile_headers import HOSTILE, empty_tensors, header_of, sealed_header
from tests.peak_memory import MB, linux, peak

if TYPE_CHECKING:
    from pathlib import Path

MODEL = {f"layer.{i}.weight": np.zeros((8, 3), np.float32) for i in range(20)}


def test_a_short_stream_may_have_some_thousand_tensors() -> None:
    assert len(Reader(sealed_header(empty_tensors(FREE_TENSORS))).header.tensors) == FREE_TENSORS

    with pytest.raises(LimitExceeded, match=f"{FREE_TENSORS + 1} tensors; limit {FREE_TENSORS}"):
        Reader(sealed_header(empty_tensors(FREE_TENSORS + 1)))


def test_a_long_stream_may_have_more() -> None:
    count = FREE_TENSORS + 1
    state = {f"experts.{i}": np.full(64, i, np.uint32) for i in range(count)}

    blob = fedsz.compress(state, lossless="raw")

    assert len(fedsz.decompress(blob, as_numpy=True)) == count


def test_the_callers_limits_allow_more() -> None:
    blob = sealed_header(empty_tensors(FREE_TENSORS + 1))

    assert len(Reader(blob, Limits(tensor_bytes=0)).header.tensors) == FREE_TENSORS + 1


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


REFUSE = """
from fedsz.errors import CorruptStream
from fedsz.stream import Reader

blob = open({path!r}, "rb").read()
before = peak()
try:
    Reader(blob)
except CorruptStream:
    print(before, peak())
"""


@linux
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused_in_little_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.fsz"
    path.write_bytes(HOSTILE[name]())

    before, after = peak(REFUSE.format(path=str(path)), 1, 0.5, 1, 0)

    assert after - before <= 64 * MB
