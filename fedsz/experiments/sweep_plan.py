"""What a sweep runs: every combination of models, data, ways of updating and seeds, in order."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Self

from fedsz.bounds import ErrorBound
from fedsz.errors import CodecUnavailable, ConfigError
from fedsz.experiments.environment import file_digest
from fedsz.experiments.scheme import AUTO, DEFAULTS, DIRICHLET, FIXED, RAW, Way, asks_nothing
from fedsz.training.options import RunConfig, option
from fedsz.update.config import EXACT, UPDATES, WEIGHTS

if TYPE_CHECKING:
    from fedsz.codecs import Codec

# A sweep has many of each.
PLURAL: Final = {
    "model": "models",
    "dataset": "datasets",
    "codec": "codecs",
    "error_bound": "error_bounds",
}
LISTS: Final = (*PLURAL.values(), "ways", "partitions")
GRIDS: Final = ("local", "grpc")
ID_LENGTH: Final = 12

_WAY: Final = re.compile(
    rf"(?P<update>{RAW}|{'|'.join(map(re.escape, UPDATES))})"
    r"(:(?P<codec>[^@/\s]+))?(@(?P<bound>[^/\s]+))?(/(?P<downlink>\S+))?"
    r"(\s+by\s+(?P<policy>[^@\s]+)(@(?P<points>\d+(\.\d+)?))?)?"
)
_AUTO: Final = re.compile(rf"{AUTO}\b(?! by)")

# What a run is, beside the axes of the sweep: not where its data lies, nor who listens where.
SAME: Final = (
    "lossless", "threshold", "rule", "clients", "partitioner", "alpha", "samples", "test_samples",
    "image_size", "rounds", "epochs", "batch_size", "learning_rate", "momentum", "device",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SweepConfig(RunConfig):
    """Many training runs. TOML files and flags have these names and those of `RunConfig`.

    Raises:
        ConfigError: a value is out of range or does not exist.
    """

    update: str = option("weights", "What clients send: weights, delta or delta+ef.")
    models: str = option("cnn", "Models, separated by commas.")
    datasets: str = option("digits", "Data sets, separated by commas.")
    codecs: str = option(
        "raw,sz2,szx,uniform", "Codecs, separated by commas; raw is the uncompressed baseline."
    )
    error_bounds: str = option(
        "1e-3..1e-1", "Bounds: 1e-5..1e-1 is one a decade; or 1e-2,abs:1e-3,std:0.1."
    )
    ways: str = option(
        "",
        "In place of --codecs: whole ways of updating, UPDATE:CODEC@BOUND/DOWNLINK each, such as"
        " raw,weights:sz2@1e-2,delta+ef@std:3/std:2,delta:fp16,auto.",
    )
    partitions: str = option(
        "", "In place of --partitioner: such as iid,dirichlet:0.5,dirichlet:0.1."
    )
    seeds: int = option(1, "Seeds that every combination runs with, from --seed on.")
    grid: str = option("local", "Clients: local, all in one process, or grpc, a process each.")
    jobs: int = option(1, "Runs at a time; they share the processors.")
    results: str = option("runs/sweep.parquet", "Parquet file that rows are added to.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grid not in GRIDS:
            raise ConfigError(f"no grid {self.grid!r}; have {', '.join(GRIDS)}")
        for name, high in (("seeds", 10_000), ("jobs", 256)):
            if not 1 <= getattr(self, name) <= high:
                raise ConfigError(f"{name} must lie in 1..{high}, got {getattr(self, name)}")
        _ = self.runs

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the sweep that ``values`` describe; lists may stand for text with commas.

        Raises:
            ConfigError: an unknown name, or a value that its option cannot have.
        """
        named = {name.replace("-", "_"): value for name, value in values.items()}
        for one, many in PLURAL.items():
            if one in named:
                raise ConfigError(f"a sweep has {many!r}, not {one!r}")
        for many in LISTS:
            if isinstance(named.get(many), list):
                named[many] = ",".join(map(str, named[many]))
        return super().of(named)

    @property
    def runs(self) -> tuple[RunConfig, ...]:
        """Every run, all combinations of a seed before those of the next.

        What no bound steers runs once, not once for each bound; what is not compressed runs as
        it did before there were steps and bounds on the way down, so that all compare with it.
        """
        axes = product(
            range(self.seed, self.seed + self.seeds),
            names(self.datasets, "data sets"),
            names(self.models, "models"),
            partitions(self.partitions, self.alpha) or [(self.partitioner, self.alpha)],
            self._ways(),
        )
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(RunConfig)}
        # LocalGrid's clients are there from the start.
        shared["min_clients"] = self.clients
        runs = []
        for seed, dataset, model, (partitioner, alpha), way in axes:
            chosen = {**shared, "seed": seed, "dataset": dataset, "model": model}
            chosen |= {"partitioner": partitioner, "alpha": alpha, **way.options}
            chosen["initial"] = self.initial.replace("{model}", model)
            runs.append(RunConfig(**chosen))
        return tuple(dict.fromkeys(runs))

    def _ways(self) -> list[Way]:
        bounds = error_bounds(self.error_bounds)
        usual = Way(self.update, self.codec, None, self.downlink, self.policy, self.tolerance)
        if self.ways:
            return list(ways(self.ways, bounds, usual))
        asked = (
            Way(tolerance=self.tolerance, codec=RAW)
            if spec == RAW
            else dataclasses.replace(usual, codec=spec)
            for spec in codecs(self.codecs)
        )
        return [way for one in asked for way in _at(bounds, one)]


def run_id(run: RunConfig, grid: str) -> str:
    """Return what names a run in a result file: equal for runs that should give equal results."""
    axes = {name: getattr(run, name) for name in (*PLURAL, "seed")}
    if way_of(run).bound is None:
        del axes["error_bound"]
    initial = file_digest(run.initial) if run.initial else ""
    what = {**axes, "grid": grid, "initial": initial, **{name: getattr(run, name) for name in SAME}}
    # Older files do not say these of themselves.
    if run.update != WEIGHTS:
        what["update"] = run.update
    if run.downlink != EXACT:
        what["downlink"] = run.downlink
    if run.policy != FIXED:
        what |= {"policy": run.policy, "tolerance": run.tolerance}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:ID_LENGTH]


def way_of(run: RunConfig) -> Way:
    """Return what a run does with its updates."""
    steers = steered(run.codec) and not asks_nothing(run.policy)
    bound = ErrorBound.of(run.error_bound) if steers else None
    return Way(run.update, run.codec, bound, run.downlink, run.policy, run.tolerance)


def steered(spec: str) -> bool:
    """Say whether a codec's error depends on a bound."""
    codec = _codec(spec)
    return codec is None or (codec.lossy and codec.keeps_bound)


def settings_of(spec: str) -> str:
    """Return all settings of a codec, defaults too, as ``name=value,...``."""
    codec = _codec(spec)
    if codec is None:
        return ""
    fields = dataclasses.fields(codec)
    return ",".join(f"{field.name}={getattr(codec, field.name)}" for field in fields)


def names(text: str, what: str) -> tuple[str, ...]:
    """Return the names in a comma list, each once.

    Raises:
        ConfigError: there is none.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{what} must be names separated by commas, got {text!r}")
    return tuple(dict.fromkeys(parts))


def codecs(text: str) -> tuple[str, ...]:
    """Return the codecs of a comma list, such as ``sz2,uniform:effort=9,threads=1,raw``.

    Raises:
        ConfigError: there is none, or one that does not exist.
    """
    specs = _items(text, "codecs")
    # One whose library is missing stays: its runs fail, each with a row that says so.
    return tuple(dict.fromkeys(map(_written, specs)))


def partitions(text: str, alpha: float) -> list[tuple[str, float]]:
    """Return partitioner and concentration for each of a comma list; "" holds none.

    Args:
        text: such as ``iid,dirichlet:0.1``.
        alpha: of a ``dirichlet`` without a number.

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
        found.append((name, own if name == DIRICHLET else DEFAULTS["alpha"]))
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
        # Through text, so that 1e-5 times 10 is 1e-4 and not its neighbour.
        digits, _, exponent = f"{low.value:.15e}".partition("e")
        bounds += [
            ErrorBound(low.kind, float(f"{digits}e{int(exponent) + decade}"))
            for decade in range(decades + 1)
        ]
    return tuple(dict.fromkeys(bounds))


def ways(text: str, bounds: Sequence[ErrorBound], usual: Way) -> Iterator[Way]:
    """Yield the ways of a comma list.

    Each is UPDATE[:CODEC][@BOUND][/DOWNLINK][ by POLICY[@POINTS]], where ``raw`` may stand for
    update and codec, and ``auto[@POINTS]`` for all of it.

    Args:
        text: the list.
        bounds: of ways that name none and that a bound steers.
        usual: codec, downlink, policy and tolerance of ways that name none.

    Raises:
        ConfigError: there is none, or one that is not as above.
    """
    for part in _items(text, "ways"):
        found = _WAY.fullmatch(f"{WEIGHTS} by {part}" if _AUTO.match(part) else part)
        if not found:
            raise ConfigError(
                f"no way {part!r}; have {RAW}, {AUTO}[@POINTS] and UPDATE[:CODEC][@BOUND]"
                f"[/DOWNLINK][ by POLICY[@POINTS]], where UPDATE is one of {', '.join(UPDATES)}"
            )
        spec = RAW if found["update"] == RAW else found["codec"] or usual.codec
        try:
            way = Way(
                WEIGHTS if spec == RAW else found["update"],
                _written(spec),
                None,
                _downlink(found["downlink"] or (EXACT if spec == RAW else usual.downlink)),
                found["policy"] or (FIXED if spec == RAW else usual.policy),
                float(found["points"] or usual.tolerance),
            )
            if found["bound"] and not _steers(way):
                raise ConfigError("no bound steers it")
            if spec == RAW and way.policy != FIXED:
                raise ConfigError(f"{RAW} leaves a policy nothing to decide")
            yield from _at(error_bounds(found["bound"]) if found["bound"] else bounds, way)
        except ConfigError as err:
            raise ConfigError(f"way {part!r}: {err}") from None


def _at(bounds: Sequence[ErrorBound], way: Way) -> list[Way]:
    """Return a way at each bound, or once if none steers it."""
    return [dataclasses.replace(way, bound=bound) for bound in (bounds if _steers(way) else [None])]


def _steers(way: Way) -> bool:
    return steered(way.codec) and not asks_nothing(way.policy)


def _downlink(text: str) -> str:
    return text if text == EXACT else str(ErrorBound.of(text))


def _items(text: str, what: str) -> list[str]:
    """Return what stands between commas; a setting belongs to what is before it."""
    items: list[str] = []
    for part in names(text, what):
        if re.match(r"\w+=", part) and items and ":" in items[-1]:
            items[-1] += f",{part}"
        else:
            items.append(part)
    return items


def _written(spec: str) -> str:
    """Return a codec as fedsz writes it; one whose library is missing as it is."""
    return str(_codec(spec) or spec)


def _codec(spec: str) -> Codec | None:
    from fedsz import codecs  # numpy and native libraries; --help needs none

    try:
        return codecs.get(spec)
    except CodecUnavailable:
        return None
