"""How big a model is, how much of it may be lossy, and what a forward pass costs: Table III."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedsz.core.partition import check_rule, is_lossy
from fedsz.training import models

CHANNELS: Final = 3


class Complexity(msgspec.Struct, frozen=True):
    """The size of a model and the price of one image."""

    parameters: int  # numbers that training changes
    raw_bytes: int  # of the whole state_dict, which has the buffers of BatchNorm too
    lossy_bytes: int  # of the tensors that may be lossy
    # Of one forward pass, convolutions and matrix products alone: a multiply-add is two.
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
    """Return the complexity of a model that tells ``classes`` of colour images apart.

    Flops are counted for images of ``side`` pixels a side; `alexnet` scales those below
    128 up to 128. ``threshold`` and ``rule`` say which tensors may be lossy, as in
    `fedsz.core.partition.is_lossy`.

    Raises:
        ConfigError: no such model or rule, or a threshold below 0.
    """
    network = _without_numbers(model, classes)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.eval()(torch.empty(1, CHANNELS, side, side, device="meta"))
    return Complexity(
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        raw_bytes=sum(x.nbytes for x in network.state_dict().values()),
        lossy_bytes=_lossy_bytes(network, threshold, rule),
        flops=int(counter.get_total_flops()),
    )


def lossy_shares(model: str, thresholds: Iterable[int], *, rule: str = "paper") -> dict[int, float]:
    """Return which share of a model's bytes may be lossy, for each threshold; see `complexity`.

    Raises:
        ConfigError: no such model or rule.
    """
    network = _without_numbers(model, 10)
    total = sum(x.nbytes for x in network.state_dict().values())
    return {at: _lossy_bytes(network, at, rule) / total for at in thresholds}


def _without_numbers(model: str, classes: int) -> nn.Module:
    """Return a network for colour images that has shapes alone: nothing needs computing."""
    with torch.device("meta"):
        return models.build(model, num_classes=classes, in_channels=CHANNELS)


def _lossy_bytes(network: nn.Module, threshold: int, rule: str) -> int:
    check_rule(rule, threshold)
    tensors = network.state_dict().items()
    state = {n: np.broadcast_to(np.zeros((), _dtype(x)), tuple(x.shape)) for n, x in tensors}
    lossy = (x for n, x in state.items() if is_lossy(n, x, rule=rule, threshold=threshold))
    return sum(x.nbytes for x in lossy)


def _dtype(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
