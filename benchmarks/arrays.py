"""The arrays that codecs are measured on: trained weights and one client's update of them.

    python -m benchmarks.arrays --data-dir DIR [--cache runs/arrays] [--models cnn alexnet]

A codec's ratio depends on what training has made of the numbers, so freshly drawn weights or
synthetic ones would mislead. Each model is trained on CIFAR-10 from random weights until it is past
the first steep steps, then one client of four trains for a round from there. In the cache lie, for
each model:

    <model>.weights.safetensors   the state_dict from which the client starts
    <model>.update.safetensors    the client's tensors minus those, floating-point ones only
    <model>.json                  how it was trained, and how well

What is there is not made again. All four take about half an hour on two cores. While others use
those, OMP_NUM_THREADS=1 is several times as fast as two threads that wait for each other.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

from fedsz.arrays import NDArray, as_arrays
from fedsz.training import datasets, models
from fedsz.training.examples import Examples
from fedsz.training.loop import evaluate, train
from fedsz.training.options import RunConfig

CACHE = Path(__file__).resolve().parents[1] / "runs" / "arrays"
DATASET = "cifar10"
BATCH = 64
MOMENTUM = 0.9
SEED = 0
CLIENTS = 4
CLIENT_SAMPLES = 2500  # 40 steps
TEST_SAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is trained before the client gets it.

    Attributes:
        side: images are scaled to so many pixels, bilinearly.
        samples: training images; the client's are among them.
        epochs: passes over them.
        lr: of SGD, here and for the client.
    """

    side: int
    samples: int
    epochs: int
    lr: float


RECIPES = {
    "cnn": Recipe(side=32, samples=50_000, epochs=10, lr=0.02),
    # From 223 pixels on its last feature map is 6x6, as the classifier wants. A smaller one is
    # repeated, gradients repeat behind it, and the update would compress too well.
    "alexnet": Recipe(side=224, samples=10_000, epochs=5, lr=0.02),
    # At 32 pixels the last feature maps of these two are 1x1: 3x3 filters learn their centre only.
    "resnet50": Recipe(side=64, samples=10_000, epochs=4, lr=0.02),
    "mobilenetv2": Recipe(side=64, samples=25_000, epochs=3, lr=0.05),
}


def load(
    model: str, kind: str, cache: Path = CACHE, *, data_dir: Path | None = None
) -> dict[str, NDArray]:
    """Return the arrays of a model by name; train it first if the cache does not have them.

    Args:
        model: one of `RECIPES`.
        kind: ``weights`` or ``update``.
        cache: the folder where they lie, or will.
        data_dir: as in `fedsz.training.datasets.open_shares`; only read for training.
    """
    facts(model, cache, data_dir=data_dir)
    return load_file(_arrays_path(model, kind, cache))


def facts(model: str, cache: Path = CACHE, *, data_dir: Path | None = None) -> dict[str, Any]:
    """Return how a model was trained; train it first if the cache does not have it."""
    path = cache / f"{model}.json"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        made = _make(model, cache, data_dir)
        # Last, since it is what says that the arrays are complete.
        path.write_text(json.dumps(made, indent=2) + "\n")
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def _make(name: str, cache: Path, data_dir: Path | None) -> dict[str, Any]:
    """Train a model and a client from there, write both files and return the facts."""
    recipe = RECIPES[name]
    division = datasets.Division(1, samples=recipe.samples, seed=SEED)
    everything = datasets.open_shares(DATASET, division, data_dir=data_dir)(0)
    # A subset is the front of one seeded order: the client's images are among those above.
    division = datasets.Division(CLIENTS, samples=CLIENTS * CLIENT_SAMPLES, seed=SEED)
    share = datasets.open_shares(DATASET, division, data_dir=data_dir)(0)
    test = datasets.load_test(DATASET, data_dir=data_dir, samples=TEST_SAMPLES)
    model = models.build(name, num_classes=10, in_channels=3, seed=SEED)
    # On a CPU this is up to twice as fast.
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    scaled = nn.Sequential(nn.Upsample((recipe.side, recipe.side), mode="bilinear"), model)

    def epoch(data: Examples, seed: int) -> dict[str, float]:
        config = RunConfig(learning_rate=recipe.lr, momentum=MOMENTUM, batch_size=BATCH)
        begin = time.perf_counter()
        done = train(scaled, data, config, seed)
        seconds = time.perf_counter() - begin
        result = {
            "loss": round(done["loss"], 4),
            "accuracy": round(evaluate(scaled, test)["accuracy"], 4),
            "seconds": round(seconds, 1),
        }
        print(f"{name}: {result}", file=sys.stderr, flush=True)
        return result

    epochs = [epoch(everything, seed) for seed in range(recipe.epochs)]
    # Some arrays share the memory of the weights, which the client is about to change.
    start = {key: x.copy() for key, x in as_arrays(model.state_dict()).items()}
    client = epoch(share, recipe.epochs)
    update = {
        key: x - start[key]
        for key, x in as_arrays(model.state_dict()).items()
        if np.issubdtype(x.dtype, np.floating)
    }
    assert all(np.isfinite(x).all() for x in update.values()), f"{name} diverged"
    save_file(start, _arrays_path(name, "weights", cache))
    save_file(update, _arrays_path(name, "update", cache))
    return {
        "model": name,
        "dataset": DATASET,
        **asdict(recipe),
        "batch": BATCH,
        "momentum": MOMENTUM,
        "seed": SEED,
        "test_samples": len(test),
        "trained": {**epochs[-1], "seconds": round(sum(e["seconds"] for e in epochs), 1)},
        "first_epoch": epochs[0],
        "client": {"samples": len(share), "epochs": 1, **client},
    }


def _arrays_path(model: str, kind: str, cache: Path) -> Path:
    return cache / f"{model}.{kind}.safetensors"


def main() -> None:
    """Fill the cache and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=CACHE, help="where the arrays are kept")
    parser.add_argument("--data-dir", type=Path, help="holds cifar10/; default: from the hub")
    parser.add_argument("--models", nargs="+", choices=RECIPES, default=list(RECIPES))
    arguments = parser.parse_args()
    for name in arguments.models:
        made = facts(name, arguments.cache, data_dir=arguments.data_dir)
        trained, client = made["trained"], made["client"]
        print(
            f"{name}: {made['dataset']}, {made['samples']} images at {made['side']} px,"
            f" {made['epochs']} epochs, batch {made['batch']}, learning rate {made['lr']}:"
            f" loss {trained['loss']}, test accuracy {trained['accuracy']},"
            f" {trained['seconds']} s;"
            f" client, {client['samples']} images, {client['epochs']} epoch:"
            f" loss {client['loss']}, test accuracy {client['accuracy']}, {client['seconds']} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
