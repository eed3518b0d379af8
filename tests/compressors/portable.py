"""Cases for compressors/portable.cpp, the native codecs in a program, and what comes of them."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import fedsz
from fedsz.codecs import _szx, _uniform
from fedsz.codecs.uniform import DTYPE_IDS, matrix_shape
from tests.strategies import KIND, LAYER, bits_of, finite

SZX, UNIFORM = 0, 1  # as compressors/portable.cpp numbers them
FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
WEIGHT = 1 / 3


class Case(NamedTuple):
    """An array to be encoded, and how."""

    x: np.ndarray
    bound: float
    codec: int = UNIFORM
    effort: int = 5
    threads: int = 1
    flush: bool = False  # on a host that takes subnormals for zero


class Result(NamedTuple):
    """What a machine makes of a case."""

    payload: bytes
    max_error: float
    decoded: bytes
    sums: bytes  # of uniform: ones, to which the elements times WEIGHT have been added


def relative(x: np.ndarray, rel: float, **settings: Any) -> Case:
    return Case(x, fedsz.ErrorBound.rel(rel).absolute(x), **settings)


def special(x: np.ndarray) -> np.ndarray:
    """x with NaNs (of payloads of their own), infinities and outliers."""
    x = x.copy()
    bits, sign = bits_of(x.reshape(-1)), 1 << 8 * x.itemsize - 1
    infinity = int(bits_of(np.array(np.inf, x.dtype)))
    bits[3::997] = infinity | infinity >> 1 | 5
    bits[5::1993] = sign | infinity
    x.reshape(-1)[7::499] *= 100
    return x


@cache
def cases() -> dict[str, Case]:
    return dict(uniform_cases()) | dict(szx_cases())


def uniform_cases() -> Iterator[tuple[str, Case]]:
    rng = np.random.default_rng(0)
    for dtype in map(np.dtype, FLOATS):

        def layer(kind: str, *shape: int, dtype: np.dtype = dtype) -> np.ndarray:
            return finite(0.01 * LAYER[kind](rng, shape), dtype)

        matrix, kernels = layer("scaled rows", 150, 130), layer("correlated", 48, 24, 3, 3)
        for effort in (0, 1, 5, 9):
            yield f"{dtype} effort {effort}", relative(matrix, 1e-2, effort=effort)
            yield f"{dtype} kernels {effort}", relative(kernels, 1e-2, effort=effort)
            yield f"{dtype} special {effort}", Case(special(matrix), 1e-3, effort=effort)
        yield f"{dtype} special kernels", Case(special(kernels), 1e-3)
        scales = np.exp2(2 * rng.normal(size=(64, 1, 1, 1)))
        scaled = finite(scales * layer("correlated", 64, 64, 3, 3), dtype)
        yield f"{dtype} scaled kernels", relative(scaled, 1e-2)
        for rel in (1e-1, 1e-4, 1e-6, 1e-9):
            yield f"{dtype} within {rel}", relative(matrix, rel)
        for *kernel, rows in ((5, 5, 8), (1, 7, 16), (4, 40), (3, 3, 3, 6), (16, 16, 3)):
            yield (
                f"{dtype} kernels of {kernel}",
                relative(layer("correlated", rows, 7, *kernel), 1e-2),
            )
        sparse = np.where(rng.random(matrix.shape) < 0.01, matrix, 0).astype(dtype)
        yield f"{dtype} sparse", Case(sparse, 1e-3)
        yield f"{dtype} sparse, gaps", Case(sparse, 0.3)
        yield f"{dtype} sparse in blocks", Case(sparse, 1e-3, effort=0)
        for effort in (1, 5):
            step = layer("step", 151, 130)
            yield f"{dtype} quads {effort}", Case(step, 0.02, effort=effort, threads=2)
            yield f"{dtype} special quads {effort}", Case(special(step), 0.02, effort=effort)
        yield f"{dtype} constant", Case(np.full(70_000, 0.3, dtype), 1e-2)
        yield f"{dtype} all but constant", Case(special(np.full(7000, 0.3, dtype)), 1e-2)
        yield f"{dtype} exact", Case(matrix[0], 0.0)
        low_rank = layer("low rank", 260, 300)
        yield f"{dtype} of low rank", relative(low_rank, 1e-2, effort=9)
        yield f"{dtype} special, of low rank", relative(special(low_rank), 1e-5, effort=9)
        yield (
            f"{dtype} nearly of low rank",
            relative(layer("plain", 260, 300) + low_rank, 1e-2, effort=7),
        )
        for n in (0, 1, 3, 127, 128, 129, 511, 512, 513, 4097):
            yield f"{dtype} of {n}", relative(layer("plain", n), 1e-2)
        small = finite(rng.normal(size=(90, 80)) * 2e-6, dtype)  # subnormal in float16
        for effort in (0, 5):
            yield (
                f"{dtype} flushed {effort}",
                Case(small, 2e-7, effort=effort, threads=2, flush=True),
            )
        tiny = finite(rng.normal(size=3000) * 1e-38, dtype)
        yield f"{dtype} subnormal, flushed", Case(tiny, 1e-40, flush=True)
    for kind, make in KIND.items():
        x = finite(make(rng, 3000), np.float32)
        yield f"{kind}", relative(x, 1e-3)
        yield f"{kind} in blocks", relative(x, 1e-3, effort=0)
    large = finite(LAYER["scaled rows"](rng, (400, 500)), np.float32)
    for effort in (0, 1, 5):
        yield f"large {effort}", relative(large, 1e-3, effort=effort, threads=3)
    small = finite(rng.normal(size=1 << 20) * 2e-6, np.float16)  # enough for threads
    yield "large, flushed", Case(small, 2e-7, effort=1, threads=3, flush=True)
    yield "large, kernels", relative(large.reshape(200, -1, 2, 5), 1e-2, threads=3)


def szx_cases() -> Iterator[tuple[str, Case]]:
    rng = np.random.default_rng(1)
    for kind, make in KIND.items():
        x = finite(make(rng, 3001), np.float32)
        for rel in (1e-5, 1e-2):
            yield f"szx {kind} within {rel}", relative(x, rel, codec=SZX)
        yield f"szx {kind} special", Case(special(x), 1e-3, codec=SZX)
    for scale in (1e-44, 1e-41, 1e-38):
        x = finite(rng.normal(size=1000) * scale, np.float32)
        yield f"szx {scale}, flushed", Case(x, 0.01 * scale, codec=SZX, flush=True)
    yield "szx of none", Case(np.empty(0, np.float32), 1.0, codec=SZX)


def here(case: Case) -> Result:
    """What this machine's extension makes of a case."""
    x = case.x.reshape(-1)
    if case.codec == SZX:
        payload, error = _szx.encode(x, case.bound)
        return Result(payload, error, _szx.decode(payload, x.size).tobytes(), b"")
    id_, shape = DTYPE_IDS[x.dtype], matrix_shape(case.x.shape)
    payload, error, _ = _uniform.encode(
        x.view(np.uint8), id_, *shape, case.bound, case.effort, 1, ""
    )
    y, sums = np.empty_like(x), np.ones(x.size, np.float64 if x.itemsize == 8 else np.float32)
    _uniform.decode(payload, id_, y.view(np.uint8), 1, "")
    _uniform.accumulate(payload, id_, WEIGHT, sums.view(np.uint8), 1, "")
    return Result(payload, error, y.tobytes(), sums.tobytes())


def written(case: Case, payload: bytes) -> bytes:
    """The case as compressors/portable.cpp reads it; the payload is what it shall decode."""
    rows, columns, planes, width = matrix_shape(case.x.shape)
    head = struct.pack(
        "<5B2d2Q2IQ",
        *(case.codec, DTYPE_IDS[case.x.dtype], case.effort, case.threads, case.flush),
        *(case.bound, WEIGHT, rows, columns, planes, width, len(payload)),
    )
    return head + case.x.tobytes() + payload


def there(
    program: Sequence[str], cases: list[Case], payloads: list[bytes], folder: Path
) -> list[Result]:
    """What a program makes of the cases in a file "in", and of the payloads from here."""
    (folder / "in").write_bytes(b"".join(map(written, cases, payloads)))
    subprocess.run(program, cwd=folder, check=True)
    data, at, results = (folder / "out").read_bytes(), 0, []

    def take(n: int) -> bytes:
        nonlocal at
        at += n
        return data[at - n : at]

    for case in cases:
        error, size = struct.unpack("<dQ", take(16))
        wide = case.codec == UNIFORM and max(case.x.itemsize, 4)
        results.append(Result(take(size), error, take(case.x.nbytes), take(wide * case.x.size)))
    assert at == len(data)
    return results


def differing(names: Sequence[str], results: list[Result], others: list[Result]) -> list[Any]:
    """The names of the cases whose results are not the same, with the fields that are not."""
    return [
        (name, [field for field in Result._fields if getattr(a, field) != getattr(b, field)])
        for name, a, b in zip(names, results, others, strict=True)
        if a != b
    ]
