"""What a codec is: a name, a byte for the wire, and two pure functions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fedsz import extras
from fedsz.arrays import Buffer, add_scaled
from fedsz.codecs.spread import energy
from fedsz.errors import CodecError, CodecUnavailable
from fedsz.spec_strings import check_settings, spelled

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = npt.NDArray[np.float32]
AnyArray = npt.NDArray[Any]  # of a codec's `dtypes`
FLOAT32: Final = np.dtype(np.float32)


class Encoded(NamedTuple):
    """A payload and the largest error it makes, measured on what it decodes to."""

    payload: bytes
    max_error: float


class Opened(Protocol):
    """An array that has been decoded as far as that can fail.

    Attributes:
        energy: the sum of its squares, as `fedsz.codecs.spread.energy`; of its difference from a
            base, if it was opened with one.
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
    """An array ``x`` that is there as it is."""

    def __init__(self, x: AnyArray, base: AnyArray | None = None) -> None:
        self.x, self.energy = x, energy(x, base)

    def add(self, sums: AnyArray, weight: float) -> None:
        """Do as `Opened.add`."""
        add_scaled(self.x, weight, sums)


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

    def encode(self, x: AnyArray, bound: float, base: AnyArray | None = None) -> bytes:
        """Return the payload of ``x``; see `encode_measured` for the arguments."""
        return self.encode_measured(x, bound, base).payload

    @abstractmethod
    def encode_measured(self, x: AnyArray, bound: float, base: AnyArray | None = None) -> Encoded:
        """Return the payload of ``x`` and its largest error.

        Args:
            x: of one of `dtypes`, any shape. NaN and infinities come back exactly.
            bound: the absolute error allowed, in the unit of ``x``, 0 or more.
            base: of its dtype and shape. With it, what is coded is x - base, rounded to that dtype,
                and the bound is the difference's.

        Raises:
            CodecError: ``x`` or ``base`` is another one, or ``bound`` is negative or NaN.
        """

    @abstractmethod
    def decode(
        self,
        payload: Buffer,
        shape: Sequence[int],
        dtype: np.dtype = FLOAT32,
        base: AnyArray | None = None,
    ) -> AnyArray:
        """Return the array that ``payload`` holds.

        Args:
            payload: kept as it is.
            shape: of the array.
            dtype: of the array, one of `dtypes`.
            base: of these. With it, the sum of both is returned, rounded to that dtype.

        Raises:
            CorruptStream: ``payload`` is not what this codec writes for that many elements.
        """

    def open(
        self,
        payload: Buffer,
        shape: Sequence[int],
        dtype: np.dtype = FLOAT32,
        base: AnyArray | None = None,
    ) -> Opened:
        """Decode a payload as far as it can fail, to be looked at and then added to sums.

        Takes and raises what `decode` does; with a ``base``, the energy is that of the difference
        from it, and it is not added.
        """
        return OpenedArray(self.decode(payload, shape, dtype), base)

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


class Float32Codec(Codec):
    """A codec of float32 arrays; a subclass writes `write` and `read`, for arrays alone."""

    @abstractmethod
    def write(self, x: Array, bound: float) -> Encoded:
        """Return the payload of ``x``, of any shape, and its largest error."""

    @abstractmethod
    def read(self, payload: Buffer, n: int) -> Array:
        """Return the ``n`` elements of a payload, or raise `CorruptStream`."""

    def encode_measured(  # noqa: D102
        self, x: AnyArray, bound: float, base: AnyArray | None = None
    ) -> Encoded:
        check_input(x, bound, base, self.dtypes)
        if base is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                x = np.asarray(np.subtract(x, base))
        return self.write(x, bound)

    def decode(  # noqa: D102
        self,
        payload: Buffer,
        shape: Sequence[int],
        dtype: np.dtype = FLOAT32,  # noqa: ARG002
        base: AnyArray | None = None,
    ) -> AnyArray:
        y = self.read(payload, math.prod(shape)).reshape(shape)
        with np.errstate(over="ignore", invalid="ignore"):
            return y if base is None else np.asarray(np.add(base, y))


def check_input(
    x: AnyArray, bound: float, base: AnyArray | None, dtypes: Sequence[np.dtype]
) -> None:
    """Raise `CodecError` for what `Codec.encode_measured` does not take."""
    if x.dtype not in dtypes:
        have = ", ".join(dtype.name for dtype in dtypes)
        raise CodecError(f"an array of dtype {x.dtype}; this codec takes {have}")
    if not bound >= 0:
        raise CodecError(f"an absolute bound must be 0 or more, got {bound}")
    if base is not None and (base.dtype, base.shape) != (x.dtype, x.shape):
        raise CodecError(f"{x.dtype} {x.shape} as a difference from {base.dtype} {base.shape}")
