"""Trained weights: read from a folder, or trained here and kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fedsz.arrays import NDArray, as_arrays, as_tensor
from fedsz.errors import ConfigError, FedszError, ModelMismatch
from fedsz.experiments.environment import dataset_digest, environment, file_digest
from fedsz.training.options import RunConfig

if TYPE_CHECKING:
    from fedsz.control.record import RoundRecord
    from fedsz.training.datasets import Images

OnStep = Callable[[str], None]

# What decides the weights.
OPTIONS: Final = (
    "model", "dataset", "samples", "partitioner", "alpha", "image_size", "seed", "rounds", "epochs",
    "batch_size", "learning_rate", "momentum", "clients", "initial",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
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

    def accuracy(self, state: dict[str, NDArray], images: Images, device: str) -> float:
        """Return the share of images that this model gets right with the weights of ``state``."""
        from fedsz.training.build import build_model, check_device
        from fedsz.training.loop import evaluate

        model = build_model(RunConfig(model=self.model, dataset=self.dataset))
        model.load_state_dict({name: as_tensor(x.copy()) for name, x in state.items()})
        model.to(check_device(device))
        return evaluate(model, images, image_size=self.image_size).accuracy


def train(run: RunConfig, folder: Path, on_step: OnStep) -> TrainedModel:
    """Return the model that a run trains, from ``folder`` if the same run has left it there.

    Raises:
        FedszError: a client could not train.
        DataError: the data set is not there.
    """
    asked = {name: getattr(run, name) for name in OPTIONS}
    asked["initial_digest"] = file_digest(run.initial) if run.initial else ""
    asked["dataset_digest"] = dataset_digest(run.dataset, run.data_dir)
    path = folder / f"{run.model}-{run.dataset}.safetensors"
    facts = _facts(path)
    if any(facts.get(name) != value for name, value in asked.items()) or not path.is_file():
        rounds = f"{run.rounds} rounds of {run.clients} clients"
        on_step(f"training {run.model} on {run.dataset}: {rounds}")
        facts = _train(run, path, asked, on_step)
    images = f"{run.samples} images" if run.samples else "all images"
    side = f"{run.image_size} pixels a side" if run.image_size else "images as they are"
    provenance = (
        f"{run.model}: {run.dataset}, {images} in {run.clients} shares,"
        f" {run.rounds} rounds of {run.epochs} epochs, batch {run.batch_size},"
        f" learning rate {run.learning_rate}, momentum {run.momentum}, {side},"
        f" seed {run.seed}, from {run.initial or 'random weights'}, uncompressed:"
        f" {100 * facts['accuracy']:.2f} % on {facts['test_samples']} test images"
    )
    state = _load(path, run.model, run.dataset)
    return TrainedModel(run.model, run.dataset, state, run.image_size, provenance)


def read(folder: Path, model: str, dataset: str) -> TrainedModel:
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


def _train(run: RunConfig, path: Path, asked: dict[str, Any], on_step: OnStep) -> dict[str, Any]:
    """Train a model, write its weights and the facts beside them, and return the facts."""
    from safetensors.numpy import save_file

    from fedsz.experiments.sweep_worker import grid_of
    from fedsz.training.federation import federate, prepare

    rounds = []

    def on_round(done: RoundRecord) -> None:
        rounds.append(done)
        what = f"{run.model} on {run.dataset}: round {done.round} of {run.rounds}"
        on_step(f"{what}, accuracy {done.accuracy:.4f}, {done.seconds:.0f} s")

    problem = prepare(run)
    model = federate(grid_of(run), run, problem, on_round)
    for failure in (failure for done in rounds for failure in done.failures):
        raise FedszError(f"{run.model} could not be trained on {run.dataset}: {failure.reason}")
    last, seconds = rounds[-1], sum(done.train_seconds for done in rounds)
    facts = {**asked, "test_samples": len(problem.held_out), "accuracy": last.accuracy}
    facts |= {"loss": last.loss, "train_seconds": seconds, **environment()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(as_arrays(model.state_dict()), path)
    # Last, since it is what says that the weights are there.
    path.with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    return facts


def _load(path: Path, model: str, dataset: str) -> dict[str, NDArray]:
    """Return a file's tensors in its order and dtypes; refuse those of another model."""
    from safetensors.numpy import load_file

    from fedsz.training.build import build_model, start_from

    try:
        start_from(build_model(RunConfig(model=model, dataset=dataset)), path)
    except ConfigError as err:
        raise ConfigError(f"{path} is no safetensors file: {err.__cause__}") from err
    except ModelMismatch as err:
        raise ConfigError(f"{path} is no {model} for {dataset}: {err}") from err
    state: dict[str, NDArray] = load_file(path)
    return state


def _facts(path: Path) -> dict[str, Any]:
    """Return what the file beside some weights says; nothing if there is none."""
    try:
        facts = json.loads(path.with_suffix(".json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _listed(facts: dict[str, Any]) -> str:
    shown = {n: f"({_listed(x)})" if isinstance(x, dict) else x for n, x in facts.items()}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())
