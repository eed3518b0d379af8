"""`exponents`: floats without loss, the exponents by their frequencies and the rest as it is.

Trained weights have few magnitudes: an exponent of eight bits holds fewer than three. Mantissas are
noise that nothing packs. So elements are rotated left by a bit, which puts the sign beside the
mantissa and fills a byte with the exponent of bfloat16 and float32. Bytes of equal place then go
together, by the entropy coder of `uniform` where that pays.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Buffer
from fedsz.codecs.lossless import LosslessCodec
from fedsz.codecs.uniform import Uniform
from fedsz.errors import CorruptStream

FRAME: Final = 1 << 22  # elements that are coded at a time
SIZES: Final = (1, 2, 4, 8)  # of elements; those of complex numbers are of their halves
SAMPLE: Final = 1 << 16  # bytes of a plane, at least half of them, that say whether to code it
WORTH: Final = 0.97  # of a plane's bytes, from which on it stays as it is
_CODER: Final = Uniform(effort=1)
_LENGTH: Final = struct.Struct("<I")

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Exponents(LosslessCodec):
    """Planes of bytes, each coded by its frequencies or as it is."""

    name = "exponents"
    wire_id = 6

    def pack(self, data: Buffer, itemsize: int) -> bytes:  # noqa: D102
        view = memoryview(data).cast("B")
        size = min(itemsize, SIZES[-1])
        if size not in SIZES or len(view) % size:
            size = 1
        parts = [bytes([size])]
        for at in range(0, len(view), FRAME * size):
            for plane in _planes(view[at : at + FRAME * size], size):
                coded = _coded(plane)
                parts += [_LENGTH.pack(len(coded)), coded or plane.tobytes()]
        return b"".join(parts)

    def unpack(self, payload: Buffer, nbytes: int) -> Buffer:  # noqa: D102
        view = memoryview(payload).cast("B")
        size = view[0] if view else 0
        if size not in SIZES or nbytes % size:
            raise CorruptStream(f"elements of {size} bytes in a payload of {nbytes} bytes of data")
        out, at = np.empty(nbytes, np.uint8), 1
        for start in range(0, nbytes, FRAME * size):
            frame = out[start : start + FRAME * size].reshape(-1, size)
            for place in reversed(range(size)):
                plane, at = _plane(view, at, len(frame))
                frame[:, place] = plane
            if size > 1:
                whole = frame.reshape(-1).view(f"<u{size}")
                whole[:] = whole >> 1 | whole << (8 * size - 1)
        if at != len(view):
            raise CorruptStream(f"{len(view) - at} bytes after the last plane", offset=at)
        return out.data


def _planes(frame: memoryview, size: int) -> Iterator[Bytes]:
    """Yield the bytes of each place of elements, the highest first."""
    if size == 1:
        yield np.frombuffer(frame, np.uint8)
        return
    whole = np.frombuffer(frame, f"<u{size}")
    rotated = whole << 1 | whole >> (8 * size - 1)
    planes = rotated.astype(f"<u{size}", copy=False).view(np.uint8).reshape(-1, size)
    for place in reversed(range(size)):
        yield np.ascontiguousarray(planes[:, place])


def _coded(plane: Bytes) -> bytes:
    """Return a plane by its frequencies; b"" where that hardly saves anything."""
    some = plane[:: 1 + plane.size // SAMPLE]
    share = np.bincount(some) / max(some.size, 1)
    known = share[share > 0]
    if -(known * np.log2(known)).sum() / 8 > WORTH:
        return b""
    coded = _CODER.encode_multiples(plane.astype(np.float32), None, 1.0)
    return coded if len(coded) < WORTH * plane.size else b""


def _plane(view: memoryview, at: int, n: int) -> tuple[Bytes, int]:
    """Return the plane of ``n`` bytes at a place of a payload, and the place after it."""
    if len(view) - at < _LENGTH.size:
        raise CorruptStream("the payload ends before a plane does", offset=at)
    (length,) = _LENGTH.unpack_from(view, at)
    start = at + _LENGTH.size
    end = start + (length or n)
    if end > len(view):
        raise CorruptStream("the payload ends before a plane does", offset=at)
    if not length:
        return np.frombuffer(view[start:end], np.uint8), end
    values = _CODER.decode(view[start:end], (n,))
    # In this order: a comparison with NaN is false.
    if not ((values >= 0) & (values <= 255)).all() or (values != np.rint(values)).any():
        raise CorruptStream("a plane holds what is no byte", offset=start)
    return values.astype(np.uint8), end
