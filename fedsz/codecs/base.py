"""What a codec is: a name, a byte for the wire, and two pure functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fedsz import extras
from fedsz.arrays import Buffer, add_scaled
from fedsz.errors import CodecError, CodecUnavailable
from fedsz.spec_strings import check_settings, spelled
from fedsz.spread import energy

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = npt.NDArray[np.float32]
AnyArray = npt.NDArray[Any]  # of a codec's `dtypes`
FLOAT32: Final = np.dtype(np.float32)


class Encoded(NamedTuple):
    """A payload and the largest error it makes, measured on what it decodes to."""

    payload: bytes
    max_error: float


class EncodedUpdate(NamedTuple):
    """What `Encoded` holds, and the sum of squares of what the payload leaves out."""

    payload: bytes
    max_error: float
    left: float


class Residual(NamedTuple):
    """What earlier rounds have left out of an array: ``weight`` times ``x`` is added to it."""

    x: AnyArray
    weight: float

    def added_to(self, x: AnyArray) -> AnyArray:
        """Return an array with it, in float64 for float64 and in float32 for others."""
        meant = self.x.astype(np.result_type(x.dtype, FLOAT32))
        meant *= meant.dtype.type(self.weight)
        meant += x
        return meant


class Opened(Protocol):
    """An array that has been decoded as far as that can fail.

    Attributes:
        energy: the sum of its squares, as `fedsz.spread.energy`; of its difference from a base, if
            it was opened with one.
    """

    @property
    def energy(self) -> float:
        """See above."""

    def add(self, sums: AnyArray, weight: float) -> None:
        """Add ``weight`` times the array to ``sums``.

        Computes in the dtype of the sums: each product is rounded, then each sum.

        Args:
            sums: of its shape; of a codec's array, float64 for float64, else float32;
                C-contiguous, aligned and writeable.
            weight: finite.
        """


class OpenedArray:
    """An array that is there as it is."""

    def __init__(self, x: AnyArray, base: AnyArray | None = None) -> None:
        self._x, self.energy = x, energy(x, base)

    def add(self, sums: AnyArray, weight: float) -> None:
        """Do as `Opened.add`."""
        add_scaled(self._x, weight, sums)


@dataclass(frozen=True)
class Codec(ABC):
    """Compress an array so that no element moves by more than a bound.

    A codec keeps no state between calls, opens no files and logs nothing. Its settings are the
    fields of the frozen dataclass; what a decoder needs of them is in the payload.

    Attributes:
        name: what users write.
        wire_id: one byte in the stream, given once and never reused (docs/format.md).
        lossy: whether elements may move at all.
        dtypes: those it takes, float32 first.
        library: the Python package it needs, "" for none.
    """

    name: ClassVar[str]
    wire_id: ClassVar[int]
    lossy: ClassVar[bool]
    dtypes: ClassVar[tuple[np.dtype, ...]] = (FLOAT32,)
    library: ClassVar[str] = ""
    wheels: ClassVar[str] = ""  # where the library can be had, when that is not everywhere

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting out of its range."""
        check_settings(self)

    def __str__(self) -> str:
        """Return the codec as users write it: its name, and the settings that are not defaults."""
        return spelled(self)

    @property
    def keeps_bound(self) -> bool:
        """Whether the bound steers the codec; if not, its error is only measured."""
        return True

    @abstractmethod
    def encode_measured(self, x: AnyArray, bound: float) -> Encoded:
        """Return the payload of ``x`` and its largest error.

        Args:
            x: of one of `dtypes`, any shape. NaN and infinities come back exactly.
            bound: the absolute error allowed, in the unit of ``x``, 0 or more.

        Raises:
            CodecError: ``x`` is of another dtype, or ``bound`` is negative or NaN.
        """

    @abstractmethod
    def decode(self, payload: Buffer, shape: Sequence[int]) -> Array:
        """Return the float32 array of ``shape`` that ``payload`` holds.

        Raises:
            CorruptStream: ``payload`` is not what this codec writes for that many elements.
        """

    def decode_as(
        self,
        payload: Buffer,
        shape: Sequence[int],
        dtype: np.dtype,  # noqa: ARG002
    ) -> AnyArray:
        """Return the array of ``shape`` and ``dtype``, one of `dtypes`; raises as `decode` does."""
        return self.decode(payload, shape)

    def encode_difference(self, x: AnyArray, base: AnyArray, bound: float) -> Encoded:
        """Return what `encode_measured` does for x - base, both of one dtype and shape.

        The difference is rounded to that dtype, and the bound is the difference's.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return self.encode_measured(np.asarray(np.subtract(x, base)), bound)

    def decode_onto(self, payload: Buffer, base: AnyArray) -> AnyArray:
        """Return base + the array of its dtype and shape that ``payload`` holds, in that dtype.

        Raises:
            CorruptStream: as `decode`.
        """
        y = self.decode_as(payload, base.shape, base.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.add(base, y))

    def open(
        self, payload: Buffer, shape: Sequence[int], dtype: np.dtype, base: AnyArray | None = None
    ) -> Opened:
        """Decode a payload as far as it can fail, to be looked at and then added to sums.

        Args:
            payload: kept as it is.
            shape: of the array that it holds.
            dtype: of that, one of `dtypes`.
            base: an array of those, if the energy of the difference from it is asked for.

        Raises:
            CorruptStream: as `decode`.
        """
        return OpenedArray(self.decode_as(payload, shape, dtype), base)

    def accumulate(
        self, payload: Buffer, sums: AnyArray, weight: float, dtype: np.dtype = FLOAT32
    ) -> None:
        """Add ``weight`` times the array of ``dtype`` that ``payload`` holds to ``sums``.

        See `Opened.add` for the arguments.

        Raises:
            CorruptStream: as in `decode`; no sum has changed.
        """
        self.open(payload, sums.shape, dtype).add(sums, weight)

    def encode(self, x: AnyArray, bound: float) -> bytes:
        """Return the payload of ``x``; see `encode_measured` for the arguments."""
        return self.encode_measured(x, bound).payload

    def missing(self) -> str | None:
        """Say in a line why this codec cannot be used here; None if it can."""
        why = extras.missing(self.library) if self.library else None
        if why is None:
            return None
        where = f" (wheels: {self.wheels})" if self.wheels else ""
        return f"codec {self.name!r} {why}{where}"

    def require(self) -> None:
        """Raise `CodecUnavailable` if this codec cannot be used here."""
        if reason := self.missing():
            raise CodecUnavailable(reason)


def check_input(x: AnyArray, bound: float, dtypes: Sequence[np.dtype] = (FLOAT32,)) -> None:
    """Raise `CodecError` for an array of another dtype, or a bound that is negative or NaN."""
    if x.dtype not in dtypes:
        have = ", ".join(dtype.name for dtype in dtypes)
        raise CodecError(f"an array of dtype {x.dtype}; this codec takes {have}")
    if not bound >= 0:
        raise CodecError(f"an absolute bound must be 0 or more, got {bound}")


def flat(x: AnyArray) -> AnyArray:
    """Return the elements of ``x`` in order, contiguous and aligned, as C++ wants them.

    Without a copy if they lie like that already.
    """
    x = np.ascontiguousarray(x)
    return (x if x.flags.aligned else x.copy()).reshape(-1)
