"""How a state_dict is compressed: codecs, error bounds, and which tensors they are for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fedsz.bounds import ErrorBound
from fedsz.errors import ConfigError
from fedsz.update.partition import check_rule

if TYPE_CHECKING:
    from fedsz.codecs import Codec, LosslessCodec

WEIGHTS: Final = "weights"
DELTA: Final = "delta"
DELTA_EF: Final = "delta+ef"  # with error feedback
DEFAULT_UPDATE: Final = DELTA
UPDATES: Final = (WEIGHTS, DELTA, DELTA_EF)

EXACT: Final = "exact"  # a broadcast without any error

DEFAULT_CODEC: Final = "uniform"
DEFAULT_LOSSLESS: Final = "blosclz"
DEFAULT_ERROR_BOUND: Final = 1e-2
DEFAULT_THRESHOLD: Final = 1024


@dataclass(frozen=True)
class Settings:
    """How a state_dict is compressed; the arguments of `compress`, checked.

    Attributes:
        factors: by the names of tensors, what to multiply their bounds with; 1 for all others.
        bounds: by the names of tensors, absolute bounds that take the place of the rule's.

    Raises:
        ConfigError: one of them is out of range or does not exist.
        CodecUnavailable: a codec's library is not installed here.
    """

    error_bound: ErrorBound | float | str = DEFAULT_ERROR_BOUND
    codec: str | Codec = DEFAULT_CODEC
    lossless: str | Codec = DEFAULT_LOSSLESS
    threshold: int = DEFAULT_THRESHOLD
    rule: str = "paper"
    factors: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)

    bound: ErrorBound = field(init=False)
    lossy_codec: Codec = field(init=False)
    lossless_codec: LosslessCodec = field(init=False)

    def __post_init__(self) -> None:
        from fedsz import codecs  # numpy and native libraries; options need none

        check_rule(self.rule, self.threshold)
        codec = codecs.get(self.codec) if isinstance(self.codec, str) else self.codec
        for name, factor in self.factors.items():
            if not 0 < factor < math.inf:
                raise ConfigError(f"the factor of {name!r} must be above 0, got {factor}")
        object.__setattr__(self, "bound", ErrorBound.of(self.error_bound))
        object.__setattr__(self, "lossy_codec", codec)
        object.__setattr__(self, "lossless_codec", codecs.get_lossless(self.lossless))

    def bound_of(self, name: str) -> ErrorBound:
        """Return the rule for a tensor.

        Raises:
            ConfigError: its bound is not finite or not above 0.
        """
        if name in self.bounds:
            return ErrorBound.abs(self.bounds[name])
        return self.bound.scaled(self.factors.get(name, 1.0))


def check_update(update: str) -> None:
    """Refuse a way of updating that does not exist.

    Raises:
        ConfigError: naming those that do.
    """
    if update not in UPDATES:
        raise ConfigError(f"no update {update!r}; have {', '.join(UPDATES)}")
