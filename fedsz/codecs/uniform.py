"""`uniform`: fedsz's own codec, in C++ (compressors/uniform)."""

# ruff: noqa: D102 - `Codec` describes its methods
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsz.arrays import DTYPES, Buffer, octets, wide
from fedsz.codecs import _uniform
from fedsz.codecs.base import (
    FLOAT32,
    AnyArray,
    Codec,
    Encoded,
    Opened,
    check_input,
)
from fedsz.errors import CodecError, CorruptStream
from fedsz.spec_strings import setting
from fedsz.threads import threads_for

DTYPE_IDS: Final = {dtype: i for i, dtype in enumerate(DTYPES[:4])}  # of the payload's header
WIDE: Final = DTYPES[:2]  # dtypes whose differences need no array


@dataclass(frozen=True)
class Uniform(Codec):
    """A uniform quantiser, then rANS with contexts from the scales of rows and columns.

    Keeps the bound in the array's own dtype, float32 or another of `dtypes`. Equal arrays give
    equal payloads, on any machine and with any number of threads.

    Attributes:
        effort: 0 (fastest) to 9 (smallest). 0 packs bits; 1 codes by frequency, 3 by the scales of
            rows and columns, 4 by neighbours in a convolution's kernel too; 7 looks for low rank.
    """

    name = "uniform"
    wire_id = 20
    lossy = True
    dtypes = tuple(DTYPE_IDS)

    effort: int = setting(5, 0, 9)

    def encode_measured(self, x: AnyArray, bound: float, base: AnyArray | None = None) -> Encoded:
        return self._encoded(x, base, bound)

    def encode_multiples(self, x: AnyArray, base: AnyArray | None, step: float) -> bytes:
        """Return a payload that decodes to x - base, or to x without a base, exactly.

        But for the sign of -0. It is small where all elements are multiples of ``step``.

        Args:
            x: of one of `dtypes`, float32 or float64 beside a base.
            base: of its dtype and shape.
            step: above 0; of at most 100 octaves above or below 1.

        Raises:
            CodecError: ``x`` is of another dtype, or ``step`` is negative or NaN.
        """
        return self._encoded(x, base, 0.0, step).payload

    def _encoded(
        self, x: AnyArray, base: AnyArray | None, bound: float, step: float = 0.0
    ) -> Encoded:
        check_input(x, step or bound, base, self.dtypes)
        if base is not None and x.dtype not in WIDE:
            with np.errstate(over="ignore", invalid="ignore"):
                x, base = np.asarray(np.subtract(x, base)), None
        payload, max_error, _ = _uniform.encode(
            octets(x),
            DTYPE_IDS[x.dtype],
            *matrix_shape(x.shape),
            bound=bound,
            effort=self.effort,
            threads=threads_for(x.size),
            level="",
            base=None if base is None else octets(base),
            step=step,
        )
        return Encoded(payload, max_error)

    def decode(
        self,
        payload: Buffer,
        shape: Sequence[int],
        dtype: npt.DTypeLike = FLOAT32,
        base: AnyArray | None = None,
    ) -> AnyArray:
        dtype, n = np.dtype(dtype), math.prod(shape)
        onto = base if dtype in WIDE else None
        try:
            y = np.empty(n, dtype)
        except (MemoryError, ValueError) as err:
            raise CorruptStream(f"{n} elements are more than fit into memory") from err
        with refusing_corrupt():
            _uniform.decode(
                *(payload, DTYPE_IDS[dtype], y.view(np.uint8), threads_for(n), ""),
                None if onto is None else octets(onto),
            )
        y = y.reshape(shape)
        if base is None or onto is not None:
            return y
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.add(base, y))

    def open(
        self,
        payload: Buffer,
        shape: Sequence[int],
        dtype: np.dtype = FLOAT32,
        base: AnyArray | None = None,
    ) -> Opened:
        n, start = math.prod(shape), None if base is None else octets(base)
        with refusing_corrupt():
            opened = _uniform.Opened(payload, DTYPE_IDS[dtype], n, threads_for(n), "", start)
        return OpenedTokens(opened, dtype)


class OpenedTokens:
    """A payload whose tokens have been decoded, a byte an element at most."""

    def __init__(self, opened: _uniform.Opened, dtype: np.dtype) -> None:
        self._opened, self._dtype = opened, dtype
        self.energy = opened.energy

    def add(self, sums: AnyArray, weight: float) -> None:
        """Do as `Opened.add`."""
        if sums.dtype != wide(self._dtype):
            raise CodecError(f"{self._dtype} adds up in {wide(self._dtype)}, not {sums.dtype}")
        if not sums.flags.carray:
            raise CodecError("sums must be C-contiguous, aligned and writeable")
        self._opened.add(weight, sums.reshape(-1).view(np.uint8))


class Comparison(NamedTuple):
    """An array x beside another, which is taken from it.

    Attributes:
        low, high: the least element of x, and the greatest.
        least, greatest: those of the difference, rounded to the dtype; not finite if an element of
            it is not.
        deviation: the standard deviation of the difference; 0 unless asked for.
    """

    low: float
    high: float
    least: float
    greatest: float
    deviation: float


def compare(x: AnyArray, base: AnyArray, *, deviation: bool = False) -> Comparison:
    """Look at x and x - base, in one pass over all, the same on any machine.

    Args:
        x: float32 or float64; not empty.
        base: of its dtype and shape.
        deviation: whether to compute that.
    """
    how = DTYPE_IDS[x.dtype], deviation, False, threads_for(x.size), ""
    return Comparison(*_uniform.compare(octets(x), octets(base), *how)[:5])


class refusing_corrupt:  # noqa: N801 - no generator, as `fedsz.core.tensors.located`
    """Translates the native module's exception into `CorruptStream`."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, err: BaseException | None, __: object) -> None:
        if isinstance(err, _uniform.CorruptPayload):
            raise CorruptStream(f"uniform payload does not decode: {err}") from err


def matrix_shape(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Return how the codec sees an array: rows, columns, and the kernel's size and width.

    Rows are the outermost dimension, columns all others. A convolution's weights [O, I, ...] have
    a kernel in the dimensions from the third on; its width is the last.
    """
    if len(shape) < 2:
        return 1, math.prod(shape), 1, 1
    kernel = shape[2:]
    planes = math.prod(kernel)
    if not 4 <= planes <= 255:
        planes, kernel = 1, ()
    return shape[0], math.prod(shape[1:]), planes, kernel[-1] if kernel else 1
