"""What a report is about: runs, those that can be compared, and values of several seeds."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any, Final, NamedTuple, Self

from msgspec.structs import replace
from scipy import stats

from fedsz.bounds import KINDS, ErrorBound
from fedsz.codecs import CODECS
from fedsz.control.record import RoundRecord
from fedsz.control.transfer_time import UpdateCost
from fedsz.core.partition import PAPER
from fedsz.experiments.scheme import DEFAULTS, RAW, Scheme, asks_nothing
from fedsz.formatting import NOTHING, count, digits, listed, points

UNCOMPRESSED: Final = "uncompressed"

# Runs are compared where all of these are equal.
CONDITIONS: Final = (
    "model", "dataset", "task", "initial", "clients",
    "clients_per_round", "partition", "samples", "test_samples", "image_size", "rounds", "epochs",
    "batch_size", "learning_rate", "momentum", "device",
)  # fmt: skip

USUAL_TENSORS: Final = f"{PAPER}>{DEFAULTS.threshold}"


@dataclass(frozen=True)
class Spread:
    """The finite values of several seeds."""

    values: tuple[float, ...]
    middle: float  # the median
    mean: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """Return the spread of the finite values; None if there are none."""
        known = tuple(value for value in values if math.isfinite(value))
        if not known:
            return None
        return cls(known, median(known), fmean(known), min(known), max(known))

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.values)

    @property
    def reach(self) -> float:
        """Half the width of the mean's 95 % interval by Student's t; NaN for a single value."""
        if self.count == 1:
            return math.nan
        t = stats.t.ppf(0.975, self.count - 1)
        return float(t * stats.sem(self.values))


def spread(of: Spread | None, show: Callable[[float], str] = digits) -> str:
    """Return a median, and the limits where there are several values: ``5.1 (4.9 … 5.2)``."""
    if of is None:
        return NOTHING
    if of.count == 1 or show(of.least) == show(of.greatest):
        return show(of.middle)
    return f"{show(of.middle)} ({show(of.least)} … {show(of.greatest)})"


def difference(found: Spread | None) -> str:
    """Return a mean difference in points with its 95 % interval: ``-0.34 ± 0.48``."""
    if found is None:
        return NOTHING
    reach = "" if math.isnan(found.reach) else f" ± {100 * found.reach:.2f}"
    return f"{points(found.mean)}{reach}"


@dataclass(frozen=True)
class Update(UpdateCost):
    """One update of one client, on average over a run: its clients encode, the server decodes."""

    train_seconds: float = math.nan  # of the client; NaN if not recorded
    down_bytes: float = math.nan  # of the model that the client receives


@dataclass(frozen=True)
class Run:
    """A training run; "", 0 and None stand for what is not recorded."""

    way: Scheme
    lossless: str  # the codec for everything else, as users write it
    lossy: str  # which tensors are not that, ``paper>1024``: by rule and threshold
    seed: int
    conditions: Mapping[str, Any]  # the values of `CONDITIONS`, by name
    rounds: tuple[RoundRecord, ...]  # in order; none for a run that failed
    name: str = ""  # of its way, if that has one
    error: str = ""  # why it failed
    machine: str = ""  # processor and system
    cores: int = 0  # of the machine
    threads: int = 0  # of each process
    version: str = ""  # of fedsz
    time: datetime.datetime | None = None  # when it was made

    @property
    def bound(self) -> ErrorBound | None:
        """Of what clients sent; None if no bound steered it."""
        return self.way.bound

    @cached_property
    def uncompressed(self) -> bool:
        """Whether this is what others are compared with."""
        return str(self.way) == self.lossless == RAW

    @property
    def accuracies(self) -> list[float]:
        """After each round; NaN where nobody measured it."""
        return [math.nan if r.accuracy is None else r.accuracy for r in self.rounds]

    @property
    def accuracy(self) -> float:
        """After the last round."""
        return self.accuracies[-1]

    @property
    def missing_rounds(self) -> int:
        """How many rounds a run that goes on, or was stopped, has still to make; 0 if it failed."""
        if self.error or not self.rounds:
            return 0
        return max((self.conditions["rounds"] or 0) - self.rounds[-1].round, 0)

    @cached_property
    def trained(self) -> list[RoundRecord]:
        """The rounds but for round 0, in which nothing is sent.

        Uncompressed, a round has no headers, and coding it takes no time.
        """
        rounds = [r for r in self.rounds if r.round]
        if not self.uncompressed:
            return rounds
        free = {"encode_seconds": 0.0, "decode_seconds": 0.0}
        return [
            replace(r, sent_up=r.raw_up, sent_down=r.raw_down, sent_other=r.raw_other, **free)
            for r in rounds
        ]

    @property
    def max_error(self) -> float:
        """The largest of all rounds, as a share of its bound; NaN if nobody measured any."""
        return max((r.max_error for r in self.trained if r.max_error > 0), default=math.nan)

    @property
    def update(self) -> Update | None:
        """The mean of its rounds; None if no client sent an update, or it was not recorded."""
        replies = sum(r.replies for r in self.trained)
        if not replies:
            return None
        names = ("raw_up", "sent_up", "encode_seconds", "decode_seconds", "train_seconds")
        sums = (sum(getattr(r, name) for r in self.trained) for name in (*names, "sent_down"))
        raw, sent, encode, decode, train, down = (total / replies for total in sums)
        if not (raw > 0 and sent > 0 and math.isfinite(encode + decode)):
            return None
        return Update(raw, sent, encode, decode, train or math.nan, down)


class Group(NamedTuple):
    """Runs that differ in seed alone, which is their order."""

    label: str  # see `Setting.label`
    bound: ErrorBound | None  # None where no bound steers them
    runs: list[Run]

    @property
    def uncompressed(self) -> bool:
        """Whether this is what others are compared with."""
        return self.label == UNCOMPRESSED

    @property
    def updates(self) -> list[Update]:
        """The mean update of each run that has one."""
        return [run.update for run in self.runs if run.update]


@dataclass(frozen=True)
class Setting:
    """Runs that differ in their way of updating, in which tensors are lossy, and in seed alone."""

    name: str  # unique in a report; letters, digits and dashes
    title: str
    runs: tuple[Run, ...]  # none of them failed

    @cached_property
    def groups(self) -> list[Group]:
        """What is compared: labels in the order of `rank`, each with its bounds in order."""
        found: dict[tuple[str, ErrorBound | None], list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: run.seed):
            found.setdefault((self.label(run), run.bound), []).append(run)
        groups = [Group(label, bound, runs) for (label, bound), runs in found.items()]
        return sorted(groups, key=lambda group: (rank(group.label), _place(group.bound)))

    @property
    def bounds(self) -> list[ErrorBound]:
        """All bounds: relative ones first, small before large."""
        return sorted({run.bound for run in self.runs if run.bound}, key=_place)

    @property
    def baseline(self) -> list[Run]:
        """The uncompressed runs."""
        return [run for run in self.runs if run.uncompressed]

    def difference(self, runs: Sequence[Run]) -> Spread | None:
        """Return how much the accuracy differs from that of uncompressed runs of the same seeds.

        Runs are compared after equally many rounds: one that goes on has no difference yet.
        """
        plain = {(run.seed, len(run.rounds)): run.accuracy for run in self.baseline}
        pairs = [(run.accuracy, plain.get((run.seed, len(run.rounds)))) for run in runs]
        return Spread.of(of - base for of, base in pairs if base is not None)

    def label(self, run: Run, *, bound: bool = False) -> str:
        """Return what a run is called among the others, with its bound or whatever that is."""
        if run.uncompressed:
            return UNCOMPRESSED
        if run.name:
            return run.name
        way = run.way
        name = str(way) if bound else way.codec if way.plain else way.label
        others = [r for r in self.runs if not r.uncompressed]
        if len({r.lossless for r in others}) > 1:
            name += f" + {run.lossless}"
        decay = way.decay
        if decay != 1.0 and len({r.way.decay for r in others}) > 1:
            name += f" (decay {decay:g})"
        # A policy that leaves nothing to the options decides on this too.
        chosen = run.lossy != USUAL_TENSORS and not asks_nothing(run.way.policy)
        if chosen and len({r.lossy for r in others}) > 1:
            name += f" ({run.lossy})"
        return name

    @property
    def provenance(self) -> str:
        """Model, data, seeds, machine, in a few sentences."""
        of = self.runs[0].conditions
        images = f"{of['samples']:,} images" if of["samples"] else "all images"
        share = (of["partition"] or "unknown partition").replace(":", " with alpha ")
        tested = f" tested on {of['test_samples']:,} images," if of["test_samples"] else ""
        scaled = f" at {of['image_size']} pixels" if of["image_size"] else ""
        begun = f", from weights {of['initial']}" if of["initial"] else ""
        seeds = sorted({run.seed for run in self.runs})
        return (
            f"Model {of['model']}{begun}; data {of['dataset']}{scaled}, {images} over"
            f" {count(of['clients'] or 0, 'client')} ({share}),{tested}"
            f" {count(of['rounds'] or 0, 'round')} of {count(of['epochs'] or 0, 'epoch')};"
            f" {listed('seed', seeds)}; {machines(self.runs)}."
        )


def _place(bound: ErrorBound | None) -> tuple[int, float]:
    return (KINDS.index(bound.kind), bound.value) if bound else (-1, 0.0)


def rank(label: str) -> tuple[int, str]:
    """Return the place of a label: uncompressed, codecs in the order of their list, other ways."""
    if label == UNCOMPRESSED:
        return -1, ""
    name = re.split(r"[: ]", label)[0]
    places = [i for i, codec in enumerate(CODECS) if codec.name == name]
    return (places[0] if places else len(CODECS)), label


def machines(runs: Sequence[Run]) -> str:
    """Return what the runs were made on."""
    found = {
        f"{run.machine} ({count(run.cores, 'core')}, {count(run.threads, 'thread')} a process)"
        for run in runs
        if run.machine
    }
    return f"machine: {' and '.join(sorted(found))}" if found else "machine not recorded"


def settings_of(runs: Iterable[Run]) -> list[Setting]:
    """Put the runs that did not fail together with those they can be compared with."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        if not run.error and run.rounds:
            groups.setdefault(tuple(run.conditions.values()), []).append(run)
    found: list[Setting] = []
    for conditions in sorted(groups, key=lambda key: json.dumps(key, default=str)):
        model, dataset = conditions[:2]
        rivals = zip(*(key for key in groups if key[:2] == (model, dataset)), strict=True)
        title = f"{model} on {dataset}"
        for name, value, values in zip(CONDITIONS, conditions, rivals, strict=True):
            if len(set(values)) > 1 and value is not None:
                said = f"{value:.7}" if name == "initial" else str(value)  # a digest
                label = "" if name == "partition" else name.replace("_", " ") + " "
                title += f", {label}{said}"
        name = re.sub(r"[^a-z0-9]+", "-", f"{model}-{dataset}".lower()).strip("-") or "runs"
        # Numbers keep names unique and short where conditions differ.
        taken = sum(setting.name.partition("--")[0] == name for setting in found)
        name += f"--{taken + 1}" if taken else ""
        found.append(Setting(name, title, tuple(groups[conditions])))
    return found


def named(bound: ErrorBound | None, otherwise: str = NOTHING) -> str:
    """Return a bound with its kind, as in the result files."""
    return f"{bound.kind}:{bound.value:g}" if bound else otherwise
