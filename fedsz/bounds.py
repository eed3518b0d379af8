"""How much error is allowed: a rule the user states, and the bound it means for a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fedsz.errors import ConfigError

KINDS: Final = ("rel", "abs", "std")

ALL: Final = math.nextafter(1.0, 0.0)  # the largest relative bound

CHUNK: Final = 1 << 17  # elements looked at a time: 1 MB in float64, which a cache holds


@dataclass(frozen=True)
class ErrorBound:
    """The largest error an element may take, as a rule that holds for every tensor.

    Make one with `rel`, `abs` or `std`; a plain float given to fedsz means `rel`.

    Raises:
        ConfigError: the value is not finite or not above 0, or is 1 or more for `rel`.
    """

    kind: str
    value: float

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"no error bound kind {self.kind!r}; have {', '.join(KINDS)}")
        if not (math.isfinite(self.value) and self.value > 0):
            raise ConfigError(f"an error bound must be finite and above 0, got {self.value}")
        if self.kind == "rel" and self.value >= 1:
            raise ConfigError(f"a relative error bound must lie in (0, 1), got {self.value}")

    @classmethod
    def rel(cls, value: float) -> ErrorBound:
        """Bound errors by ``value`` x (max - min) of each tensor, as SZ's REL mode does."""
        return cls("rel", float(value))

    @classmethod
    def abs(cls, value: float) -> ErrorBound:
        """Bound errors by ``value`` itself, in the unit of the tensor."""
        return cls("abs", float(value))

    @classmethod
    def std(cls, value: float) -> ErrorBound:
        """Bound errors by ``value`` x the standard deviation of each tensor."""
        return cls("std", float(value))

    @classmethod
    def of(cls, given: ErrorBound | float | str) -> ErrorBound:
        """Read what a user wrote: an `ErrorBound`, ``0.01``, ``"1e-2"``, ``"abs:1e-3"``.

        Raises:
            ConfigError: it is none of these, or out of range.
        """
        if isinstance(given, ErrorBound):
            return given
        kind, _, number = given.rpartition(":") if isinstance(given, str) else ("rel", "", given)
        try:
            value = float(number)
        except (TypeError, ValueError):
            raise ConfigError(
                f"{given!r} is no error bound; write a number such as 1e-2 (of each tensor's "
                "range), abs:1e-3 or std:0.1"
            ) from None
        return cls(kind or "rel", value)

    def scaled(self, factor: float) -> ErrorBound:
        """Return this rule with ``factor`` times the bound; below 1 for ``rel``.

        Raises:
            ConfigError: the factor is not finite or not above 0.
        """
        value = self.value * factor
        return ErrorBound(self.kind, min(value, ALL) if self.kind == "rel" else value)

    def absolute(self, x: npt.NDArray[np.floating]) -> float:
        """Return the bound that this rule means for ``x``, in the unit of ``x``.

        Args:
            x: of any floating dtype and shape. NaN and infinities are left out of the statistics.

        Returns:
            The absolute bound. 0 where nothing may move: an empty or constant ``x``, one without
            finite values, or one whose range overflows float64.
        """
        if self.kind == "abs":
            return self.value if x.size else 0.0
        return self.absolute_of(value_range(x) if self.kind == "rel" else standard_deviation(x))

    def absolute_of(self, spread: float) -> float:
        """Return what `absolute` does for a tensor that is not empty and has this spread.

        Args:
            spread: its range for ``rel``, its standard deviation for ``std``.
        """
        bound = self.value if self.kind == "abs" else self.value * spread
        return bound if math.isfinite(bound) else 0.0

    def __str__(self) -> str:
        """Return it as users write it; `of` reads exactly this bound back."""
        short = f"{self.value:g}"
        number = short if float(short) == self.value else repr(self.value)
        return number if self.kind == "rel" else f"{self.kind}:{number}"


def value_range(x: npt.NDArray[Any]) -> float:
    """Return max - min of the finite elements, in float64; 0 if there are none."""
    low, high = math.inf, -math.inf
    with np.errstate(invalid="ignore"):  # NaNs that signal, when they are converted
        for part in _chunks(x):
            least, greatest = _extremes(part)
            if not math.isfinite(least - greatest):  # of a NaN, too
                finite = part[np.isfinite(part)]
                if not finite.size:
                    continue
                least, greatest = _extremes(finite)
            low, high = min(low, least), max(high, greatest)
    return high - low if low <= high else 0.0


def _extremes(x: npt.NDArray[Any]) -> tuple[float, float]:
    """Return the least and the greatest element of a flat array, or a NaN if there is one."""
    if x.dtype.itemsize != 2:
        return float(x.min()), float(x.max())
    # As integers of the same order, among which numpy finds them ten times as fast.
    keys = _sign_flipped(x.view(np.int16))
    ends = _sign_flipped(np.array([keys.min(), keys.max()]))
    least, greatest = ends.view(x.dtype).astype(np.float64).tolist()
    return least, greatest


def _sign_flipped(bits: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Turn floats' bits into integers of the same order, and back: NaNs come first and last."""
    return bits ^ ((bits >> 15) & 0x7FFF)


def standard_deviation(x: npt.NDArray[Any]) -> float:
    """Return the standard deviation of the finite elements, in float64; 0 if there are none."""
    with np.errstate(over="ignore", invalid="ignore"):  # the caller sees it in the result
        count, total = 0, 0.0
        for part in _finite_doubles(x):
            count += part.size
            total += float(part.sum())
        mean = total / count if count else 0.0
        squares = 0.0
        for part in _finite_doubles(x):
            part -= mean
            part *= part
            squares += float(part.sum())
    return math.sqrt(squares / count) if count else 0.0


def _finite_doubles(x: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.float64]]:
    """Yield copies of the finite elements of ``x``, a chunk at a time."""
    for part in _chunks(x):
        doubles = part.astype(np.float64)
        yield doubles if np.isfinite(doubles).all() else doubles[np.isfinite(doubles)]


def _chunks(x: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    flat = x.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        yield flat[start : start + CHUNK]


def half_ulp(largest: float, dtype: np.dtype) -> float:
    """Return half the distance between the values of a floating ``dtype`` around ``largest``.

    It is the most that rounding a value of at most that magnitude can change it.
    """
    about = finfo(dtype)
    lowest = int(about.minexp)
    exponent = math.frexp(largest)[1] - 1 if largest else lowest  # largest in 2^exponent x [1, 2)
    return math.ldexp(0.5, max(exponent, lowest) - int(about.nmant))


def finfo(dtype: np.dtype) -> Any:
    """Return numpy's `finfo`, for bfloat16 too."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
