"""What a tensor has moved by in training, and where a mean step takes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsz.arrays import NDArray, cast, saturate
from fedsz.codecs import _ring
from fedsz.errors import DivergedUpdate


def fed_back(name: str, x: NDArray, base: NDArray, before: NDArray | None) -> NDArray:
    """Return x - base and what a client has kept of the round before, as flat float32.

    Where the sum is not finite, and x - base is, what was kept is forgotten.

    Raises:
        DivergedUpdate: x - base is not finite.
    """
    kept = np.zeros(0, np.float32)
    if before is not None and before.size == x.size:
        kept = _flat(before.astype(np.float32, copy=False))
    if not x.dtype == base.dtype == np.float32:
        step = step_of(name, x, base, np.float32)
        with np.errstate(over="ignore"):
            y = step + kept if kept.size else step
        return y if np.isfinite(y).all() else step
    y = np.empty(x.size, np.float32)
    beside = [kept, kept[:0]] if kept.size else [kept]
    if not any(_ring.add_step(_flat(x), _flat(base), one, y) for one in beside):
        raise DivergedUpdate(f"{name!r} has moved by what is not finite; nothing is sent")
    return y


def _flat(x: NDArray) -> NDArray:
    """Return an array as natives take it."""
    return np.require(x, requirements=["C", "A"]).reshape(-1)


def step_of(name: str, x: NDArray, base: NDArray, dtype: Any) -> NDArray:
    """Return x - base as flat floats of a dtype.

    Raises:
        DivergedUpdate: it is not finite.
    """
    if x.dtype.kind in "iub":
        return _whole_step(x, base).astype(dtype)
    wide = np.result_type(dtype, np.float64 if x.dtype == np.float64 else dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        difference = x.reshape(-1).astype(wide) - base.reshape(-1).astype(wide)
        step: NDArray = difference.astype(dtype)
    if not np.isfinite(step).all():
        raise DivergedUpdate(f"{name!r} has moved by what is not finite; nothing is sent")
    return step


def _whole_step(x: NDArray, base: NDArray) -> NDArray:
    """Return x - base of whole numbers, int64: of 8 bytes, modulo 2^64."""
    x, base = x.reshape(-1), base.reshape(-1)
    if x.dtype.itemsize < 8:
        return x.astype(np.int64) - base.astype(np.int64)
    step: NDArray = np.subtract(x, base).view(np.int64)
    return step


def moved(x: NDArray, step: NDArray) -> NDArray:
    """Return a tensor after a mean step, in its own dtype; whole numbers rounded, none wrapped."""
    if x.dtype.kind in "iub":
        return _counted(x, np.rint(step))
    with np.errstate(over="ignore"):
        sums = np.add(x, step, dtype=np.result_type(step.dtype, np.float32))
    saturate(sums, x.dtype)
    return cast(sums, x.dtype)


def _counted(x: NDArray, step: NDArray) -> NDArray:
    """Return x + step of whole numbers, as Python adds them: int64 would lack some of uint64's."""
    low, high = (0, 1) if x.dtype.kind == "b" else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    pairs = zip(x.reshape(-1).tolist(), step.reshape(-1).tolist(), strict=True)
    sums = [min(max(a + int(d), int(low)), int(high)) for a, d in pairs]
    return np.array(sums, x.dtype).reshape(x.shape)
