"""What a server says of the secure sums that it is to make."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedsz.secagg.graph import Assumptions
from fedsz.secagg.identity import Verifier
from fedsz.secagg.planner import DENSE, ROUNDS, Learned, Planner

__all__ = ["DENSE", "SecureSum"]


@dataclass(frozen=True)
class SecureSum:
    """How a `FedSZGrid` adds up updates that it cannot read.

    Attributes:
        bits: of each parameter on the uplink: 2 to 32, of the ring. Or fewer, such as 0.8: then a
            round sends a share of the coefficients in the basis that earlier broadcasts have shown,
            as `fedsz.secagg.planner` says. That needs a downlink with a bound, and clients that
            take part in each round: after others, one round goes without a basis.
        assumed: what a round withstands: who colludes, who drops out, whether keys are signed.
        verifier: checks signatures, if keys are signed.
        share: with 2 bits and more, of the parameters that each round sends, in turn; clients feed
            the others back.
        most_examples: from which on a client weighs no more, in the first round. Later it is twice
            the mean weight of the round before. With fewer than 2 bits all weigh alike at first.
        rounds: that the run has, about. With fewer than 2 bits, early rounds take half as many more
            bits, and late ones fewer; the mean of so many rounds is ``bits``. Of a few rounds it is
            more, for the first one sends all coefficients.
        stage_timeout: seconds that clients have for a message without a model.
        any_strategy: whether to take a strategy with an ``aggregate_train`` of its own that does
            not call FedAvg's. It is given the mean in place of each update, so it must average.

    Raises:
        ConfigError: bits, share or rounds are out of range.

    Examples:
        >>> from fedsz.flower import FedSZGrid, LocalGrid, SecureSum, make_client_app
        >>> nodes = [{"partition-id": i, "num-partitions": 8} for i in range(8)]
        >>> grid = FedSZGrid(LocalGrid(make_client_app(), nodes), secure=SecureSum(bits=16))
    """

    bits: float = 16
    assumed: Assumptions = field(default_factory=Assumptions)
    verifier: Verifier | None = None
    share: float = 1.0
    most_examples: int = 1024
    rounds: int = ROUNDS
    stage_timeout: float = 300.0
    any_strategy: bool = False

    def __post_init__(self) -> None:
        self.planner(Learned(self.most_examples, 0))

    @property
    def sparse(self) -> bool:
        """Whether a round sends a share of the coefficients of a basis."""
        return self.bits < DENSE

    def planner(self, known: Learned) -> Planner:
        """Return what plans a run's rounds by what earlier ones have told."""
        return Planner(self.bits, self.share, known, self.rounds)
