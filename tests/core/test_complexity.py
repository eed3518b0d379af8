"""Sizes, shares and costs of the models, against numbers that are known elsewhere."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("benchmarks", reason="needs benchmarks")

from benchmarks.paper.model_complexity import complexity, lossy_shares

pytestmark = pytest.mark.repository


@pytest.mark.parametrize(
    ("model", "parameters", "multiply_adds"),
    # As torchvision's documentation of its weights states them; the latter in 10^9, at 224 pixels.
    [
        ("alexnet", 61_100_840, 0.71),
        ("mobilenetv2", 3_504_872, 0.30),
        ("resnet50", 25_557_032, 4.09),
    ],
)
def test_sizes_and_costs_are_those_of_the_published_models(
    model: str, parameters: int, multiply_adds: float
) -> None:
    found = complexity(model, classes=1000, side=224)

    assert found.parameters == parameters
    assert found.multiply_adds / 1e9 == pytest.approx(multiply_adds, abs=0.006)
    assert found.flops == 2 * found.multiply_adds


def test_a_convolution_costs_what_the_textbook_says() -> None:
    """cnn at 32 pixels: three 3x3 convolutions, halved in between, and one linear layer."""
    convolutions = 9 * (3 * 32 * 32**2 + 32 * 64 * 16**2 + 64 * 128 * 8**2)

    assert complexity("cnn", side=32).multiply_adds == convolutions + 128 * 4 * 4 * 10


def test_alexnet_sees_small_images_enlarged() -> None:
    small, enlarged = (complexity("alexnet", side=side).flops for side in (32, 128))

    assert small == enlarged


def test_ten_classes_and_1024_alone_give_the_papers_lossy_share() -> None:
    assert round(100 * complexity("alexnet").lossy_share, 2) == 99.98
    shares = lossy_shares("mobilenetv2", (0, 512, 1000, 1024, 2048))

    assert {at: round(100 * share, 2) for at, share in shares.items()} == {
        0: 97.74, 512: 97.42, 1000: 96.94, 1024: 96.94, 2048: 96.47,
    }  # fmt: skip
    assert round(100 * complexity("mobilenetv2", classes=1000).lossy_share, 2) == 98.01
