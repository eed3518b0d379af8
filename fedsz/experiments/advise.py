"""Is compressing worth it on a link, and with which codec? Eqn 1 of the FedSZ paper.

`fedsz.control.transfer_time` has the formula. The paper's Figure 8 leaves t_D out; it counts here.
Over x = 1/B every choice is a straight line, t_C + t_D + 8 S' x. What is best at which bandwidth is
the lower envelope of a few lines, and exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fedsz.control.transfer_time import UpdateCost, worth_below
from fedsz.experiments.bench import EVERYTHING, LOSSLESS, LOSSY, Row
from fedsz.experiments.scheme import RAW

UNCOMPRESSED: Final = "uncompressed"


@dataclass(frozen=True, kw_only=True)
class Choice(UpdateCost):
    """A way to send an update."""

    codec: str  # as users write it, or `UNCOMPRESSED`
    error_bound: str | None = None  # such as ``rel:0.01``; None where no bound steers the errors
    exact: bool  # every bit arrives
    # Of the update, those that were coded to find this out. The rest is taken to be like them.
    measured_bytes: float


@dataclass(frozen=True)
class Stretch:
    """Bandwidths at which one choice is best, in bits a second."""

    choice: Choice
    low: float
    high: float  # of the last, infinity


@dataclass(frozen=True)
class Answer:
    """What to do within a bound."""

    error_bound: str  # that is tolerated, ``rel:0.01``
    best: Choice  # at the bandwidth that was asked for
    stretches: list[Stretch]  # what is best where, from the slowest link to the fastest


def answer(ways: Iterable[Choice], error_bound: str, bandwidth: float) -> Answer:
    """Return the fastest way at a bandwidth, in bits a second, that is at a bound or exact."""
    kept = [way for way in ways if way.exact or way.error_bound == error_bound]
    best = min(kept, key=lambda way: way.seconds(bandwidth))
    return Answer(error_bound, best, envelope(kept))


def choices(rows: Iterable[Row], *, lossless: str, raw_bytes: int) -> list[Choice]:
    """Return the ways to send a state_dict of ``raw_bytes``, the uncompressed one first.

    ``rows`` are what `fedsz.experiments.bench.measure` said of it; those with an error are left
    out. The codec ``lossless``, if it is among them, takes what is not lossy.
    """
    good = [row for row in rows if row["error"] is None]
    rest = [row for row in good if row["part"] == LOSSLESS and row["codec"] == lossless]
    ways = [_as_it_is(UNCOMPRESSED, raw_bytes)]
    for row in good:
        if row["part"] == LOSSY:
            ways.append(_with_rest(row, rest[:1], raw_bytes))
        elif row["part"] == EVERYTHING and row["codec"] != RAW:
            ways.append(_scaled(row, raw_bytes))
    return ways


def envelope(ways: Sequence[Choice]) -> list[Stretch]:
    """Return which way is best at which bandwidth, from the slowest link to the fastest.

    The stretches leave nothing out and do not overlap.
    """

    def crossing(flat: Choice) -> float:  # the bandwidth below which it is faster than `now`
        costs = flat.coding_seconds - now.coding_seconds
        return worth_below(costs, now.sent_bytes, flat.sent_bytes)

    # From x = 1/B = 0 on. What sends fewest bytes wins a tie: its line is the lower beyond.
    now = min(ways, key=lambda way: (way.coding_seconds, way.sent_bytes))
    high = math.inf
    stretches = []
    while flatter := [way for way in ways if way.sent_bytes < now.sent_bytes]:
        following = max(flatter, key=lambda way: (crossing(way), -way.sent_bytes))
        low = crossing(following)
        if low < high:  # else three lines meet in a point, but for rounding
            stretches.append(Stretch(now, low, high))
        now, high = following, min(low, high)
    stretches.append(Stretch(now, 0.0, high))
    return stretches[::-1]


def _with_rest(row: Row, rest: Sequence[Row], raw_bytes: int) -> Choice:
    """Return a lossy codec, beside a lossless one if there is one, for what it did not take."""
    left = raw_bytes - row["raw_bytes"]
    way = _scaled(row, row["raw_bytes"], exact=False)
    beside = _scaled(rest[0], left) if rest else _as_it_is(RAW, left)
    return replace(
        way,
        raw_bytes=raw_bytes,
        sent_bytes=way.sent_bytes + min(beside.sent_bytes, left),
        encode_seconds=way.encode_seconds + beside.encode_seconds,
        decode_seconds=way.decode_seconds + beside.decode_seconds,
        measured_bytes=way.measured_bytes + min(beside.measured_bytes, left),
    )


def _as_it_is(name: str, nbytes: int) -> Choice:
    return Choice(nbytes, nbytes, 0.0, 0.0, codec=name, exact=True, measured_bytes=nbytes)


def _scaled(row: Row, raw_bytes: int, *, exact: bool = True) -> Choice:
    """Return a codec on ``raw_bytes``, of which it may have had a share."""
    share, names = raw_bytes / row["raw_bytes"], ("coded_bytes", "encode_seconds", "decode_seconds")
    of = {"codec": row["codec"], "error_bound": row["error_bound"], "exact": exact}
    costs = (share * row[name] for name in names)
    return Choice(raw_bytes, *costs, **of, measured_bytes=row["raw_bytes"])
