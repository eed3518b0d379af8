"""FetchSGD's server: momentum and error feedback of a sum of sketches, in the sketch itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods.base import VALUES, Shared, Sparse
from fedsz.methods.combinators import Transform, parts_of
from fedsz.methods.settings import Count
from fedsz.methods.sketch import Sketch
from fedsz.methods.top_k import largest
from fedsz.spec_strings import NO_SETTING, check_settings, setting

VELOCITY, ERROR = "velocity", "error"


@dataclass
class SketchedFeedback:
    """FetchSGD (Rothchild et al. 2020, algorithm 1), whose clients keep nothing.

    With S the mean sketch of a round, u the velocity and e the error, both sketches:

        u = momentum u + S;  e = e + u;  apply the k largest medians of e;  e = e - sketch(applied)

    The learning rate of the source is that of the clients.

    Attributes:
        k: elements of a tensor that are applied in a round.
        momentum: of the mean sketches, 0 to below 1.
        state: by tensor, velocity and error; arrays, to be kept and given to another.

    Raises:
        ConfigError: the momentum is out of range.
    """

    name: ClassVar[str] = "fetchsgd"

    k: Count = Count("1%")
    momentum: float = setting(0.0, 0, 1, below=True)
    state: dict[str, dict[str, NDArray]] = field(default_factory=dict, metadata=NO_SETTING)

    def __post_init__(self) -> None:
        check_settings(self)

    def step(self, mean: NDArray, sketch: Sketch, shared: Shared) -> Sparse:
        """Return what to add to a tensor, given the mean of its sketches, flat.

        Nothing, and all is forgotten, where an estimate is not finite.
        """
        spec, nothing = shared.spec, {VELOCITY: np.zeros_like(mean), ERROR: np.zeros_like(mean)}
        before = self.state.get(spec.name, nothing)
        if before[ERROR].shape != mean.shape:  # of another model
            before = nothing
        with np.errstate(over="ignore", invalid="ignore"):
            velocity = before[VELOCITY] * mean.dtype.type(self.momentum) + mean
            error = before[ERROR] + velocity
            estimates = sketch.medians(error, shared)
        if not np.isfinite(estimates).all():
            self.state.pop(spec.name, None)
            return Sparse(np.empty(0, np.int64), np.empty(0, spec.dtype), spec)
        places = largest(estimates, self.k.of(spec.size)) if spec.size else np.empty(0, np.int64)
        applied = Sparse(places, estimates[places], spec)
        with np.errstate(over="ignore", invalid="ignore"):  # then the next estimates are not finite
            error = error - sketch.encode(applied.dense(), {}, shared)[0][VALUES]
        self.state[spec.name] = {VELOCITY: velocity, ERROR: error}
        return applied


def feeds(chain: Transform | None) -> bool:
    """Say whether a chain sends what `SketchedFeedback` takes: sketches of fixed columns."""
    parts = parts_of(chain) if chain is not None else []
    return any(isinstance(part, Sketch) and bool(part.fixed) for part in parts)
