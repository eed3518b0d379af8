"""The predictor for gradients of arXiv 2511.05770, rebuilt from its abstract and published code.

Magnitudes come from an exponential moving average over rounds. Signs come from the kernels of
convolutions, or from the round before. What the prediction leaves is coded by a codec of fedsz.

The code is that of github.com/apecs-lab/EB-FaLCom, and "published" below refers to it. The body of
the text was not at hand. So these points are choices, or differ:

- A magnitude is normalised by the mean and the standard deviation of its tensor's magnitudes. The
  current two go beside the payload, as float32. The average starts at 0, and the newest round
  weighs 0.07, both as published. All elements are averaged, predicted or not.
- A kernel has a sign if at least three quarters of its elements, zeros among them, have it: a
  consistency of 0.5, as published. Kernels of one element have none, since their sign is a bit of
  every element. Elements of other kernels are predicted as 0.
- A bitmap says which kernels have a sign, a second one the signs of those. Both are one frame of
  zstd.
- Oscillation predicts the opposite of the sign that the last round decoded to. The published code
  has none of it.
- The published code clips what is left of the prediction to the range of the gradient, which can
  break the bound. Here nothing is clipped.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec
from fedsz.codecs.lossless import zstd
from fedsz.core.tensors import encode_difference, encode_within
from fedsz.errors import CodecError

NEWEST = 0.07  # the weight of a round in the moving average
CONSISTENCY = 0.5  # from which on a kernel has a sign; 0 for half of its elements, 1 for all


class Signs(IntEnum):
    """Where the signs of a prediction come from."""

    UNPREDICTED = 0
    KERNELS = 1
    OSCILLATION = 2


HEADER = struct.Struct("<BffI")  # signs, mean and deviation of magnitudes, bytes of the bitmaps


class Eblc:
    """Codes the updates of one tensor of one client, round after round.

    Sender and receiver have one each. Both remember what was decoded, so they predict the same.

    Args:
        coder: codes what the prediction leaves.
        ways: the encoder tries these and keeps the smallest payload. Where none of them can be
            had, the tensor is coded without a prediction.

    Attributes:
        last: the tensor of the last round, as it was decoded; None before the first.
    """

    def __init__(self, coder: Codec, ways: Sequence[Signs] = tuple(Signs)) -> None:
        self._coder, self._ways = coder, ways
        self.last: NDArray | None = None
        self._average: NDArray | None = None

    def encode(self, x: NDArray, bound: ErrorBound) -> bytes:
        """Return the payload of a float32 tensor, and remember what it decodes to.

        Raises:
            CodecError: ``x`` holds NaN or infinity, from which nothing could be predicted.
        """
        if not np.isfinite(x).all():
            raise CodecError("NaN or infinity in an update")
        tried = [self._predicted(signs, x, bound) for signs in self._ways if signs]
        made = [payload for payload in tried if payload is not None]
        if not made or Signs.UNPREDICTED in self._ways:
            within = encode_within(x, bound.absolute(x), self._coder)
            assert within is not None, f"{x.dtype} is no dtype of {self._coder}"
            made.append(bytes([Signs.UNPREDICTED]) + within.payload)
        payload = min(made, key=len)
        self.decode(payload, x.shape)
        return payload

    def decode(self, payload: bytes, shape: tuple[int, ...]) -> NDArray:
        """Return the tensor of ``shape`` that a payload of the other side holds; remember it."""
        signs = Signs(payload[0])
        if signs == Signs.UNPREDICTED:
            y = self._coder.decode(payload[1:], shape)
        else:
            _, mean, deviation, length = HEADER.unpack_from(payload)
            bitmaps = payload[HEADER.size : HEADER.size + length]
            prediction = self._prediction(signs, mean, deviation, bitmaps, shape)
            y = self._coder.decode(
                payload[HEADER.size + length :], shape, prediction.dtype, prediction
            )
        self._remember(y)
        return y

    def _predicted(self, signs: Signs, x: NDArray, bound: ErrorBound) -> bytes | None:
        """Return the payload with a prediction; None where it cannot be had."""
        if self.last is None or not x.size:
            return None
        if signs == Signs.KERNELS and not has_kernels(x.shape):
            return None
        magnitudes = np.abs(x, dtype=np.float64)
        bitmaps = pack_signs(x) if signs == Signs.KERNELS else b""
        header = HEADER.pack(signs, magnitudes.mean(), magnitudes.std(), len(bitmaps))
        _, mean, deviation, _ = HEADER.unpack(header)  # as the receiver sees them
        prediction = self._prediction(signs, mean, deviation, bitmaps, x.shape)
        within = encode_difference(x, prediction, bound, self._coder)
        return within and header + bitmaps + within.payload

    def _prediction(
        self, signs: Signs, mean: float, deviation: float, bitmaps: bytes, shape: tuple[int, ...]
    ) -> NDArray:
        assert self.last is not None, "the first round is not predicted"
        magnitudes = np.maximum(self._average * deviation + mean, 0)
        kernels = signs == Signs.KERNELS
        predicted = unpack_signs(bitmaps, shape) if kernels else -np.sign(self.last)
        with np.errstate(over="ignore"):
            return (predicted * magnitudes).astype(np.float32)

    def _remember(self, y: NDArray) -> None:
        magnitudes = np.abs(y, dtype=np.float64)
        deviation = magnitudes.std() if y.size else 0.0
        normalised = (magnitudes - magnitudes.mean()) / deviation if deviation else 0 * magnitudes
        before = 0.0 if self._average is None else self._average
        self._average = (1 - NEWEST) * before + NEWEST * normalised
        self.last = y


def has_kernels(shape: Sequence[int]) -> bool:
    """Say whether a tensor of this shape has kernels of more than one element."""
    return len(shape) == 4 and math.prod(shape[:2]) > 0 and math.prod(shape[2:]) > 1


def pack_signs(x: NDArray) -> bytes:
    """Return both bitmaps: which kernels have a sign, and whether that is plus."""
    kernels = x.reshape(*x.shape[:2], -1)
    plus, minus = ((side * kernels > 0).sum(axis=2).reshape(-1) for side in (1, -1))
    size = kernels.shape[2]
    has_sign = 2 * (size - np.minimum(plus, minus)) / size - 1 >= CONSISTENCY
    bits = np.packbits(has_sign).tobytes() + np.packbits((plus >= minus)[has_sign]).tobytes()
    return zstd.compress(bits, 19)


def unpack_signs(bitmaps: bytes, shape: tuple[int, ...]) -> NDArray:
    """Return 1, -1 or 0 for each kernel of a tensor of this shape, to be multiplied with it."""
    bits = np.frombuffer(zstd.decompress(bitmaps), np.uint8)
    kernels = math.prod(shape[:2])
    first = -(-kernels // 8)
    has_sign = np.unpackbits(bits[:first], count=kernels).astype(bool)
    signs = np.zeros(kernels)
    signs[has_sign] = 2.0 * np.unpackbits(bits[first:], count=int(has_sign.sum())) - 1
    return signs.reshape(*shape[:2], 1, 1)
