"""What errors in a tensor do to the held-out loss: the costs of `fedsz.control.layers`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedsz.errors import ConfigError
from fedsz.training.datasets import Images
from fedsz.training.loop import evaluate


def measure(
    model: nn.Module,
    data: Images,
    levels: Mapping[str, float],
    *,
    images: int = 256,
    seed: int = 0,
    image_size: int = 0,
) -> dict[str, float]:
    """Return how much the loss rises with the error of each tensor.

    Uniform noise, as a quantiser leaves it, is added to one tensor at a time and then taken off
    it, and the two losses are averaged: the gradient's share cancels, and the curvature's remains.
    The weights and the mode of ``model`` are bit for bit as they were afterwards.

    Args:
        model: maps float32 [N, C, H, W] to logits [N, classes].
        data: held-out images; the first of them are used, in one batch.
        levels: by name in the state_dict, the largest magnitude of its noise, in the tensor's unit.
        images: how many.
        seed: decides the noise, together with the tensor's name.
        image_size: as in `fedsz.training.loop.train`.

    Returns:
        By name, the rise of the mean cross-entropy, in nats, over the mean squared error of the
        tensor's elements; 0 where it fell. Left out are tensors whose noise is 0, not finite or
        lost in rounding, and those whose rise is not finite.

    Raises:
        ConfigError: a name that is no floating tensor of the model, or ``images`` is below 1.
        DataError: ``data`` is empty.
    """
    if images < 1:
        raise ConfigError(f"images must be at least 1, got {images}")
    tensors = model.state_dict()
    for name in levels:
        if name not in tensors or not tensors[name].is_floating_point():
            raise ConfigError(f"{name!r} is no floating tensor of this model")
    batch = Images(data.x[:images], data.y[:images])

    def loss() -> float:
        return evaluate(model, batch, batch_size=images, image_size=image_size).loss

    before = loss()
    measured = {}
    for name, level in levels.items():
        tensor = tensors[name]
        noise = _noise(tensor, level, seed ^ zlib.crc32(name.encode()))
        kept = tensor.clone()
        losses, errors = [], []
        try:
            for sign in (1, -1):
                tensor.copy_(kept + sign * noise)
                errors.append((tensor.double() - kept.double()).square().mean().item())
                losses.append(loss())
        finally:
            tensor.copy_(kept)
        error = sum(errors) / 2
        slope = (sum(losses) / 2 - before) / error if 0 < error < math.inf else math.nan
        if math.isfinite(slope):
            measured[name] = max(slope, 0.0)
    return measured


def _noise(like: Tensor, level: float, seed: int) -> Tensor:
    """Return uniform noise in [-level, level], the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(like.shape, generator=generator, dtype=torch.float32) * 2 - 1
    return (unit * level).to(like.device, like.dtype)
