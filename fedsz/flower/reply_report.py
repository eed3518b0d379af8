"""What a client says of a reply that it has compressed: a ConfigRecord beside its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from flwr.app import ConfigRecord

from fedsz.update.compress import Report
from fedsz.update.step import Arrival

# By attribute, the key of a ConfigRecord.
_KEYS: Final = {
    "encode_seconds": "encode-seconds",
    "max_error": "max-error",
    "tensors": "tensors",
    "lossy": "lossy-tensors",
    "kept": "kept-energy",
    "lag": "lag",
    "moved": "moved",
}

# What a client may say at most; what is above counts as that.
_MOST: Final = {
    "encode_seconds": 3600.0,
    "max_error": 1.0,
    "tensors": 1e6,
    "lossy": 1e6,
    "kept": 1.0,
    "lag": 1000.0,
    "moved": 1.0,
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

    def record(self) -> ConfigRecord:
        """Return the record that carries it."""
        said = {key: getattr(self, name) for name, key in _KEYS.items()}
        return ConfigRecord({key: float(value) for key, value in said.items() if value is not None})

    @classmethod
    def read(cls, record: ConfigRecord | None) -> Self:
        """Return what a client says, within limits; no number, or one below 0, is not said."""
        said = {name: record.get(key) for name, key in _KEYS.items()} if record else {}
        return cls(
            **{
                name: min(float(value), _MOST[name])
                for name, value in said.items()
                if isinstance(value, int | float) and value >= 0
            }
        )
