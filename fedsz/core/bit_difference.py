"""Lossless tensors as differences of their bits: exact, whatever the values.

Bits of floats, read as integers in the order of the values, are close where the values are: what a
small step changed is in the low bytes of their differences (docs/format.md, "Payloads").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Buffer, NDArray
from fedsz.codecs import _stream

Octets = npt.NDArray[np.uint8]


def difference(tensors: Sequence[NDArray], bases: Sequence[NDArray]) -> Octets:
    """Return how ``tensors`` differ from ``bases``.

    Args:
        tensors: at least one; C-contiguous, of any shapes, of dtypes of one item size up to 8.
        bases: as many, each of the dtype and shape of its tensor.

    Returns:
        A plane (row) of bytes for each byte of an item, lowest first.
    """
    width, first = tensors[0].itemsize, 0
    planes = np.empty((width, sum(x.size for x in tensors)), np.uint8)
    flat = planes.reshape(-1)
    for x, base in zip(tensors, bases, strict=True):
        _stream.bit_difference(_octets(x), _octets(base), width, _is_float(x), flat, first)
        first += x.size
    return planes


def moved(planes: Buffer, bases: Sequence[NDArray]) -> Iterator[NDArray]:
    """Yield the tensors that differ from ``bases`` by ``planes``, each with memory of its own.

    ``planes`` are those of `difference`, row by row: as many bytes as the bases have.
    """
    first = 0
    for base in bases:
        y = np.empty(base.shape, base.dtype)
        _stream.move_bits(planes, first, base.itemsize, _is_float(base), _octets(base), _octets(y))
        first += base.size
        yield y


def _octets(x: NDArray) -> Octets:
    octets: Octets = x.reshape(-1).view(np.uint8)
    return octets


def _is_float(x: NDArray) -> bool:
    return x.dtype.kind in "fV"  # V: those of ml_dtypes
