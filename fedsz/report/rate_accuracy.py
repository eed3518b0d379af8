"""What schemes cost in bytes and in accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Final

import numpy as np

from fedsz.experiments.scheme import Scheme
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, Spread

USUAL_WAY: Final = Scheme(codec="sz2", error_bound="0.01")  # the paper's
NEARLY: Final = (0.95, 0.99)  # of the best accuracy without compression
LOSS: Final = 0.05  # accuracy below uncompressed, as a share, at which a way is of no interest


@dataclass(frozen=True)
class Reached:
    """What it took to get to an accuracy, for each seed that this accuracy is known of."""

    sent: tuple[float, ...]  # bytes up plus down; infinite if it was never reached
    fewer: tuple[float, ...]  # how many times fewer than uncompressed; 0 if never, NaN if unknown


@dataclass(frozen=True)
class RateAccuracy:
    """What a scheme costs in bytes and in accuracy, over all seeds."""

    name: str  # "uncompressed", or as sweeps write it
    up: float  # how many times fewer bytes than uncompressed, over whole runs
    down: float
    total: float
    fewer: float  # how many times fewer bytes up than `USUAL_WAY`, seed by seed; NaN without it
    difference: Spread | None  # of the last accuracy to uncompressed, seed by seed, as a share
    # After each round, means over the seeds of all bytes so far, and of the accuracy's difference
    # to the last of the uncompressed run; without one, of the accuracy.
    course: tuple[tuple[float, float], ...]
    energy_fraction: float  # of updates, in the round where it is least; NaN if not known
    reached: tuple[Reached, ...]  # one for each accuracy that bytes are counted to

    @property
    def points(self) -> float:
        """The mean difference, as a share; -inf if it is not known."""
        return self.difference.mean if self.difference else -math.inf

    @property
    def smallness(self) -> float:
        """The ratio of all bytes; 0 if it is not known."""
        return self.total if math.isfinite(self.total) else 0.0


Compared = Sequence[tuple[Setting, Sequence[RateAccuracy]]]


def rate_accuracies(setting: Setting, reach: float | None = None) -> list[RateAccuracy]:
    """Return the ways of runs that can be compared, uncompressed first.

    Bytes are counted to the accuracy ``reach``, 0 to 1; if it is None, to `NEARLY` all of the best
    of the uncompressed run, seed by seed.
    """
    found = [_rate_accuracy(setting, group.runs, reach) for group in setting.groups]
    return sorted(found, key=lambda way: (way.name != UNCOMPRESSED, way.smallness, way.name))


def best(ways: Sequence[RateAccuracy], number: int) -> list[str]:
    """Return the names of at most ``number`` ways that matter most, in the order of ``ways``.

    Uncompressed and `USUAL_WAY`; those that no other is both smaller and at least as accurate as;
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
    wanted = [UNCOMPRESSED, str(USUAL_WAY), *front, *(way.name for way in smallest)]
    have = {way.name for way in ways}
    chosen = [name for name in dict.fromkeys(wanted) if name in have][:number]
    return [way.name for way in ways if way.name in chosen]


def _rate_accuracy(setting: Setting, runs: Sequence[Run], reach: float | None) -> RateAccuracy:
    name = setting.label(runs[0], bound=True)
    plain = {run.seed: run for run in setting.baseline}
    usual = [run for run in setting.runs if run.way == USUAL_WAY]
    (raw_up, raw_down), (up, down) = _moved(runs)
    seeds = {run.seed for run in runs} & {run.seed for run in usual}
    theirs, ours = (_moved([run for run in some if run.seed in seeds])[1] for some in (usual, runs))
    total = _ratio(raw_up + raw_down, up + down)
    ratios = (_ratio(raw_up, up), _ratio(raw_down, down), total, _ratio(theirs[0], ours[0]))
    shares = (
        done.energy_fraction
        for run in runs
        for done in run.trained
        if done.energy_fraction is not None
    )
    energy = min(filter(math.isfinite, shares), default=math.nan)
    if reach is None:
        best = {
            seed: max(filter(math.isfinite, run.accuracies), default=math.inf)
            for seed, run in plain.items()
        }
        goals = [{seed: part * most for seed, most in best.items()} for part in NEARLY]
    else:
        goals = [{run.seed: reach for run in runs}]
    reached = tuple(_reached(runs, plain, goal) for goal in goals)
    lost, course = setting.difference(runs), _course(runs, plain)
    return RateAccuracy(name, *ratios, lost, course, energy, reached)


def _reached(runs: Sequence[Run], plain: Mapping[int, Run], goals: Mapping[int, float]) -> Reached:
    """Count the bytes to a goal of each seed."""
    known = [run for run in runs if run.seed in goals]
    sent = tuple(_bytes_to(run, goals[run.seed]) for run in known)
    first = {seed: _bytes_to(run, goals[seed]) for seed, run in plain.items() if seed in goals}
    fewer = (_ratio(first.get(run.seed, math.nan), x) for run, x in zip(known, sent, strict=True))
    return Reached(sent, tuple(fewer))


def _moved(runs: Sequence[Run]) -> list[list[float]]:
    """Return the bytes of all rounds before compression, up and down, and the same after it."""
    trained = [r for run in runs for r in run.trained]
    done = [((r.raw_up, r.raw_down), (r.sent_up, r.sent_down)) for r in trained]
    found: list[list[float]] = np.reshape(done, (-1, 2, 2)).sum(axis=0).tolist()
    return found


def _ratio(raw: float, sent: float) -> float:
    return raw / sent if sent > 0 else math.nan


def _spent(run: Run) -> list[float]:
    first = [0.0] * (len(run.rounds) - len(run.trained))  # round 0
    return list(accumulate([*first, *(float(r.sent_up + r.sent_down) for r in run.trained)]))


def _course(runs: Sequence[Run], plain: Mapping[int, Run]) -> tuple[tuple[float, float], ...]:
    rounds = []
    for run in runs:
        if run.seed in plain or not plain:
            zero = plain[run.seed].accuracy if plain else 0.0
            rounds.append(list(zip(_spent(run), [y - zero for y in run.accuracies], strict=True)))
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
