"""`adaptive`: a sparsifier that keeps more elements of some updates than of others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.codecs.spread import energy
from fedsz.errors import ConfigError
from fedsz.methods import Chain, Shared, Stage, State, TensorSpec, Wrapper
from fedsz.methods.base import Coded, Kind
from fedsz.spec_strings import Choice, setting

NORM, TYPICAL = "adaptive.norm", "adaptive.typical"
SMOOTHING: Final = 0.1  # weight of a round in the typical variance


class Regime(Choice):
    """By what more or less is kept."""

    CHANGE = "change"
    VARIANCE = "variance"


@dataclass(frozen=True)
class Adaptive(Wrapper):
    """More elements where an update is unlike those before, tensor by tensor.

    Where there is `Feedback` inside, an update is the sum of tensor and residual.

    With ``by=change``, ACCORDION (Agarwal et al. 2021): ``times`` as many elements in the first
    round, and where the l2 norm n differs by a share of ``threshold`` from n' of the round before:
    |n' - n| >= threshold n'.

    With ``by=variance``, an adaptive k as of Sato 2025, whose formula is lost. This one is ours:
    k is multiplied by the variance over its typical value, a running mean, but at most by ``times``
    and at least by its inverse.

    Attributes:
        by: the rule.
        times: the largest factor of k, 1 at least.
        threshold: of ``by=change``, above 0.

    Raises:
        ConfigError: a setting is out of range.
    """

    name = "adaptive"
    summary = "more elements where an update is unlike those before: ACCORDION; adaptive k"

    by: Regime = Regime.CHANGE
    times: float = setting(10.0, 1)
    threshold: float = setting(0.5, 0, above=True)

    def check(self, inner: Chain) -> None:
        """Raise `ConfigError` unless a sparsifier in ``inner`` has a ``k`` and sends positions."""
        if not any(map(_has_k, inner.stages)):
            raise ConfigError(f"adaptive needs a part with a k, such as topk; got {inner}")

    def init(self, spec: TensorSpec) -> State:
        return {NORM: np.zeros(1), TYPICAL: np.zeros(1)}

    def encode(self, inner: Chain, x: NDArray, state: State, shared: Shared) -> tuple[Coded, State]:
        norm, variance = math.sqrt(energy(x)), float(x.var(dtype=np.float64)) if x.size else 0.0
        typical = float(state[TYPICAL][0]) or variance
        factor = self._factor(norm, float(state[NORM][0]), variance, typical)
        coded, after = with_k_times(inner, factor).encode(x, state, shared)
        typical += SMOOTHING * (variance - typical)
        return coded, {**after, NORM: np.array([norm]), TYPICAL: np.array([typical])}

    def _factor(self, norm: float, before: float, variance: float, typical: float) -> float:
        """Return what k is multiplied by."""
        if self.by == Regime.CHANGE:
            return self.times if abs(before - norm) >= self.threshold * before else 1.0
        ratio = variance / typical if 0 < typical < math.inf else 1.0
        return min(max(ratio, 1 / self.times), self.times)


def with_k_times(chain: Chain, factor: float) -> Chain:
    """Return a chain whose sparsifiers keep ``factor`` times as many elements."""
    stages: tuple[Any, ...] = chain.stages
    scaled = (replace(s, k=s.k.times(factor)) if _has_k(s) else s for s in stages)
    return replace(chain, stages=tuple(scaled))


def _has_k(stage: Stage) -> bool:
    """Say whether a stage has a k of which its receiver need not know."""
    return hasattr(stage, "k") and Kind.INDICES in stage.symbols.values()
