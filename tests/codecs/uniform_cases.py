"""What the tests of `uniform` share: arrays, and the codec with each instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsz
from fedsz.codecs import _uniform
from fedsz.codecs.uniform import DTYPE_IDS, Uniform, matrix_shape
from tests.strategies import LAYER, finite

DTYPES = list(Uniform.dtypes)
LEVELS = _uniform.levels()
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def bound_of(x: np.ndarray, rel: float) -> float:
    return fedsz.ErrorBound.rel(rel).absolute(x)


def coarse(x: np.ndarray) -> float:
    """A bound within which three quarters of the elements become zero."""
    return float(np.quantile(np.abs(x[np.isfinite(x)].astype(np.float64)), 0.75))


def largest_error(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(x.astype(np.float64) - y.astype(np.float64)).max(initial=0))


def flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1).view(np.uint8)


def encode_at(level: str, x: np.ndarray, bound: float, effort: int, threads: int = 1) -> bytes:
    """The payload that one instruction set makes."""
    id_, shape = DTYPE_IDS[x.dtype], matrix_shape(x.shape)
    return _uniform.encode(flat(x), id_, *shape, bound, effort, threads, level)[0]


def decode_at(level: str, payload: bytes, like: np.ndarray, threads: int = 1) -> np.ndarray:
    y = np.empty_like(like)
    _uniform.decode(payload, DTYPE_IDS[y.dtype], flat(y), threads, level)
    return y


def sums_for(x: np.ndarray) -> np.ndarray:
    return rng(x.size).normal(size=x.shape).astype("f8" if x.dtype == np.float64 else "f4")


# Large enough for several chunks, or shaped for one way of coding.
SHAPES: dict[str, tuple[tuple[int, ...], str]] = {
    "vector": ((150_001,), "plain"),
    "matrix": ((300, 700), "scaled rows"),
    "low rank": ((300, 700), "low rank"),
    "convolution": ((90, 200, 3, 3), "correlated"),
    "filters": ((50, 40, 7, 7), "correlated"),
    "spiky": ((300, 700), "spiky"),
    "step": ((259, 240), "step"),
    "small": ((30, 41), "plain"),
    "odd": ((33, 17, 3, 3), "scaled rows"),
}


def layer(name: str, dtype: Any = np.float32) -> np.ndarray:
    shape, kind = SHAPES[name]
    x = LAYER[kind](rng(len(name)), shape) if len(shape) > 1 else rng().normal(size=shape)
    x = finite(x, dtype)
    x.reshape(-1)[[5, 1000]] = np.nan, -np.inf
    return x
