"""What a sweep runs: every combination of models, data, schemes and seeds, in order."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import product
from typing import Annotated, Any, Final, Self

from msgspec import Meta

from fedsz.bounds import ErrorBound
from fedsz.control.policy import FIXED
from fedsz.core.partition import PAPER as PAPER_RULE
from fedsz.core.settings import WEIGHTS, Settings
from fedsz.errors import ConfigError
from fedsz.experiments.environment import file_digest
from fedsz.experiments.scheme import DEFAULTS, DIRICHLET, RAW, Scheme, at, parse
from fedsz.training.options import (
    COMPRESSION,
    RESULTS,
    SWEEP,
    TRAVEL,
    WATCHING,
    RunConfig,
    Use,
    options,
)

# A sweep has many of each.
PLURAL: Final = {name: f"{name}s" for name in ("model", "dataset", "codec", "error_bound")}
LISTS: Final = (*PLURAL.values(), "ways", "partitions")
ID_LENGTH: Final = 12
# Options that change no result: where the data are, and how many clients a local run waits for.
SAME_RESULT: Final = ("data_dir", "min_clients")

SWEPT: Final = "What is swept"


_USE: Final = Use(SWEPT, (SWEEP,))


@dataclass(frozen=True, kw_only=True)
class SweepConfig(RunConfig):
    """Many training runs. TOML files and flags have these names and those of `RunConfig`.

    A file may have tables ``[tasks.NAME]``. It is then a sweep for each: with the table's options,
    and the file's and the flags' for those that the table has not. Its ``ways`` may be a table too:
    by a name, a scheme or a table of any options of a run.

    Attributes:
        tasks: the sweeps of the tables, by their names.
        named_ways: a scheme or options of runs, by the names of the table ``ways``.

    Raises:
        ConfigError: a value is out of range or does not exist.
    """

    # fmt: off
    update: Annotated[str, Meta(description="What clients send: weights, delta or delta+ef."),
        Use(COMPRESSION, (SWEEP,))] = WEIGHTS
    rule: str = PAPER_RULE  # of the tables that there are
    max_client_share: float = 1.0  # its clients are its own
    max_update_norm: str = "none"
    models: Annotated[str, Meta(description="Models, separated by commas; the task's first by "
        "default."), _USE] = ""
    datasets: Annotated[str, Meta(description="Data sets, separated by commas; the task's first by "
        "default."), _USE] = ""
    partitions: Annotated[str, Meta(description="Partitions, such as "
        "iid,dirichlet:0.5,dirichlet:0.1, instead of --partitioner."), _USE] = ""
    codecs: Annotated[str, Meta(description="Codecs, separated by commas; raw is the uncompressed "
        "baseline."), _USE] = "raw,sz2,szx,uniform"
    error_bounds: Annotated[str, Meta(description="Error bounds: 1e-5..1e-1 is one a decade; or "
        "1e-2,abs:1e-3,std:0.1."), _USE] = "1e-3..1e-1"
    ways: Annotated[str, Meta(description="Schemes, UPDATE:CODEC@BOUND/DOWNLINK each, instead of "
        "--codecs and --update, such as raw,weights:sz2@1e-2,delta+ef@std:3/std:2,delta:fp16,auto "
        "or 'feedback>topk>ternary'."), _USE] = ""
    seeds: Annotated[int, Meta(ge=1, le=10_000, description="How many seeds every combination runs "
        "with, from --seed on."), _USE] = 1
    jobs: Annotated[int, Meta(ge=1, le=256, description="Runs at the same time; they share the "
        "processors."), _USE] = 1
    results: Annotated[str, Meta(description="Parquet file that rows are added to."), _USE] = (
        "runs/sweep.parquet"
    )
    # fmt: on
    tasks: Mapping[str, SweepConfig] = dataclasses.field(default_factory=dict)
    named_ways: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.runs

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Do as `RunConfig.of`; lists may stand for text with commas, and ``tasks`` be tables."""
        named = {name.replace("-", "_"): value for name, value in values.items()}
        tables = named.pop("tasks", {})
        if tables:
            return dataclasses.replace(cls.of(named), tasks=cls._of_tables(named, tables))
        if isinstance(named.get("ways"), dict):
            ways = named.pop("ways")
            return dataclasses.replace(cls.of(named), named_ways=ways)
        for one, many in PLURAL.items():
            if one in named:
                raise ConfigError(f"a sweep has {many!r}, not {one!r}")
        for many in LISTS:
            if isinstance(named.get(many), list):
                if not named[many] and many in PLURAL.values():
                    raise ConfigError(f"{many} must be names, got an empty list")
                named[many] = ",".join(map(str, named[many]))
        return super().of(named)

    @classmethod
    def _of_tables(cls, shared: Mapping[str, Any], tables: Any) -> dict[str, Self]:
        if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
            raise ConfigError(f"tasks must be tables, each [tasks.NAME], got {tables!r}")
        sweeps = {}
        for name, table in tables.items():
            if elsewhere := {"results", "jobs", "tasks"} & table.keys():
                raise ConfigError(f"[tasks.{name}]: {min(elsewhere)} is for the whole sweep")
            try:
                sweeps[name] = cls.of({**shared, **table})
            except ConfigError as err:
                raise ConfigError(f"[tasks.{name}]: {err}") from None
        return sweeps

    @cached_property
    def runs(self) -> tuple[RunConfig, ...]:
        """Every run, all combinations of a seed before those of the next.

        What no bound steers runs once, not once for each bound; what is not compressed runs as
        it did before there were steps and bounds on the downlink, so that all compare with it.
        """
        return tuple(self._names)

    @property
    def way_names(self) -> Mapping[RunConfig, str]:
        """The name of a run's way, if it has one."""
        return {run: name for run, name in self._names.items() if name}

    @cached_property
    def _names(self) -> dict[RunConfig, str]:
        """Every run, with the name of its way or ""."""
        if self.tasks:
            return {run: name for own in self.tasks.values() for run, name in own._names.items()}
        axes = product(
            range(self.seed, self.seed + self.seeds),
            names(self.datasets or self.dataset, "data sets"),
            names(self.models or self.model, "models"),
            partitions(self.partitions, self.alpha) or [(self.partitioner, self.alpha)],
            self._ways(),
        )
        # LocalGrid's clients are there from the start.
        shared = {name: getattr(self, name) for name in options()} | {"min_clients": self.clients}
        runs: dict[RunConfig, str] = {}
        for seed, dataset, model, (partitioner, alpha), (name, options_of_way) in axes:
            own = {"seed": seed, "dataset": dataset, "model": model, "partitioner": partitioner,
                   "alpha": alpha, "initial": self.initial.replace("{model}", model)}  # fmt: skip
            runs.setdefault(RunConfig(**shared | own | options_of_way), name)
        return runs

    def _ways(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the name and the options of each way; most have no name."""
        usual = Scheme.of_run(self)
        for name, way in self.named_ways.items():
            try:
                if isinstance(way, str):
                    scheme, own = parse(way, usual)
                    for bound in error_bounds(own) if own else error_bounds(self.error_bounds)[:1]:
                        yield name, at(scheme, (bound,))[0].options
                elif not isinstance(way, dict):
                    raise ConfigError(f"a way is a scheme or a table of options, got {way!r}")
                else:
                    raw = {"lossless": RAW} if way.get("codec") == RAW else {}
                    checked = RunConfig.of(way)  # unknown names
                    yield name, raw | {key: getattr(checked, key) for key in way}
            except ConfigError as err:
                raise ConfigError(f"[ways.{name}]: {err}") from None
        if not self.named_ways:
            yield from (("", scheme.options) for scheme in self._schemes())

    def _schemes(self) -> Iterator[Scheme]:
        """Yield what runs do with their updates; what `ways` do not say is as the options say."""
        bounds, usual = error_bounds(self.error_bounds), Scheme.of_run(self)
        if not self.ways:
            for spec in codecs(self.codecs):
                text = RAW if spec == RAW else f"{self.update}:{spec}"
                yield from at(parse(text, usual)[0], bounds)
            return
        for part in names(self.ways, "ways"):
            try:
                scheme, own = parse(part, usual)
                yield from at(scheme, error_bounds(own) if own else bounds)
            except ConfigError as err:
                where = "" if str(err).startswith("no way") else f"way {part!r}: "
                raise ConfigError(f"{where}{err}") from None


def run_id(run: RunConfig) -> str:
    """Return what names a run in a result file: equal for runs that should give equal results."""
    what = {**deciding(run), "initial": file_digest(run.initial)}
    if Scheme.of_run(run).bound is None:
        del what["error_bound"]
    if run.policy == FIXED:
        del what["tolerance"]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:ID_LENGTH]


def deciding(run: RunConfig) -> dict[str, Any]:
    """Return the options that can change a run's result."""
    return {
        name: getattr(run, name)
        for name, about in options().items()
        if about.panel not in (TRAVEL, RESULTS, WATCHING) and name not in SAME_RESULT
    }


def settings_of(spec: str) -> str:
    """Return all settings of a codec, defaults too, as ``name=value,...``."""
    from fedsz import codecs  # numpy and native libraries; --help needs none

    settings = dataclasses.asdict(codecs.parse(spec))
    return ",".join(f"{name}={value}" for name, value in settings.items())


def names(text: str, what: str) -> tuple[str, ...]:
    """Return the names in a comma list, each once; a setting belongs to what is before it.

    Raises:
        ConfigError: there is none.
    """
    items: list[str] = []
    for part in map(str.strip, text.split(",")):
        if not part:
            raise ConfigError(f"{what} must be names separated by commas, got {text!r}")
        if re.match(r"\w+=", part) and items and ":" in items[-1]:
            items[-1] += f",{part}"
        else:
            items.append(part)
    return tuple(dict.fromkeys(items))


def codecs(text: str) -> tuple[str, ...]:
    """Return the codecs of a comma list, such as ``sz2,blosclz:level=8,shuffle=byte,raw``.

    Raises:
        ConfigError: there is none, or one that does not exist.
    """
    # One whose library is missing stays: its runs fail, each with a row that says so.
    return tuple(dict.fromkeys(Settings(codec=name).codec for name in names(text, "codecs")))


def partitions(text: str, alpha: float) -> list[tuple[str, float]]:
    """Return partitioner and concentration for each of ``iid,dirichlet:0.1``; "" holds none.

    A ``dirichlet`` without a number has the concentration ``alpha``.

    Raises:
        ConfigError: one is not as above.
    """
    found = []
    for part in names(text, "partitions") if text else ():
        name, colon, number = part.partition(":")
        if colon and name != DIRICHLET:
            raise ConfigError(f"{part!r}: {DIRICHLET} alone takes a number")
        try:
            own = float(number) if colon else alpha
        except ValueError:
            raise ConfigError(f"{part!r}: {number!r} is no concentration") from None
        # What no number steers has the default's, and so one name whatever the others have.
        found.append((name, own if name == DIRICHLET else DEFAULTS.alpha))
    return found


def error_bounds(text: str) -> tuple[ErrorBound, ...]:
    """Return the bounds of a comma list, in which ``1e-5..1e-1`` stands for one each decade.

    Raises:
        ConfigError: there is none, one out of range, or a range that is empty.
    """
    bounds: list[ErrorBound] = []
    for part in names(text, "error bounds"):
        first, dots, last = part.partition("..")
        if not dots:
            bounds.append(ErrorBound.of(part))
            continue
        low, high = ErrorBound.of(first), ErrorBound.of(last)
        if high.value < low.value:
            raise ConfigError(f"{part!r} is empty: write the smaller bound first, {last}..{first}")
        if high.kind not in (low.kind, "rel"):
            raise ConfigError(f"{part!r} has bounds of two kinds")
        decades = math.floor(math.log10(high.value / low.value) + 1e-9)
        # In decimal, so that 1e-5 times 10 is 1e-4 and not its neighbour.
        least = Decimal(repr(low.value))
        bounds += [ErrorBound(low.kind, float(least.scaleb(k))) for k in range(decades + 1)]
    return tuple(dict.fromkeys(bounds))
