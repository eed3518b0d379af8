"""One controller for an app, a server and a sweep: it sees each round, and decides the next."""

from __future__ import annotations

from collections.abc import Iterable

from fedsz.control.fixed import FIXED
from fedsz.control.policy import get
from fedsz.control.record import Decision, RoundRecord
from fedsz.update.config import CompressionConfig


class Controller:
    """A run's policy, what it has seen, and what it has decided for the round to come.

    Args:
        policy: as `fedsz.control.policy.get` takes it.
        base: what a policy refines; all there is to "fixed".
        tolerance: points of accuracy that compression may cost, for policies that ask.
        rounds: how many there will be, for policies that ask.
        history: rounds that were before, of a run that goes on.

    Attributes:
        base: as given.
        needs: what has to be measured for the policy: of `SPREAD` and `SENSITIVITY`.
        decision: how the round to come is to be sent; None before any round has been seen.

    Raises:
        ConfigError: there is no such policy, or it cannot act on ``base``.
        CodecUnavailable: a codec among its settings is not installed here.
    """

    def __init__(
        self,
        policy: str,
        base: CompressionConfig,
        *,
        tolerance: float,
        rounds: int,
        history: Iterable[RoundRecord] = (),
    ) -> None:
        self._policy = get(policy, base, tolerance=tolerance, rounds=rounds)
        self.base = base
        self._remembers = policy != FIXED  # a fleet's records of weeks are megabytes
        self._history = list(history)
        self.needs = self._policy.needs
        self.decision = self._history[-1].decision if self._history else None

    @property
    def next_round(self) -> int:
        """The number of the round to come; 0 is the model before any training."""
        return self._history[-1].round + 1 if self._history else 0

    def decide(self, done: RoundRecord) -> Decision:
        """Take the round that is over, and return how the next one is to be sent."""
        self._history = [*self._history, done] if self._remembers else [done]
        self.decision = self._policy.decide(self._history)
        return self.decision
