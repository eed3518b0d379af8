"""What all encoders of a state_dict have, be it a codec within a bound or a chain of methods."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

from fedsz.arrays import NDArray
from fedsz.core.lossless import Entry
from fedsz.core.reference import Reference
from fedsz.core.step import Arrival
from fedsz.stream import Chain, Part


class Encoder(ABC):
    """What codes the tensors of one state_dict that may be lossy.

    Args:
        misfits: by tensor, why what was kept of it is not used.

    Attributes:
        misfits: likewise.
        records: of the chains that payloads have been coded by.
        max_error: the largest error so far, as a share of its tensor's bound; 0 without bounds.
        arrived: how much of an update does, if what it was made of is known.
        steps: by tensor that may be lossy, the sum of squares of its step then; not finite where
            the step is not.
    """

    def __init__(self, misfits: Mapping[str, str] = MappingProxyType({})) -> None:
        self.misfits = dict(misfits)
        self.records: list[Chain] = []
        self.max_error = 0.0
        self.arrived = Arrival()
        self.steps: dict[str, float] = {}

    @abstractmethod
    def encode(self, entry: Entry, reference: Reference | None) -> Part | None:
        """Code a tensor; None where it has to stay lossless.

        Raises:
            ConfigError: the reference lacks it.
        """

    def exact(self, entry: Entry) -> Entry:
        """Return what is to be sent of a tensor that stays lossless: the tensor."""
        return entry

    def _measure(self, entry: Entry, base: NDArray, meant: NDArray, decoded: NDArray) -> None:
        """Note how much of a tensor arrives, see `Arrival.of`."""
        arrived = Arrival.of(entry.x, base, meant, decoded)
        self.steps[entry.name] = arrived.step
        if entry.x.size and math.isfinite(arrived.step):
            self.arrived += arrived


def hardly_saves(payload: bytes, x: NDArray) -> bool:
    """Say whether a payload is so large that its tensor had better stay lossless."""
    return 10 * len(payload) > 9 * x.nbytes
