"""The networks: torchvision's three, to the names and the spread of their weights, and `cnn`."""

from __future__ import annotations

import zlib
from functools import cache

import pytest
import torch
from torch import nn

from fedsz.errors import ConfigError
from fedsz.training import models
from fedsz.training.models import MODELS

# Of torchvision 0.29.1, for ten classes: parameters, and the CRC-32 of names and shapes in order.
TORCHVISIONS = {
    "alexnet": (57_044_810, 3558401357),
    "mobilenetv2": (2_236_682, 2565759062),
    "resnet50": (23_528_522, 4095256281),
}


@cache
def built(name: str) -> nn.Module:
    """A network for ten classes of colour images, which nobody trains."""
    return models.build(name, num_classes=10, in_channels=3).eval()


@pytest.mark.parametrize("name", TORCHVISIONS)
def test_state_dict_is_torchvisions(name: str) -> None:
    model = built(name)
    lines = [f"{key} {tuple(value.shape)}" for key, value in model.state_dict().items()]

    found = sum(p.numel() for p in model.parameters()), zlib.crc32("\n".join(lines).encode())
    assert found == TORCHVISIONS[name], lines


@pytest.mark.parametrize(("in_channels", "count"), [(1, 113_386), (3, 113_962)])
def test_cnn_is_small_but_not_all_small_tensors(in_channels: int, count: int) -> None:
    model = models.build("cnn", num_classes=10, in_channels=in_channels)
    sizes = {key: p.numel() for key, p in model.named_parameters()}

    assert sum(sizes.values()) == count
    assert sum(size > 1024 and "weight" in key for key, size in sizes.items()) == 3


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 128, 128)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_takes_every_data_sets_images(name: str, shape: tuple[int, int, int]) -> None:
    gray = name == "cnn" and shape[0] == 1
    model = models.build(name, num_classes=10, in_channels=1).eval() if gray else built(name)
    images = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits = model(images)
        if not gray:  # it is seen as colour
            assert torch.equal(logits, model(images.expand(-1, 3, -1, -1)))

    assert logits.shape == (2, 10)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_decides_the_weights_and_nothing_else(name: str) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (
        models.build(name, num_classes=10, in_channels=3, seed=seed).state_dict()
        for seed in (5, 5, 6)
    )

    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    for key, value in first.items():
        assert value.isfinite().all()
        if value.dim() > 1:
            assert not torch.equal(value, other[key])


@pytest.mark.parametrize(
    ("name", "key", "std"),
    [
        # torch's default, U(±1/√n) for n inputs, has std 1/√(3n)
        ("alexnet", "features.3.weight", (3 * 64 * 25) ** -0.5),
        ("alexnet", "classifier.1.weight", (3 * 9216) ** -0.5),
        ("resnet50", "fc.weight", (3 * 2048) ** -0.5),
        # He's, √(2/n) for n outputs
        ("resnet50", "layer4.0.conv2.weight", (2 / (512 * 9)) ** 0.5),
        ("mobilenetv2", "features.2.conv.0.0.weight", (2 / 96) ** 0.5),
        ("mobilenetv2", "classifier.1.weight", 0.01),
    ],
)
def test_weights_are_drawn_as_torchvisions(name: str, key: str, std: float) -> None:
    weight = built(name).state_dict()[key]
    assert weight.std().item() == pytest.approx(std, rel=0.05)
    assert abs(weight.mean().item()) < 0.05 * std


def test_networks_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="no model 'vgg'; have cnn, alexnet, mobilenetv2, resn"):
        models.build("vgg", num_classes=10, in_channels=3)
    with pytest.raises(ConfigError, match="alexnet takes images of 1 or 3 channels, got 4"):
        models.build("alexnet", num_classes=10, in_channels=4)
