"""The networks: a small one, and the three of the paper.

`alexnet`, `mobilenetv2` and `resnet50` are written after their papers, with the names, shapes and
order that torchvision gives their state_dicts, so that its checkpoints load. They take colour:
a gray image is shown to all three channels.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from fedsz.errors import ConfigError

# AlexNet's strides need 63 pixels to leave one; its last feature map, which the classifier wants
# at 6x6, is then 1x1 and every weight behind it is trained 36 times alike. At 128 pixels it is
# 3x3, for a third more time a step than at 64; 224, the paper's size, takes 2.5 times as long.
_ALEXNET_MIN_SIDE = 128


class Cnn(nn.Sequential):
    """Three convolutions of 3x3 and one linear layer: 113,962 parameters for colour, 10 classes.

    Takes any image of at least 4x4 pixels. GroupNorm (Wu & He, 2018) in place of BatchNorm: it
    keeps no running statistics, which a client's few steps would leave behind the weights, and
    which differ between clients whose classes differ (Hsieh et al., 2020).
    """

    def __init__(self, num_classes: int, in_channels: int) -> None:
        features = nn.Sequential(
            *_grouped(in_channels, 32), nn.MaxPool2d(2),
            *_grouped(32, 64), nn.MaxPool2d(2),
            *_grouped(64, 128),
        )  # fmt: skip
        super().__init__(
            OrderedDict(
                features=features,
                avgpool=nn.AdaptiveAvgPool2d(4),
                flatten=nn.Flatten(),
                classifier=nn.Linear(128 * 4 * 4, num_classes),
            )
        )


class AlexNet(nn.Module):
    """The single-column AlexNet of Krizhevsky (2014), arXiv:1404.5997."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(0.5), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(inplace=True),
            nn.Dropout(0.5), nn.Linear(4096, 4096), nn.ReLU(inplace=True),
            nn.Linear(4096, num_classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Map images [N, 1 or 3, H, W] to logits [N, num_classes]."""
        x = _colour(x)
        if min(x.shape[2:]) < _ALEXNET_MIN_SIDE:
            x = F.interpolate(x, 2 * (_ALEXNET_MIN_SIDE,), mode="bilinear", align_corners=False)
        logits: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return logits


class MobileNetV2(nn.Module):
    """MobileNetV2 at width 1 (Sandler et al., 2018, arXiv:1801.04381, Table 2)."""

    # expansion t, channels c, repeats n, stride s of the first repeat
    _ROWS = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
        (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    )  # fmt: skip

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = [_conv_bn_relu6(3, 32, 3, stride=2)]
        channels = 32
        for expansion, width, repeats, first_stride in self._ROWS:
            for stride in (first_stride, *[1] * (repeats - 1)):
                blocks.append(_InvertedResidual(channels, width, stride, expansion))
                channels = width
        blocks.append(_conv_bn_relu6(channels, 1280, 1))
        self.features = nn.Sequential(*blocks)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        """Map images [N, 1 or 3, H, W] to logits [N, num_classes]."""
        logits: Tensor = self.classifier(self.features(_colour(x)).mean((2, 3)))
        return logits


class ResNet50(nn.Module):
    """ResNet-50 (He et al., 2016, arXiv:1512.03385, Table 1).

    As in torchvision, a stage's stride sits in its first block's 3x3 convolution, not in the
    1x1 before it: the "v1.5" that its checkpoints are of.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(64, 64, blocks=3, stride=1)
        self.layer2 = _stage(256, 128, blocks=4, stride=2)
        self.layer3 = _stage(512, 256, blocks=6, stride=2)
        self.layer4 = _stage(1024, 512, blocks=3, stride=2)
        self.fc = nn.Linear(2048, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [N, 1 or 3, H, W] to logits [N, num_classes]."""
        x = F.relu(self.bn1(self.conv1(_colour(x))))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class _InvertedResidual(nn.Module):
    """Expand by 1x1, filter each channel by 3x3, project by 1x1 without activation."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        expand = [_conv_bn_relu6(inputs, hidden, 1)] if expansion != 1 else []
        self.conv = nn.Sequential(
            *expand,
            _conv_bn_relu6(hidden, hidden, 3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self._shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self._shortcut else y


class _Bottleneck(nn.Module):
    """1x1 down to ``width``, 3x3, 1x1 up to four times ``width``, around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


_COLOUR_MODELS = {"alexnet": AlexNet, "mobilenetv2": MobileNetV2, "resnet50": ResNet50}
MODELS = ("cnn", *_COLOUR_MODELS)


def build(name: str, *, num_classes: int, in_channels: int, seed: int = 0) -> nn.Module:
    """Build a model on the CPU, its weights drawn as torchvision draws them.

    It maps float32 images [N, in_channels, H, W] to logits [N, num_classes]. `cnn` takes images
    from 4x4 pixels on, the others any; `alexnet` scales small ones up to 128x128.

    Args:
        name: one of `MODELS`.
        num_classes: logits per image.
        in_channels: of the images; `cnn` is built for them, the others take 1 or 3.
        seed: decides the weights. Torch's global generator is neither read nor advanced.

    Raises:
        ConfigError: no such model, or one that cannot take such images.
    """
    require(name)
    if name in _COLOUR_MODELS and in_channels not in (1, 3):
        raise ConfigError(f"{name} takes images of 1 or 3 channels, got {in_channels}")
    with torch.random.fork_rng(devices=[]):  # layers draw, and what they draw is written over
        model = _COLOUR_MODELS.get(name, partial(Cnn, in_channels=in_channels))(num_classes)
    _initialise(model, torch.Generator().manual_seed(seed))
    return model


def require(name: str) -> None:
    """Raise `ConfigError` if there is no such model."""
    if name not in MODELS:
        raise ConfigError(f"no model {name!r}; have {', '.join(MODELS)}")


@torch.no_grad()
def _initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Fill every parameter and buffer: He (2015) for convolutions, torch's default otherwise.

    AlexNet has torch's default everywhere, as torchvision's has.
    """
    he = not isinstance(model, AlexNet)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and he:
            nn.init.kaiming_normal_(layer.weight, 0, "fan_out", "relu", generator=generator)
        elif isinstance(layer, nn.Linear) and isinstance(model, MobileNetV2):
            nn.init.normal_(layer.weight, std=0.01, generator=generator)
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
            if layer.bias is not None:
                reach = 1 / math.sqrt(layer.weight[0].numel())
                nn.init.uniform_(layer.bias, -reach, reach, generator=generator)
        elif isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            layer.reset_parameters()


def _colour(x: Tensor) -> Tensor:
    return x.expand(-1, 3, -1, -1)


def _grouped(inputs: int, outputs: int) -> Iterator[nn.Module]:
    yield nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    yield nn.GroupNorm(8, outputs)
    yield nn.ReLU(inplace=True)


def _conv_bn_relu6(
    inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


def _stage(inputs: int, width: int, *, blocks: int, stride: int) -> nn.Sequential:
    first = _Bottleneck(inputs, width, stride)
    return nn.Sequential(first, *(_Bottleneck(4 * width, width, 1) for _ in range(blocks - 1)))
