"""What a round was like, and what follows from it for the next one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedsz.arrays import NDArray
from fedsz.control import policy as policies
from fedsz.control.record import Decision, Observation
from fedsz.flower.grid import Traffic
from fedsz.training.options import RunConfig
from fedsz.update.step_spread import spread

if TYPE_CHECKING:
    from torch import nn

    from fedsz.training.datasets import Images


@dataclass(frozen=True)
class Round:
    """One finished round.

    Attributes:
        number: from 1; 0 is the model before any training.
        accuracy, loss: of the averaged model on the server's held-out set.
        seconds: since the round before.
        train_seconds: the clients' time to train, added up, as they report it.
        test_seconds: the server's time to test the average.
        traffic: what was sent.
        decision: how it was sent; None in round 0.
        spread, sensitivity: see `Observation`; empty unless the policy asks for them.
    """

    number: int
    accuracy: float
    loss: float
    seconds: float
    train_seconds: float
    test_seconds: float
    traffic: Traffic
    decision: Decision | None = None
    spread: dict[str, tuple[int, float]] = field(default_factory=dict)
    sensitivity: dict[str, float] = field(default_factory=dict)

    @property
    def observation(self) -> Observation:
        """The round as policies see it."""
        traffic = self.traffic
        return Observation(
            round=self.number,
            accuracy=self.accuracy,
            loss=self.loss if math.isfinite(self.loss) else None,
            raw_up=traffic.raw_up,
            sent_up=traffic.sent_up,
            raw_down=traffic.raw_down,
            sent_down=traffic.sent_down,
            seconds=self.seconds,
            train_seconds=self.train_seconds,
            replies=traffic.replies,
            links=traffic.links,
            decision=self.decision,
            spread=self.spread,
            sensitivity=self.sensitivity,
        )


OnRound = Callable[[Round], None]


class Pilot:
    """A run's policy, what it has seen, and what it has decided for the round to come.

    Attributes:
        decision: None before the first.

    Raises:
        ConfigError: there is no such policy.
    """

    def __init__(self, config: RunConfig) -> None:
        self.decision: Decision | None = None
        self._config = config
        self._policy = policy_of(config)
        self._history: list[Observation] = []
        self._before: Mapping[str, NDArray] = {}

    def measure(
        self, model: nn.Module, arrays: Mapping[str, NDArray], held_out: Images
    ) -> tuple[dict[str, tuple[int, float]], dict[str, float]]:
        """Return the spread of a round's step and the sensitivity to errors, if they are needed.

        Args:
            model: with the new average loaded.
            arrays: that average.
            held_out: what the model is judged by.
        """
        if not self._policy.needs:
            return {}, {}
        config = self._config
        moved = spread(self._before, arrays, rule=config.rule, threshold=config.threshold)
        self._before = arrays
        steps = {name: deviation for name, (_, deviation) in moved.items() if deviation > 0}
        if "sensitivity" not in self._policy.needs or not steps:
            return moved, {}
        from fedsz.training.sensitivity import measure

        seed = config.seed + len(self._history)  # other noise each round, since policies average
        found = measure(model, held_out, steps, seed=seed, image_size=config.image_size)
        return moved, found

    def decide(self, done: Round) -> Decision:
        """Return how the round after this one is to send."""
        self._history.append(done.observation)
        self.decision = self._policy.decide(self._history)
        return self.decision


def policy_of(config: RunConfig) -> policies.Policy:
    """Return a run's policy.

    Raises:
        ConfigError: there is none of that name.
    """
    base = Decision(
        update=config.update, error_bound=str(config.settings.bound), downlink=config.downlink
    )
    return policies.get(config.policy, base, tolerance=config.tolerance, rounds=config.rounds)
