"""Arrays, bounds and state_dicts for hypothesis: ordinary weights, and the ugly ones."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

F32_MAX = float(np.finfo(np.float32).max)

seeds = st.integers(0, 2**32 - 1)


@st.composite
def weights(draw: st.DrawFn, max_size: int = 3000) -> np.ndarray:
    """float32 arrays as networks have them and as they should not: any shape, finite."""
    n = draw(st.integers(0, max_size))
    rng = np.random.default_rng(draw(seeds))
    scale = 10.0 ** draw(st.integers(-40, 36))
    kind = draw(st.sampled_from(KINDS))
    with np.errstate(over="ignore", under="ignore"):
        x = np.clip(KIND[kind](rng, n) * scale, -F32_MAX, F32_MAX).astype(np.float32)
    if n % 6 == 0 and draw(st.booleans()):
        x = x.reshape(2, 3, -1)
    return x


def _bits(rng: np.random.Generator, n: int) -> np.ndarray:
    x = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    return np.where(np.isfinite(x), x, 1).astype(np.float64)


def _outlier(rng: np.random.Generator, n: int) -> np.ndarray:
    x = rng.normal(size=n)
    if n:
        x[rng.integers(n)] = 1e6
    return x


KIND = {
    "normal": lambda rng, n: rng.normal(size=n),
    "laplace": lambda rng, n: rng.laplace(size=n),
    "student": lambda rng, n: rng.standard_t(2, size=n),
    "constant": lambda rng, n: np.full(n, rng.normal()),
    "zero": lambda rng, n: np.zeros(n),
    "sparse": lambda rng, n: rng.normal(size=n) * (rng.random(n) < 0.05),
    "offset": lambda rng, n: 1 + 1e-4 * rng.normal(size=n),
    "outlier": _outlier,
    "ramp": lambda rng, n: np.linspace(-1, 1, n),
    "log": lambda rng, n: np.exp(rng.uniform(-40, 0, n)),
    "bits": _bits,
}
KINDS = tuple(KIND)


@st.composite
def specials(draw: st.DrawFn) -> np.ndarray:
    """float32 arrays with NaN (with payload bits), infinities, subnormals and -0 among weights."""
    x = draw(weights()).copy()
    flat = x.reshape(-1)
    ugly = np.array([0x7FC00000, 0xFFC12345, 0x7F800000, 0xFF800000, 1, 0x80000001, 0x80000000])
    for _ in range(draw(st.integers(0, 20)) if flat.size else 0):
        at, what = draw(st.integers(0, flat.size - 1)), draw(st.sampled_from(range(len(ugly))))
        flat.view(np.uint32)[at] = ugly[what]
    return x


relative = st.floats(1e-7, 0.5)

DTYPES = [
    np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.bool_, np.int8, np.int16, np.int32,
    np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.complex64, np.complex128,
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
]  # fmt: skip


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Arrays of any dtype a stream has, any bits, up to 3 dimensions, 0-d and empty among them."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40))
    n = int(np.prod(shape))
    rng = np.random.default_rng(draw(seeds))
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype in (np.float32, np.float64) and draw(st.booleans()):
        return rng.normal(size=shape).astype(dtype)
    return np.frombuffer(rng.bytes(n * dtype.itemsize), dtype).reshape(shape).copy()


names = st.text(st.characters(codec="utf-8"), max_size=12)


@st.composite
def state_dicts(draw: st.DrawFn) -> dict[str, Any]:
    """state_dicts of numpy arrays; some of the names say "weight"."""
    keys = draw(st.lists(names, max_size=6, unique=True))
    return {
        key + draw(st.sampled_from(["", ".weight"])) + str(i): draw(arrays())
        for i, key in enumerate(keys)
    }
