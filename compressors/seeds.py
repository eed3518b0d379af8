"""Write what a fuzzer starts from: ``python compressors/seeds.py FOLDER CODEC ...``.

Real payloads and arrays of each codec, in FOLDER/corpus_CODEC, in the form its fuzz.cpp reads.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np

import fedsz
from fedsz import codecs
from fedsz.codecs import _ring
from fedsz.codecs.base import AnyArray, Array
from fedsz.codecs.uniform import DTYPE_IDS, Uniform, matrix_shape
from fedsz.methods.base import Kind
from fedsz.methods.symbols import pack

DECODE, ENCODE, PRODUCT = 0, 1, 2


def arrays() -> Iterator[Array]:
    """Yield small arrays of the kinds that codecs treat differently."""
    rng = np.random.default_rng(0)
    for n in (0, 1, 5, 127, 128, 129, 700):
        x = rng.normal(size=n).astype(np.float32)
        yield x
        yield np.zeros_like(x)
        yield x * np.float32(1e-40)
        yield np.where(rng.random(n) < 0.1, x, 0).astype(np.float32)
        yield np.where(rng.random(n) < 0.02, np.float32(np.nan), x)
        yield np.where(rng.random(n) < 0.02, np.float32(1e30), x)


def sparse() -> Iterator[Array]:
    """Yield arrays that are nearly all zero."""
    rng = np.random.default_rng(3)
    for n, share in ((600, 0.01), (5000, 0.003), (70_000, 0.0002)):
        yield np.where(rng.random(n) < share, rng.laplace(size=n), 0).astype(np.float32)


def steps() -> Iterator[tuple[Array, float]]:
    """Yield steps, with bounds that make most of their elements zero."""
    rng = np.random.default_rng(4)
    for shape in ((130, 150), (5, 4000), (60, 30, 3, 3)):
        x = rng.laplace(size=shape) * np.exp2(rng.normal(size=(shape[0], *(1,) * len(shape[1:]))))
        for times in (0.7, 1.5):
            yield x.astype(np.float32), times * float(x.std())


def layers() -> Iterator[Array]:
    """Yield weights of layers whose rows, columns and kernels differ in scale."""
    rng = np.random.default_rng(1)
    for shape in ((40, 50), (16, 8, 3, 3), (300, 4, 2, 2), (8, 5, 5, 5)):
        x = rng.laplace(size=shape) + rng.normal(size=(*shape[:2], *(1,) * len(shape[2:])))
        x *= np.exp2(rng.normal(size=(shape[0], *(1,) * len(shape[1:]))))
        yield x.astype(np.float32)


def seeds(codec: codecs.Codec) -> Iterator[bytes]:
    """Yield inputs for the fuzzer of a codec with float32 arrays and no settings."""
    for x in arrays():
        for bound in (0.0, 1e-41, 1e-5, 1e-2, 1.0):
            yield struct.pack("<BI", DECODE, x.size) + codec.encode(x, bound)
            yield struct.pack("<Bd", ENCODE, bound) + x.tobytes()


def uniform_seeds() -> Iterator[bytes]:
    """Yield inputs for the fuzzer of `uniform`."""

    def both(x: AnyArray, bound: float, effort: int) -> Iterator[bytes]:
        payload = Uniform(effort=effort, threads=1).encode(x, bound)
        yield struct.pack("<BI", DECODE, x.size) + payload
        yield to_encode(ENCODE, x, bound, effort, *matrix_shape(x.shape)) + x.tobytes()

    def to_encode(
        kind: int,
        x: AnyArray,
        bound: float,
        effort: int,
        rows: int,
        _: int,
        planes: int,
        width: int,
    ) -> bytes:
        id_, edits = DTYPE_IDS[x.dtype], 0
        return struct.pack("<3BH2BdB", kind, id_, effort, rows, planes, width, bound, edits)

    for dtype in Uniform.dtypes:
        with np.errstate(over="ignore"):
            some = [x.astype(dtype) for x in chain(arrays(), layers(), sparse())]
        for x in some:
            for bound, effort in ((0.0, 5), (1e-4, 5), (0.3, 5), (0.3, 0), (1e-2, 1), (0.1, 9)):
                yield from both(x, bound, effort)
        for x, bound in steps():
            yield from both(x.astype(dtype), bound, 5)
        left, right = np.random.default_rng(1).normal(size=(2, 260, 6))
        low_rank = (left @ right.T).astype(dtype)
        yield next(both(low_rank, 0.1, 9))  # the smallest that such a payload is made for
        factors = np.random.default_rng(2).normal(size=520).astype(dtype)
        yield to_encode(PRODUCT, factors, 0.01, 9, 260, 260, 1, 1) + factors.tobytes()


def gaps_seeds() -> Iterator[bytes]:
    """Yield codes of gaps, for the fuzzer of `methods`: the width comes before the count."""
    rng = np.random.default_rng(5)
    for mean in (1, 20, 3000, 1 << 40):
        plane = np.cumsum(rng.geometric(1 / mean, 50)) - 1
        packed = pack(Kind.INDICES, plane)
        yield struct.pack("<BI", packed[0], plane.size) + packed[1:]


def streams() -> Iterator[bytes]:
    """Yield streams, for the fuzzer of the C library."""
    rng = np.random.default_rng(6)
    model = {f"layer.{i}": x for i, x in enumerate(layers())} | {"step": np.array(3)}
    moved = {name: x + rng.normal(size=x.shape).astype(x.dtype) for name, x in model.items()}
    for lossless in ("raw", "zlib", "zstd"):
        yield fedsz.compress(model, "std:0.5", lossless=lossless, threshold=100)
        yield fedsz.compress(moved, "std:0.5", lossless=lossless, threshold=100, reference=model)
    # The model of compressors/library/fuzz.cpp.
    held = ((np.arange(120) * 37 % 97 - 48) / 64).astype(np.float32).reshape(12, 5, 2)
    after = {"layer": held + rng.normal(size=held.shape).astype(np.float32) / 50}
    for bound in ("std:0.5", "abs:1e-05"):
        yield fedsz.compress(after, bound, reference={"layer": held}, threshold=0, lossless="raw")


def ring_seeds() -> Iterator[bytes]:
    """Yield packed tokens, as compressors/ring/fuzz.cpp reads them."""
    rng = np.random.default_rng(0)
    for bits in (1, 7, 8, 13, 32):
        for count in (0, 5, 32, 100):
            tokens = rng.integers(0, 1 << bits, count, dtype=np.uint32)
            yield struct.pack("<BH", bits, count) + _ring.pack(tokens, bits)


SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "uniform": uniform_seeds,
    "methods": gaps_seeds,
    "ring": ring_seeds,
    "szx": lambda: seeds(codecs.get("szx")),
    "library": streams,
}


def main(folder: str, *names: str) -> None:
    """Write the seeds of the codecs of these names."""
    for name in names:
        corpus = Path(folder) / f"corpus_{name}"
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(SEEDS[name]()):
            (corpus / f"seed-{number:03}").write_bytes(seed)


if __name__ == "__main__":
    main(*sys.argv[1:])
