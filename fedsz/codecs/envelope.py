"""Somebody else's lossy compressor, made to keep its word.

Foreign compressors break their bounds now and then, by float rounding or worse, and know neither
NaN nor the idea of refusing bad bytes. An `EnvelopeCodec` puts each native payload into an envelope
(docs/format.md, "The envelope") that mends this:

- what was written is decoded again and compared, in float64, with the input;
- elements that moved too far, and NaN and infinities, are stored exactly beside the payload;
- if those are many, the codec is asked again with a smaller bound; in the end, the array is stored;
- payloads are decoded in a process of their own (`fedsz.codecs.decoder_process`).

Formats that are a few lines of numpy, and bound nothing, take the envelope for their NaNs.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Buffer, chunks
from fedsz.codecs.base import Array, Encoded, Float32Codec
from fedsz.codecs.spread import half_ulp
from fedsz.errors import CorruptStream

STORED: Final = 0
CODED: Final = 1
PATCH: Final = np.dtype([("position", "<u8"), ("value", "<f4")])
ATTEMPTS: Final = 3  # each at half the bound of the one before


class EnvelopeCodec(Float32Codec):
    """A codec that wraps a foreign compressor; a subclass writes `compress` and `decompress`."""

    lossy = True
    smallest: ClassVar[int] = 1  # fewer elements than this are stored
    isolated: ClassVar[bool] = True  # whether `decompress` wants a process of its own

    @abstractmethod
    def compress(self, x: Array, bound: float) -> bytes:
        """Return the native payload of ``x``: one-dimensional, finite, not empty; bound > 0."""

    @abstractmethod
    def decompress(self, native: bytes, n: int) -> Array:
        """Return ``n`` elements. Hostile bytes may end the process: see `isolated`."""

    def write(self, x: Array, bound: float) -> Encoded:  # noqa: D102
        self.require()
        flat = np.ascontiguousarray(x).reshape(-1)
        finite = np.isfinite(flat)
        if flat.size < self.smallest or not finite.any():
            return store(flat)
        # NaN would poison the compressors' ranges; any ordinary value does in its place.
        tame = flat if finite.all() else np.where(finite, flat, flat[finite.argmax()])
        # Below half the distance between neighbouring floats, "within the bound" means "equal".
        if self.keeps_bound and bound <= half_ulp(float(np.abs(tame).max()), tame.dtype):
            return store(flat)

        for attempt in range(ATTEMPTS if self.keeps_bound else 1):
            native = self.compress(tame, bound / 2**attempt)
            decoded = self.decompress(native, flat.size)
            allowed = bound if self.keeps_bound else sys.float_info.max
            moved, max_error = compare(flat, decoded, allowed)
            positions = np.union1d(moved, np.flatnonzero(~finite))
            size = 5 + len(positions) * PATCH.itemsize + len(native)
            if len(moved) <= 64 + flat.size // 256 and size < 1 + flat.nbytes:
                return Encoded(seal(flat, positions, native), max_error)
        return store(flat)

    def read(self, payload: Buffer, n: int) -> Array:  # noqa: D102
        view = memoryview(payload).cast("B")
        mode = view[0] if view else None
        if mode == STORED:
            if len(view) != 1 + 4 * n:
                raise CorruptStream(f"stored payload of {len(view)} bytes for {n} elements")
            return np.frombuffer(bytearray(view[1:]), "<f4")
        if mode != CODED or len(view) < 5:
            raise CorruptStream(f"no {self.name} envelope: mode {mode}, {len(view)} bytes")
        patches, native = unseal(view[1:], n)
        self.require()
        if self.isolated:
            from fedsz.codecs import decoder_process  # subprocess, which most streams do not need

            y = decoder_process.decode(self.name, native, n)
        else:
            y = self.decompress(native, n)
        y[patches["position"]] = patches["value"]
        return y


def store(x: Array) -> Encoded:
    """Return an envelope that holds the elements themselves."""
    return Encoded(bytes([STORED]) + x.astype("<f4", copy=False).tobytes(), 0.0)


def compare(x: Array, y: Array, bound: float) -> tuple[npt.NDArray[np.int64], float]:
    """Return where finite elements moved by more than ``bound``, and the largest other move."""
    moved, max_error = [], 0.0
    for here in chunks(x.size):
        with np.errstate(invalid="ignore"):  # NaN, and Inf - Inf, of elements that are patched
            a, b = (v[here].astype(np.float64) for v in (x, y))
            error = np.abs(a - b)
        finite = np.isfinite(a)
        fits = error <= bound  # False for a NaN, be it ours or the compressor's
        moved.append(here.start + np.flatnonzero(finite & ~fits))
        max_error = max(max_error, float(error[finite & fits].max(initial=0.0)))
    return np.concatenate(moved), max_error


def seal(x: Array, positions: npt.NDArray[np.int64], native: bytes) -> bytes:
    """Return mode, patches and native payload as one envelope."""
    patches = np.empty(len(positions), PATCH)
    patches["position"], patches["value"] = positions, x[positions]
    return b"".join((bytes([CODED]), len(patches).to_bytes(4, "little"), patches.tobytes(), native))


def unseal(body: memoryview, n: int) -> tuple[npt.NDArray[np.void], bytes]:
    """Return patches and native payload, which follow the mode byte, or raise `CorruptStream`."""
    count = int.from_bytes(body[:4], "little")
    end = 4 + count * PATCH.itemsize
    if end > len(body):
        raise CorruptStream(f"{count} patches need {end} bytes, have {len(body)}")
    patches = np.frombuffer(body[4:end], PATCH)
    positions = patches["position"]
    if count and (positions[-1] >= n or (positions[1:] <= positions[:-1]).any()):
        raise CorruptStream(f"patch positions do not ascend within 0..{n - 1}")
    return patches, bytes(body[end:])
