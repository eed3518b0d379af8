"""What a broadcast leaves to the next, in this process or in another: its steps, and its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from fedsz.arrays import NDArray
from fedsz.core.grid import Grid
from fedsz.shelf import Parked, Shelf

# Bytes of a stream that waits on disk between rounds: it is read again for few clients, or none.
PARKED_FROM: Final = 1 << 20


class BroadcastState(NamedTuple):
    """What the next broadcast depends on, for `Broadcast.restore` in another process.

    Attributes:
        told: the digests of models and histories, by what they are of.
        streams: those of the steps.
        grids: the steps of the lattice: a row for each step, a column for each tensor, float64.
        model: what clients hold.
        residual: what the last broadcast has left out, by tensor.
        histories: their arrays.
        anchor: the model from which staggered lattices parted; empty if they have not.
    """

    told: Mapping[str, Any]
    streams: Sequence[bytes]
    grids: NDArray
    model: Mapping[str, NDArray]
    residual: Mapping[str, NDArray]
    histories: Sequence[Mapping[str, NDArray]]
    anchor: Mapping[str, NDArray] = {}


@dataclass(frozen=True)
class Step:
    """A stream, the digest of the model that its receiver then holds, and the steps to there."""

    stream: bytes | Parked
    digest: bytes
    grid: Grid = field(default_factory=dict)

    def parked(self) -> Step:
        """Return the same with a large stream on disk, if there is room."""
        if isinstance(self.stream, Parked) or len(self.stream) < PARKED_FROM:
            return self
        return replace(self, stream=Shelf().put("a broadcast", self.stream) or self.stream)
