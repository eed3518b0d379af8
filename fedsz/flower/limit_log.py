"""What limits have changed of the updates of a round, said in the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedsz.flower.received_update import ReceivedUpdate

if TYPE_CHECKING:
    from fedsz.flower.admission import Admitted

logger = logging.getLogger(__name__)
security = logging.getLogger("fedsz.security")  # heard by whoever runs a command


class LimitLog:
    """Logs each update that counts otherwise than it was sent, and warns where most of them do."""

    def __init__(self) -> None:
        self._most = False  # of the last round's weight was scaled down

    def tell(self, admitted: Sequence[Admitted]) -> None:
        """Tell of the replies of a round that is over."""
        counted = [reply for reply in admitted if reply.trains and not reply.refused]
        for reply in counted:
            _tell_of(reply)
        clipped = [reply for reply in counted if any(map(_is_limited, reply.updates.values()))]
        weight, whole = (sum(reply.weight for reply in part) for part in (clipped, counted))
        most = 2 * weight > whole
        if most and not self._most:
            security.warning(
                "%d of %d updates, with most of the round's weight, move further than their limit"
                " and are scaled down to it: either they are hostile, or too many others hardly"
                " move; see --max-update-norm",
                len(clipped),
                len(counted),
            )
        self._most = most


def _is_limited(update: ReceivedUpdate) -> bool:
    """Whether it was scaled down, and not to a norm that differential privacy sets."""
    return update.clipped < 1 and update.clipping_norm is None


def _tell_of(reply: Admitted) -> None:
    for update in reply.updates.values():
        if _is_limited(update):
            why = "its norm is above the limit"
            logger.warning("node %d: %s: scaled by %.2g", reply.node, why, update.clipped)
        if update.holds_whole:
            why = "its whole numbers count as it was sent them: ordinarily they do not move"
            logger.warning("node %d: %s", reply.node, why)
        for name in sorted(update.raised):
            why = "is below 0, and of other clients it is not: it counts as 0 there"
            logger.warning("node %d: %r %s", reply.node, name, why)
