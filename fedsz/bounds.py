"""How much error is allowed: a rule the user states, and the bound it means for a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fedsz.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

KINDS: Final = ("rel", "abs", "std", "step")

ALL: Final = math.nextafter(1.0, 0.0)  # the largest relative bound


@dataclass(frozen=True)
class ErrorBound:
    """The largest error an element may take, as a rule that holds for every tensor.

    Make one with `rel`, `abs`, `std` or `step`; a plain float given to fedsz means `rel`.

    Attributes:
        kind: "rel", "abs", "std" or "step".
        value: in the tensor's unit for "abs"; for all others a multiple of what they are named for.

    Raises:
        ConfigError: the value is not finite or not above 0, or is 1 or more for `rel`.

    Examples:
        >>> import fedsz, numpy as np
        >>> fedsz.ErrorBound.of("abs:1e-3") == fedsz.ErrorBound.abs(1e-3)
        True
        >>> fedsz.ErrorBound.rel(0.25).absolute(np.array([0.0, 2.0, 8.0]))
        2.0
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
    def step(cls, value: float) -> ErrorBound:
        """Bound errors by ``value`` x the root mean square of the whole update.

        Of all lossy tensors' differences together, see `fedsz.core.reference.bounds_of_step`; so it
        is only for what is sent as differences.
        """
        return cls("step", float(value))

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
                "range), abs:1e-3, std:0.1 or step:1"
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
            finite values, one whose range overflows float64, or a bound of kind ``step``, which
            one tensor alone does not have.
        """
        from fedsz.spread import standard_deviation, value_range  # numpy; options need none

        if self.kind == "step":
            return 0.0
        if self.kind == "abs":
            return self.value if x.size else 0.0
        return self.absolute_of(value_range(x) if self.kind == "rel" else standard_deviation(x))

    def absolute_of(self, spread: float) -> float:
        """Return what `absolute` does for a tensor that is not empty and has this spread.

        That is its range for ``rel``, its standard deviation for ``std``.
        """
        bound = self.value if self.kind == "abs" else self.value * spread
        return bound if math.isfinite(bound) else 0.0

    def __str__(self) -> str:
        """Return it as users write it; `of` reads exactly this bound back."""
        short = f"{self.value:g}"
        number = short if float(short) == self.value else repr(self.value)
        return number if self.kind == "rel" else f"{self.kind}:{number}"
