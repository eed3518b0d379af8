"""What a Grid says of its rounds: a line each, one of what its user should know, and of limits."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fedsz.control.record import Decision, Traffic
from fedsz.control.rule import AUTO
from fedsz.core.partition import SHAPE
from fedsz.core.settings import LEAST_BYTES, Settings
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.formatting import ALL_ZERO, size
from fedsz.methods import parts_of

if TYPE_CHECKING:
    from fedsz.flower.admission import Admitted

# Flower shows what is logged below its own logger, also from inside of an app.
logger = logging.getLogger("flwr.fedsz")
limits = logging.getLogger(__name__)  # of what is said of each update
security = logging.getLogger("fedsz.security")  # heard by whoever runs a command

LEAST_KEPT: Final = 0.5  # of an update's energy, where what is lost stays lost
MOST_LAG: Final = 2.0  # rounds that cost some tenths of a point in ten
SMALLER: Final = 1.05  # a ratio below is none that a line names
SHOWN: Final = 3  # failures that a line names
UNCHANGED: Final = " x1: "  # in the reason of a guard that leaves bounds as they are


class RoundLog:
    """Tells of rounds as they end; of what ``config`` loses for good, before the first."""

    def __init__(self, config: Settings) -> None:
        self._warned: set[str] = set()
        self._explained: set[str] = set()
        if why := why_biased(config):
            self._once("biased", why)

    def tell(self, number: int, seen: Traffic, decision: Decision) -> None:
        """Log a round: how much was sent, how much of it arrived, and who was left out."""
        parts = []
        if seen.replies or seen.failures or not seen.raw_aside:
            parts += [f"{seen.replies} replies", _sent("up", seen.raw_up, seen.sent_up)]
        parts.append(_sent("down", seen.raw_down, seen.sent_down))
        if seen.raw_aside:
            parts.append(_sent("replies that do not train", seen.raw_aside, seen.sent_aside))
        if seen.kept is not None:
            parts.append(f"{seen.kept:.0%} of the updates' energy arrived")
        if seen.lag is not None:
            parts.append(f"clients {seen.lag:.1f} rounds behind")
        left_out = [f"{failure.client}: {failure.reason}" for failure in seen.failures]
        if left_out:
            more = f" and {len(left_out) - SHOWN} more" if len(left_out) > SHOWN else ""
            parts.append(f"left out {'; '.join(left_out[:SHOWN])}{more}")
        logger.info("fedsz: round %d: %s", number, ", ".join(parts))
        if seen.tensors:
            self._explain(decision.why)
        self._warn(seen, decision.config)

    def _explain(self, why: str) -> None:
        """Log why `auto` does otherwise than by its tolerance alone, when a reason is new."""
        if not why.startswith(AUTO):
            return
        careful = (reason for reason in re.split("[,;] ", why)[1:] if UNCHANGED not in reason)
        reasons = {re.sub(r"[\d.]+", "", reason) for reason in careful}
        if not reasons <= self._explained:
            self._explained |= reasons
            logger.info("fedsz: %s", why)

    def _warn(self, seen: Traffic, config: Settings) -> None:
        if not (seen.tensors or seen.failures or seen.raw_aside):
            small = 0 < seen.raw_up < LEAST_BYTES * seen.replies
            why = f"fewer than {LEAST_BYTES} bytes of arrays" if small else "no arrays to compress"
            self._once("nothing", f"the replies hold {why}; they pass as they are")
        elif seen.is_zero:
            self._once("zero", ALL_ZERO)
        elif seen.tensors and not seen.lossy and seen.raw_up > seen.sent_up / 2:
            self._once("lossless", _why_lossless(seen.tensors, config))
        if seen.kept is not None and seen.lag is None and seen.kept < LEAST_KEPT:
            # Without feedback though it was asked for: for differential privacy.
            feedback = "" if config.feeds_back else ", use update='delta+ef'"
            self._once(
                "kept",
                f"only {seen.kept:.0%} of the updates' energy arrives within error bound"
                f" {config.error_bound}, and the rest is lost: name a smaller one{feedback},"
                " or leave both out for policy='auto'",
            )
        if seen.lag is not None and seen.lag > MOST_LAG and config.bound.kind != "step":
            self._once(
                "lag",
                f"clients are {seen.lag:.1f} rounds behind within error bound"
                f" {config.error_bound}: name a smaller one, or leave it out for policy='auto'",
            )

    def _once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("fedsz: %s", text)


def why_biased(config: Settings) -> str:
    """Return what to warn of where a chain loses for good what it leaves out; "" elsewhere."""
    if config.chain is None or not config.chain.biased:
        return ""
    fixed = any(getattr(part, "fixed", False) for part in parts_of(config.chain))
    way = "use FetchSgd, or --fetchsgd" if fixed else "write feedback> before its methods"
    return f"update {config.update!r} is biased, and what it leaves out is lost: {way}"


def _why_lossless(tensors: int, config: Settings) -> str:
    if config.rule == SHAPE and not config.threshold:  # which take all that may be lossy
        return f"0 of {tensors} tensors hold floating-point numbers: they are sent without loss"
    return (
        f"0 of {tensors} tensors are lossy: rule={config.rule!r} and threshold={config.threshold}"
        f" leave none; rule={SHAPE!r}, threshold=0 take more"
    )


def _sent(direction: str, raw: int, sent: int) -> str:
    ratio = raw / sent if sent else 1.0
    smaller = f" ({ratio:.1f}x smaller)" if ratio >= SMALLER else ""
    return f"{direction} {size(sent)} of {size(raw)}{smaller}"


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
            limits.warning("node %d: %s: scaled by %.2g", reply.node, why, update.clipped)
        if update.holds_whole and not update.keeps_whole:
            why = "its whole numbers count as it was sent them: ordinarily they do not move"
            limits.warning("node %d: %s", reply.node, why)
        for name in sorted(update.raised):
            why = "is below 0, and of other clients it is not: it counts as 0 there"
            limits.warning("node %d: %r %s", reply.node, name, why)
