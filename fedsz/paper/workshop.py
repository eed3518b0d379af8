"""What several tables and figures are made from, made once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from typing import Any, Final

from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.errors import ConfigError, FedszError
from fedsz.experiments import bench
from fedsz.experiments.environment import environment
from fedsz.paper.compare import Comparison
from fedsz.paper.settings import PaperConfig, Sources
from fedsz.paper.trained_models import OnStep, Trained, trained
from fedsz.training.options import RunConfig
from fedsz.update.compress import compress_measured
from fedsz.update.decompress import decompress
from fedsz.update.partition import is_lossy

Row = dict[str, Any]

# The paper's SZ3 is its library's default; ours leaves prediction out (docs/codecs.md).
CODECS: Final = {"sz2": "sz2", "sz3": "sz3:algorithm=interp_lorenzo", "szx": "szx", "zfp": "zfp"}
OURS: Final = "uniform"
USUAL: Final = 1e-2  # the bound that the paper recommends


@dataclass(frozen=True)
class Update:
    """What compressing a whole state_dict costs.

    Attributes:
        raw, sent: bytes before and after.
        encode, decode: seconds, medians.
    """

    raw: int
    sent: int
    encode: float
    decode: float

    @property
    def ratio(self) -> float:
        """How many times smaller it gets."""
        return self.raw / self.sent


@dataclass
class Workshop:
    """Makes trained weights, measured codecs and runs when they are first asked for.

    Attributes:
        config, sources: what was asked for.
        on_step: told what is going on, a line each.
    """

    config: PaperConfig
    sources: Sources
    on_step: OnStep
    _trained: dict[tuple[str, str], Trained] = field(default_factory=dict)
    _measured: dict[tuple[Any, ...], list[Row]] = field(default_factory=dict)
    _updates: dict[tuple[Any, ...], Update] = field(default_factory=dict)
    _swept: dict[tuple[Any, ...], list[Row]] = field(default_factory=dict)

    @property
    def machine(self) -> str:
        """Where ours were measured."""
        here = environment()
        return f"{here['machine']}, {here['cores']} cores, fedsz {here['fedsz_version']}"

    def trained(self, model: str, dataset: str) -> Trained:
        """Return trained weights; see `fedsz.paper.trained_models.trained`."""
        key = (model, dataset)
        if key not in self._trained:
            self._trained[key] = trained(self.config, self.sources, model, dataset, self.on_step)
        return self._trained[key]

    def lossy(self, model: str, dataset: str) -> dict[str, NDArray]:
        """Return those of a trained model's tensors that may be lossy."""
        rule, threshold = self.config.rule, self.config.threshold
        state = self.trained(model, dataset).state
        return {
            name: x
            for name, x in state.items()
            if is_lossy(name, x, rule=rule, threshold=threshold)
        }

    def measured(
        self, model: str, dataset: str, codecs: Sequence[str], bounds: Sequence[float]
    ) -> list[Row]:
        """Return rows of the table "bench", of one model's trained weights."""
        key = (model, dataset, tuple(codecs), tuple(bounds))
        if key not in self._measured:
            data = f"{model}-{dataset}"
            state = self.trained(model, dataset).state
            self.on_step(f"measuring {', '.join(codecs)} on {data}")
            self._measured[key] = bench.measure(
                state,
                data=data,
                codecs=codecs,
                bounds=[ErrorBound.rel(bound) for bound in bounds],
                repeats=self.sources.repeats,
                seconds=self.sources.seconds,
                rule=self.config.rule,
                threshold=self.config.threshold,
            )
        return self._measured[key]

    def update(self, model: str, dataset: str, codec: str, bound: float) -> Update:
        """Return what compressing a whole trained model costs, and decompressing it again."""
        key = (model, dataset, codec, bound)
        if key not in self._updates:
            config = self.config
            settings = config.compression.replace(error_bound=str(bound), codec=codec).require()
            state = self.trained(model, dataset).state
            self.on_step(f"compressing {model}-{dataset} by {codec}, {bound:g}")
            encode: list[float] = []
            decode: list[float] = []
            spent = 0.0
            # The first pass starts decoders' processes and touches memory for the first time.
            decompress(compress_measured(state, settings)[0], as_numpy=True)
            while not encode or (
                len(encode) < self.sources.repeats and spent < self.sources.seconds
            ):
                stream, report = compress_measured(state, settings)
                start = time.perf_counter()
                decompress(stream, as_numpy=True)
                decode.append(time.perf_counter() - start)
                encode.append(report.seconds)
                spent += encode[-1] + decode[-1]
            self._updates[key] = Update(
                report.raw_bytes,
                report.nbytes,
                statistics.median(encode),
                statistics.median(decode),
            )
        return self._updates[key]

    def swept(
        self,
        models: Sequence[str],
        datasets: Sequence[str],
        codecs: Sequence[str],
        bounds: Sequence[float],
    ) -> list[Row]:
        """Return rows of the table "sweep": from the file that was given, else by running.

        Raises:
            ConfigError: the file that was given has no such runs.
            FedszError: every run failed.
        """
        key = (tuple(models), tuple(datasets), tuple(codecs), tuple(bounds))
        if key not in self._swept:
            if self.sources.sweep is None:
                rows = self._run(models, datasets, codecs, bounds)
            else:
                rows = _read(self.sources, models, datasets)
            if all(row["error"] for row in rows):
                raise FedszError(f"every run failed: {rows[0]['error']}")
            if not any(row["replies"] for row in rows):
                raise FedszError("no client of any run could train; --verbose says why")
            self._swept[key] = rows
        return self._swept[key]

    def _run(
        self,
        models: Sequence[str],
        datasets: Sequence[str],
        codecs: Sequence[str],
        bounds: Sequence[float],
    ) -> list[Row]:
        from fedsz.experiments.results import SWEEP, Results
        from fedsz.experiments.sweep import Sweep
        from fedsz.experiments.sweep_plan import SweepConfig, run_id

        shared = {each.name: getattr(self.config, each.name) for each in fields(RunConfig)}
        for single in ("model", "dataset", "codec", "error_bound"):
            del shared[single]
        asked = SweepConfig.of(
            {
                **shared,
                "models": list(models),
                "datasets": list(datasets),
                "codecs": list(codecs),
                "error_bounds": [f"{bound:g}" for bound in bounds],
                "results": str(self.sources.folder / "sweep.parquet"),
            }
        )
        with Results(self.sources.folder / "sweep.parquet", SWEEP) as results:
            sweep = Sweep(asked, results)
            sweep.forget_failures()
            with closing(sweep.run()) as steps:
                for step in steps:
                    if step.over:
                        said = step.error or f"accuracy {step.round.accuracy:.4f}"  # type: ignore[union-attr]
                        run = step.run
                        self.on_step(f"{run.model} {run.dataset} {run.codec}: {said}")
            wanted = {run_id(run, asked.grid) for run in asked.runs}
            rows = _without_histograms(results.rows)
        return [row for row in rows if row["run"] in wanted]


def _read(sources: Sources, models: Sequence[str], datasets: Sequence[str]) -> list[Row]:
    from fedsz.experiments.results import SWEEP, read

    assert sources.sweep is not None
    rows = _without_histograms(read(sources.sweep, SWEEP))
    found = [row for row in rows if row["model"] in models and row["dataset"] in datasets]
    if not found:
        raise ConfigError(
            f"{sources.sweep} has no run of {', '.join(models)} on {', '.join(datasets)}"
        )
    return found


def _without_histograms(rows: Any) -> list[Row]:
    names = [name for name in rows.column_names if name != "distributions"]
    plain: list[Row] = rows.select(names).to_pylist()
    return plain


Make = Callable[[Workshop], Comparison]
