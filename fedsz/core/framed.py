"""Arrays that lie in the bytes of a numpy file, which is how Flower's records hold them."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from fedsz.arrays import Memory, NDArray, new_memory
from fedsz.codecs import _methods

FRAMED_FROM: Final = 1 << 16  # bytes of an array: to copy fewer takes less time than the framing
_HEADERS: Final = 4096  # of arrays, that are remembered


def framed(shape: Sequence[int], dtype: np.dtype) -> Memory:
    """Return memory whose array lies in a numpy file, read-only, where that is worth it.

    Raises:
        MemoryError, ValueError: there is not as much.
    """
    size = math.prod(shape)
    if size * dtype.itemsize < FRAMED_FROM:
        return new_memory(shape, dtype)
    head = header_of(dtype, tuple(shape))
    file, room = _methods.framed(head, size * dtype.itemsize)
    return Memory(np.frombuffer(file, dtype, size, len(head)).reshape(shape), room)


def file_of(x: NDArray) -> bytes | None:
    """Return the numpy file that an array is all of, as a bytes object; None if there is none."""
    base = x.base
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, bytes) or not x.flags.c_contiguous:
        return None
    head = header_of(x.dtype, x.shape)
    if len(base) != len(head) + x.nbytes or not base.startswith(head):
        return None
    starts = np.frombuffer(base, np.uint8, 0, len(head)).__array_interface__["data"]
    return base if starts[0] == x.__array_interface__["data"][0] else None


# A model's headers are the same in each round, and making one takes as long as coding its tensor.
@lru_cache(maxsize=_HEADERS)
def header_of(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return what a numpy file begins with that holds such an array, of version 1."""
    like, written = np.empty(0, dtype), io.BytesIO()
    plain = like if dtype.isbuiltin == 1 else like.view(f"V{dtype.itemsize}")
    about = np.lib.format.header_data_from_array_1_0(plain) | {"shape": shape}
    np.lib.format.write_array_header_1_0(written, about)
    return written.getvalue()
