"""What schemes cost in bytes and in accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Final

from fedsz.experiments.scheme import Scheme
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, Spread

PUBLISHED: Final = Scheme(codec="sz2", error_bound="0.01")  # what the FedSZ paper does
NEARLY: Final = (0.95, 0.99)  # of the best accuracy without compression
LOSS: Final = 0.05  # accuracy below uncompressed, as a share, at which a way is of no interest


@dataclass(frozen=True)
class RateAccuracy:
    """What a scheme costs in bytes and in accuracy, over all seeds."""

    name: str  # "uncompressed", or as sweeps write it
    runs: tuple[Run, ...]
    up: float  # how many times fewer bytes than uncompressed, over whole runs
    down: float
    total: float
    difference: Spread | None  # of the last accuracy to uncompressed, seed by seed, as a share
    # After each round, means over the seeds: all bytes so far, and the accuracy.
    course: tuple[tuple[float, float], ...]
    # For each accuracy that bytes are counted to, the bytes up plus down of each seed that this
    # accuracy is known of; infinite if it was never reached.
    reached: tuple[tuple[float, ...], ...]

    @property
    def points(self) -> float:
        """The mean difference, as a share; -inf if it is not known."""
        return self.difference.mean if self.difference else -math.inf

    @property
    def smallness(self) -> float:
        """The ratio of all bytes; 0 if it is not known."""
        return self.total if math.isfinite(self.total) else 0.0


def rate_accuracies(setting: Setting, reach: float | None = None) -> list[RateAccuracy]:
    """Return the ways of runs that can be compared, uncompressed first.

    Bytes are counted to the accuracy ``reach``, 0 to 1; if it is None, to `NEARLY` all of the best
    of the uncompressed run, seed by seed.
    """
    found = [_rate_accuracy(setting, group.runs, reach) for group in setting.groups]
    return sorted(found, key=lambda way: (way.name != UNCOMPRESSED, way.smallness, way.name))


def best(ways: Sequence[RateAccuracy], number: int) -> list[RateAccuracy]:
    """Return at most ``number`` ways that matter most, in their order.

    Uncompressed and `PUBLISHED`; those that no other is both smaller and at least as accurate as;
    then the smallest. Ways that lose more than `LOSS` come last.
    """
    known = [way for way in ways if math.isfinite(way.total) and way.points > -LOSS]
    front, top = [], -math.inf
    for way in sorted(known, key=lambda way: (-way.total, -way.points)):
        if way.points > top:
            top = way.points
            front.append(way.name)
    lossy = {way.name for way in ways if way.difference and way.points <= -LOSS}
    smallest = sorted(ways, key=lambda way: (way.name in lossy, -way.smallness))
    wanted = [UNCOMPRESSED, str(PUBLISHED), *front, *(way.name for way in smallest)]
    have = {way.name for way in ways}
    chosen = [name for name in dict.fromkeys(wanted) if name in have][:number]
    return [way for way in ways if way.name in chosen]


def _rate_accuracy(setting: Setting, runs: Sequence[Run], reach: float | None) -> RateAccuracy:
    plain = {run.seed: run for run in setting.baseline}
    trained = [r for run in runs for r in run.trained]
    names = ("raw_up", "raw_down", "sent_up", "sent_down")
    raw_up, raw_down, up, down = (sum(getattr(r, name) for r in trained) for name in names)
    if reach is None:
        most = {
            seed: max(filter(math.isfinite, run.accuracies), default=math.inf)
            for seed, run in plain.items()
        }
        goals = [{seed: part * top for seed, top in most.items()} for part in NEARLY]
    else:
        goals = [{run.seed: reach for run in runs}]
    return RateAccuracy(
        name=setting.label(runs[0], bound=True),
        runs=tuple(runs),
        up=_ratio(raw_up, up),
        down=_ratio(raw_down, down),
        total=_ratio(raw_up + raw_down, up + down),
        difference=setting.difference(runs),
        course=_course(runs),
        reached=tuple(
            tuple(_bytes_to(run, goal[run.seed]) for run in runs if run.seed in goal)
            for goal in goals
        ),
    )


def _ratio(raw: float, sent: float) -> float:
    return raw / sent if sent > 0 else math.nan


def _spent(run: Run) -> list[float]:
    first = [0.0] * (len(run.rounds) - len(run.trained))  # round 0
    return list(accumulate([*first, *(float(r.sent_up + r.sent_down) for r in run.trained)]))


def _course(runs: Sequence[Run]) -> tuple[tuple[float, float], ...]:
    rounds = [list(zip(_spent(run), run.accuracies, strict=True)) for run in runs]
    together = zip(*rounds, strict=False)  # as far as all seeds went
    means = [tuple(map(fmean, zip(*seeds, strict=True))) for seeds in together]
    return tuple((x, y) for x, y in means if x > 0 and math.isfinite(y))


def _bytes_to(run: Run, goal: float) -> float:
    """Return the bytes until an accuracy is first reached, between rounds on a straight line."""
    start, low = 0.0, math.nan
    for total, accuracy in zip(_spent(run), run.accuracies, strict=True):
        if accuracy >= goal:
            part = (goal - low) / (accuracy - low) if low < goal else 1.0
            return start + part * (total - start)
        start, low = total, accuracy
    return math.inf
