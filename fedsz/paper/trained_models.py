"""Trained weights: from files that are there, or trained here and kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fedsz.arrays import NDArray
from fedsz.errors import ConfigError, FedszError
from fedsz.experiments.environment import dataset_digest, environment, file_digest
from fedsz.paper.settings import PaperConfig, Sources
from fedsz.training.options import RunConfig

if TYPE_CHECKING:
    from fedsz.control.record import RoundRecord
    from fedsz.training.datasets import Images

OnStep = Callable[[str], None]

# What decides the weights.
SETTINGS: Final = (
    "model", "dataset", "samples", "partitioner", "alpha", "image_size", "seed", "rounds", "epochs",
    "batch_size", "learning_rate", "momentum", "clients", "initial",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A trained model.

    Attributes:
        model, dataset: which.
        state: its state_dict, as arrays.
        image_size: pixels a side it was trained on; 0 for the data set's own.
        how: a sentence on how it was trained.
        facts: the same for machines, as the file beside the weights has it.
    """

    model: str
    dataset: str
    state: dict[str, NDArray]
    image_size: int
    how: str
    facts: dict[str, Any]


def trained(
    config: PaperConfig, sources: Sources, model: str, dataset: str, on_step: OnStep
) -> Trained:
    """Return a model's trained weights.

    Those of `Sources.weights` if it is given; else those that a federation without compression
    has trained here, kept in the folder and taken from there as long as the settings are equal.

    Raises:
        ConfigError: the weights' folder lacks the model.
        FedszError: a client could not train.
        DataError: the data set is not there.
    """
    if sources.weights is not None:
        return _given(sources.weights, model, dataset)
    run = run_config(config, model, dataset)
    facts = {name: getattr(run, name) for name in SETTINGS}
    facts["initial_digest"] = file_digest(run.initial) if run.initial else ""
    facts["dataset_digest"] = dataset_digest(dataset, config.data_dir)
    path = sources.folder / f"{model}-{dataset}.safetensors"
    known = _facts(path)
    if any(known.get(name) != value for name, value in facts.items()) or not path.is_file():
        on_step(f"training {model} on {dataset}: {run.rounds} rounds of {run.clients} clients")
        known = _train(run, path, facts, on_step)
    accuracy = f"{100 * known['accuracy']:.2f} % on {known['test_samples']} test images"
    how = (
        f"{model}: {dataset}, {_images(run.samples)} in {run.clients} shares,"
        f" {run.rounds} rounds of {run.epochs} epochs, batch {run.batch_size},"
        f" learning rate {run.learning_rate}, momentum {run.momentum}, {_side(run.image_size)},"
        f" seed {run.seed}, from {run.initial or 'random weights'}, uncompressed: {accuracy}"
    )
    return Trained(model, dataset, _load(path), run.image_size, how, known)


def run_config(config: PaperConfig, model: str, dataset: str) -> RunConfig:
    """Return the uncompressed federation that trains a model."""
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(RunConfig)}
    chosen = {"model": model, "dataset": dataset, "codec": "raw", "lossless": "raw"}
    chosen["initial"] = config.initial.replace("{model}", model)  # as a sweep has it
    return RunConfig(**{**shared, **chosen, "min_clients": config.clients})


def test_images(config: PaperConfig, dataset: str) -> Images:
    """Return the images that models are judged by.

    Raises:
        DataError: the data set is not there.
    """
    from fedsz.training import datasets

    folder = Path(config.data_dir) if config.data_dir else None
    return datasets.load_test(dataset, data_dir=folder, samples=config.test_samples or None)


def accuracy(state: dict[str, NDArray], of: Trained, images: Images, device: str) -> float:
    """Return the share of images that a model with these weights gets right.

    Args:
        state: the weights, such as decoded ones.
        of: the model they belong to.
        images: as `test_images` returned them.
        device: where to compute.
    """
    from fedsz.arrays import as_tensor
    from fedsz.training.build import build_model, check_device
    from fedsz.training.loop import evaluate

    model = build_model(RunConfig(model=of.model, dataset=of.dataset))
    model.load_state_dict({name: as_tensor(x.copy()) for name, x in state.items()})
    result = evaluate(model.to(check_device(device)), images, image_size=of.image_size)
    return result.accuracy


def _train(run: RunConfig, path: Path, facts: dict[str, Any], on_step: OnStep) -> dict[str, Any]:
    """Train a model, write its file and the one beside it, and return what the latter says."""
    from safetensors.numpy import save_file

    from fedsz.arrays import as_arrays
    from fedsz.training.apps import make_client_app
    from fedsz.training.federation import federate, prepare
    from fedsz.transport.local_grid import LocalGrid

    where: dict[str, Any] = {
        "data-dir": run.data_dir,
        "device": run.device,
        "num-partitions": run.clients,
    }
    grid = LocalGrid(make_client_app(), [{"partition-id": i, **where} for i in range(run.clients)])
    problem = prepare(run)
    rounds = []

    def tell(done: RoundRecord) -> None:
        rounds.append(done)
        on_step(
            f"{run.model} on {run.dataset}: round {done.round} of {run.rounds},"
            f" accuracy {done.accuracy:.4f}, {done.seconds:.0f} s"
        )

    model = federate(grid, run, problem, tell)
    for done in rounds:
        for failure in done.failures:
            raise FedszError(f"{run.model} could not be trained on {run.dataset}: {failure.reason}")
    known = {
        **facts,
        "test_samples": len(problem.held_out),
        "accuracy": rounds[-1].accuracy,
        "loss": rounds[-1].loss,
        "train_seconds": sum(done.train_seconds for done in rounds),
        **environment(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(as_arrays(model.state_dict()), path)
    # Last, since it is what says that the weights are there.
    path.with_suffix(".json").write_text(json.dumps(known, indent=2) + "\n", "utf-8")
    return known


def _given(folder: Path, model: str, dataset: str) -> Trained:
    """Return a model from a folder of weights, with what the file beside it says of it."""
    tried = [folder / f"{model}-{dataset}.safetensors", folder / f"{model}.weights.safetensors"]
    tried.append(folder / f"{model}.safetensors")
    path = next((path for path in tried if path.is_file()), None)
    if path is None:
        raise ConfigError(
            f"no weights of {model} in {folder}; it may hold"
            f" {', '.join(path.name for path in tried)}"
        )
    facts = _facts(path) or _facts(folder / f"{model}.safetensors")
    if facts.get("dataset", dataset) != dataset:
        raise ConfigError(f"{path} is of {facts['dataset']}, not {dataset}")
    said = _sentence(facts) or "nothing says how it was trained"
    # benchmarks/arrays.py writes "side".
    side = facts.get("image_size", facts.get("side", 0))
    state = _load(path)
    _check(path, state, model, dataset)
    return Trained(model, dataset, state, int(side), f"{path.name}: {said}", facts)


def _load(path: Path) -> dict[str, NDArray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        loaded: dict[str, NDArray] = load_file(path)
    except (OSError, SafetensorError) as err:
        raise ConfigError(f"{path} is no safetensors file: {err}") from err
    return loaded


def _check(path: Path, state: dict[str, NDArray], model: str, dataset: str) -> None:
    """Refuse weights of another model."""
    from fedsz.training.build import build_model

    wanted = build_model(RunConfig(model=model, dataset=dataset)).state_dict()
    for name, tensor in wanted.items():
        have = state[name].shape if name in state else None
        if have != tuple(tensor.shape):
            raise ConfigError(
                f"{path} is no {model} for {dataset}: {name} is"
                f" {'absent' if have is None else have}, not {tuple(tensor.shape)}"
            )


def _facts(path: Path) -> dict[str, Any]:
    """Return what the file beside some weights says; nothing if there is none."""
    try:
        read = json.loads(path.with_suffix(".json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _sentence(facts: dict[str, Any]) -> str:
    """Return what a file says, for people."""
    return ", ".join(
        f"{name.replace('_', ' ')} ({_sentence(value)})"
        if isinstance(value, dict)
        else f"{name.replace('_', ' ')} {value}"
        for name, value in facts.items()
    )


def _images(samples: int) -> str:
    return f"{samples} images" if samples else "all images"


def _side(image_size: int) -> str:
    return f"{image_size} pixels a side" if image_size else "images as they are"
