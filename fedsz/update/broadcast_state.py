"""What a broadcast leaves to the next, in this process or in another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedsz.arrays import NDArray


class BroadcastState(NamedTuple):
    """What the next broadcast depends on, for `Broadcast.restore` in another process.

    Attributes:
        told: the digests of models and histories, by what they are of.
        streams: those of the steps.
        grids: the steps of the lattice: a row for each step, a column for each tensor, float64.
        model: what clients hold.
        residual: what the last broadcast has left out, by tensor.
        histories: their arrays.
    """

    told: Mapping[str, Any]
    streams: Sequence[bytes]
    grids: NDArray
    model: Mapping[str, NDArray]
    residual: Mapping[str, NDArray]
    histories: Sequence[Mapping[str, NDArray]]
