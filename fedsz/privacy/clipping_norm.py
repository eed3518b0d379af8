"""The norm that each client's update is clipped to: fixed, or following a quantile of all norms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from fedsz.errors import ConfigError
from fedsz.spec_strings import check_settings, chosen, setting

if TYPE_CHECKING:  # at run time `fedsz --help`, which has plans, would pay for numpy
    from fedsz.privacy.noise import RandomBytes

CROWD: Final = 20.0  # clients for each unit of the count's deviation, as Andrew et al. have it


@dataclass(frozen=True)
class Quantile:
    """A norm that follows a quantile of the norms of updates.

    Andrew, Thakkar, McMahan and Ramaswamy (NeurIPS 2021), algorithm 1: of a count of the updates
    within the norm, released with noise, the norm is multiplied by exp(-rate (share - target)).

    Attributes:
        target: the share of updates that are to keep to the norm.
        start: the norm of the first round.
        rate: how fast it follows.

    Raises:
        ConfigError: one of these is out of range.
    """

    name: ClassVar[str] = "quantile"
    target: float = setting(0.5, 0, 1, above=True, below=True)
    start: float = setting(0.1, 0, above=True)
    rate: float = setting(0.2, 0, 10, above=True)

    def __post_init__(self) -> None:
        check_settings(self)


class ClippingNorm:
    """What updates are clipped to, as it changes over rounds.

    Args:
        text: a number; or ``quantile``, maybe with settings: ``quantile:target=0.5,start=0.1``.

    Attributes:
        norm: of this round, in the unit of the weights; over all floats of an update.
        quantile: what it follows; None if it is fixed.

    Raises:
        ConfigError: it is neither, or a norm that is not above 0 and finite.
    """

    def __init__(self, text: str | float) -> None:
        self.quantile: Quantile | None = None
        try:
            self.norm = float(text)
        except ValueError:
            self.quantile = chosen("clipping norm", str(text), [Quantile()])
            self.norm = self.quantile.start
        if not 0 < self.norm < math.inf:
            raise ConfigError(f"a clipping norm must be above 0 and finite, got {text!r}")

    def split(self, multiplier: float, clients: float) -> tuple[float, float]:
        """Return what a noise multiplier is split into: for the sum, and the count's deviation.

        Both together spend what the multiplier alone does (theorem 1 there). The count's deviation
        is a twentieth of the clients that are expected, or the multiplier if that is more: the
        sum's noise is then a seventh above what it would be.
        """
        if self.quantile is None:
            return multiplier, 0.0
        deviation = max(clients / CROWD, multiplier)
        return multiplier / math.sqrt(1 - (multiplier / (2 * deviation)) ** 2), deviation

    def follow(
        self, within: int, above: int, clients: float, deviation: float, generator: RandomBytes
    ) -> None:
        """Take the norm on by a noised count of a round's updates.

        Args:
            within: updates that kept to the norm.
            above: those that did not.
            clients: that were expected, which is no secret.
            deviation: of the count's noise; `split` returns it.
            generator: of the noise.
        """
        if self.quantile is None:
            return
        import numpy as np

        from fedsz.privacy.noise import with_noise

        # Each update counts for half of one, up or down: so one client moves the sum by a half.
        noised = float(with_noise(np.array([(within - above) / 2]), deviation, generator)[0])
        share = min(max(noised / clients + 0.5, 0.0), 1.0)
        self.norm *= math.exp(-self.quantile.rate * (share - self.quantile.target))
