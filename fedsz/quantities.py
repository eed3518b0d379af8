"""Numbers with a unit, as people write them."""

from __future__ import annotations

import re
from typing import Final

from fedsz.errors import ConfigError

BITS: Final = {"bps": 1.0, "kbps": 1e3, "mbps": 1e6, "gbps": 1e9}
SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def bandwidth(text: str) -> float:
    """Read a bandwidth such as ``10mbps``, ``1.5 Gbps`` or ``64kbps``, in bits a second.

    Raises:
        ConfigError: it is none.
    """
    return _quantity(text, BITS, "bandwidth", "10mbps")


def latency(text: str) -> float:
    """Read a time such as ``50ms`` or ``0.2s``, in seconds.

    Raises:
        ConfigError: it is none.
    """
    return _quantity(text, SECONDS, "latency", "50ms")


def _quantity(text: str, units: dict[str, float], what: str, example: str) -> float:
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]+)\s*", text.lower())
    number, unit = match.groups() if match else ("", "")
    try:
        return float(number) * units[unit]
    except (KeyError, ValueError):
        have = ", ".join(units)
        raise ConfigError(f"{text!r} is no {what}; write {example}, in {have}") from None
