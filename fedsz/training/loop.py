"""One client's work in a round: SGD over its own examples, and testing what came of it.

Images are uint8 and become float32 a batch at a time, (x / 255 - 0.5) / 0.25 for every data set:
a client cannot know the mean of images it does not hold, and all must agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from fedsz.errors import ConfigError, DataError, first_line
from fedsz.training.examples import Examples
from fedsz.training.options import RunConfig

TEST_BATCH: Final = 256  # examples in a forward pass of a test: it decides memory, not results


class TorchTask:
    """What the tasks of fedsz do alike: SGD, and a test of what came of it.

    Args:
        config: the run's options.
        what: the task is on, for errors.
        have: by name of an option, the values that it may have.

    Raises:
        ConfigError: an option has another value, or torch has no such device here.
    """

    def __init__(self, config: RunConfig, what: str = "", **have: Sequence[str]) -> None:
        for name, values in have.items():
            if (given := getattr(config, name)) not in values:
                raise ConfigError(f"no {name} {given!r} for {what}; have {', '.join(values)}")
        self._config, self._device = config, check_device(config.device)

    def train(self, model: nn.Module, share: Examples) -> dict[str, float]:
        """Train as the run's options say; the seed is that of torch's global generator."""
        return train(model, share, self._config, torch.initial_seed() % 2**32)

    def evaluate(self, model: nn.Module, test: Examples) -> dict[str, float]:
        """Return what `evaluate` measures: the mean loss and the accuracy."""
        return evaluate(model, test, image_size=self._config.image_size)


def train(model: nn.Module, data: Examples, config: RunConfig, seed: int) -> dict[str, float]:
    """Train ``model`` in place by SGD, on the device it is on.

    Args:
        model: maps a batch of inputs to logits [N, classes] or [N, T, classes]; images come as
            float32 [N, C, H, W].
        data: what it learns. The loss is the cross-entropy.
        config: has the epochs, learning rate, momentum, batch and image size. Momentum starts from
            zero, since a client keeps no state between rounds. An epoch is divided evenly, so that
            its last step is not much shorter; a step has 2 examples or more if there are as many.
        seed: decides the order of examples and what dropout drops. On the CPU the same call on the
            same model gives the same weights, unless another thread draws from torch's global
            generator meanwhile.

    Returns:
        "loss", its mean in the last epoch, NaN if training diverged; and "examples", how many.

    Raises:
        DataError: ``data`` is empty.
    """
    if not len(data):
        raise DataError("no examples to train on")

    device = next(model.parameters()).device
    # SGD as in torch.optim, which would import torch's compiler: 30 MB that small devices lack.
    parameters = [p for p in model.parameters() if p.requires_grad]
    velocities = [torch.zeros_like(p) for p in parameters]
    order = torch.Generator().manual_seed(seed)
    model.train()
    if len(data) == 1:  # BatchNorm keeps the statistics it came with: one image has none
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                layer.eval()
    # Dropout draws from the global generator of the model's device: seeded, then put back.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for _ in range(config.epochs):
            loss_sum = 0.0
            for rows in _batches(torch.randperm(len(data), generator=order), config.batch_size):
                model.zero_grad()
                outputs = model(_inputs(data.x[rows], device, config.image_size))
                loss = _loss(outputs, data.y[rows].to(device))
                loss.backward()  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    for parameter, velocity in zip(parameters, velocities, strict=True):
                        if parameter.grad is not None:
                            velocity.mul_(config.momentum).add_(parameter.grad)
                            parameter.add_(velocity, alpha=-config.learning_rate)
                loss_sum += loss.item() * len(rows)
    return {"loss": loss_sum / len(data), "examples": len(data)}


def evaluate(model: nn.Module, data: Examples, *, image_size: int = 0) -> dict[str, float]:
    """Test ``model``, on the device it is on; its weights and its mode stay as they are.

    ``image_size`` scales images to so many pixels a side, by bilinear interpolation; 0 leaves them
    as they are.

    Returns:
        "loss", the mean cross-entropy in nats; and "accuracy", the share whose logit is the
        largest, in [0, 1].

    Raises:
        DataError: ``data`` is empty.
    """
    if not len(data):
        raise DataError("no examples to test on")

    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    loss_sum, correct = 0.0, 0
    with torch.inference_mode():
        for rows in torch.split(torch.arange(len(data)), TEST_BATCH):
            outputs = model(_inputs(data.x[rows], device, image_size))
            target = data.y[rows].to(device)
            loss_sum += _loss(outputs, target, reduction="sum").item()
            correct += int((outputs.argmax(-1) == target).sum())
    model.train(was_training)
    answers = data.y.numel()
    return {"loss": loss_sum / answers, "accuracy": correct / answers}


def check_device(name: str) -> torch.device:
    """Return a device that is there.

    Raises:
        ConfigError: torch knows no such device, or has none here.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as err:
        raise ConfigError(f"no device {name!r} here: {first_line(err)}") from None
    return device


def _loss(outputs: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), target.flatten(), reduction=reduction)


def _inputs(x: Tensor, device: torch.device, size: int) -> Tensor:
    """Return a batch as a model takes it: images normalised, ``size`` pixels a side."""
    if x.dtype != torch.uint8:
        return x.to(device)
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
