"""How big a model is, how much of it may be lossy, and what a forward pass costs.

Table III of the FedSZ paper, and the question that it answers by the way: which threshold Algorithm
1 has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fedsz.arrays import as_arrays
from fedsz.errors import ConfigError
from fedsz.training import models
from fedsz.update.partition import check_rule, is_lossy

if TYPE_CHECKING:
    from torch import nn

CHANNELS: Final = 3
SMALLEST: Final = 4  # pixels a side that every model takes


class Complexity(msgspec.Struct, frozen=True):
    """The size of a model and the price of one image.

    Attributes:
        model: one of `fedsz.training.models.MODELS`.
        classes: how many it tells apart.
        parameters: numbers that training changes.
        elements: of the whole state_dict, which has the buffers of BatchNorm too.
        raw_bytes: of the whole state_dict.
        lossy_bytes: of the tensors that may be lossy.
        side: pixels a side of the image that flops are counted for, as it is given to the model;
            `alexnet` scales those below 128 up to 128.
        flops: of one forward pass, convolutions and matrix products alone: a multiplication and
            an addition are two.
    """

    model: str
    classes: int
    parameters: int
    elements: int
    raw_bytes: int
    lossy_bytes: int
    side: int
    flops: int

    @property
    def lossy_share(self) -> float:
        """Bytes that may be lossy over all bytes, as Table III has them."""
        return self.lossy_bytes / self.raw_bytes

    @property
    def multiply_adds(self) -> int:
        """What many papers count and call FLOPs: a multiplication with its addition is one."""
        return self.flops // 2


def complexity(
    model: str, *, classes: int = 10, side: int = 32, threshold: int = 1024, rule: str = "paper"
) -> Complexity:
    """Return the complexity of a model for colour images.

    Args:
        model: one of `fedsz.training.models.MODELS`.
        classes: how many it tells apart, at least 1.
        side: pixels a side, at least 4.
        threshold: tensors of up to so many elements stay lossless.
        rule: which others stay lossless; see `fedsz.update.partition.is_lossy`.

    Raises:
        ConfigError: no such model or rule, or a number outside these ranges.
    """
    check_rule(rule, threshold)
    if side < SMALLEST:
        raise ConfigError(f"side must be at least {SMALLEST} pixels, got {side}")
    network = models.build(model, num_classes=classes, in_channels=CHANNELS)
    state = as_arrays(network.state_dict())
    return Complexity(
        model=model,
        classes=classes,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        elements=sum(x.size for x in state.values()),
        raw_bytes=sum(x.nbytes for x in state.values()),
        lossy_bytes=lossy_bytes(state, threshold=threshold, rule=rule),
        side=side,
        flops=forward_flops(network, side),
    )


def forward_flops(network: nn.Module, side: int) -> int:
    """Return the flops of one colour image of ``side`` pixels; the network loses its weights."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    # Shapes are all that counting needs: nothing is computed.
    network.to("meta").eval()
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        network(torch.empty(1, CHANNELS, side, side, device="meta"))
    return int(counter.get_total_flops())


def lossy_bytes(state: Mapping[str, Any], *, threshold: int, rule: str = "paper") -> int:
    """Return how many bytes of a state_dict of arrays may be lossy.

    Args:
        state: names to numpy arrays.
        threshold: tensors of up to so many elements stay lossless.
        rule: as `fedsz.update.partition.is_lossy` has it.
    """
    return sum(
        x.nbytes for name, x in state.items() if is_lossy(name, x, rule=rule, threshold=threshold)
    )


def lossy_shares(
    model: str, thresholds: Iterable[int], *, classes: int = 10, rule: str = "paper"
) -> dict[int, float]:
    """Return which share of a model's bytes may be lossy, for each threshold.

    Args:
        model: one of `fedsz.training.models.MODELS`.
        thresholds: numbers of elements.
        classes: how many classes it tells apart.
        rule: as `fedsz.update.partition.is_lossy` has it.

    Raises:
        ConfigError: no such model or rule.
    """
    network = models.build(model, num_classes=classes, in_channels=CHANNELS)
    state = as_arrays(network.state_dict())
    total = sum(x.nbytes for x in state.values())
    shares = {}
    for threshold in thresholds:
        check_rule(rule, threshold)
        shares[threshold] = lossy_bytes(state, threshold=threshold, rule=rule) / total
    return shares
