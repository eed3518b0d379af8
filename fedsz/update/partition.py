"""Which tensors of a state_dict may be lossy (FedSZ, Algorithm 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fedsz.errors import ConfigError

if TYPE_CHECKING:
    from fedsz.arrays import NDArray

RULES: Final = ("paper", "ndim", "parameters")

# BatchNorm's statistics: an error that is small beside the largest variance can make the smallest
# one negative.
_STATISTICS: Final = ("running_mean", "running_var")


def is_lossy(name: str, x: NDArray, *, rule: str, threshold: int) -> bool:
    """Say whether the tensor ``x`` called ``name`` may be lossy.

    Only floating-point tensors with more than ``threshold`` elements may. Beyond that,
    ``rule="paper"`` asks for "weight" in the name (FedSZ, Algorithm 1), which makes wide BatchNorm
    scales lossy; ``rule="ndim"`` asks for two dimensions, whatever the name; ``rule="parameters"``
    takes all but BatchNorm's running statistics, biases too.
    """
    from fedsz.arrays import LOSSY_DTYPES  # numpy; options need none

    if x.dtype not in LOSSY_DTYPES or x.size <= threshold:
        return False
    if rule == "parameters":
        return not name.endswith(_STATISTICS)
    return "weight" in name if rule == "paper" else x.ndim >= 2


def check_rule(rule: str, threshold: int) -> None:
    """Raise `ConfigError` for a rule that does not exist, or a negative threshold."""
    if rule not in RULES:
        raise ConfigError(f"no partition rule {rule!r}; have {', '.join(RULES)}")
    if threshold < 0:
        raise ConfigError(f"threshold must be 0 or more elements, got {threshold}")
