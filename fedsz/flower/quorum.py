"""How many replies a round needs to count, and what follows where it gets fewer."""

from __future__ import annotations

import time
from typing import Final

from fedsz.errors import ConfigError, TooFewReplies

MOST_MISSED: Final = 3  # rounds in a row that do not count; they end the run
PAUSE: Final = 1.0  # seconds before the next round, twice as many after the second


class Quorum:
    """Tells rounds that count from those that do not.

    A model that too few clients have changed is not taken: the round does not count, and the next
    one starts from the same model, after a pause. Clients that only fail cannot use up a run so.

    Args:
        min_replies: how many usable replies a round needs.

    Attributes:
        why: the last round does not count; "" if it does.

    Raises:
        ConfigError: ``min_replies`` is below 1.
    """

    def __init__(self, min_replies: int = 1) -> None:
        if min_replies < 1:
            raise ConfigError(f"min_replies must be at least 1, got {min_replies}")
        self.min_replies = min_replies
        self.why = ""
        self._missed = 0  # rounds in a row

    def reached(self, replies: int) -> bool:
        """Return whether a round that is over counts, by the number of its usable replies."""
        if replies >= self.min_replies:
            self.why, self._missed = "", 0
            return True
        self.why = f"{replies} of {self.min_replies} usable replies that it needs"
        self._missed += 1
        return False

    def require(self) -> None:
        """Raise `TooFewReplies` if the last rounds are too many in a row that do not count."""
        if self._missed >= MOST_MISSED:
            rounds = f"{self._missed} rounds in a row do not count"
            raise TooFewReplies(f"{rounds}; the last got {self.why}")

    def begin(self) -> None:
        """Begin a round: a moment after one that does not count, for whoever failed may fail again.

        Raises:
            TooFewReplies: as `require`.
        """
        self.require()
        if self._missed:
            time.sleep(PAUSE * 2 ** (self._missed - 1))
