"""What is ordinary among clients: the weights and norms of recent rounds, and limits by them.

Medians are of the rounds before, so a round's limits do not depend on the order of its replies. In
the first round they are of the first replies; see `fedsz.flower.admission.Admission.settled`.
Replies that were refused for their norm are among them: where all clients begin to move further,
the limit follows, and as long as most are honest it follows nobody else.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fedsz.errors import ConfigError
from fedsz.flower.refusal import Norm

ROUNDS: Final = 3  # that medians are of
MOST_WEIGHT: Final = 1e12  # no client has more examples
FEW: Final = 5  # clients below which a share says little,
MOST_OF_FEW: Final = 10.0  # and one may weigh as much as so many ordinary ones
NO_LIMIT: Final = "none"
REFUSE: Final = "refuse:"  # before a limit: updates above it are refused, not clipped


@dataclass(frozen=True)
class NormLimit:
    """The most that the norm of an update may be.

    Attributes:
        factor: times the median of recent norms, or
        fixed: in the unit of the weights; the other is infinite.
        clips: whether an update above it is scaled down to it, in place of refused.
    """

    factor: float = math.inf
    fixed: float = math.inf
    clips: bool = True

    @classmethod
    def of(cls, text: float | str) -> NormLimit:
        """Return what ``"10x"``, a number, ``"refuse:10x"`` or ``"none"`` says.

        Raises:
            ConfigError: it is none of these, or not above 0.
        """
        if text == NO_LIMIT:
            return cls()
        digits = str(text).removeprefix(REFUSE)
        clips = digits == str(text)
        try:
            value = float(digits.removesuffix("x"))
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise ConfigError(
                f"a norm's limit is a number above 0, one with x for times the median of recent"
                f" norms, such as 10x, either after {REFUSE}, or {NO_LIMIT}; got {text!r}"
            )
        if digits.endswith("x"):
            return cls(factor=value, clips=clips)
        return cls(fixed=value, clips=clips)

    def over(self, ordinary: Norm | None) -> Norm:
        """Return the limit where ``ordinary`` norms are known, or None."""
        if ordinary is None:
            return Norm(self.fixed, math.inf)
        floats, whole = (self.factor * x if x > 0 else math.inf for x in ordinary)
        return Norm(min(self.fixed, floats), whole)


class Recent:
    """Numbers of the replies of recent rounds, one of each reply."""

    def __init__(self, rounds: Iterable[Iterable[float]] = ((),)) -> None:
        self._rounds = deque(map(list, rounds), maxlen=ROUNDS + 1)

    @property
    def rounds(self) -> list[list[float]]:
        """What another is made of that goes on from here."""
        return [list(numbers) for numbers in self._rounds]

    def add(self, number: float) -> None:
        """Take a reply's; not if it is 0, which says nothing of others, or not finite."""
        if 0 < number < math.inf:
            self._rounds[-1].append(number)

    def end_round(self) -> None:
        """Count what is added from now on to the next round."""
        if self._rounds[-1]:
            self._rounds.append([])

    @property
    def median(self) -> float:
        """The median of the rounds before; of two in the middle, the lower; 0 if there is none."""
        known = [number for numbers in list(self._rounds)[:-1] for number in numbers]
        return statistics.median_low(known) if known else 0.0


def largest_weight(share: float, clients: int, ordinary: float) -> float:
    """Return the weight that has ``share`` of a round's, if all other clients' are ordinary.

    Of fewer than `FEW` clients it is `MOST_OF_FEW` times ``ordinary``: two honest ones are no
    measure of each other.
    """
    if share >= 1 or clients < 2 or ordinary <= 0:
        return math.inf
    if clients < FEW:
        return MOST_OF_FEW * ordinary
    return share / (1 - share) * (clients - 1) * ordinary
