"""`sz2`: SZ 2.1, the paper's choice, from the C library that hdf5plugin ships."""

from __future__ import annotations

import ctypes
import threading
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from fedsz.codecs.base import Array
from fedsz.codecs.envelope import EnvelopeCodec
from fedsz.errors import CodecError, CodecUnavailable
from fedsz.system import at_fork

FLOAT: Final = 0  # SZ's number for float32
ABS: Final = 0  # SZ's number for absolute bounds

# SZ 2 keeps its parameters and tables in globals. A fork waits until they are in order.
_lock = threading.RLock()
at_fork(before=_lock.acquire, in_parent=_lock.release, in_child=_lock.release)


@dataclass(frozen=True)
class Sz2(EnvelopeCodec):
    """SZ 2.1: Lorenzo and regression prediction, Huffman and Zstandard.

    The array is coded flat, as in the paper's Algorithm 1. Of all codecs only this one may write
    other bytes for equal input: SZ 2 reads memory that it never set. What they decode to keeps the
    bound all the same.
    """

    name = "sz2"
    wire_id = 16
    library = "hdf5plugin"
    wheels = "x86-64, aarch64, macOS"
    # SZ writes up to 20 elements without a header, and cannot read them again.
    smallest = 21

    def compress(self, x: Array, bound: float) -> bytes:  # noqa: D102
        sz, size = library(), c_size_t()
        with _lock:
            pointer = sz.SZ_compress_args(
                FLOAT, x.ctypes.data, byref(size), ABS, bound, 0.0, 0.0, 0, 0, 0, 0, x.size
            )
            if not pointer:
                raise CodecError(f"SZ 2 did not compress {x.size} elements within {bound}")
            return take(pointer, size.value)

    def decompress(self, native: bytes, n: int) -> Array:  # noqa: D102
        with _lock:
            pointer = library().SZ_decompress(FLOAT, native, len(native), 0, 0, 0, 0, n)
            if not pointer:
                raise CodecError("SZ 2 did not decompress its payload")
            return np.frombuffer(bytearray(take(pointer, 4 * n)), "<f4")


def take(pointer: int, size: int) -> bytes:
    """Copy ``size`` bytes from SZ's buffer and free it."""
    try:
        return ctypes.string_at(pointer, size)
    finally:
        libc().free(pointer)


@cache
def libc() -> ctypes.CDLL:
    """Return the C library, whose `free` takes what SZ's `malloc` gave."""
    lib = ctypes.CDLL(None)
    lib.free.argtypes = [c_void_p]
    lib.free.restype = None
    return lib


@cache
def library() -> ctypes.CDLL:
    """Load and initialise SZ 2, once a process, or raise `CodecUnavailable`."""
    import hdf5plugin

    found = sorted(Path(hdf5plugin.PLUGIN_PATH).glob("libh5sz.*"))
    if not found:
        raise CodecUnavailable("codec 'sz2' needs an hdf5plugin with SZ; this one has none")
    sz = ctypes.CDLL(str(found[0]))
    dimensions = [c_size_t] * 5
    sz.SZ_compress_args.argtypes = [
        c_int, c_void_p, POINTER(c_size_t), c_int, c_double, c_double, c_double, *dimensions
    ]  # fmt: skip
    sz.SZ_compress_args.restype = c_void_p
    sz.SZ_decompress.argtypes = [c_int, c_char_p, c_size_t, *dimensions]
    sz.SZ_decompress.restype = c_void_p
    sz.SZ_Init.argtypes = [c_char_p]
    if status := sz.SZ_Init(None):
        raise CodecUnavailable(f"codec 'sz2' does not start: SZ_Init returned {status}")
    return sz
