"""How big a model is, how much of it may be lossy, and what a forward pass costs: Table III."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedsz.arrays import NDArray, as_arrays
from fedsz.errors import ConfigError
from fedsz.training import models
from fedsz.update.partition import check_rule, is_lossy

CHANNELS: Final = 3
SMALLEST: Final = 4  # pixels a side that every model takes


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

    Flops are counted for images of ``side`` pixels a side, at least 4; `alexnet` scales those below
    128 up to 128. ``threshold`` and ``rule`` say which tensors may be lossy, as in
    `fedsz.update.partition.is_lossy`.

    Raises:
        ConfigError: no such model or rule, or a number outside these ranges.
    """
    check_rule(rule, threshold)
    if side < SMALLEST:
        raise ConfigError(f"side must be at least {SMALLEST} pixels, got {side}")
    network = models.build(model, num_classes=classes, in_channels=CHANNELS)
    state = as_arrays(network.state_dict())
    return Complexity(
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        raw_bytes=sum(x.nbytes for x in state.values()),
        lossy_bytes=_lossy_bytes(state, threshold, rule),
        flops=_forward_flops(network, side),
    )


def lossy_shares(model: str, thresholds: Iterable[int], *, rule: str = "paper") -> dict[int, float]:
    """Return which share of a model's bytes may be lossy, for each threshold; see `complexity`.

    Raises:
        ConfigError: no such model or rule.
    """
    state = as_arrays(models.build(model, num_classes=10, in_channels=CHANNELS).state_dict())
    total = sum(x.nbytes for x in state.values())
    return {at: _lossy_bytes(state, at, rule) / total for at in thresholds}


def _lossy_bytes(state: Mapping[str, NDArray], threshold: int, rule: str) -> int:
    check_rule(rule, threshold)
    lossy = (x for n, x in state.items() if is_lossy(n, x, rule=rule, threshold=threshold))
    return sum(x.nbytes for x in lossy)


def _forward_flops(network: nn.Module, side: int) -> int:
    """Return the flops of one colour image of ``side`` pixels; the network loses its weights."""
    # Shapes are all that counting needs: nothing is computed.
    network.to("meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.empty(1, CHANNELS, side, side, device="meta"))
    return int(counter.get_total_flops())
