"""What there is to say of an option of a run, beside its name, type and default."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Final

from fedsz.errors import ConfigError

# Panels of --help, in its order.
LEARNED: Final = "Task and data"
LEARNING: Final = "Training"
COMPRESSION: Final = "Compression"
PRIVACY: Final = "Differential privacy"
TRUST: Final = "Admission of replies"
TRAVEL: Final = "Network"
RESULTS: Final = "Results"
WATCHING: Final = "Monitoring"

# Commands that take options of a run.
RUN, SERVER, CLIENT, SWEEP, PAPER = "run", "server", "client", "sweep", "paper"
COMPRESS, BENCH, ADVISE = "compress", "bench", "advise"
ALONE: Final = (RUN, SERVER)  # a sweep has many of these
SHARED: Final = (RUN, SERVER, SWEEP)
TRAINING: Final = (*SHARED, PAPER)
TENSORS: Final = (*SHARED, PAPER, COMPRESS, BENCH, ADVISE)
LINK: Final = (SERVER, CLIENT)


@dataclass(frozen=True)
class Option:
    """All of an option besides its name, type and default.

    ``defines_run``: runs that differ in it are different runs to a sweep; so are those that differ
    in an axis of the sweep, which is not among these.
    """

    says: str  # its description, which --help shows
    panel: str  # of --help
    commands: tuple[str, ...]  # that take it
    alone: str = ""  # its value if a flag names it without one; "" if it needs one
    low: float = -math.inf  # its range, both ends included
    high: float = math.inf
    sent: bool = False  # whether the server tells it to clients each round
    defines_run: bool = False


def option(default: Any, says: str, panel: str, commands: tuple[str, ...], **more: Any) -> Any:
    """Return a field with what `Option` says of it."""
    about = Option(says, panel, commands, **more)
    return dataclasses.field(default=default, metadata={"option": about})


def typed(name: str, value: Any, kind: Any) -> Any:
    """Return ``value`` as its option's type; whole numbers will do where others are asked for."""
    if kind == float | str:
        if isinstance(value, bool) or not isinstance(value, float | int | str):
            raise ConfigError(f"{name} must be a number or text in quotes, got {value!r}")
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        kinds = {bool: "true or false", int: "a whole number", float: "a finite number"}
        raise ConfigError(f"{name} must be {kinds.get(kind, 'text in quotes')}, got {value!r}")
    return value
