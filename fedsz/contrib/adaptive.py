"""`adaptive`: a sparsifier that keeps more elements of some updates than of others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.codecs.spread import energy
from fedsz.errors import ConfigError
from fedsz.methods.base import Coded, Kind, Shared, Stage, State, TensorSpec
from fedsz.methods.combinators import Chain, Transform, Wrapper, parts_of
from fedsz.methods.state import branch, within
from fedsz.spec_strings import Choice, setting

NORM, TYPICAL = "norm", "typical"
SMOOTHING: Final = 0.1  # weight of a round in the typical variance


class Regime(Choice):
    """By what more or less is kept."""

    CHANGE = "change"
    VARIANCE = "variance"


@dataclass(frozen=True)
class Adaptive(Wrapper):
    """More elements where an update is unlike those before, tensor by tensor.

    Where its inner transform has `Feedback`, an update is the sum of tensor and residual.

    With ``by=change``, ACCORDION (Agarwal et al. 2021): ``times`` as many elements in the first
    round, and where the l2 norm n differs by a share of ``threshold`` from n' of the round before:
    |n' - n| >= threshold n'.

    With ``by=variance``, an adaptive k as of Sato 2025, whose formula is lost. This one is ours:
    k is multiplied by the variance over its typical value, a running mean, but at most by ``times``
    and at least by its inverse.

    Attributes:
        inner: a chain with a sparsifier that has a ``k`` and sends positions.
        by: the rule.
        times: the largest factor of k, 1 at least.
        threshold: of ``by=change``, above 0.

    Raises:
        ConfigError: a setting is out of range, or ``inner`` has no such sparsifier.
    """

    name = "adaptive"
    summary = "more elements where an update is unlike those before: ACCORDION; adaptive k"

    by: Regime = Regime.CHANGE
    times: float = setting(10.0, 1)
    threshold: float = setting(0.5, 0, above=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        have = parts_of(self.inner)
        if have and not any(map(_has_k, have)):
            raise ConfigError(f"adaptive needs a part with a k, such as topk; got {self.inner}")

    def init(self, spec: TensorSpec) -> State:
        return {NORM: np.zeros(1), TYPICAL: np.zeros(1), **branch(self.inner.init(spec))}

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Coded, State]:
        norm, variance = math.sqrt(energy(x)), float(x.var(dtype=np.float64)) if x.size else 0.0
        typical = float(state[TYPICAL][0]) or variance
        factor = self._factor(norm, float(state[NORM][0]), variance, typical)
        coded, inner_state = keeping(self.inner, factor).encode(x, within(state), shared)
        typical += SMOOTHING * (variance - typical)
        own = {NORM: np.array([norm]), TYPICAL: np.array([typical])}
        return coded, {**own, **branch(inner_state)}

    def _factor(self, norm: float, before: float, variance: float, typical: float) -> float:
        """Return what k is multiplied by."""
        if self.by == Regime.CHANGE:
            return self.times if abs(before - norm) >= self.threshold * before else 1.0
        ratio = variance / typical if 0 < typical < math.inf else 1.0
        return min(max(ratio, 1 / self.times), self.times)


def keeping(transform: Transform, factor: float) -> Transform:
    """Return a transform whose sparsifiers keep ``factor`` times as many elements."""
    if isinstance(transform, Wrapper):
        return replace(transform, inner=keeping(transform.inner, factor))
    parts: list[Any] = parts_of(transform)
    scaled = (replace(part, k=part.k.times(factor)) if _has_k(part) else part for part in parts)
    return Chain(tuple(scaled))


def _has_k(part: Stage | Wrapper) -> bool:
    """Say whether a part has a k of which its receiver need not know."""
    return isinstance(part, Stage) and hasattr(part, "k") and Kind.INDICES in part.symbols.values()
