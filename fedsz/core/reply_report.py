"""What a client says of a reply that it has compressed, beside its arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from fedsz.core.encode import Report
from fedsz.core.step import Arrival

# By attribute: its key beside the arrays, and the most that a client may say; what is above counts
# as that.
_SAID: Final = {
    "encode_seconds": ("encode-seconds", 3600.0),
    "max_error": ("max-error", 1.0),
    "tensors": ("tensors", 1e6),
    "lossy": ("lossy-tensors", 1e6),
    "kept": ("kept-energy", 1.0),
    "lag": ("lag", 1000.0),
    "moved": ("moved", 1.0),
}


@dataclass(frozen=True)
class ReplyReport:
    """What compressing a reply took, and how much of it arrives.

    Attributes:
        encode_seconds: it took.
        max_error: the largest error as a share of its bound, 0 to 1.
        tensors, lossy: how many there are, and how many of them are lossy.
        kept: the share of the update's energy that arrives; None where that is not known.
        lag: how many rounds the client is behind what it has trained, likewise.
        moved: 1 if training changed any tensor that may be lossy, 0 if not; likewise.
    """

    encode_seconds: float = 0.0
    max_error: float = 0.0
    tensors: float = 0
    lossy: float = 0
    kept: float | None = None
    lag: float | None = None
    moved: float | None = None

    @classmethod
    def of(cls, reports: list[Report], arrivals: list[Arrival], *, feeds_back: bool) -> Self:
        """Return it for a reply of several records; some may have nothing to compare with."""
        whole = sum(arrivals, Arrival())
        return cls(
            encode_seconds=sum(report.seconds for report in reports),
            max_error=max((report.max_error for report in reports), default=0.0),
            tensors=sum(report.tensors for report in reports),
            lossy=sum(report.lossy for report in reports),
            kept=whole.kept if arrivals else None,
            lag=whole.lag if arrivals and feeds_back else None,
            moved=float(whole.step > 0) if whole.tensors else None,
        )

    def written(self) -> dict[str, float]:
        """Return it as numbers, by their keys."""
        said = {key: getattr(self, name) for name, (key, _) in _SAID.items()}
        return {key: float(value) for key, value in said.items() if value is not None}

    @classmethod
    def read(cls, record: Mapping[str, Any] | None) -> Self:
        """Return what a client says, within limits; no number, or one below 0, is not said."""
        said = {}
        for name, (key, most) in _SAID.items():
            value = record.get(key) if record else None
            if isinstance(value, int | float) and value >= 0:
                said[name] = min(float(value), most)
        return cls(**said)
