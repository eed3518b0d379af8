"""What several tables and figures are made from: trained models, measured codecs, runs."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from safetensors.numpy import load_file, save_file

from benchmarks.paper.options import MeasurementOptions, PaperConfig
from fedsz.arrays import NDArray, as_arrays, as_tensor
from fedsz.bounds import ErrorBound
from fedsz.control.record import RoundRecord
from fedsz.control.transfer_time import UpdateCost
from fedsz.core.decode import decompress
from fedsz.core.encode import compress_measured
from fedsz.core.partition import is_lossy
from fedsz.core.settings import Settings
from fedsz.errors import ConfigError, FedszError, ModelMismatch
from fedsz.experiments import bench
from fedsz.experiments.environment import environment
from fedsz.experiments.results import SWEEP, Results, read
from fedsz.experiments.scheme import RAW, Scheme
from fedsz.experiments.sweep import Sweep
from fedsz.experiments.sweep_plan import PLURAL, SweepConfig, run_id
from fedsz.experiments.sweep_worker import grid_of
from fedsz.report.runs import Run
from fedsz.report.source import runs_of
from fedsz.training import datasets
from fedsz.training.examples import Examples
from fedsz.training.federation import federate, prepare
from fedsz.training.images import build_model
from fedsz.training.loop import check_device, evaluate
from fedsz.training.model_state import start_from
from fedsz.training.options import RunConfig

Row = dict[str, Any]
OnStep = Callable[[str], None]

OURS: Final = "uniform"
# The paper's names and ours. Its SZ3 is that library's default, while our default leaves
# prediction out (docs/codecs.md).
CODECS: Final = {
    "sz2": "sz2", "sz3": "sz3:algorithm=interp_lorenzo", "szx": "szx", "zfp": "zfp", OURS: OURS,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained model."""

    model: str
    dataset: str
    state: dict[str, NDArray]
    image_size: int  # pixels a side it was trained on; 0 for the data set's own
    provenance: str  # a sentence on how it was trained

    @property
    def name(self) -> str:
        """Model and data set."""
        return f"{self.model}-{self.dataset}"

    def accuracy(self, state: dict[str, NDArray], images: Examples, device: str) -> float:
        """Return the share of images that this model gets right with the weights of ``state``."""
        model = build_model(RunConfig(model=self.model, dataset=self.dataset))
        model.load_state_dict({name: as_tensor(x.copy()) for name, x in state.items()})
        model.to(check_device(device))
        return evaluate(model, images, image_size=self.image_size)["accuracy"]


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
            FedszError: see `train_model` and `read_model`.
        """
        key, weights = (model, dataset), self.options.weights
        if key not in self._trained and weights:
            self._trained[key] = read_model(weights, model, dataset)
        elif key not in self._trained:
            run = self.config.run_config(model, dataset)
            self._trained[key] = train_model(run, self.options.folder, self.on_step)
        return self._trained[key]

    def trained_models(self) -> list[TrainedModel]:
        """Return all models, trained on the first data set."""
        return [self.trained(model, self.config.first_dataset) for model in self.config.model_names]

    def test_images(self, dataset: str) -> Examples:
        """Return the images that models are tested on.

        Raises:
            DataError: the data set is not there.
        """
        data_dir, samples = self.config.data_dir, self.config.test_samples or None
        folder = Path(data_dir) if data_dir else None
        return datasets.load_test(dataset, data_dir=folder, samples=samples)

    def lossy(self, trained: TrainedModel) -> dict[str, NDArray]:
        """Return those of a trained model's tensors that may be lossy."""
        rule, threshold = self.config.rule, self.config.threshold
        state = trained.state.items()
        return {name: x for name, x in state if is_lossy(name, x, rule=rule, threshold=threshold)}

    def settings(self, codec: str, bound: float) -> Settings:
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

    def _measured(self, state: dict[str, NDArray], settings: Settings) -> UpdateCost:
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
        return UpdateCost(report.raw_bytes, report.nbytes, *seconds)

    def runs(
        self, models: Sequence[str], datasets: Sequence[str], codecs: Sequence[str],
        bounds: Sequence[float],
    ) -> list[Run]:  # fmt: skip
        """Return runs of these codecs: of the file that was given, else made here.

        They do with updates what the options say and nothing else does: runs of other policies,
        updates, downlinks, lossless codecs or rules are none of them. Failed ones are.

        Raises:
            ConfigError: the file that was given has no such runs.
            FedszError: every run failed.
        """
        file = self.options.sweep
        names = RunConfig.__dataclass_fields__.keys() - PLURAL.keys()
        options: dict[str, Any] = {name: getattr(self.config, name) for name in names}
        options |= {"models": list(models), "datasets": list(datasets), "codecs": list(codecs)}
        options["error_bounds"] = [f"{bound:g}" for bound in bounds]
        options["results"] = str(self.options.folder / "sweep.parquet")
        asked = SweepConfig.of(options)
        held = runs_of(read(file, SWEEP).to_pylist()) if file else _run(asked, self.on_step)
        wanted = {_kind_asked(run) for run in asked.runs}
        runs = [run for run in held if _kind(run) in wanted]
        if not runs:
            schemes = ", ".join(dict.fromkeys(str(Scheme.of_run(run)) for run in asked.runs))
            of = f"{', '.join(models)} on {', '.join(datasets)}"
            how = f"lossless {self.config.lossless}, tensors {self.config.rule}"
            raise ConfigError(
                f"{file} has no run of {of} by {schemes} ({how}>{self.config.threshold})"
            )
        if all(run.error for run in runs):
            raise FedszError(f"every run failed: {runs[0].error}")
        if not any(round_.replies for run in runs for round_ in run.rounds):
            raise FedszError("no client of any run could train; --verbose says why")
        return runs


def _kind_asked(run: RunConfig) -> tuple[str, ...]:
    """Return what a run that is to be made compares, and what it does with updates."""
    tensors = f"{run.rule}>{run.threshold}" if run.codec != RAW else ""
    return run.task, run.model, run.dataset, str(Scheme.of_run(run)), run.lossless, tensors


def _kind(run: Run) -> tuple[str, ...]:
    """Return the same of a run that was made."""
    of = [str(run.conditions[name]) for name in ("task", "model", "dataset")]
    return (*of, str(run.way), run.lossless, "" if run.uncompressed else run.lossy)


def train_model(run: RunConfig, folder: Path, on_step: OnStep) -> TrainedModel:
    """Return the model that a run trains, from ``folder`` if the same run has left it there.

    Raises:
        FedszError: a client could not train.
        DataError: the data set is not there.
    """
    path = folder / f"{run.model}-{run.dataset}-{run_id(run)}.safetensors"
    if not path.is_file():
        rounds = f"{run.rounds} rounds of {run.clients} clients"
        on_step(f"training {run.model} on {run.dataset}: {rounds}")
        _train(run, path, on_step)
    images = f"{run.samples} images" if run.samples else "all images"
    side = f"{run.image_size} pixels a side" if run.image_size else "images as they are"
    provenance = (
        f"{run.model}: {run.dataset}, {images} in {run.clients} shares,"
        f" {run.rounds} rounds of {run.epochs} epochs, batch {run.batch_size},"
        f" learning rate {run.learning_rate}, momentum {run.momentum}, {side},"
        f" seed {run.seed}, from {run.initial or 'random weights'}, uncompressed"
    )
    state = _load(path, run.model, run.dataset)
    return TrainedModel(run.model, run.dataset, state, run.image_size, provenance)


def read_model(folder: Path, model: str, dataset: str) -> TrainedModel:
    """Return a model from a folder of weights, with what the file beside it says of it.

    Raises:
        ConfigError: the folder lacks the model, or its file holds another one.
    """
    names = (f"{model}-{dataset}", f"{model}.weights", model)
    paths = [folder / f"{name}.safetensors" for name in names]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        may_hold = ", ".join(path.name for path in paths)
        raise ConfigError(f"no weights of {model} in {folder}; it may hold {may_hold}")
    facts = _facts(path) or _facts(paths[-1])
    if facts.get("dataset", dataset) != dataset:
        raise ConfigError(f"{path} is of {facts['dataset']}, not {dataset}")
    provenance = f"{path.name}: {_listed(facts) or 'nothing says how it was trained'}"
    # benchmarks/arrays.py writes "side".
    side = int(facts.get("image_size", facts.get("side", 0)))
    return TrainedModel(model, dataset, _load(path, model, dataset), side, provenance)


def _train(run: RunConfig, path: Path, on_step: OnStep) -> None:
    """Train a model and write its weights."""
    rounds = []

    def on_round(done: RoundRecord) -> None:
        rounds.append(done)
        what = f"{run.model} on {run.dataset}: round {done.round} of {run.rounds}"
        on_step(f"{what}, accuracy {done.accuracy:.4f}, {done.seconds:.0f} s")

    model = federate(grid_of(run), run, prepare(run), on_round)
    for failure in (failure for done in rounds for failure in done.failures):
        raise FedszError(f"{run.model} could not be trained on {run.dataset}: {failure.reason}")
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(as_arrays(model.state_dict()), path)


def _load(path: Path, model: str, dataset: str) -> dict[str, NDArray]:
    """Return a file's tensors in its order and dtypes; refuse those of another model."""
    try:
        start_from(build_model(RunConfig(model=model, dataset=dataset)), path)
    except ConfigError as err:
        raise ConfigError(f"{path} is no safetensors file: {err.__cause__}") from err
    except ModelMismatch as err:
        raise ConfigError(f"{path} is no {model} for {dataset}: {err}") from err
    return dict(load_file(path))


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.with_suffix(".json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _listed(facts: dict[str, Any]) -> str:
    shown = {n: f"({_listed(x)})" if isinstance(x, dict) else x for n, x in facts.items()}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())


def _run(config: SweepConfig, on_step: OnStep) -> list[Run]:
    """Run what a sweep lacks, and return its runs."""
    with Results(Path(config.results), SWEEP) as results:
        sweep = Sweep(config, results)
        sweep.forget_failures()
        with closing(sweep.run()) as steps:
            for step in steps:
                outcome = step.error or f"accuracy {step.rounds[-1].accuracy:.4f}"
                on_step(f"{step.run.model} {step.run.dataset} {step.run.codec}: {outcome}")
        wanted = {run_id(run) for run in config.runs}
        return runs_of(row for row in results.rows.to_pylist() if row["run"] in wanted)
