"""One client's work in a round: SGD over its own images, and testing what came of it.

Images are uint8 and become float32 a batch at a time, (x / 255 - 0.5) / 0.25 for every data set:
a client cannot know the mean of images it does not hold, and all must agree.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from fedsz.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fedsz.training.datasets import Images


@dataclass(frozen=True)
class TrainResult:
    """What local training did.

    Attributes:
        loss: mean cross-entropy (nats) per image in the last epoch; NaN if training diverged.
        examples: images trained on, each once an epoch.
        seconds: wall-clock time.
    """

    loss: float
    examples: int
    seconds: float


@dataclass(frozen=True)
class EvalResult:
    """How good a model is.

    Attributes:
        loss: mean cross-entropy (nats) per image.
        accuracy: share of images whose largest logit is the right one, in [0, 1].
        examples: images it was tested on.
    """

    loss: float
    accuracy: float
    examples: int


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

    Returns:
        The last epoch's mean loss, the number of images and the time taken.

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
    device = _device(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    order = torch.Generator().manual_seed(seed)
    loss_sum = 0.0
    model.train()
    if len(data) == 1:
        _freeze_statistics(model)
    # Dropout draws from the global generator of the model's device: seeded, then put back.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for _ in range(epochs):
            loss_sum = 0.0
            for rows in _batches(torch.randperm(len(data), generator=order), batch_size):
                optimizer.zero_grad()
                x, target = _scaled(data.x[rows], device, image_size), data.y[rows].to(device)
                logits = model(x)
                loss = F.cross_entropy(logits, target)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                loss_sum += loss.item() * len(rows)
    return TrainResult(loss_sum / len(data), len(data), time.perf_counter() - start)


def evaluate(
    model: nn.Module, data: Images, *, batch_size: int = 256, image_size: int = 0
) -> EvalResult:
    """Test ``model``, on the device it is on; its weights and its mode stay as they are.

    Args:
        model: maps float32 [N, C, H, W] to logits [N, classes].
        data: uint8 images and their labels.
        batch_size: images per forward pass, at least 1; decides memory, not results.
        image_size: as in `train`.

    Raises:
        ConfigError: ``batch_size`` is below 1.
        DataError: ``data`` is empty.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
    if not len(data):
        raise DataError("no images to test on")

    device = _device(model)
    was_training = model.training
    model.eval()
    loss_sum, correct = 0.0, 0
    with torch.inference_mode():
        for rows in torch.split(torch.arange(len(data)), batch_size):
            x, target = _scaled(data.x[rows], device, image_size), data.y[rows].to(device)
            logits = model(x)
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


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _batches(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Split row numbers into steps of nearly equal length, about ``size`` and at least 2.

    Where the feature map is 1x1, BatchNorm normalises over the batch alone: torch refuses one
    image, and the few that a short last step would have make its gradients explode.
    """
    steps = min(math.ceil(len(order) / size), len(order) // 2)
    return torch.tensor_split(order, max(steps, 1))


def _freeze_statistics(model: nn.Module) -> None:
    """Let BatchNorm use the statistics it came with: one image, again and again, has none."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            layer.eval()
