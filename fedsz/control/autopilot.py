"""A policy for any Flower app: it sees what crosses the Grid, and what the app cares to tell."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from fedsz.control import policy as policies
from fedsz.control.record import Decision, Link, Observation
from fedsz.control.rule import SENSITIVITY
from fedsz.errors import ConfigError


class Autopilot:
    """Decides before each round of training.

    Args:
        spec: a policy, as `fedsz.control.policy.get` takes it.
        base: what the Grid was told.
        tolerance: points of accuracy that compression may cost.
        rounds: how many there will be, for policies that ask.

    Raises:
        ConfigError: there is no such policy, or it needs a held-out set, which a Grid has not.
    """

    def __init__(self, spec: str, base: Decision, *, tolerance: float, rounds: int) -> None:
        self._policy = policies.get(spec, base, tolerance=tolerance, rounds=rounds)
        if SENSITIVITY in self._policy.needs:
            raise ConfigError(f"policy {spec!r} needs a held-out set: `fedsz server` has one")
        self._history: list[Observation] = []
        self._decision: Decision | None = None
        self._links: list[Link] = []
        self._measured: tuple[float | None, float | None] = None, None
        self._last = time.monotonic()

    def observe(self, accuracy: float | None, loss: float | None) -> None:
        """Take what the app has measured of the model that it sends next."""
        self._measured = accuracy, loss

    def count(self, link: Link) -> None:
        """Take a reply of the round that goes on."""
        self._links.append(link)

    def decide(self, spread: Mapping[str, tuple[int, float]]) -> Decision:
        """Return the decision for the round that begins.

        Args:
            spread: of the step from the model that clients hold to the one that goes out.
        """
        now = time.monotonic()
        accuracy, loss = self._measured
        self._history.append(
            Observation(
                round=len(self._history),
                accuracy=accuracy,
                loss=loss,
                raw_up=_sum(self._links, "raw_bytes"),
                sent_up=_sum(self._links, "sent_bytes"),
                raw_down=0,
                sent_down=0,
                seconds=now - self._last,
                replies=len(self._links),
                links=self._links,
                decision=self._decision,
                spread=dict(spread),
            )
        )
        self._links, self._measured, self._last = [], (None, None), now
        self._decision = self._policy.decide(self._history)
        return self._decision


def _sum(links: Sequence[Link], name: str) -> int:
    return sum(int(getattr(link, name)) for link in links)
