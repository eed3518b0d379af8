"""Is compressing worth it on a link, and with which codec? Eqn 1 of the FedSZ paper.

`fedsz.control.transfer_time` has the formula. The paper's Figure 8 leaves t_D out; it counts here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fedsz.control.transfer_time import UpdateCost
from fedsz.experiments.bench import EVERYTHING, LOSSLESS, LOSSY, Row
from fedsz.experiments.scheme import RAW

UNCOMPRESSED: Final = "uncompressed"


@dataclass(frozen=True, kw_only=True)
class Choice(UpdateCost):
    """A way to send an update."""

    codec: str  # as users write it, or `UNCOMPRESSED`
    error_bound: str | None = None  # such as ``rel:0.01``; None where no bound steers the errors
    exact: bool  # every bit arrives


def best(ways: Iterable[Choice], error_bound: str, bandwidth: float) -> Choice:
    """Return the fastest way at a bandwidth, in bits a second, that is at a bound or exact."""
    allowed = (way for way in ways if way.exact or way.error_bound == error_bound)
    return min(allowed, key=lambda way: way.seconds(bandwidth))


def choices(rows: Iterable[Row], *, lossless: str, raw_bytes: int) -> list[Choice]:
    """Return the ways to send a state_dict of ``raw_bytes``, the uncompressed one first.

    ``rows`` are what `fedsz.experiments.bench.measure` said of it; those with an error are left
    out. The codec ``lossless``, if it is among them, takes what is not lossy.
    """
    good = [row for row in rows if row["error"] is None]
    rest = [row for row in good if row["part"] == LOSSLESS and row["codec"] == lossless]
    ways = [Choice(raw_bytes, raw_bytes, 0.0, 0.0, codec=UNCOMPRESSED, exact=True)]
    for row in good:
        if row["part"] == LOSSY:
            ways.append(_with_rest(row, rest[:1], raw_bytes))
        elif row["part"] == EVERYTHING and row["codec"] != RAW:
            ways.append(_choice(row, exact=True))
    return ways


def _with_rest(row: Row, rest: Sequence[Row], raw_bytes: int) -> Choice:
    """Return a lossy codec, with a lossless one if there is one, for what it did not take."""
    way, left = _choice(row, exact=False), raw_bytes - row["raw_bytes"]
    as_it_is = Choice(left, left, 0.0, 0.0, codec=RAW, exact=True)
    other = _choice(rest[0], exact=True) if rest else as_it_is
    return replace(
        way,
        raw_bytes=raw_bytes,
        sent_bytes=way.sent_bytes + min(other.sent_bytes, left),
        encode_seconds=way.encode_seconds + other.encode_seconds,
        decode_seconds=way.decode_seconds + other.decode_seconds,
    )


def _choice(row: Row, *, exact: bool) -> Choice:
    costs = (row[name] for name in ("raw_bytes", "coded_bytes", "encode_seconds", "decode_seconds"))
    return Choice(*costs, codec=row["codec"], error_bound=row["error_bound"], exact=exact)
