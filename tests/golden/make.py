"""Write the golden files that are missing: ``python -m tests.golden.make``.

One stream for each codec and one for each way that `uniform` codes, named ``v<stream version>-<what
it is>.fsz``, beside what it decoded to on the day it was made, as ``.npz`` of bytes. Files that
exist are left alone: an old stream must decode to the same values for ever, so a change of the
format adds files and changes none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import fedsz
from fedsz import methods
from fedsz.arrays import DTYPE_IDS, DTYPES
from fedsz.codecs import CODECS
from fedsz.codecs.base import Codec
from fedsz.codecs.uniform import Uniform
from fedsz.core.coders import PipelineCoder
from fedsz.core.encode import compress_measured
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.stream import Part, Tensor, write
from tests.strategies import LAYER

FOLDER = Path(__file__).parent


def state() -> dict[str, np.ndarray]:
    """A little of everything that a stream can hold."""
    rng = np.random.default_rng(20)
    weight = rng.laplace(0, 0.02, (12, 10, 3, 3)).astype(np.float32)
    weight.reshape(-1)[[3, 700]] = np.nan, -np.inf
    return {
        "conv.weight": weight,
        "half.weight": rng.normal(size=(30, 40)).astype(np.float16),
        "brain.weight": rng.normal(size=(30, 40)).astype(ml_dtypes.bfloat16),
        "double.weight": rng.normal(size=(30, 40)),
        "conv.bias": rng.normal(size=12).astype(np.float32),
        "bn.num_batches_tracked": np.array(7),
        "mask": np.array([True, False, True]),
        "empty": np.empty((0, 3), np.float32),
        "complex": rng.normal(size=4).astype(np.complex64),
        "naïve": np.arange(5, dtype=np.int16),
    }


@dataclass(frozen=True)
class Case:
    """What a golden stream was made of.

    With a bound, which is absolute, every array is coded by the codec; without one, as `compress`
    decides, by differences from a reference if there is one, or by a chain of methods.
    """

    codec: Codec
    arrays: Callable[[], dict[str, np.ndarray]] = state
    bound: float | None = None
    reference: Callable[[], dict[str, np.ndarray] | None] = lambda: None
    chain: str = ""

    def stream(self) -> bytes:
        arrays = self.arrays()
        if self.chain:
            # Not by `compress`, which takes no chain that keeps state.
            settings, reference = Settings(lossless="zstd"), Reference.of(self.reference())
            pipeline = PipelineCoder(methods.parse(self.chain), seed=7)
            return compress_measured(arrays, settings, reference, pipeline=pipeline)[0]
        if self.bound is None:
            lossless = self.codec if not self.codec.lossy else "zstd"
            return fedsz.compress(
                arrays, 1e-2, codec=self.codec, lossless=lossless, reference=self.reference()
            )
        tensors = [Tensor(name, DTYPE_IDS[x.dtype], x.shape) for name, x in arrays.items()]
        parts = [
            Part(self.codec.wire_id, self.codec.encode(x, self.bound), self.bound, (i,))
            for i, x in enumerate(arrays.values())
        ]
        return write(tensors, parts)


def layer(kind: str, *shape: int, dtype: Any = np.float32) -> Callable[[], dict[str, np.ndarray]]:
    """One array as `tests.strategies.LAYER` makes them."""
    return lambda: {"weight": LAYER[kind](np.random.default_rng(7), shape).astype(dtype)}


def constant() -> dict[str, np.ndarray]:
    x = np.full((30, 40), 1.5, np.float32)
    x[3, 7] = np.nan
    return {"weight": x}


def low_rank(noise: float, spread: float) -> Callable[[], dict[str, np.ndarray]]:
    """Three outer products, and noise whose scale may differ from row to row."""

    def arrays() -> dict[str, np.ndarray]:
        rng = np.random.default_rng(7)
        x = rng.normal(size=(220, 3)) @ rng.normal(size=(3, 300))
        x += noise * rng.normal(size=x.shape) * np.exp2(spread * rng.normal(size=(220, 1)))
        return {"weight": x.astype(np.float32)}

    return arrays


def scaled_kernels() -> dict[str, np.ndarray]:
    """Kernels of scales of their own, whose positions are like each other, and a NaN."""
    rng = np.random.default_rng(7)
    x = rng.laplace(size=(24, 16, 1, 1)) + 0.3 * rng.normal(size=(24, 16, 3, 3))
    x *= np.exp2(rng.normal(size=(24, 1, 1, 1))) * np.exp2(rng.normal(size=(16, 1, 1)))
    x[3, 5, 1, 2] = np.nan
    return {"weight": x.astype(np.float32)}


def exceptions() -> dict[str, np.ndarray]:
    """NaN with and without payload, infinities, -0, subnormals and outliers among weights."""
    x = layer("plain", 40, 60)()["weight"]
    ugly = [0x7FC00000, 0xFFC12345, 0x7F800000, 0xFF800000, 0x80000000, 1, 0x7F7FFFFF, 0xC6000000]
    x.reshape(-1).view(np.uint32)[[0, 1, 5, 1000, 1001, 1300, 2000, x.size - 1]] = ugly
    return {"weight": x}


def sparse(n: int) -> Callable[[], dict[str, np.ndarray]]:
    """Nearly all zero, and what is not in a tenth of the places alone."""

    def arrays() -> dict[str, np.ndarray]:
        rng = np.random.default_rng(7)
        share = np.repeat(0.03 * (rng.random(50) < 0.1), n // 50)
        x = rng.laplace(size=n) * (rng.random(n) < share)
        x[n // 3] = np.inf
        return {"weight": x.astype(np.float32)}

    return arrays


def spiked(kind: str, *shape: int) -> Callable[[], dict[str, np.ndarray]]:
    """One such array, with infinities."""

    def arrays() -> dict[str, np.ndarray]:
        x = layer(kind, *shape)()["weight"]
        x.reshape(-1)[[0, 7, x.size - 1]] = np.inf, -np.inf, np.nan
        return {"weight": x}

    return arrays


def before() -> dict[str, np.ndarray]:
    """A model that no library's random numbers have a part in, since no file holds it."""
    dtypes = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
    return {
        f"{np.dtype(dtype).name}.weight": ((np.arange(2400) * 37 % 97 - 48) / 64)
        .reshape(40, 60)
        .astype(dtype)
        for dtype in dtypes
    }


def after() -> dict[str, np.ndarray]:
    """What a client might make of it."""
    rng = np.random.default_rng(7)
    return {
        name: (x.astype(np.float64) + 0.05 * rng.laplace(size=x.shape)).astype(x.dtype)
        for name, x in before().items()
    }


def rest_before() -> dict[str, np.ndarray]:
    """Tensors that stay lossless, of every dtype that has differences of bits."""
    values = (np.arange(600) * 37 % 97 - 48) / 16
    floats = {f"{dtype.name}.bias": values.astype(dtype) for dtype in DTYPES if is_float(dtype)}
    rest = {
        f"{dtype.name}.rest": (np.arange(600) * 7 % 2 if dtype == np.bool_ else values + 60).astype(
            dtype
        )
        for dtype in DTYPES
        if dtype.kind in "biu"
    }
    return floats | rest | {"steps": np.array(7), "empty": np.empty((0, 3), np.float32)}


def rest_after() -> dict[str, np.ndarray]:
    """What a client might make of them, and what no client should."""
    after = {name: x.copy() for name, x in rest_before().items()}
    for name, x in after.items():
        if name == "steps":
            x += 12
        elif is_float(x.dtype) and x.size:
            x[::5] = (x[::5].astype(np.float64) * 1.25).astype(x.dtype)
            x[:7] = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -2.5]).astype(x.dtype)
        elif x.size:
            x[::9] = x[1::9]
    return after


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind in "fV"  # V: those of ml_dtypes


CASES = {codec.name: Case(codec) for codec in CODECS} | {
    "uniform-stored": Case(Uniform(), layer("plain", 20, 30), 0.0),
    "uniform-constant": Case(Uniform(), constant, 0.1),
    "uniform-blocks": Case(Uniform(0), layer("scaled rows", 40, 60), 0.05),
    "uniform-blocks-wide": Case(Uniform(0), layer("plain", 40, 60), 1e-4),
    "uniform-coded": Case(Uniform(1), layer("plain", 40, 60), 0.05),
    "uniform-coded-wide": Case(Uniform(1), layer("plain", 40, 60), 1e-4),
    "uniform-classes": Case(Uniform(3), layer("scaled rows", 60, 80), 0.2),
    "uniform-neighbours": Case(Uniform(4), layer("correlated", 24, 16, 3, 3), 0.1),
    "uniform-neighbours-5x5": Case(Uniform(9), layer("correlated", 40, 24, 5, 5), 0.2),
    "uniform-neighbours-classes": Case(Uniform(), scaled_kernels, 0.1),
    "uniform-prediction": Case(Uniform(9), low_rank(0.05, 0), 0.2),
    "uniform-prediction-classes": Case(Uniform(9), low_rank(0.5, 2), 0.3),
    "uniform-sparse": Case(Uniform(), sparse(60_000), 0.5),
    "uniform-sparse-chunks": Case(Uniform(), sparse(1_200_000), 0.5),
    "uniform-quads": Case(Uniform(), spiked("step", 402, 250), 1.6),
    "uniform-quads-chunks": Case(Uniform(), layer("plain", 750, 200), 1.2),
    "difference": Case(Uniform(), after, reference=before),
    "bits": Case(Uniform(), rest_after, reference=rest_before),
    "uniform-exceptions": Case(Uniform(), exceptions, 0.05),
    "uniform-chunks": Case(Uniform(1), layer("plain", 140_000), 0.02),
    "uniform-float16": Case(Uniform(), layer("plain", 40, 60, dtype=np.float16), 0.05),
    "uniform-bfloat16": Case(Uniform(), layer("plain", 40, 60, dtype=ml_dtypes.bfloat16), 0.05),
    "uniform-float64": Case(Uniform(), layer("plain", 40, 60, dtype=np.float64), 0.05),
    "uniform-float64-wide": Case(Uniform(), layer("plain", 40, 60, dtype=np.float64), 1e-4),
}


# One for each method at least, so that what it drew and how it packed stays as it is.
CHAINS = (
    "topk:k=5%", "topk:k=5%>ternary", "topk:k=64>uniform@std:1", "randk:k=10%", "randk:k=80%,own=1",
    "ternary:threshold=0.3", "qsgd", "qsgd:bits=8,bucket=0,unbiased=0", "randk>qsgd:bits=6",
    "qsgd:bits=2,bucket=0,norm=max", "natural", "threshold:k=5%", "rtopk", "topk:k=5,chunk=256",
    "sbc:k=5%", "centroids", "topk:k=10%>centroids:bits=4", "rotate>ternary",
    "rotate:block=64>qsgd", "powersgd", "powersgd:rank=2>uniform@std:1", "atomo",
    "sketch:columns=20%,rows=2", "uveqfed", "uveqfed:lattice=hexagonal", "layered:sigma=0.01",
    "randk:k=10%,block=1",
)  # fmt: skip
CASES |= {
    f"chain-{'-'.join(re.findall(r'[a-z0-9]+', chain))}": Case(
        Uniform(), after, reference=before, chain=chain
    )
    for chain in CHAINS
}


def bytes_of(arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """Arrays as bytes, which numpy's files can hold whatever the dtype."""
    return {name: np.frombuffer(x.tobytes(), np.uint8) for name, x in arrays.items()}


def main(folder: Path = FOLDER) -> None:
    for name, case in CASES.items():
        stream = case.stream()
        path = folder / f"v{stream[8]}-{name}.fsz"
        if path.exists():
            continue
        path.write_bytes(stream)
        decoded = fedsz.decompress(stream, reference=case.reference(), as_numpy=True)
        np.savez_compressed(path.with_suffix(".npz"), **bytes_of(decoded))
        print(path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
