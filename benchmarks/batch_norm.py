"""Do statistics of batch normalisation fit a compressed average less than an exact one?

    python -m benchmarks.batch_norm --data-dir DIR [--seeds 3] [--rounds 5] [--samples 1200]

In each round of a run by default, clients' models are averaged as they arrive and as they were
trained. Both averages start from the same model and have seen the same images: what differs is
what compression did in that round. Both are tested with the statistics that clients sent, and with
statistics taken anew: the mean over training images, by the averaged weights.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fedsz.control.policy import AUTO
from fedsz.experiments.sweep_worker import grid_of
from fedsz.report.runs import Spread
from fedsz.training.examples import Examples
from fedsz.training.federation import federate, prepare
from fedsz.training.images import ImagesTask
from fedsz.training.options import RunConfig

ANEW = 192  # images of each client that statistics are taken anew from
BATCH = 64


class Judged(NamedTuple):
    """The accuracies of a round's averages, as shares."""

    trained: float  # of what was trained,
    trained_anew: float  # and with statistics taken anew;
    arrived: float  # of what arrived of it
    arrived_anew: float


class Watched(ImagesTask):
    """A task of images that also tests what the average would be without compression.

    Attributes:
        rounds: what came of each so far, in this process.
    """

    rounds: ClassVar[list[Judged]] = []
    _trained: ClassVar[list[tuple[dict[str, Tensor], Examples]]] = []  # in this round

    def train(self, model: nn.Module, share: Examples) -> Mapping[str, Any]:
        """Train by SGD, and remember what came of it."""
        found = super().train(model, share)
        state = {name: x.clone() for name, x in model.state_dict().items()}
        self._trained.append((state, share.first(ANEW)))
        return found

    def evaluate(self, model: nn.Module, test: Examples) -> Mapping[str, Any]:
        """Test the average that arrived, and beside it that of what was trained."""
        found = super().evaluate(model, test)
        if self._trained:
            states, shares = zip(*self._trained, strict=True)
            arrived = {name: x.clone() for name, x in model.state_dict().items()}
            trained = {name: _mean([state[name] for state in states]) for name in arrived}
            seen = torch.cat([share.x for share in shares])
            accuracies = []
            for state in (trained, arrived):
                model.load_state_dict(state)
                accuracies.append(super().evaluate(model, test)["accuracy"])
                _take_statistics(model, seen)
                accuracies.append(super().evaluate(model, test)["accuracy"])
            model.load_state_dict(arrived)
            self.rounds.append(Judged(*accuracies))
            self._trained.clear()
        return found


def _mean(tensors: list[Tensor]) -> Tensor:
    return torch.stack([x.double() for x in tensors]).mean(0).to(tensors[0].dtype)


def _take_statistics(model: nn.Module, images: Tensor) -> None:
    """Set running statistics to their mean over batches of images, uint8 [N, C, H, W]."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    model.train()
    with torch.inference_mode():
        for batch in images.split(BATCH):
            model((batch.float() / 255 - 0.5) / 0.25)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


def main() -> None:
    """Run, and print a line a round and the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default="", help="folder of the data sets")
    parser.add_argument("--tuned-from", type=Path, default=Path("runs/mobilenetv2.safetensors"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=1200, help="training images, of 4 clients")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    from benchmarks.batch_norm import Watched as Loaded  # as the task is called, not __main__'s
    from benchmarks.defaults import pretrain

    pretrain(options.tuned_from, options.data_dir)
    print("| seed | round | trained | anew | arrived | anew |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for seed in range(options.seeds):
        config = RunConfig(
            task="benchmarks.batch_norm:Watched", model="mobilenetv2", dataset="fashion_mnist",
            initial=str(options.tuned_from), clients=4, samples=options.samples, test_samples=1000,
            rounds=options.rounds, learning_rate=0.02, seed=seed, data_dir=options.data_dir,
            policy=AUTO,
        )  # fmt: skip
        federate(grid_of(config), config, prepare(config))
        for number, judged in enumerate(Loaded.rounds[-options.rounds :], 1):
            cells = " | ".join(f"{100 * x:.1f} %" for x in judged)
            print(f"| {seed} | {number} | {cells} |", flush=True)
    print("mean", " ".join(f"{100 * fmean(x):.2f}" for x in zip(*Loaded.rounds, strict=True)))
    for name, lost in (
        ("statistics as sent", [one.arrived - one.trained for one in Loaded.rounds]),
        ("taken anew", [one.arrived_anew - one.trained_anew for one in Loaded.rounds]),
    ):
        spread = Spread.of(lost)
        assert spread
        print(f"arrived less trained, {name}: {100 * spread.mean:+.2f} ± {100 * spread.reach:.2f}")
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
