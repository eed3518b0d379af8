from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from fedsz.errors import ConfigError, DataError
from fedsz.training import loop as training
from fedsz.training import models
from fedsz.training.examples import Examples
from fedsz.training.options import RunConfig


def noise(n: int, *, size: int = 8, channels: int = 1) -> Examples:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, channels, size, size), dtype=torch.uint8, generator=rng)
    return Examples(x, torch.arange(n) % 10)


def train(model: nn.Module, data: Examples, seed: int = 0, **options: Any) -> dict[str, float]:
    return training.train(model, data, RunConfig(**{"batch_size": 32, **options}), seed)


def network(name: str = "cnn") -> nn.Module:
    return models.build(name, num_classes=10, in_channels=1)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", ["cnn", "mobilenetv2"])  # with dropout and without
def test_a_seed_decides_the_result(name: str) -> None:
    def trained(seed: int) -> torch.Tensor:
        model = network(name)
        train(model, noise(12), seed, batch_size=6)
        return weights(model)

    before = torch.random.get_rng_state()
    first = trained(1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, trained(1))
    assert not torch.equal(first, trained(2))


def test_one_step_is_sgd_on_normalised_images() -> None:
    data = noise(6)
    model, expected = network(), network()
    result = train(model, data, learning_rate=0.1)
    loss = nn.functional.cross_entropy(expected((data.x / 255 - 0.5) / 0.25), data.y)
    loss.backward()

    assert result["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for trained, start in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(trained, start - 0.1 * start.grad)


@pytest.mark.parametrize(("n", "batch_size"), [(1, 1), (1, 4), (2, 1), (3, 2), (5, 4)])
@pytest.mark.parametrize("name", ["cnn", "mobilenetv2"])
def test_any_number_of_images_in_any_batches(name: str, batch_size: int, n: int) -> None:
    # MobileNetV2 shrinks 8x8 to 1x1, where BatchNorm cannot take an image alone.
    model = network(name)
    start = weights(model)
    result = train(model, noise(n), batch_size=batch_size)

    assert result["examples"] == n
    assert math.isfinite(result["loss"])
    assert not torch.equal(weights(model), start)


@pytest.mark.parametrize(("n", "batch_size", "steps"), [(64, 32, 2), (65, 32, 3), (10, 99, 1)])
def test_an_epoch_shows_every_image_once_in_even_steps(n: int, batch_size: int, steps: int) -> None:
    shown: list[torch.Tensor] = []
    model = network()
    model.register_forward_pre_hook(lambda _, args: shown.append(args[0]))
    data = noise(n)
    train(model, data, batch_size=batch_size)

    assert len(shown) == steps
    assert max(map(len, shown)) - min(map(len, shown)) <= 1
    assert sorted(x.sum().item() for x in torch.cat(shown)) == pytest.approx(
        sorted(((x / 255 - 0.5) / 0.25).sum().item() for x in data.x), abs=1e-3
    )


def test_divergence_is_reported() -> None:
    assert math.isnan(train(network(), noise(32), learning_rate=1e6, epochs=9)["loss"])


def test_evaluate_changes_nothing_and_does_not_depend_on_the_batch_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, data = network("mobilenetv2"), noise(50)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.train()
    whole = training.evaluate(model, data)
    monkeypatch.setattr(training, "TEST_BATCH", 7)
    parts = training.evaluate(model, data)

    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert whole == pytest.approx(parts, rel=1e-5)


def test_evaluate_counts_right_answers() -> None:
    class Constant(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.eye(10)[3].repeat(len(x), 1)

    data = Examples(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([3, 3, 3, 0]))
    result = training.evaluate(Constant(1, 1), data)

    assert result["accuracy"] == 0.75
    assert result["loss"] == pytest.approx(math.log(math.e + 9) - 0.75)


def test_what_cannot_be_trained_or_tested_on() -> None:
    for rate in (0.0, math.nan):
        with pytest.raises(ConfigError, match="learning_rate must"):
            train(network(), noise(4), learning_rate=rate)
    with pytest.raises(DataError, match="no examples to train on"):
        train(network(), noise(0))
    with pytest.raises(DataError, match="no examples to test on"):
        training.evaluate(network(), noise(0))
