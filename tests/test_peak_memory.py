"""What any stream of a known model may cost its reader: twice the model, and 64 MB.

A chain of methods may take half the model more.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

import fedsz
from fedsz.arrays import Layout
from fedsz.codecs import CODECS
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import sealed
from fedsz.flower.strategy import Mean
from fedsz.methods import METHODS, parse, parts_of
from fedsz.methods.base import Part
from fedsz.stream import BITS, DIFFERENCE, VALUES, Limits, Reader
from fedsz.update.chained import ChainEncoder
from fedsz.update.compress import compress_measured
from fedsz.update.config import CompressionConfig
from fedsz.update.reference import Reference
from tests.fuzz import mutated, resealed
from tests.hostile_headers import HOSTILE
from tests.peak_memory import MB, linux

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 80 * MB  # of the model: three times as much is more than twice and 64 MB
MOST = 2 * SIZE + 64 * MB
READ = """
import sys
from pathlib import Path
from fedsz.arrays import Layout
from fedsz.errors import FedszError
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import sealed
from fedsz.flower.mean import Mean
from fedsz.stream import Limits
from fedsz.update.compress import compress
from fedsz.update.decompress import decompress
from fedsz.update.reference import Reference
from tests.test_peak_memory import model

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

folder, dtype, tensors = sys.argv[1:]
base = model(dtype, int(tensors))
reference, layout = Reference.of(base), Layout.of(base)
references, limits, mean = {reference.digest: reference}, Limits.of_model(layout), Mean()
whole = compress(base, 1e-1, codec="szx" if dtype == "float32" else "uniform")
mean.add(ReceivedUpdate(sealed([whole]), layout, references), 1.0)  # the sums
for path in sorted(Path(folder).iterdir()):
    for how in ("decompress", "add"):
        blob = path.read_bytes()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        before = peak()
        try:
            if how == "decompress":
                decompress(blob, reference=reference, as_numpy=True, limits=limits)
            else:
                mean.add(ReceivedUpdate(sealed([blob]), layout, references, sent=base), 1.0)
            end = "read"
        except FedszError:
            end = "refused"
        print(path.name, how, end, peak() - before, sep="/")
"""


def model(dtype: str, tensors: int) -> dict[str, np.ndarray]:
    """Return weights of `SIZE`, the same in every process."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    n, rng = SIZE // kind.itemsize // tensors, np.random.default_rng(0)
    return {f"{i}.w": rng.random(n, np.float32).astype(kind) for i in range(tensors)}


def trained(base: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights some of which have moved a little, so that all codecs have something to do."""
    after = {name: x.copy() for name, x in base.items()}
    for x in after.values():
        x[: x.size // 8] *= x.dtype.type(1.01)
        x[x.size // 4 :] = 0
    return after


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


def costs(folder: Path, dtype: str, tensors: int) -> dict[str, int]:
    """Return what a process took to read each stream of a folder, in bytes, by how it went."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(folder), dtype, str(tensors)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.rpartition("/") for line in done.stdout.splitlines()]
    assert len(rows) == 2 * len(list(folder.iterdir()))
    return {name: int(cost) for name, _, cost in rows}


def assert_within_limits(taken: dict[str, int]) -> None:
    assert {name: cost for name, cost in taken.items() if cost > MOST} == {}


@linux
@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("dtype", "tensors", "codecs"),
    [
        pytest.param("float32", 1, CODECS, marks=pytest.mark.always),
        # Payloads of several tensors are lossless. Foreign codecs know float32 alone.
        *((dtype, tensors, [c for c in CODECS if c.name in {"uniform", "zstd", "blosclz"}])
          for dtype, tensors in (("float32", 20), ("float16", 1), ("float64", 1))),
    ],
)  # fmt: skip
def test_a_stream_of_a_model_costs_twice_the_model(
    dtype: str, tensors: int, codecs: Any, tmp_path: Path
) -> None:
    base = model(dtype, tensors)
    after, nudged = trained(base), {name: x * x.dtype.type(1.001) for name, x in base.items()}
    for codec in codecs:
        for name, way in ways(codec, base).items() if not codec.missing() else ():
            blob = fedsz.compress(nudged if name == "bits" else after, 1e-2, **way)
            transforms = {payload.transform for payload in Reader(blob).header.payloads}
            assert transforms == {{"values": VALUES, "steps": DIFFERENCE, "bits": BITS}[name]}
            (tmp_path / f"{codec.name}-{name}").write_bytes(blob)

    taken = costs(tmp_path, dtype, tensors)

    assert [name for name in taken if name.endswith("refused")] == []
    assert_within_limits(taken)


@linux
@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("wide", ["float64", "complex128"])
def test_a_stream_of_the_model_in_a_wider_dtype_costs_no_more(wide: str, tmp_path: Path) -> None:
    after = {name: x.astype(wide) for name, x in trained(model("float32", 1)).items()}
    for lossless in ("raw", "zstd", "zlib"):
        blob = fedsz.compress(after, threshold=SIZE, lossless=lossless)
        (tmp_path / lossless).write_bytes(blob)

    assert_within_limits(costs(tmp_path, "float32", 1))


@linux
@pytest.mark.slow
def test_no_hostile_stream_costs_more(tmp_path: Path) -> None:
    for text in ("natural", "centroids", "randk:k=50%>zstd", "sketch:columns=1,rows=16"):
        blob = fedsz.compress(model("float32", 1), chain=text)
        (tmp_path / text.replace(">", " ")).write_bytes(blob)
    base, rng = model("float32", 1), random.Random(0)  # noqa: S311 - a mutation is no secret
    for name, make in HOSTILE.items():
        (tmp_path / name).write_bytes(make())
    for codec in CODECS:
        for way in ways(codec, base).values() if not codec.missing() else ():
            blob = fedsz.compress({name: 0 * x for name, x in base.items()}, 1e-2, **way)
            if len(blob) < MB:  # others are no bombs
                for i in range(10):
                    path = tmp_path / f"{codec.name}-{i}"
                    path.write_bytes(resealed(mutated(blob, [blob], rng)))

    assert_within_limits(costs(tmp_path, "float32", 1))


CHAINS = [
    *("topk", "topk:k=12%", "topk:k=50%", "topk:k=100%>qsgd", "topk:k=60%>topk:k=60%>fp16"),
    *("rtopk:k=20%,among=30%", "threshold:k=30%", "sbc:k=50%", "sign", "ternary", "natural"),
    *("randk", "randk:k=12%", "randk:k=50%>zstd", "randk:k=50%,block=1", "randk:k=70%,own=1"),
    *("qsgd", "qsgd:bits=8,bucket=0", "qsgd:bits=2,norm=max", "centroids:bits=8"),
    *("uveqfed", "uveqfed:step=0.0001", "uveqfed:lattice=hexagonal", "rotate>qsgd"),
    *("powersgd", "powersgd:shared=1", "powersgd:rank=64>uniform@std:1", "atomo"),
    *("sketch:columns=50%", "sketch:columns=5%,rows=3", "fp16"),
]
STEPS = ["topk", "randk:k=50%>zstd", "qsgd", "uveqfed", "sketch:columns=50%"]
SMALL = 8 * MB  # of a model whose arrays are counted, and not the memory of a process
SLACK = 3 * MB  # some chunks


def test_every_method_is_among_the_chains() -> None:
    found = {part.name for text in CHAINS for part in parts_of(parse(text))}

    assert {method.name for method in METHODS if isinstance(method, Part)} <= found


@pytest.mark.parametrize(
    ("text", "way"), [*((text, "values") for text in CHAINS), *((text, "steps") for text in STEPS)]
)
def test_a_chain_costs_two_and_a_half_times_the_model(text: str, way: str) -> None:
    rng = np.random.default_rng(0)
    base = {"w": rng.random((SMALL // 4 // 128, 128), np.float32)}
    step = rng.laplace(size=base["w"].shape).astype(np.float32)
    step[0, 0] = 1e4  # numbers that do not fit into a float32
    reference, layout = Reference.of(base), Layout.of(base)
    of, after = (None, step) if way == "values" else (reference, base["w"] + step)
    encoder = ChainEncoder(parse(text))
    blob, _ = compress_measured({"w": after}, CompressionConfig(), of, encoder=encoder)
    assert Reader(blob).header.chains
    limits, mean = Limits.of_model(layout), Mean()
    references = {reference.digest: reference}
    mean.add(ReceivedUpdate(sealed([fedsz.compress(base)]), layout, references), 1.0)  # the sums

    tracemalloc.start()
    try:
        fedsz.decompress(blob, reference=reference, as_numpy=True, limits=limits)
        _, decoding = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        mean.add(ReceivedUpdate(sealed([blob]), layout, references, sent=base), 1.0)
        _, adding = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert max(decoding, adding) <= 2.5 * SMALL + SLACK
