"""What of a model is sent: its weights, or how they differ from a model that both sides hold."""

from typing import Final

from fedsz.errors import ConfigError
from fedsz.update.reference import Reference

WEIGHTS: Final = "weights"
DELTA: Final = "delta"
DELTA_EF: Final = "delta+ef"  # with error feedback
DEFAULT_UPDATE: Final = DELTA
UPDATES: Final = (WEIGHTS, DELTA, DELTA_EF)

EXACT: Final = "exact"  # a broadcast without any error

__all__ = [
    "DEFAULT_UPDATE",
    "DELTA",
    "DELTA_EF",
    "EXACT",
    "UPDATES",
    "WEIGHTS",
    "Reference",
    "check_update",
]


def check_update(update: str) -> None:
    """Refuse a way of updating that does not exist.

    Raises:
        ConfigError: naming those that do.
    """
    if update not in UPDATES:
        raise ConfigError(f"no update {update!r}; have {', '.join(UPDATES)}")
