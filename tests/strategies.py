"""Arrays, bounds and state_dicts for hypothesis: ordinary weights, and the ugly ones."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

seeds = st.integers(0, 2**32 - 1)


@st.composite
def weights(draw: st.DrawFn, dtype: Any = np.float32, max_size: int = 3000) -> np.ndarray:
    """Arrays as networks have them and as they should not: any shape, finite."""
    n = draw(st.integers(0, max_size))
    rng = np.random.default_rng(draw(seeds))
    scale = draw(scales(dtype))
    kind = draw(st.sampled_from(KINDS))
    with np.errstate(over="ignore", under="ignore"):
        x = finite(KIND[kind](rng, n) * scale, dtype)
    if n % 6 == 0 and draw(st.booleans()):
        x = x.reshape(2, 3, -1)
    return x


def scales(dtype: Any) -> st.SearchStrategy[float]:
    """Powers of ten from the smallest subnormal of a dtype to a hundredth of its largest value."""
    about = ml_dtypes.finfo(dtype)
    lowest = math.floor(math.log10(about.smallest_subnormal))
    return st.integers(lowest, int(math.log10(about.max)) - 2).map(lambda e: 10.0**e)


def finite(x: np.ndarray, dtype: Any) -> np.ndarray:
    """x in a floating dtype, with the largest value where it would overflow."""
    largest = float(ml_dtypes.finfo(dtype).max)
    return np.clip(x, -largest, largest).astype(dtype)


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


def _scaled_rows(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Rows and columns of scales of their own, a few of them dead."""
    rows, columns, *kernel = shape
    row, column = (np.exp2(2 * rng.normal(size=n)) * (rng.random(n) > 0.1) for n in (rows, columns))
    ones = (1,) * len(kernel)
    return rng.normal(size=shape) * row.reshape(-1, 1, *ones) * column.reshape(-1, *ones)


def _low_rank(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A few outer products, and noise."""
    rows, columns = shape[0], math.prod(shape[1:])
    rank = int(rng.integers(1, 6))
    x = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))
    return (x + 10.0 ** rng.uniform(-4, 0) * rng.normal(size=x.shape)).reshape(shape)


def _correlated(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Kernels whose positions are like each other."""
    ones = (1,) * len(shape[2:])
    scale = np.exp2(rng.normal(size=(1, 1, *shape[2:])))
    return scale * (rng.laplace(size=(*shape[:2], *ones)) + 0.2 * rng.normal(size=shape))


def _sparse(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros, but for one element in a hundred, or one in ten thousand."""
    share = 10 ** rng.uniform(-4, -2)
    return rng.laplace(size=shape) * (rng.random(shape) < share)


def _step(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """What training changes: rows and columns have scales, which differ little."""
    rows, columns = (np.exp(0.3 * rng.normal(size=n)) for n in shape[:2])
    scales = (rows[:, None] * columns).reshape(*shape[:2], *(1,) * (len(shape) - 2))
    return rng.laplace(size=shape) * scales


LAYER = {
    "plain": lambda rng, shape: rng.normal(size=shape),
    "spiky": lambda rng, shape: rng.standard_t(2, size=shape),
    "scaled rows": _scaled_rows,
    "low rank": _low_rank,
    "correlated": _correlated,
    "sparse": _sparse,
    "step": _step,
}
KERNELS = [(), (1, 1), (2, 2), (3, 3), (5, 5), (1, 7), (4,), (3, 3, 3), (16, 16)]


@st.composite
def layers(draw: st.DrawFn, dtype: Any = np.float32) -> np.ndarray:
    """Weights of linear layers and convolutions, with what codecs look for in them."""
    kind = draw(st.sampled_from(sorted(LAYER)))
    if kind == "low rank":  # is only looked for where it can be worth it
        shape = (draw(st.integers(256, 300)), draw(st.integers(256, 300)))
    else:
        kernel = draw(st.sampled_from(KERNELS))
        rows = draw(st.integers(1, 128))
        columns = draw(st.integers(1, max(20_000 // rows // math.prod(kernel), 1)))
        shape = (rows, columns, *kernel)
    rng = np.random.default_rng(draw(seeds))
    with np.errstate(over="ignore", under="ignore"):
        return finite(LAYER[kind](rng, shape) * draw(scales(dtype)), dtype)


@st.composite
def specials(draw: st.DrawFn, dtype: Any = np.float32) -> np.ndarray:
    """Arrays with NaN (with payload bits), infinities, subnormals and -0 among weights."""
    x = draw(weights(dtype)).copy()
    flat = bits_of(x.reshape(-1))
    sign = 1 << 8 * x.itemsize - 1
    infinity = int(bits_of(np.array(np.inf, dtype)))
    quiet = infinity | infinity >> 1
    ugly = [quiet, sign | quiet | 0x25, infinity, sign | infinity, 1, sign | 1, sign]
    for _ in range(draw(st.integers(0, 20)) if flat.size else 0):
        flat[draw(st.integers(0, flat.size - 1))] = draw(st.sampled_from(ugly))
    return x


def bits_of(x: np.ndarray) -> np.ndarray:
    """The bits of each element, as an unsigned integer; a view."""
    return x.view(f"u{x.itemsize}")


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


SHAPES = [(), (0,), (1,), (30,), (17, 11), (40, 50), (4, 3, 3, 3), (2000,)]
FLOATS = [np.dtype(x) for x in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)]
UGLY = [np.nan, np.inf, -np.inf, -0.0, 1e-45, 3e38]


def ugly_tensor(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return an ordinary tensor, or one of a huge or tiny range, with NaN and infinities."""
    dtype, n = np.dtype(dtype), int(np.prod(shape))
    if dtype not in FLOATS:
        octets = rng.integers(0, 2 if dtype == np.bool_ else 256, n * dtype.itemsize)
        return octets.astype(np.uint8).view(dtype).reshape(shape)
    scale = 10.0 ** rng.choice([0, 0, -2, -40, -6, 4, 30])
    with np.errstate(over="ignore", under="ignore"):
        x = finite(KIND[rng.choice(KINDS)](rng, n) * scale, dtype)
        if n and rng.random() < 0.2:
            x[rng.integers(0, n, 3)] = np.array(rng.choice(UGLY, 3)).astype(dtype)
    return x.reshape(shape)


def ugly_model(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a model of several such tensors, most of them of floats."""
    dtypes = [*FLOATS, *FLOATS, *map(np.dtype, DTYPES)]
    names = ["a.weight", "b.weight", "c.bias", "bn.running_var", "7", "naïve"]
    return {
        name: ugly_tensor(rng, dtypes[rng.integers(len(dtypes))], SHAPES[rng.integers(len(SHAPES))])
        for name in names[: rng.integers(1, 7)]
    }


def moved(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return what a round may make of a tensor: the same, something near, or anything."""
    how = rng.integers(6)
    if how == 0 or not x.size:
        return x.copy()
    if how == 1:
        return ugly_tensor(rng, x.dtype, x.shape)
    if x.dtype not in FLOATS:
        return x.copy()
    if how == 2:
        return np.full_like(x, rng.normal())
    with np.errstate(all="ignore"):
        size = float(np.nanmax(np.abs(x.astype(np.float64)))) if np.isfinite(x).all() else 1.0
        y = x.astype(np.float64) + 10.0 ** rng.integers(-5, 0) * size * rng.laplace(size=x.shape)
        return finite(y, x.dtype)
