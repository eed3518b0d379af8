"""Errors in a tensor against the held-out loss, on models whose curvature is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedsz.errors import ConfigError, DataError, TaskError
from fedsz.training import models, sensitivity
from fedsz.training.examples import Examples
from fedsz.training.images import ImagesTask
from fedsz.training.options import RunConfig
from fedsz.training.task import LoadedTask


def measure(model: nn.Module, data: Examples, levels: dict[str, float], **options: Any) -> Any:
    task = LoadedTask("images", ImagesTask(RunConfig()), 0)
    return sensitivity.measure(task, model, data, levels, **options)


def bits(model: nn.Module) -> dict[str, bytes]:
    return {
        name: tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in model.state_dict().items()
    }


class Linear(nn.Module):
    """Logits that are linear in one weight, so that the loss's curvature is known."""

    def __init__(self, classes: int = 3, pixels: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes, pixels))
        self.idle = nn.Parameter(torch.ones(5))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).to(self.weight.dtype) @ self.weight.T


def grey(n: int = 64, size: int = 4) -> Examples:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, 1, size, size), dtype=torch.uint8, generator=rng)
    return Examples(x, torch.arange(n) % 3)


@pytest.mark.parametrize("mode", [True, False])
def test_it_is_repeatable_and_leaves_the_model_alone(mode: bool) -> None:
    model = models.build("cnn", num_classes=10, in_channels=1).train(mode)
    levels = {"classifier.weight": 0.1, "features.4.weight": 0.1}
    before = bits(model)
    found = measure(model, grey(size=8), levels)

    assert bits(model) == before
    assert model.training == mode
    assert found.keys() == levels.keys()
    assert all(0 <= value < math.inf for value in found.values())
    assert (
        measure(model, grey(size=8), levels)
        == found
        != measure(model, grey(size=8), levels, seed=1)
    )
    assert measure(model, grey(size=8), dict([levels.popitem()])).items() <= found.items()


def test_it_is_half_the_trace_of_the_hessian() -> None:
    """At equal logits the Hessian of cross-entropy is (I/k - 1/k^2) times the images' squares."""
    model, data = Linear(), grey()
    x = (data.x.double() / 255 - 0.5) / 0.25
    trace = 3 * (1 / 3 - 1 / 9) * x.flatten(1).square().sum(1).mean().item()
    found = [measure(model, data, {"weight": 0.05}, seed=seed)["weight"] for seed in range(40)]

    assert sum(found) / len(found) == pytest.approx(trace / 2, rel=0.1)


def test_what_does_not_matter_costs_nothing() -> None:
    assert measure(Linear(), grey(), {"idle": 1.0}) == {"idle": 0.0}


def test_a_gradient_does_not_count() -> None:
    """Far from the optimum one sign gains what the other loses; the curvature is left."""
    model = Linear()
    with torch.no_grad():
        model.weight.add_(torch.randn(3, 16, generator=torch.Generator().manual_seed(1)))
    found = [measure(model, grey(), {"weight": 0.01}, seed=seed)["weight"] for seed in range(20)]
    assert max(found) < 20 * (sum(found) / len(found))
    assert min(found) >= 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = Linear().to(dtype)
    before = bits(model)
    found = measure(model, grey(), {"weight": 0.5})["weight"]
    assert bits(model) == before
    # bfloat16 has too few digits for the loss to tell.
    assert found > 0 or dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("value", "level"),
    [(1.0, level) for level in (0.0, math.nan, math.inf, 1e-30)]
    + [(math.nan, 0.1), (math.inf, 0.1)],
)
def test_noise_that_is_none_and_a_diverged_model_say_nothing(value: float, level: float) -> None:
    model = Linear()
    with torch.no_grad():
        model.weight.fill_(value)
    before = bits(model)
    assert measure(model, grey(), {"weight": level}) == {}
    assert bits(model) == before


def test_the_weights_come_back_when_the_model_fails() -> None:
    class Failing(Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("out of memory")
            return super().forward(x)

    model = Failing()
    before = bits(model)
    with pytest.raises(TaskError, match="evaluate failed: RuntimeError: out of memory"):
        measure(model, grey(), {"weight": 0.1})
    assert bits(model) == before


def test_wrong_questions_are_refused() -> None:
    for name in ("weights", "steps"):
        with pytest.raises(ConfigError, match="no floating tensor"):
            measure(Linear(), grey(), {name: 0.1})
    with pytest.raises(DataError):
        measure(Linear(), grey(0), {"weight": 0.1})
