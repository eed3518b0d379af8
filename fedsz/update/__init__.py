"""What of a model is sent: its weights, or how they differ from a model that both sides hold."""

from typing import Final

from fedsz.errors import ConfigError
from fedsz.update.reference import Reference

WEIGHTS: Final = "weights"
DELTA: Final = "delta"
UPDATES: Final = (WEIGHTS, DELTA)

__all__ = ["DELTA", "UPDATES", "WEIGHTS", "Reference", "check_update"]


def check_update(update: str) -> None:
    """Refuse a way of updating that does not exist.

    Raises:
        ConfigError: naming those that do.
    """
    if update not in UPDATES:
        raise ConfigError(f"no update {update!r}; have {', '.join(UPDATES)}")
