"""One client's work in a round: SGD over its own images, and testing what came of it.

Images are uint8 and become float32 a batch at a time, (x / 255 - 0.5) / 0.25 for every data set:
a client cannot know the mean of images it does not hold, and all must agree.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from fedsz.errors import ConfigError, DataError
from fedsz.training.datasets import Images


class TrainResult(NamedTuple):
    """What local training did."""

    loss: float  # mean cross-entropy (nats) per image in the last epoch; NaN if training diverged
    examples: int  # images trained on, each once an epoch
    seconds: float  # wall-clock time


class EvalResult(NamedTuple):
    """How good a model is."""

    loss: float  # mean cross-entropy (nats) per image
    accuracy: float  # share of images whose largest logit is the right one, in [0, 1]
    examples: int  # images it was tested on


def train(
    model: nn.Module,
    data: Images,
    *,
    epochs: int,
    lr: float,
    momentum: float,
    batch_size: int,
    seed: int,
    image_size: int = 0,
) -> TrainResult:
    """Train ``model`` in place by SGD, on the device it is on.

    Args:
        model: maps float32 [N, C, H, W] to logits [N, classes].
        data: uint8 images and their labels.
        epochs: passes over ``data``, at least 1.
        lr: step size, > 0.
        momentum: in [0, 1); it starts from zero, since a client keeps no state between rounds.
        batch_size: images per step, at least 1. An epoch is divided evenly, so that its last step
            is not much shorter; a step has 2 images or more if there are as many.
        seed: decides the order of images and what dropout drops. On the CPU the same call on the
            same model gives the same weights, unless another thread draws from torch's global
            generator meanwhile.
        image_size: scales images to this many pixels a side, by bilinear interpolation; 0 leaves
            them as they are.

    Raises:
        ConfigError: a number outside the ranges above.
        DataError: ``data`` is empty.
    """
    if epochs < 1 or batch_size < 1:
        raise ConfigError(
            f"epochs and batch_size must be at least 1, got {epochs} and {batch_size}"
        )
    if not (lr > 0 and 0 <= momentum < 1):
        raise ConfigError(f"need lr > 0 and momentum in [0, 1), got {lr} and {momentum}")
    if not len(data):
        raise DataError("no images to train on")

    start = time.perf_counter()
    device = next(model.parameters()).device
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    order = torch.Generator().manual_seed(seed)
    model.train()
    if len(data) == 1:  # BatchNorm keeps the statistics it came with: one image has none
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                layer.eval()
    # Dropout draws from the global generator of the model's device: seeded, then put back.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for _ in range(epochs):
            loss_sum = 0.0
            for rows in _batches(torch.randperm(len(data), generator=order), batch_size):
                optimizer.zero_grad()
                logits = model(_scaled(data.x[rows], device, image_size))
                loss = F.cross_entropy(logits, data.y[rows].to(device))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                loss_sum += loss.item() * len(rows)
    return TrainResult(loss_sum / len(data), len(data), time.perf_counter() - start)


def evaluate(
    model: nn.Module, data: Images, *, batch_size: int = 256, image_size: int = 0
) -> EvalResult:
    """Test ``model``, on the device it is on; its weights and its mode stay as they are.

    ``batch_size`` images in a forward pass decide memory, not results; the rest is as in `train`.

    Raises:
        ConfigError: ``batch_size`` is below 1.
        DataError: ``data`` is empty.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
    if not len(data):
        raise DataError("no images to test on")

    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    loss_sum, correct = 0.0, 0
    with torch.inference_mode():
        for rows in torch.split(torch.arange(len(data)), batch_size):
            logits = model(_scaled(data.x[rows], device, image_size))
            target = data.y[rows].to(device)
            loss_sum += F.cross_entropy(logits, target, reduction="sum").item()
            correct += int((logits.argmax(1) == target).sum())
    model.train(was_training)
    return EvalResult(loss_sum / len(data), correct / len(data), len(data))


def _scaled(x: Tensor, device: torch.device, size: int) -> Tensor:
    """Return a batch of images as a model takes them: normalised, ``size`` pixels a side."""
    normalised = (x.to(device, torch.float32) / 255 - 0.5) / 0.25
    if size in (0, x.shape[-1]):
        return normalised
    return F.interpolate(normalised, (size, size), mode="bilinear", antialias=True)


def _batches(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Split row numbers into steps of nearly equal length, about ``size`` and at least 2.

    Where the feature map is 1x1, BatchNorm normalises over the batch alone: torch refuses one
    image, and the few that a short last step would have make its gradients explode.
    """
    steps = min(math.ceil(len(order) / size), len(order) // 2)
    return torch.tensor_split(order, max(steps, 1))
