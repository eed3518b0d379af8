"""What a server says of the secure sums that it is to make."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedsz.errors import ConfigError
from fedsz.secagg.graph import Assumptions
from fedsz.secagg.identity import Verifier
from fedsz.secagg.planner import Learned
from fedsz.secagg.token_plan import MAX_BITS, MAX_WEIGHT, MIN_BITS

__all__ = ["SecureSum"]


@dataclass(frozen=True)
class SecureSum:
    """How a `FedSZGrid` adds up updates that it cannot read.

    Attributes:
        bits: of the ring, 2 to 32: so many for each parameter on the uplink.
        assumed: what a round withstands: who colludes, who drops out, whether keys are signed.
        verifier: checks signatures, if keys are signed.
        most_examples: from which on a client weighs no more, in the first round. Later it is twice
            the mean weight of the round before.
        stage_timeout: seconds that clients have for a message without a model.
        strategy_averages: whether the strategy is known to average. It is given the mean in place
            of each update: a median or Krum of these would look as if it was robust.
            `StreamingFedAvg` and `PrivateFedAvg` say of themselves that they average. For any
            other, such as Flower's FedAvg and FedAdam, you say so here.

    Raises:
        ConfigError: bits or most_examples are out of range.

    Examples:
        >>> from fedsz.flower import FedSZGrid, LocalGrid, SecureSum, make_client_app
        >>> nodes = [{"partition-id": i, "num-partitions": 8} for i in range(8)]
        >>> grid = FedSZGrid(LocalGrid(make_client_app(), nodes), secure=SecureSum(bits=16))
    """

    bits: int = 16
    assumed: Assumptions = field(default_factory=Assumptions)
    verifier: Verifier | None = None
    most_examples: int = 1024
    stage_timeout: float = 300.0
    strategy_averages: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not MIN_BITS <= self.bits <= MAX_BITS:
            what = f"a secure sum takes a whole number of bits from {MIN_BITS} to {MAX_BITS}"
            raise ConfigError(f"{what}, got {self.bits}")
        if not 1 <= self.most_examples <= MAX_WEIGHT:
            what = f"a client's largest weight lies in [1, {MAX_WEIGHT}]"
            raise ConfigError(f"{what}, got {self.most_examples}")

    def first_round(self) -> Learned:
        """Return what is known before the first round of a run."""
        return Learned(self.most_examples)
