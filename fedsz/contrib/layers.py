"""`layers`: the same number of bits, spread over the tensors by what their errors cost.

Minimise the sum of c_l n_l D_l, with n_l elements, an error of D_l each and c_l the cost of a unit
of it, at the rate that the bounds have now. A quantiser of fine bounds e_l has D_l = e_l^2 / 3, and
a bit an element less for twice the bound. Then at the optimum c_l D_l is equal in all tensors:
reverse water-filling (Cover and Thomas, 10.3.3). So bounds become level / sqrt(c_l), and the level
keeps the mean of their logarithms over all elements.

Costs are measured: what a tensor's errors do to the held-out loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fedsz.bounds import ErrorBound
from fedsz.control.policy import SENSITIVITY, SPREAD, NextRound, Policy, changed
from fedsz.control.record import Decision, RoundRecord
from fedsz.core.reference import MOST, root_mean_square
from fedsz.core.settings import DELTA, DELTA_EF
from fedsz.errors import ConfigError
from fedsz.spec_strings import setting

RECENT: Final = 3  # measurements whose mean counts


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
    """Gives every tensor its own factor on the bound: 1 until a cost is measured.

    Attributes:
        limit: a bound grows and shrinks by this factor at most.

    Raises:
        ConfigError: the limit is below 1.
    """

    name = "layers"

    limit: float = setting(8.0, 1)

    @property
    def needs(self) -> frozenset[str]:
        """The spread, and what costs are measured by."""
        return frozenset({SPREAD, SENSITIVITY})

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
        factors = self._factors(state, bound, config.factors)
        if not factors:
            return changed(decision, "layers: no costs known")
        least, most = min(factors.values()), max(factors.values())
        reason = f"layers: {len(factors)} tensors, x{least:.3g} to x{most:.3g}"
        # Rounded, so that machines whose exponentials differ in the last bit decide the same.
        chosen = {
            name: config.factors.get(name, 1.0) * float(f"{factor:.4g}")
            for name, factor in factors.items()
        }
        return changed(decision, reason, factors=config.factors | chosen)

    def _factors(
        self, state: Tensors, bound: ErrorBound, before: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the factors of tensors whose bound and cost are known; none if all cost nothing.

        Args:
            state: measurements.
            bound: of the policy before.
            before: its factors, by tensor.
        """
        known = {
            name: (count, deviation)
            for name, (count, deviation) in sorted(state.spreads.items())
            if count > 0 and 0 < deviation < math.inf
        }
        rms = root_mean_square({name: (n, n * s * s) for name, (n, s) in known.items()})
        weights, logs = {}, {}  # by tensor: elements, and log(e_l sqrt(c_l))
        for name, (count, deviation) in known.items():
            unit = {"std": deviation, "abs": 1.0, "step": min(rms, MOST * deviation)}[bound.kind]
            measured = state.sensitivities.get(name, ())
            if measured and 0 < unit < math.inf:
                cost = sum(x / len(measured) for x in measured) / count
                log_cost = math.log(cost) / 2 if cost else -math.inf
                absolute = math.log(bound.value * before.get(name, 1.0)) + math.log(unit)
                weights[name], logs[name] = count, absolute + log_cost
        costly = [name for name in logs if logs[name] > -math.inf]
        if not costly:
            return {}
        elements = sum(weights[name] for name in costly)
        level = sum(weights[name] / elements * logs[name] for name in costly)
        most = math.log(self.limit)
        return {name: math.exp(max(min(level - x, most), -most)) for name, x in logs.items()}
