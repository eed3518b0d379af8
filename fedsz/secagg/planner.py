"""The plan of each round of secure sums, by what the sums of earlier rounds have told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from fedsz.arrays import Layout, NDArray
from fedsz.secagg.scales import scales_of
from fedsz.secagg.token_plan import MAX_WEIGHT, TokenPlan, layout_digest
from fedsz.secagg.tokens import Sum, TokenCodec

_WEIGHTS: Final = 2  # of a client's weight at most, over the mean of the round before


class Learned(msgspec.Struct):
    """What a run's rounds have told, in types that JSON has.

    Attributes:
        cap: the largest weight of a client, 1 to `MAX_WEIGHT`.
        done: rounds that counted.
        scales: by tensor; see `fedsz.secagg.scales`.
    """

    cap: int
    done: int = 0
    scales: dict[str, float] = {}

    def codec(self, model: Mapping[str, NDArray], clients: int, bits: int) -> TokenCodec:
        """Return the codec of the next round, with its plan.

        Args:
            model: that clients begin with.
            clients: that take part, at most.
            bits: of the ring, 2 to 32.

        Raises:
            ConfigError: the ring is too small for so many clients.
        """
        layout = Layout.of(model)
        plan = TokenPlan(
            layout=layout_digest(layout),
            clients=clients,
            bits=bits,
            cap=self.cap,
            scales=scales_of(model, self.scales),
        )
        return TokenCodec(plan, layout)

    def learn(self, found: Sum, clients: int) -> None:
        """Go by what the sum of a round has told, of so many clients."""
        before, mean = self.cap, found.weight / clients
        self.cap = min(max(math.ceil(_WEIGHTS * mean), 1), MAX_WEIGHT)
        self.scales = {name: x * before / self.cap for name, x in found.scales.items()}
        self.done += 1
