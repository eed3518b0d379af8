"""Lossless tensors as differences of their bits: exact, whatever the values.

Bits of floats, read as integers in the order of the values, are close where the values are: what a
small step changed is in the low bytes of their differences (docs/format.md, "Payloads").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Buffer, NDArray

CHUNK: Final = 1 << 15  # elements worked on at a time, which a cache holds


def difference(tensors: Sequence[NDArray], bases: Sequence[NDArray]) -> npt.NDArray[np.uint8]:
    """Return how ``tensors`` differ from ``bases``.

    Args:
        tensors: at least one; C-contiguous, of any shapes, of dtypes of one item size up to 8.
        bases: as many, each of the dtype and shape of its tensor.

    Returns:
        A plane (row) of bytes for each byte of an item, lowest first.
    """
    x, base, magnitude = _bits(tensors), _bits(bases), _magnitudes(bases)
    sign = 8 * x.itemsize - 1
    planes = np.empty((x.itemsize, x.size), np.uint8)
    for at in range(0, x.size, CHUNK):
        here = slice(at, at + CHUNK)
        step = _ordered(x[here], magnitude[here]) - _ordered(base[here], magnitude[here])
        zigzag = step << 1 ^ step >> sign
        planes[:, here] = zigzag.view(np.uint8).reshape(-1, x.itemsize).T
    return planes


def moved(planes: Buffer, bases: Sequence[NDArray]) -> Iterator[NDArray]:
    """Yield the tensors that differ from ``bases`` by ``planes``, each with memory of its own.

    ``planes`` are those of `difference`, row by row: as many bytes as the bases have.
    """
    width = bases[0].itemsize
    rows, end = np.frombuffer(planes, np.uint8).reshape(width, -1), 0
    for like in bases:
        base, magnitude = _bits([like]), _magnitudes([like])
        columns, end = rows[:, end : end + like.size], end + like.size
        y = np.empty_like(base)
        for at in range(0, y.size, CHUNK):
            here = slice(at, at + CHUNK)
            zigzag = np.ascontiguousarray(columns[:, here].T).reshape(-1).view(f"u{width}")
            step = (zigzag >> 1).view(y.dtype) ^ -(zigzag & 1).view(y.dtype)
            step += _ordered(base[here], magnitude[here])
            y[here] = _ordered(step, magnitude[here])
        yield y.view(like.dtype).reshape(like.shape)


def _bits(tensors: Sequence[NDArray]) -> NDArray:
    """Return the elements of all tensors as signed integers of their width."""
    flat = [x.reshape(-1).view(f"i{x.itemsize}") for x in tensors]
    return flat[0] if len(flat) == 1 else np.concatenate(flat)


def _magnitudes(tensors: Sequence[NDArray]) -> NDArray:
    """Return, for each element of all tensors, the bits of a float's magnitude; 0 for integers."""
    dtype = np.dtype(f"i{tensors[0].itemsize}")
    floating = [x.dtype.kind in "fV" for x in tensors]  # V: those of ml_dtypes
    masks = np.array(floating, dtype) * np.iinfo(dtype).max
    sizes = [x.size for x in tensors]
    if all(floating) or not any(floating):
        return np.broadcast_to(masks[0], sum(sizes))  # which takes no memory
    return np.repeat(masks, sizes)


def _ordered(bits: NDArray, magnitude: NDArray) -> NDArray:
    """Return integers in the order of the values, from bits; and bits from such integers."""
    ordered: NDArray = bits ^ (bits >> (8 * bits.itemsize - 1) & magnitude)
    return ordered
