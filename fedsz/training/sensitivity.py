"""What errors in a tensor do to the held-out loss: the costs of `fedsz.contrib.layers`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from fedsz.arrays import LOSSY_DTYPES, NDArray
from fedsz.errors import ConfigError
from fedsz.training.model_state import arrays_of, set_arrays
from fedsz.training.seeding import generator
from fedsz.training.task import LoadedTask

EXAMPLES: Final = 256


def measure(
    task: LoadedTask, model: Any, held_out: Any, levels: Mapping[str, float], *, seed: int = 0
) -> dict[str, float]:
    """Return how much the loss rises with the error of each tensor.

    Uniform noise, as a quantiser leaves it, is added to one tensor at a time and then taken off
    it, and the two losses are averaged: the gradient's share cancels, and the curvature's remains.
    The weights and the mode of ``model`` are bit for bit as they were afterwards.

    Args:
        task: says what the loss is.
        model: that the task has built.
        held_out: what the task tests it on: of it the first `EXAMPLES`, if it can tell its
            ``first``; a task's own data may have no such method, and is used as it is.
        levels: by name in the state_dict, the largest magnitude of its noise, in the tensor's unit.
        seed: decides the noise, together with the tensor's name.

    Returns:
        By name, the rise of the loss over the mean squared error of the
        tensor's elements; 0 where it fell. Left out are tensors whose noise is 0, not finite or
        lost in rounding, and those whose rise is not finite.

    Raises:
        ConfigError: a name that is no floating tensor of the model.
        DataError, TaskError: the task cannot test the model.
    """
    arrays = {name: x.copy() for name, x in arrays_of(model).items()}
    for name in levels:
        if name not in arrays or arrays[name].dtype not in LOSSY_DTYPES:
            raise ConfigError(f"{name!r} is no floating tensor of this model")
    sample = held_out.first(EXAMPLES) if hasattr(held_out, "first") else held_out

    def loss(name: str, changed: NDArray) -> float:
        set_arrays(model, {**arrays, name: changed})
        return task.evaluate(model, sample).loss

    before = task.evaluate(model, sample).loss
    measured = {}
    try:
        for name, level in levels.items():
            x = arrays[name]
            noise = _noise(x, level, seed ^ zlib.crc32(name.encode()))
            with np.errstate(all="ignore"):  # what is not finite says nothing
                changed = [(x + sign * noise).astype(x.dtype) for sign in (1, -1)]
                error = float(np.mean([(y.astype(float) - x.astype(float)) ** 2 for y in changed]))
            rise = sum(loss(name, y) for y in changed) / 2 - before
            slope = rise / error if 0 < error < math.inf else math.nan
            if math.isfinite(slope):
                measured[name] = max(slope, 0.0)
    finally:
        set_arrays(model, arrays)
    return measured


def _noise(like: NDArray, level: float, seed: int) -> NDArray:
    """Return uniform noise in [-level, level], the same on every device."""
    unit = generator(seed).uniform(-1, 1, like.shape)
    with np.errstate(all="ignore"):
        return (unit * level).astype(like.dtype)
