"""What a run may spend, and how: the numbers of differential privacy that do not change in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from fedsz.errors import ConfigError
from fedsz.privacy.accounting import Release, epsilon_of, multiplier_for, rounds_within
from fedsz.privacy.clipping_norm import ClippingNorm

DELTA: Final = 1e-5


class NoiseAt(StrEnum):
    """Where noise is added."""

    SERVER = "server"  # once, to the sum of clipped updates: who receives models learns little
    CLIENT = "client"  # to each update before it leaves: the server learns little, too
    SUM = "sum"  # a share by each client: the server, which sees a secure sum alone, learns little


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """What a run may spend, and how.

    Attributes:
        epsilon: the most that the run may spend, at ``delta``.
        delta: of it.
        rounds: for which the noise is found, where ``noise`` is 0.
        noise: the noise multiplier: the noise's deviation over the clipping norm. 0 for the least
            with which ``rounds`` rounds stay within ``epsilon``.
        clip: see `fedsz.privacy.clipping_norm.ClippingNorm`.
        sampling: the probability with which each client takes part in a round.
        at: where noise is added, a `NoiseAt`.
        seed: draws noise and clients that a test can repeat, and anybody can foresee; None for the
            system's secure generator.

    Raises:
        ConfigError: a number is out of range, one round alone spends more than ``epsilon``, or
            ``clip`` follows a quantile of norms, which a server does not see where clients add
            noise.
        MissingPackage: dp-accounting is not installed.
    """

    epsilon: float
    delta: float = DELTA
    rounds: int = 1
    noise: float = 0.0
    clip: str | float = "quantile"
    sampling: float = 1.0
    at: str = NoiseAt.SERVER
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.at not in tuple(NoiseAt):
            raise ConfigError(f"noise is added at {', '.join(NoiseAt)}; not at {self.at!r}")
        for name, most in (("epsilon", 1e6), ("delta", 0.5), ("sampling", 1.0)):
            if not 0 < (have := getattr(self, name)) <= most:
                raise ConfigError(f"{name} must be above 0, up to {most:g}, got {have:g}")
        if self.rounds < 1:
            raise ConfigError(f"rounds must be at least 1, got {self.rounds}")
        if not 0 <= self.noise <= 1e6:
            raise ConfigError(f"a noise multiplier must lie in 0..1e6, got {self.noise:g}")
        if self.at != NoiseAt.SERVER and ClippingNorm(self.clip).quantile is not None:
            what = f"clip must be a number, as 0.5, got {self.clip!r}"
            raise ConfigError(f"where clients add noise, {what}")
        if not self.rounds_left({}):
            alone = f"a round alone spends epsilon {self.spent({self.release: 1}):.4g}"
            raise ConfigError(f"{alone} at delta {self.delta:g}: the budget is {self.epsilon:g}")

    @property
    def multiplier(self) -> float:
        """The noise multiplier, found if it was not given."""
        if self.noise:
            return self.noise
        sampling, renyi = self._hidden_sampling, self._adds_up
        return self._moves * _found(self.epsilon, self.delta, self.rounds, sampling, renyi=renyi)

    @property
    def release(self) -> Release:
        """What a round spends."""
        return Release(self.multiplier / self._moves, self._hidden_sampling)

    @property
    def _moves(self) -> float:
        """How far one client's data moves what is released, in clipping norms.

        It is there or not, in a sum; or it is any other, for a server that knows who has sent it.
        """
        return 1.0 if self.at == NoiseAt.SERVER else 2.0

    @property
    def _hidden_sampling(self) -> float:
        """The sampling that hides who takes part; from a server that asks, it hides nobody."""
        return self.sampling if self.at == NoiseAt.SERVER else 1.0

    @property
    def _adds_up(self) -> bool:
        """Whether the noise is a sum of shares: of its law, the Renyi divergences are known."""
        return self.at == NoiseAt.SUM

    def spent(self, releases: dict[Release, int]) -> float:
        """Return the epsilon of what has been released."""
        return epsilon_of(releases, self.delta, renyi=self._adds_up)

    def rounds_left(self, releases: dict[Release, int], most: int = 1) -> int:
        """Return how many more rounds, up to ``most``, the budget has after ``releases``."""
        budget = self.epsilon, self.delta, self.release, most, releases
        return max(0, rounds_within(*budget, renyi=self._adds_up))

    def __str__(self) -> str:
        """Say all of it in a line."""
        where = {
            NoiseAt.SERVER: "the sum",
            NoiseAt.CLIENT: "each update",
            NoiseAt.SUM: "the secure sum, a share by each client",
        }[NoiseAt(self.at)]
        sampled = f", each client with probability {self.sampling:g}" if self.sampling < 1 else ""
        return (
            f"differential privacy: epsilon {self.epsilon:g} at delta {self.delta:g}; noise of"
            f" {self.multiplier:.4g} clipping norms on {where}; updates are clipped to"
            f" {self.clip}{sampled}; what is clipped off is not fed back"
        )


_found = lru_cache(multiplier_for)
