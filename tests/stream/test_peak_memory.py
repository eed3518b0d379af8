"""What any stream of a known model may cost its reader: twice the model, and 64 MB.

A pipeline of methods may take half the model more; one that keeps more than half of all elements
takes 12 bytes for each of them, of which its position is 8.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc
from contextlib import nullcontext, suppress
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fedsz
from fedsz.arrays import Layout
from fedsz.codecs import CODECS
from fedsz.core.coders import PipelineCoder
from fedsz.core.encode import compress_measured
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.errors import FedszError
from fedsz.flower.mean import Mean
from fedsz.flower.records import sealed
from fedsz.flower.update import Update
from fedsz.methods import Stage, all_methods, parse
from fedsz.stream import BITS, DIFFERENCE, VALUES, Limits, Reader
from tests.fuzz import mutated, resealed
from tests.hostile_headers import HOSTILE
from tests.peak_memory import MB, growth, linux

SIZE = 80 * MB  # of the model: three times as much is more than twice and 64 MB
MOST = 2 * SIZE + 64 * MB


class Receiver:
    """Who holds a model, and has begun to add up replies to it.

    Attributes:
        base: the model.
        after: what training makes of it: some weights have moved a little, some have become zero,
            so that all codecs have something to do.
    """

    def __init__(self, base: dict[str, np.ndarray]) -> None:
        self.after = {name: x.copy() for name, x in base.items()}
        for x in self.after.values():
            x[: x.size // 8] *= x.dtype.type(1.01)
            x[x.size // 4 :] = 0
        self.base, self.reference = base, Reference(base)
        self.mean = Mean()
        self.limits = Limits.of_model(Layout.of(base))
        self.add(fedsz.compress(base, 1e-1))

    def decode(self, blob: bytes) -> dict[str, Any]:
        return fedsz.decompress(blob, reference=self.reference, as_numpy=True, limits=self.limits)

    def add(self, blob: bytes) -> None:
        update = Update.open(sealed(blob), model=self.base, reference=self.reference)
        self.mean.add(update, update.terms(), 1.0, 1.0)


@lru_cache(1)
def receiver_of(dtype: str, tensors: int = 1) -> Receiver:
    """Return a receiver of weights of `SIZE`."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    n, rng = SIZE // kind.itemsize // tensors, np.random.default_rng(0)
    return Receiver({f"{i}.w": rng.random(n, np.float32).astype(kind) for i in range(tensors)})


def ways(codec: Any, base: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Return the ways in which a codec's payloads may be in a stream."""
    steps = {"codec": codec, "reference": base}
    if codec.lossy and next(iter(base.values())).dtype == np.float16:
        return {"values": {"codec": codec}}  # steps are decoded in float32, and take three times
    if codec.lossy:
        return {"values": {"codec": codec}, "steps": steps}
    kept = {"threshold": SIZE, "lossless": "xz:preset=0" if codec.name == "xz" else codec.name}
    # Differences of bits are packed by one codec, whatever that of plain bytes.
    return {"values": kept} | (
        {"bits": {**kept, "reference": base}} if codec.name == "zstd" else {}
    )


def assert_within_limits(receiver: Receiver, blob: bytes, *, may_refuse: bool = False) -> None:
    """Read a stream in both ways, each of which must stay within `MOST`."""
    for read in (receiver.decode, receiver.add):
        with suppress(FedszError) if may_refuse else nullcontext():
            assert growth(lambda read=read: read(blob))[0] <= MOST


SOME = [codec for codec in CODECS if codec.name in {"uniform", "zstd", "blosclz"}]
USABLE = [codec for codec in CODECS if not codec.missing()]


@linux
@pytest.mark.slow
@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("dtype", "tensors", "codec"),
    [
        *product(["float32"], [1], USABLE),
        # Payloads of several tensors are lossless. Foreign codecs know float32 alone.
        *product(["float32"], [20], SOME),
        *product(["float16", "float64"], [1], SOME),
    ],
)
def test_a_stream_of_a_model_costs_twice_the_model(dtype: str, tensors: int, codec: Any) -> None:
    receiver = receiver_of(dtype, tensors)
    for name, way in ways(codec, receiver.base).items():
        state = receiver.after
        if name == "bits":
            state = {name: x * x.dtype.type(1.001) for name, x in receiver.base.items()}
        blob = fedsz.compress(state, 1e-2, **way)
        transforms = {payload.transform for payload in Reader(blob).header.payloads}
        assert transforms == {{"values": VALUES, "steps": DIFFERENCE, "bits": BITS}[name]}

        assert_within_limits(receiver, blob)


@linux
@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("wide", ["float64", "complex128"])
@pytest.mark.parametrize("lossless", ["raw", "zstd", "zlib"])
def test_a_stream_of_the_model_in_a_wider_dtype_costs_no_more(wide: str, lossless: str) -> None:
    receiver = receiver_of("float32")
    after = {name: x.astype(wide) for name, x in receiver.after.items()}

    blob = fedsz.compress(after, threshold=SIZE, lossless=lossless)

    assert_within_limits(receiver, blob, may_refuse=True)


@linux
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused_in_little_memory(name: str) -> None:
    """In a process of its own, since lists that grow take more where others have left holes."""
    code = f"""
from fedsz.errors import CorruptStream
from fedsz.stream import Reader
from tests.hostile_headers import HOSTILE
from tests.peak_memory import growth

def refuse(blob=HOSTILE[{name!r}]()):
    try:
        Reader(blob)
    except CorruptStream:
        return True

print(*growth(refuse))
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    grown, refused = run.stdout.split()

    assert refused == "True"
    assert int(grown) <= 64 * MB


@linux
@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "chain", ["natural", "centroids", "randk:k=50%>zstd", "sketch:columns=1,rows=16"]
)
def test_no_chain_of_a_large_model_costs_more(chain: str) -> None:
    receiver = receiver_of("float32")
    blob = fedsz.compress(receiver.base, chain=chain)
    receiver.decode(blob)  # the first loads modules, which take memory too

    assert_within_limits(receiver, blob)


@linux
@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("codec", USABLE, ids=lambda codec: codec.name)
def test_no_mutated_stream_costs_more(codec: Any) -> None:
    receiver, rng = receiver_of("float32"), random.Random(0)  # noqa: S311 - no secret
    zeros = {name: 0 * x for name, x in receiver.base.items()}
    for way in ways(codec, receiver.base).values():
        blob = fedsz.compress(zeros, 1e-2, **way)
        for _ in range(5 if len(blob) < MB else 0):  # others are no bombs
            assert_within_limits(receiver, resealed(mutated(blob, [blob], rng)), may_refuse=True)


CHAINS = [
    *("topk", "topk:k=12%", "topk:k=50%", "topk:k=100%>qsgd", "topk:k=60%>topk:k=60%>fp16"),
    *("rtopk:k=20%,among=30%", "threshold:k=30%", "sbc:k=50%", "sign", "ternary", "natural"),
    *("randk", "randk:k=12%", "randk:k=50%>zstd", "randk:k=50%,block=1", "randk:k=70%,own=1"),
    *("qsgd", "qsgd:bits=8,bucket=0", "qsgd:bits=2,norm=max", "centroids:bits=8"),
    *("uveqfed", "uveqfed:lattice=hexagonal", "rotate>qsgd"),
    "layered",
    *("powersgd", "powersgd:rank=64>uniform@std:1", "atomo"),
    *("sketch:columns=50%", "sketch:columns=5%,rows=3", "fp16"),
]
STEPS = ["topk", "randk:k=50%>zstd", "qsgd", "uveqfed", "sketch:columns=50%"]
SMALL = 8 * MB  # of a model whose arrays are counted, and not the memory of a process
SLACK = 3 * MB  # some chunks


def test_every_method_is_among_the_chains() -> None:
    found = {part.name for text in CHAINS for part in parse(text).stages}

    assert {method.name for method in all_methods() if isinstance(method, Stage)} <= found


@pytest.mark.parametrize(
    ("text", "way"), [*((text, "values") for text in CHAINS), *((text, "steps") for text in STEPS)]
)
def test_a_pipeline_costs_two_and_a_half_times_the_model(text: str, way: str) -> None:
    rng = np.random.default_rng(0)
    receiver = Receiver({"w": rng.random((SMALL // 4 // 128, 128), np.float32)})
    step = rng.laplace(size=receiver.base["w"].shape).astype(np.float32)
    of, after = (None, step) if way == "values" else (receiver.reference, receiver.base["w"] + step)
    blob, _ = compress_measured({"w": after}, Settings(), of, pipeline=PipelineCoder(parse(text)))
    assert Reader(blob).header.chains

    tracemalloc.start()
    try:
        receiver.decode(blob)
        _, decoding = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        receiver.add(blob)
        _, adding = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    first, size = parse(text).stages[0], SMALL // 4
    kept = first.k.of(size) / size if hasattr(first, "k") else 0.0
    assert max(decoding, adding) <= max(2.5, 1 + 3 * kept) * SMALL + SLACK
