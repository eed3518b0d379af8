"""What a sweep runs: every combination of models, data sets, codecs, bounds and seeds, in order."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Self

from fedsz import codecs as codec_list
from fedsz.bounds import ErrorBound
from fedsz.codecs.base import Codec
from fedsz.config import RunConfig, option
from fedsz.errors import CodecUnavailable, ConfigError
from fedsz.experiments.origin import file_digest
from fedsz.update import WEIGHTS

# A sweep has many of each.
PLURAL: Final = {
    "model": "models",
    "dataset": "datasets",
    "codec": "codecs",
    "error_bound": "error_bounds",
}
GRIDS: Final = ("local", "grpc")
ID_LENGTH: Final = 12

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

    models: str = option("cnn", "Models, separated by commas.")
    datasets: str = option("digits", "Data sets, separated by commas.")
    codecs: str = option(
        "raw,sz2,szx,uniform", "Codecs, separated by commas; raw is the uncompressed baseline."
    )
    error_bounds: str = option(
        "1e-3..1e-1", "Bounds: 1e-5..1e-1 is one a decade; or 1e-2,abs:1e-3,std:0.1."
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
            if isinstance(named.get(many), list):
                named[many] = ",".join(map(str, named[many]))
        return super().of(named)

    @property
    def runs(self) -> tuple[RunConfig, ...]:
        """Every run, all combinations of a seed before those of the next.

        Codecs that no bound steers run once, not once for each bound.
        """
        axes = product(
            range(self.seed, self.seed + self.seeds),
            names(self.datasets, "data sets"),
            names(self.models, "models"),
            codecs(self.codecs),
        )
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(RunConfig)}
        # LocalGrid's clients are there from the start.
        shared["min_clients"] = self.clients
        runs = []
        for seed, dataset, model, spec in axes:
            chosen = {**shared, "seed": seed, "dataset": dataset, "model": model, "codec": spec}
            chosen["initial"] = self.initial.replace("{model}", model)
            if spec == "raw":
                chosen["lossless"] = "raw"
            bounds = error_bounds(self.error_bounds) if steered(spec) else (None,)
            for bound in bounds:
                error_bound = {"error_bound": str(bound)} if bound else {}
                runs.append(RunConfig(**{**chosen, **error_bound}))
        return tuple(dict.fromkeys(runs))


def run_id(run: RunConfig, grid: str) -> str:
    """Return what names a run in a result file: equal for runs that should give equal results."""
    axes = {name: getattr(run, name) for name in (*PLURAL, "seed")}
    if not steered(run.codec):
        del axes["error_bound"]
    initial = file_digest(run.initial) if run.initial else ""
    what = {**axes, "grid": grid, "initial": initial, **{name: getattr(run, name) for name in SAME}}
    if run.update != WEIGHTS:  # which older files do not say of themselves
        what["update"] = run.update
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:ID_LENGTH]


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
    specs: list[str] = []
    for part in names(text, "codecs"):
        # A setting belongs to the codec before it.
        if "=" in part and ":" not in part and specs and ":" in specs[-1]:
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    # One whose library is missing stays: its runs fail, each with a row that says so.
    return tuple(dict.fromkeys(str(_codec(spec) or spec) for spec in specs))


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


def _codec(spec: str) -> Codec | None:
    try:
        return codec_list.get(spec)
    except CodecUnavailable:
        return None
