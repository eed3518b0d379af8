"""`layers`: the same number of bits, spread over the tensors by what their errors cost.

Minimise the sum of c_l n_l D_l, with n_l elements, an error of D_l each and c_l the cost of a unit
of it, at the rate that the bounds have now. At the optimum a bit less costs the same in every
tensor: reverse water-filling (Cover and Thomas, 10.3.3), with the rate of a quantiser in place of
that of a Gaussian channel (`fedsz.contrib.quantiser_rate`). Where bounds are fine that is c_l D_l
equal in all tensors, each within sqrt(3 D_l).

With c_l = 1 / var_l all factors of a ``std`` bound are 1. With c_l = 1, the plain squared error,
all fine bounds become equal. Measured costs are what a tensor's errors do to the held-out loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsz.bounds import ErrorBound
from fedsz.contrib.quantiser_rate import HIGHEST, LOWEST, bounds_of_slope, rate
from fedsz.control.policy import SENSITIVITY, SPREAD, NextRound, Policy, changed
from fedsz.control.record import Decision, RoundRecord
from fedsz.core.reference import MOST, root_mean_square
from fedsz.core.settings import DELTA, DELTA_EF
from fedsz.errors import ConfigError
from fedsz.spec_strings import Choice, setting

RECENT: Final = 3  # measurements whose mean counts
_HALVINGS: Final = 80

_Doubles = npt.NDArray[np.float64]


class Cost(Choice):
    """Of a tensor's errors."""

    MEASURED = "measured"
    MSE = "mse"


@dataclass(frozen=True)
class Tensors:
    """Measurements of lossy tensors, by name; neither mapping is ever changed.

    Attributes:
        spreads: elements and root mean square of the step, in the last round that has the tensor.
        sensitivities: the last `RECENT` of each.
    """

    spreads: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    sensitivities: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Layers(Policy):
    """Gives every tensor its own factor on the bound.

    Attributes:
        cost: "measured", by the held-out loss, with factors of 1 until something is measured; or
            "mse", all elements alike.
        limit: a bound grows and shrinks by this factor at most.

    Raises:
        ConfigError: no such cost, or a limit below 1.
    """

    name = "layers"

    cost: Cost = Cost.MEASURED
    limit: float = setting(8.0, 1)

    @property
    def needs(self) -> frozenset[str]:
        """The spread, and what costs are measured by."""
        return frozenset({SPREAD, SENSITIVITY} if self.cost == Cost.MEASURED else {SPREAD})

    def init(self) -> Tensors:
        """Return no measurements."""
        return Tensors()

    def observe(self, state: Tensors, record: RoundRecord, /) -> Tensors:
        """Add the measurements of a round."""
        sensitivities = {
            name: (*state.sensitivities.get(name, ()), value)[-RECENT:]
            for name, value in record.sensitivity.items()
            if 0 <= value < math.inf
        }
        return Tensors({**state.spreads, **record.spread}, {**state.sensitivities, **sensitivities})

    def decide(self, state: Tensors, decision: Decision, _coming: NextRound, /) -> Decision:
        """Return ``decision`` with its factors times those of the tensors that are known.

        Raises:
            ConfigError: the bound is not one of updates, by their standard deviation or absolute.
        """
        config = decision.config
        bound = ErrorBound.of(config.error_bound)
        if config.update not in (DELTA, DELTA_EF) or bound.kind == "rel":
            raise ConfigError(
                "layers needs update delta or delta+ef, and a bound such as std:3 or abs:1e-3; got "
                f"{config.update} and {bound}"
            )
        rows = self._rows(state, bound, config.factors)
        if max((row.log_cost for row in rows), default=-math.inf) == -math.inf:
            return changed(decision, "layers: no costs known")
        factors = allot(
            np.array([row.elements for row in rows]),
            np.array([row.bound for row in rows]),
            np.array([row.log_cost for row in rows]),
            self.limit,
        )
        # Rounded, so that machines whose exponentials differ in the last bit decide the same.
        chosen = {
            row.name: config.factors.get(row.name, 1.0) * float(f"{factor:.4g}")
            for row, factor in zip(rows, factors, strict=True)
        }
        reason = f"layers: {len(chosen)} tensors, x{factors.min():.3g} to x{factors.max():.3g}"
        return changed(decision, reason, factors=config.factors | chosen)

    def _rows(
        self, state: Tensors, bound: ErrorBound, factors: Mapping[str, float]
    ) -> list[_Tensor]:
        """Return the tensors whose bound and cost are known, in the order of their names."""
        known = {
            name: (count, deviation)
            for name, (count, deviation) in sorted(state.spreads.items())
            if count > 0 and 0 < deviation < math.inf
        }
        whole = root_mean_square({name: (n, n * s * s) for name, (n, s) in known.items()})
        rows = []
        for name, (count, deviation) in known.items():
            given = bound.value * factors.get(name, 1.0)
            now = {
                "std": given,
                "abs": given / deviation,
                "step": given * min(whole / deviation, MOST),
            }[bound.kind]
            last = state.sensitivities.get(name, ())
            measured = sum(last) / len(last) / count if last else math.nan
            cost = 1.0 if self.cost == Cost.MSE else measured
            if LOWEST <= now < HIGHEST and math.isfinite(cost):
                log = (math.log(cost) if cost else -math.inf) + 2 * math.log(deviation)
                rows.append(_Tensor(name, float(count), now, log))
        return rows


class _Tensor(NamedTuple):
    """What `allot` has to know of a tensor."""

    name: str
    elements: float
    bound: float  # now, in standard deviations
    log_cost: float  # of c_l var_l


def allot(counts: _Doubles, present: _Doubles, logs: _Doubles, limit: float) -> _Doubles:
    """Return what bounds are multiplied with, so that the total rate stays and the cost is least.

    Args:
        counts: n_l, elements of each tensor.
        present: bounds now, in standard deviations of each tensor; in [`LOWEST`, `HIGHEST`).
        logs: of c_l var_l; -inf where that is 0, which not all are.
        limit: factors lie in [1 / limit, limit].
    """
    total = float(counts @ rate(present))

    def factors(log_price: float) -> _Doubles:
        return np.clip(bounds_of_slope(log_price - logs) / present, 1 / limit, limit)

    # Prices at which all tensors are at one end, and at the other.
    known = logs[np.isfinite(logs)]
    low, high = float(known.min()) - 60.0, float(known.max()) + 60.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if counts @ rate(factors(middle) * present) > total:
            low = middle
        else:
            high = middle
    return factors(high)
