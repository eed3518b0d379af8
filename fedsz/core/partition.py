"""Which tensors of a state_dict may be lossy."""

from __future__ import annotations

from functools import cache
from numbers import Integral
from typing import TYPE_CHECKING, Final

from fedsz.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from fedsz.arrays import NDArray

SHAPE, PAPER, NDIM, PARAMETERS = "shape", "paper", "ndim", "parameters"
RULES: Final = (SHAPE, PAPER, NDIM, PARAMETERS)

# BatchNorm's statistics, as torch, Keras and Flax call them: an error that is small beside the
# largest variance can make the smallest one negative.
_STATISTICS: Final = ("running_mean", "running_var", "moving_mean", "moving_variance")
_STATISTICS_OF_FLAX: Final = "batch_stats"


def is_lossy(name: str, x: NDArray, *, rule: str, threshold: int) -> bool:
    """Say whether the tensor ``x`` called ``name`` may be lossy.

    Only floating-point tensors with more than ``threshold`` elements may. Beyond that,

    - ``rule="shape"`` takes all but BatchNorm's running statistics, whatever their names. A vector
      whose name is a number, as in a list of arrays, could be such statistics and stays exact;
    - ``rule="parameters"`` is the same but for such vectors, which it takes;
    - ``rule="ndim"`` asks for two dimensions;
    - ``rule="paper"`` asks for "weight" in the name (FedSZ, Algorithm 1), which makes wide
      BatchNorm scales lossy, and leaves all of a list of arrays lossless.
    """
    if x.size <= threshold or x.dtype not in _lossy_dtypes():
        return False
    if rule == PAPER:
        return "weight" in name
    if rule == NDIM:
        return x.ndim >= 2
    if name.endswith(_STATISTICS) or _STATISTICS_OF_FLAX in name:
        return False
    return rule == PARAMETERS or x.ndim >= 2 or not name.isdecimal()


@cache
def _lossy_dtypes() -> frozenset[np.dtype]:
    from fedsz.arrays import LOSSY_DTYPES  # numpy; options need none

    return LOSSY_DTYPES


def check_rule(rule: str, threshold: int) -> None:
    """Raise `ConfigError` for a rule that does not exist, or no number of elements."""
    if rule not in RULES:
        raise ConfigError(f"no partition rule {rule!r}; have {', '.join(RULES)}")
    if not isinstance(threshold, Integral) or threshold < 0:
        raise ConfigError(f"threshold must be 0 or more elements, got {threshold!r}")
