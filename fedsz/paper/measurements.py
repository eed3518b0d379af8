"""What several tables and figures are made from: trained models, measured codecs, runs."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.errors import ConfigError, FedszError
from fedsz.experiments import bench
from fedsz.experiments.environment import environment
from fedsz.experiments.results import SWEEP, Results, read
from fedsz.experiments.sweep import Sweep
from fedsz.experiments.sweep_plan import PLURAL, SweepConfig, run_id
from fedsz.paper import trained_models
from fedsz.paper.options import MeasurementOptions, PaperConfig
from fedsz.paper.trained_models import OnStep, TrainedModel
from fedsz.report.runs import UpdateCost
from fedsz.training.options import RunConfig
from fedsz.update.compress import compress_measured
from fedsz.update.config import CompressionConfig
from fedsz.update.decompress import decompress
from fedsz.update.partition import is_lossy

if TYPE_CHECKING:
    from fedsz.training.datasets import Images

Row = dict[str, Any]

OURS: Final = "uniform"
# The paper's names and ours. Its SZ3 is that library's default, while our default leaves
# prediction out (docs/codecs.md).
CODECS: Final = {
    "sz2": "sz2", "sz3": "sz3:algorithm=interp_lorenzo", "szx": "szx", "zfp": "zfp", OURS: OURS,
}  # fmt: skip


@dataclass(eq=False)
class Measurements:
    """Trains, measures and runs what is asked of it; what several ask for is made once."""

    config: PaperConfig
    options: MeasurementOptions
    on_step: OnStep  # told what is going on, a line each
    _trained: dict[tuple[str, str], TrainedModel] = field(default_factory=dict)
    _costs: dict[tuple[TrainedModel, str, float], UpdateCost] = field(default_factory=dict)

    @property
    def machine(self) -> str:
        """Where ours are measured."""
        here = environment()
        return f"{here['machine']}, {here['cores']} cores, fedsz {here['fedsz_version']}"

    def trained(self, model: str, dataset: str) -> TrainedModel:
        """Return a trained model: from the folder of weights if there is one, else trained here.

        Raises:
            FedszError: see `fedsz.paper.trained_models`.
        """
        key, weights = (model, dataset), self.options.weights
        if key not in self._trained and weights:
            self._trained[key] = trained_models.read(weights, model, dataset)
        elif key not in self._trained:
            run = self.config.run_config(model, dataset)
            self._trained[key] = trained_models.train(run, self.options.folder, self.on_step)
        return self._trained[key]

    def trained_models(self) -> list[TrainedModel]:
        """Return all models, trained on the first data set."""
        return [self.trained(model, self.config.first_dataset) for model in self.config.model_names]

    def test_images(self, dataset: str) -> Images:
        """Return the images that models are tested on.

        Raises:
            DataError: the data set is not there.
        """
        from fedsz.training import datasets

        data_dir, samples = self.config.data_dir, self.config.test_samples or None
        folder = Path(data_dir) if data_dir else None
        return datasets.load_test(dataset, data_dir=folder, samples=samples)

    def lossy(self, trained: TrainedModel) -> dict[str, NDArray]:
        """Return those of a trained model's tensors that may be lossy."""
        rule, threshold = self.config.rule, self.config.threshold
        state = trained.state.items()
        return {name: x for name, x in state if is_lossy(name, x, rule=rule, threshold=threshold)}

    def settings(self, codec: str, bound: float) -> CompressionConfig:
        """Return how updates are compressed by a codec at a relative bound."""
        return self.config.compression.replace(error_bound=str(bound), codec=codec).require()

    def codec_costs(
        self, trained: TrainedModel, codecs: Sequence[str], bounds: Sequence[float]
    ) -> list[Row]:
        """Return rows of the table "bench": each codec alone, on a trained model's weights."""
        self.on_step(f"measuring {', '.join(codecs)} on {trained.name}")
        config, options, relative = self.config, self.options, map(ErrorBound.rel, bounds)
        return bench.measure(
            trained.state, data=trained.name, codecs=codecs, bounds=list(relative),
            repeats=options.repeats, seconds=options.seconds,
            rule=config.rule, threshold=config.threshold,
        )  # fmt: skip

    def update_cost(self, trained: TrainedModel, codec: str, bound: float) -> UpdateCost:
        """Return what compressing a whole trained model costs, and decompressing it again."""
        key = (trained, codec, bound)
        if key not in self._costs:
            self.on_step(f"compressing {trained.name} by {codec}, {bound:g}")
            self._costs[key] = self._measured(trained.state, self.settings(codec, bound))
        return self._costs[key]

    def _measured(self, state: dict[str, NDArray], settings: CompressionConfig) -> UpdateCost:
        encode: list[float] = []
        decode: list[float] = []
        # The first pass starts decoders' processes and touches memory for the first time.
        decompress(compress_measured(state, settings)[0], as_numpy=True)
        while not encode or (
            len(encode) < self.options.repeats and sum(encode) + sum(decode) < self.options.seconds
        ):
            stream, report = compress_measured(state, settings)
            start = time.perf_counter()
            decompress(stream, as_numpy=True)
            decode.append(time.perf_counter() - start)
            encode.append(report.seconds)
        seconds = statistics.median(encode), statistics.median(decode)
        return UpdateCost(report.raw_bytes, report.nbytes, math.nan, *seconds)

    def rounds(
        self, models: Sequence[str], datasets: Sequence[str], codecs: Sequence[str],
        bounds: Sequence[float],
    ) -> list[Row]:  # fmt: skip
        """Return rows of the table "sweep": from the file that was given, else by running.

        Raises:
            ConfigError: the file that was given has no such runs.
            FedszError: every run failed.
        """
        file = self.options.sweep
        if file is not None:
            rows = _without_histograms(read(file, SWEEP))
            rows = [row for row in rows if row["model"] in models and row["dataset"] in datasets]
            if not rows:
                asked = f"{', '.join(models)} on {', '.join(datasets)}"
                raise ConfigError(f"{file} has no run of {asked}")
        else:
            names = RunConfig.__dataclass_fields__.keys() - PLURAL.keys()
            options: dict[str, Any] = {name: getattr(self.config, name) for name in names}
            options |= {"models": list(models), "datasets": list(datasets), "codecs": list(codecs)}
            options["error_bounds"] = [f"{bound:g}" for bound in bounds]
            options["results"] = str(self.options.folder / "sweep.parquet")
            rows = _run(SweepConfig.of(options), self.on_step)
        if all(row["error"] for row in rows):
            raise FedszError(f"every run failed: {rows[0]['error']}")
        if not any(row["replies"] for row in rows):
            raise FedszError("no client of any run could train; --verbose says why")
        return rows


def _run(config: SweepConfig, on_step: OnStep) -> list[Row]:
    """Run what a sweep lacks, and return its rows."""
    with Results(Path(config.results), SWEEP) as results:
        sweep = Sweep(config, results)
        sweep.forget_failures()
        with closing(sweep.run()) as steps:
            for step in steps:
                if step.over:
                    outcome = step.error or f"accuracy {step.round.accuracy:.4f}"  # type: ignore[union-attr]
                    on_step(f"{step.run.model} {step.run.dataset} {step.run.codec}: {outcome}")
        rows = _without_histograms(results.rows)
    wanted = {run_id(run, config.grid) for run in config.runs}
    return [row for row in rows if row["run"] in wanted]


def _without_histograms(table: Any) -> list[Row]:
    rows: list[Row] = table.drop_columns("distributions").to_pylist()
    return rows
